// SPDX-License-Identifier: Apache-2.0
//! Spikes, kicks, and how they are counted.

use crate::connectome::Connectome;

/// One neuron crossed threshold at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spike {
    /// Tick of the crossing, counted from the start of the run.
    pub tick: u64,
    /// Index of the neuron.
    pub neuron: u32,
}

/// One external event: [`crate::params::KICK_MV`] is added to v of `neuron` at `tick`.
///
/// A kick at tick t shows as a spike at t+1. Like any arrival it is dropped while the neuron is refractory.
/// One neuron takes at most one kick in a tick, however many sources (and the drive) send one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kick {
    /// Tick at which v moves.
    pub tick: u64,
    /// Index of the neuron.
    pub neuron: u32,
}

impl Kick {
    /// Refuses kicks in the past or outside the brain.
    pub fn validate(kicks: &[Kick], now: u64, neurons: usize) -> Result<(), String> {
        match kicks.iter().find(|k| k.tick < now || k.neuron as usize >= neurons) {
            Some(k) => Err(format!("{k:?} refused: the next tick is {now}, neurons are below {neurons}")),
            None => Ok(()),
        }
    }
}

/// Which spikes a [`crate::Report`] lists one by one (all are always counted).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// Counts only.
    #[default]
    Nothing,
    /// Every spike.
    All,
    /// Spikes of these neurons.
    Neurons(Vec<u32>),
}

/// Turns a backend's raw spikes into counts; both backends count through it, so they cannot count differently.
#[derive(Clone, Debug)]
pub struct Tally {
    group_starts: Vec<u32>,
    group_ids: Vec<u16>,
    group_count: usize,
    driven: Vec<bool>,
    watched: Watched,
}

#[derive(Clone, Debug)]
enum Watched {
    Nothing,
    All,
    Some(Vec<bool>),
}

impl Tally {
    /// A tally over the groups of `connectome`, with no driven neuron and nothing watched.
    pub fn new(connectome: &Connectome) -> Tally {
        let n = connectome.neurons();
        let mut of_neuron = vec![Vec::new(); n];
        for (id, group) in connectome.groups().iter().enumerate() {
            for &neuron in &group.members {
                of_neuron[neuron as usize].push(id as u16);
            }
        }
        let mut group_starts = vec![0];
        let mut group_ids = Vec::new();
        for ids in &of_neuron {
            group_ids.extend_from_slice(ids);
            group_starts.push(group_ids.len() as u32);
        }
        let group_count = connectome.groups().len();
        Tally { group_starts, group_ids, group_count, driven: vec![false; n], watched: Watched::Nothing }
    }

    /// Replaces the driven set.
    pub fn set_driven(&mut self, neurons: impl Iterator<Item = u32>) {
        self.driven.fill(false);
        neurons.for_each(|n| self.driven[n as usize] = true);
    }

    /// Replaces the watched set.
    pub fn set_watch(&mut self, watch: &Watch) {
        self.watched = match watch {
            Watch::Nothing => Watched::Nothing,
            Watch::All => Watched::All,
            Watch::Neurons(list) => {
                let mut set = vec![false; self.driven.len()];
                list.iter().for_each(|&n| set[n as usize] = true);
                Watched::Some(set)
            }
        };
    }

    /// Counts one spike into `report`.
    #[inline]
    pub fn count(&self, spike: Spike, report: &mut crate::Report) {
        let n = spike.neuron as usize;
        report.spikes += 1;
        report.undriven_spikes += u64::from(!self.driven[n]);
        if report.group_spikes.len() < self.group_count {
            report.group_spikes.resize(self.group_count, 0);
        }
        let range = self.group_starts[n] as usize..self.group_starts[n + 1] as usize;
        for &id in &self.group_ids[range] {
            report.group_spikes[id as usize] += 1;
        }
        let listed = match &self.watched {
            Watched::Nothing => false,
            Watched::All => true,
            Watched::Some(set) => set[n],
        };
        if listed {
            report.watched.push(spike);
        }
    }
}
