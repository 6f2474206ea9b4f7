// SPDX-License-Identifier: Apache-2.0
//! Spike rates over the last second of brain time.

use std::collections::VecDeque;

use flysim_core::params::TICKS_PER_SECOND;

/// Counts of the last second, in slices of about a twentieth of it.
pub struct RateMeter {
    cells: Vec<f64>,
    slices: VecDeque<Slice>,
    sums: Vec<u64>,
    spikes: u64,
    ticks: u64,
}

struct Slice {
    ticks: u64,
    spikes: u64,
    groups: Vec<u64>,
}

impl RateMeter {
    /// A meter for groups of these sizes.
    pub fn new(cells: &[usize]) -> Self {
        let sums = vec![0; cells.len()];
        let cells = cells.iter().map(|&n| n.max(1) as f64).collect();
        Self { cells, slices: VecDeque::new(), sums, spikes: 0, ticks: 0 }
    }

    /// Adds one batch. `groups` may be shorter than the list of groups; what is missing did not spike.
    pub fn add(&mut self, ticks: u64, spikes: u64, groups: &[u64]) {
        self.sums.iter_mut().zip(groups).for_each(|(sum, n)| *sum += n);
        self.spikes += spikes;
        self.ticks += ticks;
        match self.slices.back_mut().filter(|slice| slice.ticks + ticks <= TICKS_PER_SECOND / 20) {
            Some(slice) => {
                slice.ticks += ticks;
                slice.spikes += spikes;
                slice.groups.resize(slice.groups.len().max(groups.len()), 0);
                slice.groups.iter_mut().zip(groups).for_each(|(sum, n)| *sum += n);
            }
            None => self.slices.push_back(Slice { ticks, spikes, groups: groups.to_vec() }),
        }
        self.forget();
    }

    fn forget(&mut self) {
        while self.slices.front().is_some_and(|first| self.ticks - first.ticks >= TICKS_PER_SECOND) {
            let Some(old) = self.slices.pop_front() else { return };
            self.ticks -= old.ticks;
            self.spikes -= old.spikes;
            self.sums.iter_mut().zip(&old.groups).for_each(|(sum, n)| *sum -= n);
        }
    }

    /// Spikes per cell and brain second, by group.
    pub fn by_group(&self) -> Vec<f64> {
        let seconds = self.seconds();
        self.sums.iter().zip(&self.cells).map(|(&sum, cells)| sum as f64 / cells / seconds).collect()
    }

    /// Spikes of all neurons per brain second.
    pub fn total(&self) -> f64 {
        self.spikes as f64 / self.seconds()
    }

    fn seconds(&self) -> f64 {
        self.ticks.max(1) as f64 / TICKS_PER_SECOND as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_whatever_the_batches() {
        for ticks in [18, 324, 20_736] {
            let mut meter = RateMeter::new(&[10, 5]);
            (0..100).for_each(|_| meter.add(ticks, ticks, &[ticks]));
            assert!((meter.by_group()[0] - 1000.0).abs() < 1e-9, "{ticks}");
            assert_eq!(meter.by_group()[1], 0.0);
            assert!((meter.total() - 10_000.0).abs() < 1e-6);
        }
    }
}
