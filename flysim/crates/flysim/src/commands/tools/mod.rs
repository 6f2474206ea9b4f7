// SPDX-License-Identifier: Apache-2.0
//! Commands that run, make or look at brains without a service. Each prints one JSON object as its last line.

mod bench;
mod compare;
mod import;
mod info;
mod replay;
mod rig;
mod spikes;
mod synth;
mod thirds;

use std::process::ExitCode;

/// All of them; `main` flattens this into its own list.
#[derive(clap::Subcommand)]
pub enum Tool {
    /// Run on several thread counts (and the GPU) and compare the state hash tick by tick
    Compare(compare::Args),
    /// Measure the speed of one backend
    Bench(bench::Args),
    /// A run in thirds, through checkpoint files and across backends, against the unbroken run
    Thirds(thirds::Args),
    /// Go on from a copy of the newest checkpoint and print where it ends
    Replay(replay::Args),
    /// Run with fixed spike sources and write every spike
    Spikes(spikes::Args),
    /// Make a brain with the statistics of FlyWire
    Synth(synth::Args),
    /// Turn published connectome data into a .fly file
    #[command(subcommand)]
    Import(import::Source),
    /// Show what a .fly file holds
    Info(info::Args),
}

impl Tool {
    /// Runs the one that was chosen.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Tool::Compare(args) => compare::run(args),
            Tool::Bench(args) => bench::run(args),
            Tool::Thirds(args) => thirds::run(args),
            Tool::Replay(args) => replay::run(args),
            Tool::Spikes(args) => spikes::run(args),
            Tool::Synth(args) => synth::run(args),
            Tool::Import(source) => import::run(source),
            Tool::Info(args) => info::run(args),
        }
    }
}
