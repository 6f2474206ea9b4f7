// SPDX-License-Identifier: Apache-2.0
//! The logic of `flysim.cu` without a card: the same source, compiled as C++ by `emulator.cpp`, against the CPU
//! backend, hash by hash. What this cannot show is the card's memory model and code generation.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flysim_core::Drive;
use flysim_core::connectome::Connectome;
use flysim_core::cpu::CpuBackend;
use flysim_core::spikes::{Kick, Spike};
use flysim_core::state::State;
use flysim_testkit::{backend_trace, random_brain, random_kicks};

const SLOTS: usize = 36;

fn emulator(directory: &Path) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/emulator.cpp");
    let program = directory.join("emulator");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .unwrap_or_else(|e| panic!("{compiler}: {e}; this test needs a C++ compiler"));
    assert!(built.success());
    program
}

/// One launch: ticks, and the kicks that fall in them.
struct Launch {
    ticks: u64,
    kicks: Vec<Kick>,
    hashed: bool,
}

/// Launches of the given lengths in turn; those that hold a kick are cut to one window.
fn launches(ticks: u64, lengths: &[u64], kicks: &[Kick], hashed: bool) -> Vec<Launch> {
    let mut all = Vec::new();
    let mut at = 0;
    for length in lengths.iter().cycle() {
        if at == ticks {
            break;
        }
        let within =
            |end: u64| kicks.iter().copied().filter(|k| (at..end).contains(&k.tick)).collect::<Vec<_>>();
        let mut end = ticks.min(at + length);
        if !within(end).is_empty() {
            end = end.min(at + 18);
        }
        all.push(Launch { ticks: end - at, kicks: within(end), hashed });
        at = end;
    }
    all
}

fn bytes<T: Copy>(out: &mut Vec<u8>, items: &[T], encode: impl Fn(T) -> Vec<u8>) {
    items.iter().for_each(|&i| out.extend(encode(i)));
}

fn input(c: &Connectome, drive: &Drive, grid: (u64, u64), plan: &[Launch]) -> Vec<u8> {
    let (n, groups) = (c.neurons(), c.neurons().div_ceil(32));
    let stride = groups * 32;
    let mut out = Vec::new();
    let header =
        [n as u64, groups as u64, c.edges() as u64, 0, drive.seed, grid.0, grid.1, 16 * n as u64 + 1024];
    bytes(&mut out, &header, |x| x.to_le_bytes().into());
    bytes(&mut out, &vec![-52.0f64; stride], |x| x.to_le_bytes().into());
    bytes(&mut out, &vec![0.0f64; stride], |x| x.to_le_bytes().into());
    out.extend(vec![0u8; stride]);
    let (mut period, mut threshold, mut driven) = (vec![22u8; stride], vec![0u32; stride], vec![0u8; groups]);
    for &(neuron, below) in &drive.neurons {
        let i = neuron as usize;
        (period[i], threshold[i], driven[i / 32]) = (0, below, 1);
    }
    out.extend(period);
    bytes(&mut out, &threshold, |x| x.to_le_bytes().into());
    out.extend(vec![0u8; SLOTS * stride * 4 + groups * 64]);
    out.extend(driven);
    bytes(&mut out, c.offsets(), |x| (x as u32).to_le_bytes().into());
    bytes(&mut out, c.targets(), |x| x.to_le_bytes().into());
    bytes(&mut out, c.counts(), |x| x.to_le_bytes().into());
    let mut at = 0;
    for launch in plan {
        let head = [launch.ticks, launch.kicks.len() as u64, u64::from(launch.hashed)];
        bytes(&mut out, &head, |x| x.to_le_bytes().into());
        bytes(&mut out, &launch.kicks, |k| ((k.tick - at) << 32 | u64::from(k.neuron)).to_le_bytes().into());
        at += launch.ticks;
    }
    out.extend([0; 24]);
    out
}

struct Output {
    hashes: Vec<u64>,
    spikes: Vec<Spike>,
    v: Vec<f64>,
    g: Vec<f64>,
    refractory: Vec<u8>,
    /// (slot, neuron, contacts) of what is not zero.
    ring: Vec<(usize, usize, i32)>,
}

