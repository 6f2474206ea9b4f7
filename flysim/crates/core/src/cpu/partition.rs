// SPDX-License-Identifier: Apache-2.0
//! The neurons of one thread: it alone writes them and their part of the delay ring, so nothing is locked.

use super::kicks::Batch;
use super::lanes::{self, Block, Emitted, LANES, Outcome, Span};
use super::simd::{self, Level};
use crate::connectome::Connectome;
use crate::drive::Drive;
use crate::params::{DELAY_TICKS, REFRACTORY_TICKS, WINDOW};
use crate::spikes::Kick;
use crate::state::{Pending, State, slot};

/// Bits 0..18 of a block's flags say which slots of its ring may hold input.
const DUE: u32 = (1 << WINDOW) - 1;
const KICKED: u32 = 1 << 30;
const AWAKE: u32 = 1 << 31;

/// A range of neurons, a whole number of blocks long except at the end of the brain.
pub(super) struct Partition {
    first: u32,
    neurons: usize,
    blocks: Vec<Block>,
    flags: Vec<u32>,
    kicks: Vec<[u32; LANES]>,
    driven: Vec<Batch>,
    injected: Vec<Kick>,
    pub(super) outcome: Outcome,
}

/// What all partitions of a window share.
pub(super) struct Window<'a> {
    pub(super) connectome: &'a Connectome,
    pub(super) level: Level,
    pub(super) seed: u64,
    pub(super) tick: u64,
    pub(super) ticks: usize,
    pub(super) hashed: bool,
    /// Spikes of the window before, which began at `emitted_from`.
    pub(super) emitted: &'a [Vec<Emitted>],
    pub(super) emitted_from: u64,
}

