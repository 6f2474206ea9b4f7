// SPDX-License-Identifier: Apache-2.0
//! What the binary, a connectome and a state directory say they are: `--print-…`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flysim_core::{Connectome, compatibility, params};

use crate::exit::{self, Failure};
use crate::service::store;
use crate::version;

/// The `--print-…` flags; each prints one line and ends.
#[derive(clap::Args, Debug, Default)]
#[group(multiple = true)]
pub struct Args {
    /// Print the name of the kernel's trajectory
    #[arg(long)]
    print_kernel_version: bool,
    /// Print the compatibility string of this binary on a connectome (--connectome or FLY_CONNECTOME)
    #[arg(long)]
    print_compatibility: bool,
    /// Print the compatibility string of the newest valid checkpoint in DIR, or `none` when there is none
    #[arg(long, value_name = "DIR")]
    print_state_compatibility: Option<PathBuf>,
    /// Print the cargo features in this binary, separated by spaces
    #[arg(long)]
    print_features: bool,
    /// Connectome for --print-compatibility
    #[arg(long, value_name = "FILE", env = "FLY_CONNECTOME", hide_env_values = true)]
    connectome: Option<PathBuf>,
}

impl Args {
    /// None of the flags was given.
    pub fn is_empty(&self) -> bool {
        !self.print_kernel_version
            && !self.print_compatibility
            && self.print_state_compatibility.is_none()
            && !self.print_features
    }
}

/// Prints what was asked for, in a fixed order.
///
/// # Errors
/// Exit 78 when the connectome or the directory cannot be read.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.print_kernel_version {
        println!("{}", params::kernel_version());
    }
    if args.print_features {
        println!("{}", version::features().join(" "));
    }
    if args.print_compatibility {
        println!("{}", of_connectome(args.connectome.as_deref())?);
    }
    if let Some(directory) = &args.print_state_compatibility {
        println!("{}", store::newest_compatibility(directory)?.unwrap_or_else(|| "none".into()));
    }
    Ok(ExitCode::SUCCESS)
}

fn of_connectome(path: Option<&Path>) -> anyhow::Result<String> {
    let path = path.ok_or_else(|| {
        Failure::new(
            exit::CONFIG,
            "--print-compatibility needs a connectome: set FLY_CONNECTOME or pass --connectome",
        )
    })?;
    let connectome = Connectome::open(path).map_err(|error| Failure::new(exit::CONFIG, error.to_string()))?;
    Ok(compatibility::string(&connectome))
}
