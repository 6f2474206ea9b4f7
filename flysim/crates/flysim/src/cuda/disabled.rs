// SPDX-License-Identifier: Apache-2.0
//! Built without `--features cuda`.

use std::path::Path;
use std::sync::Arc;

use flysim_core::{Backend, BackendError, Connectome};

/// PTX targets inside the binary: none, because the feature is not built in.
pub fn ptx_targets() -> Option<&'static str> {
    None
}

/// Refuses, and says how to get a binary that would not.
pub fn attach(
    _connectome: Arc<Connectome>,
    _gpu: &str,
    _ptx: Option<&Path>,
    _threads: usize,
) -> Result<Box<dyn Backend>, BackendError> {
    Err(BackendError::NotBuiltIn(
        "the cuda feature is not in this binary: build it with `cargo build --release --features cuda` \
         (no CUDA toolkit needed), or run on the CPU with FLY_LIF_CUDA=0"
            .into(),
    ))
}