fn parse(raw: &[u8], neurons: usize, plan: &[Launch]) -> Output {
    let mut rest = raw;
    let mut take = |len: usize| {
        let (head, tail) = rest.split_at(len);
        rest = tail;
        head
    };
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap());
    let float = |b: &[u8]| f64::from_le_bytes(b.try_into().unwrap());
    let (mut hashes, mut spikes, mut at) = (Vec::new(), Vec::new(), 0);
    for launch in plan {
        let count = word(take(8)) as usize;
        let entry = |b: &[u8]| Spike { tick: at + (word(b) >> 32), neuron: word(b) as u32 };
        spikes.extend(take(count * 8).chunks(8).map(entry));
        hashes.extend(take(launch.ticks as usize * 8).chunks(8).map(word));
        at += launch.ticks;
    }
    spikes.sort_unstable();
    let stride = neurons.div_ceil(32) * 32;
    let v = take(stride * 8).chunks(8).take(neurons).map(float).collect();
    let g = take(stride * 8).chunks(8).take(neurons).map(float).collect();
    let refractory = take(stride)[..neurons].to_vec();
    let cells = take(SLOTS * stride * 4).chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()));
    let ring = cells.enumerate().filter(|(_, c)| *c != 0).map(|(i, c)| (i / stride, i % stride, c)).collect();
    assert!(rest.is_empty());
    Output { hashes, spikes, v, g, refractory, ring }
}

fn run(program: &Path, c: &Connectome, drive: &Drive, grid: (u64, u64), plan: &[Launch]) -> Output {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text = input(c, drive, grid, plan);
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&text).unwrap());
    let mut raw = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut raw).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    parse(&raw, c.neurons(), plan)
}

fn assert_ends_as(found: &Output, end: &State) {
    assert_eq!(found.v, end.v);
    assert_eq!(found.g, end.g);
    assert_eq!(found.refractory, end.refractory);
    let mut ring: Vec<_> = end
        .pending
        .iter()
        .map(|p| ((p.tick % SLOTS as u64) as usize, p.neuron as usize, p.contacts))
        .collect();
    ring.sort_unstable();
    assert_eq!(found.ring, ring, "and every other slot is empty");
}

/// Neurons, mean out-degree, ticks, (blocks, threads), lengths of launches.
type Case = (u32, u32, u64, (u64, u64), &'static [u64]);

#[test]
fn the_kernel_source_equals_the_cpu_backend() {
    let directory = tempfile::tempdir().unwrap();
    let program = emulator(directory.path());
    let cases: [Case; 6] = [
        (1, 1, 60, (1, 32), &[60]),
        (33, 5, 200, (1, 32), &[200]),
        (200, 12, 300, (2, 64), &[18]),
        (200, 12, 300, (3, 64), &[7, 40, 1, 19]),
        (333, 20, 300, (2, 96), &[300]),
        // Neuron 0 has over 1,024 edges: the row of a hub, scattered by a whole block.
        (2_000, 6, 150, (3, 128), &[50, 100]),
    ];
    for (seed, (neurons, degree, ticks, grid, lengths)) in cases.into_iter().enumerate() {
        let brain = random_brain(seed as u64, neurons, degree);
        let drive = Drive::parse("driven:90", seed as u64, &brain).unwrap();
        let mut kicks = random_kicks(seed as u64, neurons, ticks, if seed == 4 { 0 } else { 12 });
        kicks.push(Kick { tick: 3, neuron: 0 });
        let mut cpu = CpuBackend::new(brain.clone(), 2).unwrap();
        let expected = backend_trace(&mut cpu, &drive, &kicks, ticks, &[ticks]);
        for hashed in [true, false] {
            let plan = launches(ticks, lengths, &kicks, hashed);
            let found = run(&program, &brain, &drive, grid, &plan);
            if hashed {
                let differs = expected.hashes.iter().zip(&found.hashes).position(|(a, b)| a != b);
                assert_eq!(differs, None, "case {seed}: first differing tick");
            }
            assert_eq!(found.spikes, expected.spikes, "case {seed}");
            assert_ends_as(&found, &expected.end);
        }
    }
}

#[test]
fn the_hub_case_really_has_a_hub() {
    let brain = random_brain(5, 2_000, 6);
    assert!(brain.row(0).0.len() > 1_024, "{}", brain.row(0).0.len());
}
