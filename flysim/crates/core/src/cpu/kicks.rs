// SPDX-License-Identifier: Apache-2.0
//! The Poisson drive of a window, a batch of driven neurons at a time.

use crate::philox::{self, BATCH};

/// Driven neurons with their thresholds. The last batch is filled up with thresholds of 0, which never kick.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub(super) neurons: [u32; BATCH],
    pub(super) thresholds: [u32; BATCH],
}

impl Batch {
    /// Batches of (neuron, threshold) pairs.
    pub(super) fn of(driven: &[(u32, u32)]) -> Vec<Batch> {
        let batch = |chunk: &[(u32, u32)]| {
            let mut batch = Batch { neurons: [chunk[0].0; BATCH], thresholds: [0; BATCH] };
            for (l, &(neuron, threshold)) in chunk.iter().enumerate() {
                (batch.neurons[l], batch.thresholds[l]) = (neuron, threshold);
            }
            batch
        };
        driven.chunks(BATCH).map(batch).collect()
    }
}

/// Per neuron of the batch, bit k: the drive kicks it at `tick + k`. As [`crate::Drive::kick_mask`], eight at a time.
#[inline(always)]
pub(super) fn masks(batch: &Batch, seed: u64, tick: u64, ticks: usize) -> [u32; BATCH] {
    let mut masks = [0u32; BATCH];
    let last = tick + ticks as u64;
    for quad in tick >> 2..=(last - 1) >> 2 {
        let words = philox::quads(seed, quad, &batch.neurons);
        for (at, word) in (quad * 4..).zip(&words) {
            if (tick..last).contains(&at) {
                for l in 0..BATCH {
                    masks[l] |= u32::from(word[l] < batch.thresholds[l]) << (at - tick);
                }
            }
        }
    }
    masks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Drive;

    #[test]
    fn batches_equal_single_neurons() {
        let driven: Vec<(u32, u32)> = (0..11).map(|i| (i * 7, (i + 1) << 26)).collect();
        let drive = Drive { text: String::new(), seed: 99, neurons: driven.clone() };
        for (tick, ticks) in [(0, 18), (5, 18), (7, 1), (1 << 34, 13)] {
            let all: Vec<u32> = Batch::of(&driven).iter().flat_map(|b| masks(b, 99, tick, ticks)).collect();
            for (i, &(neuron, threshold)) in driven.iter().enumerate() {
                assert_eq!(all[i], drive.kick_mask(tick, ticks, neuron, threshold));
            }
            assert!(all[driven.len()..].iter().all(|&m| m == 0));
        }
    }
}