impl Partition {
    pub(super) fn new(first: u32, neurons: usize) -> Partition {
        let blocks = neurons.div_ceil(LANES);
        Partition {
            first,
            neurons,
            blocks: vec![Block::at_rest(); blocks],
            flags: vec![0; blocks],
            kicks: vec![[0; LANES]; blocks],
            driven: Vec::new(),
            injected: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// Scatters what the last window emitted, then runs this one.
    pub(super) fn run(&mut self, window: &Window) {
        self.scatter(window);
        self.gather_kicks(window);
        self.outcome.emitted.clear();
        self.outcome.hashes = window.hashed.then_some([0; WINDOW]);
        for index in 0..self.blocks.len() {
            if self.flags[index] != 0 {
                self.run_block(index, window);
            } else if window.hashed {
                let span = self.span(index, window);
                lanes::asleep(&self.blocks[index], &span, &mut self.outcome);
            }
        }
    }

    fn span(&self, index: usize, window: &Window) -> Span<'static> {
        Span {
            tick: window.tick,
            ticks: window.ticks,
            first: self.first + (index * LANES) as u32,
            lanes: LANES.min(self.neurons - index * LANES),
            due: self.flags[index] & DUE,
            kicks: None,
        }
    }

    fn run_block(&mut self, index: usize, window: &Window) {
        let flags = self.flags[index];
        let kicks = if flags & KICKED != 0 { Some(std::mem::take(&mut self.kicks[index])) } else { None };
        let span = Span { kicks: kicks.as_ref(), ..self.span(index, window) };
        let block = &mut self.blocks[index];
        simd::window(window.level, block, &span, &mut self.outcome);
        let awake = if block.is_fixed_point() { 0 } else { AWAKE };
        self.flags[index] = (flags & DUE & !consumed(window.tick, window.ticks)) | awake;
    }

    /// Adds the emitted spikes' contacts to this partition's part of the ring. A spike of tick t arrives at
    /// t + DELAY_TICKS, which has the slot of t: that slot was read and emptied at t.
    pub(super) fn scatter(&mut self, window: &Window) {
        let end = self.first + self.neurons as u32;
        for spike in window.emitted.iter().flatten() {
            let slot = slot(window.emitted_from + u64::from(spike.after));
            let (targets, counts) = window.connectome.row(spike.neuron);
            let from = targets.partition_point(|&t| t < self.first);
            let to = from + targets[from..].partition_point(|&t| t < end);
            for (&target, &count) in targets[from..to].iter().zip(&counts[from..to]) {
                self.add(slot, target, i32::from(count));
            }
        }
    }

    #[inline]
    fn add(&mut self, slot: usize, target: u32, contacts: i32) {
        let local = (target - self.first) as usize;
        self.blocks[local / LANES].ring[slot][local % LANES] += contacts;
        self.flags[local / LANES] |= 1 << slot;
    }

    fn gather_kicks(&mut self, window: &Window) {
        for i in 0..self.driven.len() {
            let batch = self.driven[i];
            let masks = simd::kick_masks(window.level, &batch, window.seed, window.tick, window.ticks);
            batch.neurons.iter().zip(masks).for_each(|(&neuron, mask)| self.kick(neuron, mask));
        }
        let end = window.tick + window.ticks as u64;
        let now = self.injected.partition_point(|k| k.tick < end);
        for kick in self.injected.drain(..now).collect::<Vec<_>>() {
            self.kick(kick.neuron, 1 << (kick.tick - window.tick));
        }
    }

    fn kick(&mut self, neuron: u32, mask: u32) {
        let local = (neuron - self.first) as usize;
        if mask != 0 {
            self.kicks[local / LANES][local % LANES] |= mask;
            self.flags[local / LANES] |= KICKED;
        }
    }

    pub(super) fn holds(&self, neuron: u32) -> bool {
        (self.first..self.first + self.neurons as u32).contains(&neuron)
    }

    pub(super) fn set_drive(&mut self, drive: &Drive) {
        let driven: Vec<(u32, u32)> = drive.neurons.iter().copied().filter(|d| self.holds(d.0)).collect();
        self.driven = Batch::of(&driven);
        self.blocks.iter_mut().for_each(|b| b.period = [i32::from(REFRACTORY_TICKS); LANES]);
        for (neuron, _) in driven {
            let local = (neuron - self.first) as usize;
            self.blocks[local / LANES].period[local % LANES] = 0;
        }
    }

    pub(super) fn inject(&mut self, kicks: &[Kick]) {
        let ours: Vec<Kick> = kicks.iter().copied().filter(|k| self.holds(k.neuron)).collect();
        self.injected.extend(ours);
        self.injected.sort_unstable();
    }

    pub(super) fn export(&self, state: &mut State) {
        let first = self.first as usize;
        for i in 0..self.neurons {
            let (block, lane) = (&self.blocks[i / LANES], i % LANES);
            state.v[first + i] = block.v[lane];
            state.g[first + i] = block.g[lane];
            state.refractory[first + i] = block.refractory[lane] as u8;
        }
    }

    /// Appends what is due at `tick`, in the order of neurons.
    pub(super) fn export_due(&self, tick: u64, pending: &mut Vec<Pending>) {
        let slot = slot(tick);
        for (index, block) in self.blocks.iter().enumerate().filter(|(i, _)| self.flags[*i] >> slot & 1 == 1)
        {
            for (lane, &contacts) in block.ring[slot].iter().enumerate().filter(|(_, c)| **c != 0) {
                let neuron = self.first + (index * LANES + lane) as u32;
                pending.push(Pending { tick, neuron, contacts });
            }
        }
    }

    pub(super) fn import(&mut self, state: &State) {
        self.injected.clear();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            block.ring = [[0; LANES]; WINDOW];
            for lane in 0..LANES.min(self.neurons - index * LANES) {
                let i = self.first as usize + index * LANES + lane;
                block.v[lane] = state.v[i];
                block.g[lane] = state.g[i];
                block.refractory[lane] = i32::from(state.refractory[i]);
            }
            self.flags[index] = AWAKE;
        }
        for p in &state.pending {
            if self.holds(p.neuron) {
                self.add(slot(p.tick), p.neuron, p.contacts);
            }
        }
    }
}

/// Bits of the slots that a window reads.
fn consumed(tick: u64, ticks: usize) -> u32 {
    debug_assert!(ticks as u64 <= DELAY_TICKS);
    (0..ticks as u64).fold(0, |bits, k| bits | 1 << slot(tick + k))
}
