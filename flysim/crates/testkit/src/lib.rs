// SPDX-License-Identifier: Apache-2.0
//! Random brains and the parity runner. A dev-dependency only: the program never contains it.
#![allow(clippy::unwrap_used)] // A test's helper may end the test.

use std::sync::Arc;

use flysim_core::connectome::{Connectome, Group, Parts};
use flysim_core::philox;
use flysim_core::reference::Reference;
use flysim_core::spikes::{Kick, Spike, Watch};
use flysim_core::{Backend, Drive, Report, State};

/// Numbers for tests, from the simulator's own generator.
pub struct Random {
    seed: u64,
    at: u64,
}

impl Random {
    /// A stream of its own per seed.
    pub fn new(seed: u64) -> Random {
        Random { seed, at: 0 }
    }

    /// Uniform below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.at += 1;
        philox::word(self.seed, self.at, u32::MAX) % limit
    }
}

/// A random brain: weights strong enough that activity spreads, a hub row, groups `driven` (a quarter) and `rest`.
pub fn random_brain(seed: u64, neurons: u32, out_degree: u32) -> Arc<Connectome> {
    let mut random = Random::new(seed);
    let mut edges = std::collections::BTreeMap::new();
    for from in 0..neurons {
        let degree = if from == 0 { neurons } else { random.below(2 * out_degree + 1) };
        for _ in 0..degree {
            let sign = if from % 3 == 1 { -1 } else { 1 };
            edges.insert((from, random.below(neurons)), sign * (1 + random.below(60) as i32));
        }
    }
    let cut = neurons.div_ceil(4);
    let mut parts = Parts {
        index_space: format!("random-{neurons}"),
        source: format!("testkit seed {seed}"),
        roots: (0..u64::from(neurons)).map(|i| (1 << 59) + i).collect(),
        groups: vec![
            Group { name: "driven".into(), members: (0..cut).collect() },
            Group { name: "rest".into(), members: (cut..neurons).collect() },
        ],
        ..Parts::default()
    };
    parts.set_edges(edges.into_iter().map(|((a, b), c)| (a, b, c)).collect()).unwrap();
    Arc::new(parts.build().unwrap())
}

/// Random external events in `0..ticks`.
pub fn random_kicks(seed: u64, neurons: u32, ticks: u64, count: usize) -> Vec<Kick> {
    let mut random = Random::new(seed ^ 0x5eed);
    let kick = |_| Kick { tick: u64::from(random.below(ticks as u32)), neuron: random.below(neurons) };
    (0..count).map(kick).collect()
}

/// What a run did: the comparison of two of these is the parity test.
#[derive(Debug, PartialEq)]
pub struct Trace {
    /// Hash after every tick.
    pub hashes: Vec<u64>,
    /// All spikes in order.
    pub spikes: Vec<Spike>,
    /// State after the last tick.
    pub end: State,
}

impl Trace {
    /// Fails with the first tick that differs.
    pub fn assert_equals(&self, other: &Trace, what: &str) {
        let differs = self.hashes.iter().zip(&other.hashes).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{what}: first differing tick");
        assert_eq!(self.hashes.len(), other.hashes.len(), "{what}: ticks");
        assert_eq!(self.spikes, other.spikes, "{what}: spikes");
        assert!(self.end == other.end, "{what}: final state");
    }
}

/// The plain tick for `ticks` ticks.
pub fn reference_trace(connectome: &Connectome, drive: &Drive, kicks: &[Kick], ticks: u64) -> Trace {
    let mut reference = Reference::new(connectome, drive.clone(), kicks.to_vec());
    let (mut hashes, mut spikes) = (Vec::new(), Vec::new());
    for _ in 0..ticks {
        let (new, hash) = reference.step();
        spikes.extend(new);
        hashes.push(hash);
    }
    Trace { hashes, spikes, end: reference.export() }
}

/// The same run on a backend, in `advance` calls of the given lengths (repeated until `ticks` are done).
pub fn backend_trace(
    backend: &mut dyn Backend,
    drive: &Drive,
    kicks: &[Kick],
    ticks: u64,
    chunks: &[u64],
) -> Trace {
    backend.set_drive(drive).unwrap();
    backend.set_watch(&Watch::All);
    backend.inject(kicks).unwrap();
    let (mut hashes, mut report) = (Vec::new(), Report::default());
    for chunk in chunks.iter().cycle() {
        let left = ticks - report.ticks;
        if left == 0 {
            break;
        }
        backend.advance_hashed(left.min(*chunk), &mut report, &mut hashes).unwrap();
    }
    assert_eq!(report.spikes, report.watched.len() as u64);
    Trace { hashes, spikes: report.watched, end: backend.export().unwrap() }
}
