// SPDX-License-Identifier: Apache-2.0
//! The NVIDIA side of the program. A feature that is off is a file with the same functions that refuses.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub use disabled::{attach, ptx_targets};
#[cfg(feature = "cuda")]
pub use enabled::{attach, ptx_targets};
