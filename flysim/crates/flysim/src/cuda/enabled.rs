// SPDX-License-Identifier: Apache-2.0
//! Built with `--features cuda`.

use std::path::Path;
use std::sync::Arc;

use flysim_core::{Backend, BackendError, Connectome};
use flysim_cuda::{CudaBackend, PtxSource, Request};

/// PTX targets inside the binary, for logs: `sm_75`.
pub fn ptx_targets() -> Option<&'static str> {
    Some(flysim_cuda::EMBEDDED_TARGET)
}

/// Attaches to `gpu` (UUID or index). PTX is taken from `ptx`, else from `../ptx/sm_XX.ptx` of the release that
/// this executable stands in, else from the binary.
pub fn attach(
    connectome: Arc<Connectome>,
    gpu: &str,
    ptx: Option<&Path>,
    _threads: usize,
) -> Result<Box<dyn Backend>, BackendError> {
    let source = match ptx {
        Some(path) => PtxSource::File(path.to_path_buf()),
        None => PtxSource::Search(release_directories()),
    };
    Ok(Box::new(CudaBackend::attach(
        connectome,
        &Request { gpu, ptx: source, block_threads: block_threads() },
    )?))
}

/// Threads per block, for measurements only: `FLY_CUDA_BLOCK`.
fn block_threads() -> Option<u32> {
    std::env::var("FLY_CUDA_BLOCK").ok()?.parse().ok()
}

/// `releases/V/bin/flysim` has its PTX in `releases/V/ptx`; a binary at the top of its release, in `ptx` beside it.
fn release_directories() -> Vec<std::path::PathBuf> {
    let executable = std::env::current_exe().and_then(|e| e.canonicalize());
    let Some(bin) = executable.ok().and_then(|e| e.parent().map(Path::to_path_buf)) else {
        return Vec::new();
    };
    [bin.parent().map(|release| release.join("ptx")), Some(bin.join("ptx"))].into_iter().flatten().collect()
}
