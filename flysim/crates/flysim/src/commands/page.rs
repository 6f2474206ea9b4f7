// SPDX-License-Identifier: Apache-2.0
//! `flysim page`: the live page, a process of its own.

use std::process::ExitCode;

pub use crate::config::page::PageArgs as Args;
use crate::{config, page};

/// Serves the page until somebody stops it.
///
/// # Errors
/// Exit 78 for bad settings, 69 for a taken port.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = config::page::check(args, |name| std::env::var(name).ok())?;
    page::run(config).map(ExitCode::from)
}
