// SPDX-License-Identifier: Apache-2.0
//! Attaching the backend that was asked for, or saying why not: there is no falling back to the other one.

use std::sync::Arc;

use flysim_core::cpu::CpuBackend;
use flysim_core::{Backend, BackendError, Connectome, Drive};

use super::host;
use crate::config::run::RunConfig;
use crate::exit::{self, Failure};
use crate::log::say;

/// Says that the cuda feature is in this binary, before anything touches the driver. Nothing when it is not.
pub fn say_features() {
    if let Some(targets) = crate::cuda::ptx_targets() {
        say!("cuda feature compiled in (PTX {targets})");
    }
}

/// `FLY_LIF_CUDA=1` in a binary without the feature is an error, never ignored.
///
/// # Errors
/// Exit 78 with the way to build one that has it.
pub fn refuse_missing_feature(config: &RunConfig) -> anyhow::Result<()> {
    if config.cuda && !cfg!(feature = "cuda") {
        let text = "FLY_LIF_CUDA=1, but this binary was built without the cuda feature: build one with \
                    `cargo build --release --features cuda` (no CUDA toolkit is needed), or set FLY_LIF_CUDA=0";
        return Err(Failure::new(exit::CONFIG, text).into());
    }
    Ok(())
}

/// The backend, driven as configured, at rest at tick 0.
///
/// # Errors
/// Exit 75 when the GPU does not attach, 78 when the drive does not fit the connectome.
pub fn attach(config: &RunConfig, connectome: &Arc<Connectome>) -> anyhow::Result<Box<dyn Backend>> {
    let drive = Drive::parse(&config.drive, config.seed, connectome)
        .map_err(|error| Failure::new(exit::CONFIG, format!("FLY_DRIVE: {error}")))?;
    let mut backend: Box<dyn Backend> = if config.cuda {
        crate::cuda::attach(Arc::clone(connectome), &config.gpu, config.ptx.as_deref(), config.threads)
            .map_err(|error| failure(config, &error))?
    } else {
        Box::new(
            CpuBackend::new(Arc::clone(connectome), config.threads)
                .map_err(|error| failure(config, &error))?,
        )
    };
    backend.set_drive(&drive).map_err(|error| failure(config, &error))?;
    say!("{}", line(backend.as_ref()));
    if let Some(meant) = config.cpus_meant.as_deref().filter(|meant| *meant != host::cpus_allowed()) {
        say!("warning: FLY_CPUS says {meant}, the kernel says {}", host::cpus_allowed());
    }
    Ok(backend)
}

/// The log line that operators and flyops look for.
fn line(backend: &dyn Backend) -> String {
    match backend.name() {
        "cpu" => {
            format!("cpu backend attached (threads {}, cpus {})", backend.threads(), host::cpus_allowed())
        }
        name => format!("{name} backend attached ({})", details(&backend.attach_line())),
    }
}

/// What a backend says about itself behind `... backend attached`, without the punctuation around it.
pub fn details(line: &str) -> String {
    let inner = line.split_once("backend attached").map_or(line, |(_, inner)| inner);
    let inner = inner.trim_start_matches([':', ' ']);
    let inner = inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(inner);
    inner.into()
}

fn failure(config: &RunConfig, error: &BackendError) -> Failure {
    let code = match error {
        BackendError::NotBuiltIn(_) => exit::CONFIG,
        BackendError::Attach { .. } | BackendError::DeviceLost { .. } if config.cuda => exit::GPU,
        BackendError::Argument(_) => exit::CONFIG,
        _ => exit::SOFTWARE,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_what_stands_behind_the_prefix() {
        let wanted = "H200, driver 13.0 (580.1), JIT";
        assert_eq!(details(&format!("cuda backend attached: {wanted}")), wanted);
        assert_eq!(details(&format!("cuda backend attached ({wanted})")), wanted);
    }
}
