// SPDX-License-Identifier: Apache-2.0
//! Pacing: every tick has an absolute deadline, so errors do not add up and no tick is ever skipped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use flysim_core::params::{DELAY_TICKS, TICKS_PER_SECOND};

/// Windows in one batch at real time: 32.4 ms of brain, so about 31 frames a second and few wake-ups.
const BATCH_WINDOWS: u64 = 18;
/// A batch never grows beyond this, or commands and frames would wait for it.
const MAX_WINDOWS: u64 = 1152;
/// Time over which the realtime factor is taken.
const FACTOR_SPAN: Duration = Duration::from_secs(10);
/// Samples closer than this tell nothing new (an unthrottled run makes thousands of batches a second).
const SAMPLE_EVERY: Duration = Duration::from_millis(30);

/// Brain seconds of `ticks`.
pub fn brain_s(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND as f64
}

/// Says when each tick is due, and how many ticks to run at a time.
pub struct Pacer {
    speed: f64,
    anchor: Instant,
    anchor_tick: u64,
    windows: u64,
}

impl Pacer {
    /// A pacer for `speed` brain seconds per wall second (0 = unthrottled), with `tick` due at `now`.
    pub fn new(speed: f64, now: Instant, tick: u64) -> Self {
        let wanted = if speed == 0.0 { BATCH_WINDOWS } else { (BATCH_WINDOWS as f64 * speed).round() as u64 };
        Self { speed, anchor: now, anchor_tick: tick, windows: wanted.clamp(1, MAX_WINDOWS) }
    }

    /// Starts the time line anew after a pause, which is no lag.
    pub fn anchor(&mut self, now: Instant, tick: u64) {
        (self.anchor, self.anchor_tick) = (now, tick);
    }

    /// When `tick` is due; `None` when nothing is.
    pub fn deadline(&self, tick: u64) -> Option<Instant> {
        let ahead = brain_s(tick.saturating_sub(self.anchor_tick));
        (self.speed > 0.0).then(|| self.anchor + Duration::from_secs_f64(ahead / self.speed))
    }

    /// How late `tick` is at `now`.
    pub fn lag(&self, tick: u64, now: Instant) -> Duration {
        self.deadline(tick).map_or(Duration::ZERO, |due| now.saturating_duration_since(due))
    }

    /// Ticks of the next batch from `tick` on: up to a window's end, because backends work in whole windows.
    pub fn batch(&self, tick: u64, until: Option<u64>) -> u64 {
        let whole = self.windows * DELAY_TICKS - tick % DELAY_TICKS;
        until.map_or(whole, |until| whole.min(until.saturating_sub(tick)))
    }

    /// Learns from the time a batch took: an unthrottled run grows its batches until they cost 10 ms or more.
    pub fn took(&mut self, spent: Duration) {
        if self.speed > 0.0 {
            return;
        }
        if spent < Duration::from_millis(10) {
            self.windows = (self.windows * 2).min(MAX_WINDOWS);
        } else if spent > Duration::from_millis(60) {
            self.windows = (self.windows / 2).max(1);
        }
    }
}

/// Brain time over wall time in the last ten seconds.
#[derive(Default)]
pub struct FactorMeter {
    samples: VecDeque<(Instant, u64)>,
}

impl FactorMeter {
    /// Notes that `tick` was reached at `now`.
    pub fn note(&mut self, now: Instant, tick: u64) {
        if self.samples.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) < SAMPLE_EVERY) {
            return;
        }
        self.samples.push_back((now, tick));
        while self.samples.len() > 2
            && self.samples.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > FACTOR_SPAN)
        {
            self.samples.pop_front();
        }
    }

    /// Forgets everything; what comes after a pause is not to be averaged with what was before.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// The factor; 0 while there is nothing to measure.
    pub fn factor(&self) -> f64 {
        let (Some((t0, k0)), Some((t1, k1))) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let wall = t1.duration_since(*t0).as_secs_f64();
        if wall > 0.0 { brain_s(k1 - k0) / wall } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_absolute_and_batches_end_with_windows() {
        let now = Instant::now();
        let pacer = Pacer::new(2.0, now, 100);
        assert_eq!(pacer.deadline(20_100), Some(now + Duration::from_secs(1)));
        assert_eq!(pacer.lag(20_100, now + Duration::from_millis(1500)), Duration::from_millis(500));
        assert_eq!((100 + pacer.batch(100, None)) % DELAY_TICKS, 0);
        assert_eq!(pacer.batch(100, Some(103)), 3);
    }

    #[test]
    fn unthrottled_batches_grow_and_shrink() {
        let mut pacer = Pacer::new(0.0, Instant::now(), 0);
        assert_eq!(pacer.deadline(5), None);
        (0..20).for_each(|_| pacer.took(Duration::from_millis(1)));
        assert_eq!(pacer.batch(0, None), MAX_WINDOWS * DELAY_TICKS);
        (0..20).for_each(|_| pacer.took(Duration::from_secs(1)));
        assert_eq!(pacer.batch(0, None), DELAY_TICKS);
    }

    #[test]
    fn the_factor_slides() {
        let (now, mut meter) = (Instant::now(), FactorMeter::default());
        for second in 0..60 {
            let speed_changes_at = 30;
            let tick = if second < speed_changes_at { second } else { speed_changes_at + (second - 30) * 2 }
                * 10_000;
            meter.note(now + Duration::from_secs(second), tick);
        }
        assert!((meter.factor() - 2.0).abs() < 1e-9);
    }
}
