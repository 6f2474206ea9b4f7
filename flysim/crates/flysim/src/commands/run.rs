// SPDX-License-Identifier: Apache-2.0
//! `flysim run`: the simulator as a service.

use std::process::ExitCode;

pub use crate::config::run::RunArgs as Args;
use crate::{config, service};

/// Runs the simulator until somebody stops it.
///
/// # Errors
/// Each carries its exit code; `exit::HELP` is the list.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = config::run::check(args, |name| std::env::var(name).ok())?;
    service::run(config).map(ExitCode::from)
}
