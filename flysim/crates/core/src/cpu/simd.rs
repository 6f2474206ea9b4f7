// SPDX-License-Identifier: Apache-2.0
//! One window kernel, compiled for the instruction sets that matter, and chosen when the program starts.
//!
//! The second file of this crate that is allowed `unsafe`. No set with fused multiply-add is enabled, and Rust
//! never fuses by itself, so every choice gives the same bits.
#![allow(unsafe_code)]

use super::kicks::{self, Batch};
use super::lanes::{self, Block, Outcome, Span};
use crate::philox::BATCH;

/// The instruction sets that the kernel was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Whatever the target guarantees.
    Baseline,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Level {
    /// The best one that this processor has.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Level::Avx2;
        }
        Level::Baseline
    }

    /// All that this processor can run, for tests.
    pub fn available() -> Vec<Level> {
        let best = Level::detect();
        if best == Level::Baseline { vec![best] } else { vec![Level::Baseline, best] }
    }
}

/// Runs one block through a window at `level`, which must come from [`Level::detect`] or [`Level::available`].
#[inline]
pub(super) fn window(level: Level, block: &mut Block, span: &Span, out: &mut Outcome) {
    match level {
        Level::Baseline => lanes::window(block, span, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: Avx2 is constructed above only after the processor was asked for it.
        Level::Avx2 => unsafe { window_avx2(block, span, out) },
    }
}

/// Kicks of one batch in a window, at `level` as above.
#[inline]
pub(super) fn kick_masks(level: Level, batch: &Batch, seed: u64, tick: u64, ticks: usize) -> [u32; BATCH] {
    match level {
        Level::Baseline => kicks::masks(batch, seed, tick, ticks),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: Avx2 is constructed above only after the processor was asked for it.
        Level::Avx2 => unsafe { kick_masks_avx2(batch, seed, tick, ticks) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn kick_masks_avx2(batch: &Batch, seed: u64, tick: u64, ticks: usize) -> [u32; BATCH] {
    kicks::masks(batch, seed, tick, ticks)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn window_avx2(block: &mut Block, span: &Span, out: &mut Outcome) {
    lanes::window(block, span, out)
}
