// SPDX-License-Identifier: Apache-2.0
//! How many ticks one launch may run. Pure.

use flysim_core::params::{DELAY_TICKS, REFRACTORY_TICKS};

/// Most ticks of one launch (115.2 ms): a paced simulator asks for less, an unthrottled one gains nothing more.
pub(crate) const MAX_TICKS: u64 = 64 * DELAY_TICKS;

/// Spikes that a window can hold at most. A neuron with a refractory period over a window spikes once in it; a driven
/// one at most every second tick, because the tick of a spike drops the kick that would cause the next.
pub(crate) fn spikes_per_window(neurons: usize, driven: usize) -> usize {
    const { assert!(REFRACTORY_TICKS as u64 >= DELAY_TICKS) };
    neurons + driven * (DELAY_TICKS as usize / 2 - 1)
}

/// Ticks of the next launch: all that is left, but no more than the spike list is sure to hold, and a kick only at
/// the first window of a launch, which is then the whole launch.
pub(crate) fn next(left: u64, tick: u64, next_kick: Option<u64>, capacity: usize, per_window: usize) -> u64 {
    let windows = (capacity / per_window).max(1) as u64;
    let most = left.min(MAX_TICKS).min(windows * DELAY_TICKS);
    match next_kick {
        Some(kick) if kick < tick + DELAY_TICKS => most.min(DELAY_TICKS),
        Some(kick) => most.min(kick - tick),
        None => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_ends_where_it_must() {
        let next = |left, tick, kick| next(left, tick, kick, 1000, 100);
        assert_eq!(next(7, 5, None), 7);
        assert_eq!(next(10_000, 5, None), 180, "what the list holds");
        assert_eq!(super::next(10_000, 5, None, 10_000_000, 100), MAX_TICKS);
        assert_eq!(next(10_000, 5, Some(5)), 18, "a kick in the next window: that window alone");
        assert_eq!(next(10_000, 5, Some(22)), 18);
        assert_eq!(next(10_000, 5, Some(23)), 18, "a kick just after it: stop before");
        assert_eq!(next(10_000, 5, Some(100)), 95);
        assert_eq!(next(3, 5, Some(7)), 3);
        assert_eq!(super::next(50, 0, None, 10, 100), 18, "never nothing");
    }
}
