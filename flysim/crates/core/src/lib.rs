// SPDX-License-Identifier: Apache-2.0
//! The simulator of flysim: what a connectome is, how one tick moves it, and how a run survives a restart.
//!
//! Start at [`backend::Backend`] (what a running brain offers), [`connectome::Connectome`] (what it runs on),
//! [`state::State`] (what it is at one tick) and [`checkpoint`] (how that state lives on disk).
//! What is absent on purpose: no CUDA, no HTTP, no clock. `unsafe` stands in two named files only:
//! `connectome/map.rs` (memory map) and `cpu/simd.rs` (instruction set dispatch).

pub mod backend;
pub mod checkpoint;
pub mod compatibility;
pub mod connectome;
pub mod cpu;
pub mod drive;
pub mod hash;
pub mod params;
pub mod philox;
pub mod reference;
pub mod spikes;
pub mod state;
pub mod synth;

pub use backend::{Backend, BackendError, Report};
pub use connectome::Connectome;
pub use drive::Drive;
pub use state::State;
