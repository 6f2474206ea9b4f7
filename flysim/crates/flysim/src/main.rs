// SPDX-License-Identifier: Apache-2.0
//! `flysim`: a real-time spiking simulator of a fly connectome.
//!
//! Raw arguments -> checked arguments -> run -> exit code. Nothing else happens in this file.

#![allow(
    unreachable_pub,
    reason = "a program has no public surface; `pub` says what a module offers to its siblings"
)]

mod commands;
mod config;
mod cuda;
mod exit;
mod http;
mod log;
mod page;
mod service;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use commands::{page as page_command, run as run_command, tools, versions};
use log::say;

#[derive(Parser)]
#[command(
    name = "flysim",
    about = "Real-time spiking simulator of a fly connectome",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(flatten)]
    versions: versions::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the simulator as a service
    #[command(after_help = exit::HELP)]
    Run(run_command::Args),
    /// Serve the live page, fed by a running simulator
    Page(page_command::Args),
    #[command(flatten)]
    Tool(tools::Tool),
}

fn main() -> ExitCode {
    // clap keeps a version for ever, and this one is made once.
    let version: &'static str = version::long().leak();
    let matches = Cli::command().version(version).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::from(exit::code_of(&error))
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Some(Command::Run(args)) => run_command::run(args),
        Some(Command::Page(args)) => page_command::run(args),
        Some(Command::Tool(tool)) => tool.run(),
        None if cli.versions.is_empty() => Cli::command()
            .error(clap::error::ErrorKind::MissingSubcommand, "say what to do; see flysim --help")
            .exit(),
        None => versions::run(cli.versions),
    }
}
