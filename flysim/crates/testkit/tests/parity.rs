// SPDX-License-Identifier: Apache-2.0
//! The windowed CPU kernel equals the plain tick: every graph, thread count, instruction set and cut.

use flysim_core::cpu::CpuBackend;
use flysim_core::cpu::simd::Level;
use flysim_core::{Backend, Drive, Report};
use flysim_testkit::{backend_trace, random_brain, random_kicks, reference_trace};

const TICKS: u64 = 700;

#[test]
fn windows_equal_ticks_on_random_graphs() {
    for (seed, neurons, degree) in
        [(1, 1, 1), (2, 15, 4), (3, 17, 6), (4, 200, 12), (5, 333, 20), (6, 1000, 8)]
    {
        let brain = random_brain(seed, neurons, degree);
        let drive = Drive::parse("driven:80", seed, &brain).unwrap();
        let kicks = random_kicks(seed, neurons, TICKS, 60);
        let expected = reference_trace(&brain, &drive, &kicks, TICKS);
        assert!(expected.spikes.len() > 10, "a silent run proves nothing");
        for threads in [1, 2, 3, 7] {
            for level in Level::available() {
                for chunks in [&[TICKS][..], &[18], &[1], &[7, 18, 40, 5]] {
                    let mut cpu = CpuBackend::with_level(brain.clone(), threads, level).unwrap();
                    assert_eq!(cpu.threads(), threads);
                    let found = backend_trace(&mut cpu, &drive, &kicks, TICKS, chunks);
                    let what = format!("seed {seed}, {threads} threads, {level:?}, {chunks:?}");
                    found.assert_equals(&expected, &what);
                }
            }
        }
    }
}

#[test]
fn most_spikes_are_the_brains_own() {
    let brain = random_brain(4, 200, 12);
    let mut cpu = CpuBackend::new(brain.clone(), 2).unwrap();
    cpu.set_drive(&Drive::parse("driven:80", 1, &brain).unwrap()).unwrap();
    let mut report = Report::default();
    cpu.advance(TICKS, &mut report).unwrap();
    assert_eq!(report.group_spikes.iter().sum::<u64>(), report.spikes);
    assert_eq!(report.group_spikes[1], report.undriven_spikes);
    assert!(report.undriven_spikes > 100, "{report:?}");
}

#[test]
fn a_state_taken_at_any_tick_goes_on_as_if_never_cut() {
    let brain = random_brain(5, 150, 10);
    let drive = Drive::parse("driven:100", 5, &brain).unwrap();
    let expected = reference_trace(&brain, &drive, &[], 200);
    for cut in 60..80 {
        let mut first = CpuBackend::new(brain.clone(), 3).unwrap();
        first.set_drive(&drive).unwrap();
        let (mut report, mut hashes) = (Report::default(), Vec::new());
        first.advance_hashed(cut, &mut report, &mut hashes).unwrap();
        let state = first.export().unwrap();
        assert!(!state.pending.is_empty());
        let mut second = CpuBackend::new(brain.clone(), 2).unwrap();
        second.set_drive(&drive).unwrap();
        second.import(&state).unwrap();
        assert_eq!(second.export().unwrap(), state);
        second.advance_hashed(200 - cut, &mut report, &mut hashes).unwrap();
        assert_eq!(hashes, expected.hashes, "cut at {cut}");
        assert_eq!(second.export().unwrap().hash(), expected.end.hash());
    }
}

#[test]
fn the_plain_advance_runs_the_same_trajectory_as_the_hashed_one() {
    let brain = random_brain(6, 300, 10);
    let drive = Drive::parse("driven:60", 5, &brain).unwrap();
    let run = |hashed: bool| {
        let mut cpu = CpuBackend::new(brain.clone(), 2).unwrap();
        cpu.set_drive(&drive).unwrap();
        let mut report = Report::default();
        match hashed {
            true => cpu.advance_hashed(3001, &mut report, &mut Vec::new()).unwrap(),
            false => cpu.advance(3001, &mut report).unwrap(),
        }
        (report.spikes, cpu.export().unwrap().hash())
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn sleepers_wake_exactly() {
    // Long silences between kicks: blocks reach the fixed point, are skipped, and are woken again.
    let brain = random_brain(7, 120, 3);
    let kicks: Vec<_> = random_kicks(7, 120, 4, 8)
        .into_iter()
        .flat_map(|k| [0, 9_000, 18_001].map(|t| flysim_core::spikes::Kick { tick: k.tick + t, ..k }))
        .collect();
    let expected = reference_trace(&brain, &Drive::none(), &kicks, 19_000);
    let mut cpu = CpuBackend::new(brain, 2).unwrap();
    let found = backend_trace(&mut cpu, &Drive::none(), &kicks, 19_000, &[19_000]);
    found.assert_equals(&expected, "sleepers");
}

#[test]
fn kicks_and_drives_that_no_run_could_use_are_refused() {
    let brain = random_brain(1, 20, 3);
    let mut cpu = CpuBackend::new(brain.clone(), 1).unwrap();
    cpu.advance(10, &mut Report::default()).unwrap();
    let kick = |tick, neuron| [flysim_core::spikes::Kick { tick, neuron }];
    assert!(cpu.inject(&kick(10, 19)).is_ok());
    assert!(cpu.inject(&kick(9, 19)).is_err());
    assert!(cpu.inject(&kick(10, 20)).is_err());
    assert!(Drive::parse("driven:5,rest:0.5", 1, &brain).is_ok());
    for bad in ["driven", "driven:x", "driven:-1", "driven:10001", "nobody:5"] {
        assert!(Drive::parse(bad, 1, &brain).is_err(), "{bad}");
    }
}
