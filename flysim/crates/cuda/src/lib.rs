// SPDX-License-Identifier: Apache-2.0
//! The NVIDIA backend of flysim, and the home of its `unsafe`.
//!
//! Three layers: `driver` wraps the driver's calls (all `unsafe` is there and in nothing else), `ptx` decides which
//! kernel text to load, `backend` is the brain. libcuda is opened at run time: the same binary starts without a card.

mod attach;
mod backend;
mod driver;
mod plan;
mod ptx;

pub use backend::{CudaBackend, Request};
pub use ptx::{EMBEDDED_TARGET, PtxSource};
