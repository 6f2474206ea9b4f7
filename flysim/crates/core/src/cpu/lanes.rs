// SPDX-License-Identifier: Apache-2.0
//! Sixteen neurons through one window. This is the code that all CPU time goes to.
#![allow(clippy::needless_range_loop, reason = "one index over several arrays is the shape that vectorises")]

use crate::hash;
use crate::params::*;
use crate::state::slot;

/// Neurons of a block: enough independent chains to hide the latency of one, few enough to stay in registers.
pub(super) const LANES: usize = 16;

/// State of sixteen neurons and their part of the delay ring, next to each other in memory.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Block {
    pub(super) v: [f64; LANES],
    pub(super) g: [f64; LANES],
    /// Ticks of refractory period left.
    pub(super) refractory: [i32; LANES],
    /// Refractory period after a spike: 0 for driven neurons.
    pub(super) period: [i32; LANES],
    /// Sums of contacts due, by slot.
    pub(super) ring: [[i32; LANES]; WINDOW],
}

/// What to run: up to [`WINDOW`] ticks from `tick`.
pub(super) struct Span<'a> {
    pub(super) tick: u64,
    pub(super) ticks: usize,
    /// Index of the block's first neuron, and how many of its lanes are neurons.
    pub(super) first: u32,
    pub(super) lanes: usize,
    /// Bit per slot of the ring that may hold input.
    pub(super) due: u32,
    /// Per lane, bit k: a kick at `tick + k`. `None` when nobody here is kicked.
    pub(super) kicks: Option<&'a [u32; LANES]>,
}

/// A spike that has not been scattered yet: `after` ticks into its window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emitted {
    pub(super) neuron: u32,
    pub(super) after: u8,
}

/// What a window produced. Reused from window to window.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) emitted: Vec<Emitted>,
    /// Sums of hash shares by tick, or nothing when nobody asked.
    pub(super) hashes: Option<[u64; WINDOW]>,
}

impl Block {
    pub(super) fn at_rest() -> Block {
        Block {
            v: [V_REST_MV; LANES],
            g: [0.0; LANES],
            refractory: [0; LANES],
            period: [i32::from(REFRACTORY_TICKS); LANES],
            ring: [[0; LANES]; WINDOW],
        }
    }

    /// True when stepping cannot change a bit: such a block is skipped until something arrives.
    pub(super) fn is_fixed_point(&self) -> bool {
        (0..LANES).all(|l| {
            let stepped = V_REST_MV + (self.v[l] - V_REST_MV) * A + self.g[l] * C;
            self.g[l] == 0.0 && self.refractory[l] == 0 && stepped == self.v[l]
        })
    }
}

/// The lanes' state while it is in registers. Passed by value to the rare paths, so that the loop need not spill it.
#[derive(Clone, Copy)]
struct Lanes {
    v: [f64; LANES],
    g: [f64; LANES],
    /// Refractory ticks left, counted from the start of the window: after tick k, `until - (k + 1)` are left.
    until: [i32; LANES],
}

impl Lanes {
    fn of(block: &Block) -> Lanes {
        Lanes { v: block.v, g: block.g, until: block.refractory }
    }

    fn refractory_after(&self, lane: usize, k: usize) -> i32 {
        (self.until[lane] - (k as i32 + 1)).max(0)
    }

    fn hash(&self, span: &Span, k: usize, spiked: u32) -> u64 {
        (0..span.lanes).fold(0, |sum: u64, l| {
            let refractory = self.refractory_after(l, k) as u8;
            let (index, spiked) = (span.first + l as u32, spiked >> l & 1 == 1);
            sum.wrapping_add(hash::neuron(index, self.v[l], self.g[l], refractory, spiked))
        })
    }
}

/// Adds the hash of a block that sleeps through the span.
pub(super) fn asleep(block: &Block, span: &Span, out: &mut Outcome) {
    if let Some(hashes) = &mut out.hashes {
        // A sleeper has no refractory ticks left, so every tick of the span has the same share.
        let share = Lanes::of(block).hash(span, 0, 0);
        hashes[..span.ticks].iter_mut().for_each(|h| *h = h.wrapping_add(share));
    }
}

/// Runs a block through the span: state update, threshold, arrivals, reset, tick by tick.
#[inline(always)]
pub(super) fn window(block: &mut Block, span: &Span, out: &mut Outcome) {
    let kicked = span.kicks.map_or(0, |k| k.iter().fold(0, |all, m| all | m));
    let kicked = if out.hashes.is_some() { u32::MAX } else { kicked };
    let mut lanes = Lanes::of(block);
    let mut slot = slot(span.tick);
    for k in 0..span.ticks {
        let hot = step(&mut lanes);
        if span.due >> slot & 1 == 1 {
            arrive(&mut lanes, &mut block.ring[slot], k);
        }
        if hot || kicked >> k & 1 == 1 {
            lanes = rare(lanes, &block.period, span, k, out);
        }
        slot = if slot + 1 == WINDOW { 0 } else { slot + 1 };
    }
    (block.v, block.g) = (lanes.v, lanes.g);
    for l in 0..LANES {
        block.refractory[l] = (lanes.until[l] - span.ticks as i32).max(0);
    }
}

/// State update of all lanes; true when one is above threshold. A refractory lane is stepped as well: it rests at
/// v = reset = rest and g = 0, where the step changes nothing.
#[inline(always)]
fn step(lanes: &mut Lanes) -> bool {
    let mut above = [0u64; LANES];
    for l in 0..LANES {
        let v = V_REST_MV + (lanes.v[l] - V_REST_MV) * A + lanes.g[l] * C;
        let g = lanes.g[l] * B;
        lanes.v[l] = v;
        lanes.g[l] = if g.abs() < G_FLUSH_MV { 0.0 } else { g };
        above[l] = u64::from(v > V_THRESHOLD_MV);
    }
    above.iter().fold(0, |any, a| any | a) != 0
}

/// Adds the input of a slot and empties it. A neuron that is refractory or spikes in this tick drops it.
#[inline(always)]
fn arrive(lanes: &mut Lanes, ring: &mut [i32; LANES], k: usize) {
    let contacts = std::mem::replace(ring, [0; LANES]);
    for l in 0..LANES {
        let open = lanes.until[l] <= k as i32 + 1 && lanes.v[l] <= V_THRESHOLD_MV;
        // Adding +0.0 is no change: g is never -0.0, the flush sees to that.
        lanes.g[l] += if open { WEIGHT_MV * f64::from(contacts[l]) } else { 0.0 };
    }
}

/// Kicks, resets, and the hash of the tick: what most ticks of most blocks do without.
#[inline(never)]
fn rare(mut lanes: Lanes, period: &[i32; LANES], span: &Span, k: usize, out: &mut Outcome) -> Lanes {
    let spiked = (0..LANES).fold(0, |mask, l| mask | u32::from(lanes.v[l] > V_THRESHOLD_MV) << l);
    for l in 0..LANES {
        if spiked >> l & 1 == 1 {
            lanes.v[l] = V_RESET_MV;
            lanes.g[l] = 0.0;
            lanes.until[l] = period[l] + k as i32 + 1;
            out.emitted.push(Emitted { neuron: span.first + l as u32, after: k as u8 });
        } else if span.kicks.is_some_and(|kicks| kicks[l] >> k & 1 == 1) && lanes.until[l] <= k as i32 + 1 {
            lanes.v[l] += KICK_MV;
        }
    }
    if let Some(hashes) = &mut out.hashes {
        hashes[k] = hashes[k].wrapping_add(lanes.hash(span, k, spiked));
    }
    lanes
}
