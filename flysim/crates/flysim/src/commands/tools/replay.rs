// SPDX-License-Identifier: Apache-2.0
//! `flysim replay`: where a release goes from a checkpoint. Two releases that agree print the same hash.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use flysim_core::{Report, checkpoint, compatibility};
use serde_json::json;

use super::rig::{Kind, RigArgs};

/// Arguments of `replay`.
#[derive(clap::Args)]
pub struct Args {
    /// State directory (only read: a damaged checkpoint is an error here, not set aside) or one checkpoint file
    checkpoints: PathBuf,
    #[command(flatten)]
    rig: RigArgs,
    /// Ticks to run
    #[arg(long, default_value_t = 2_000)]
    ticks: u64,
    /// Backend
    #[arg(long, value_enum, default_value_t = Kind::Cpu)]
    backend: Kind,
    /// CPU threads (0 = as many as the process may use)
    #[arg(long, env = "RAYON_NUM_THREADS", default_value_t = 0)]
    threads: usize,
}

/// Runs and prints. Writes nothing: the live service owns that directory.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let newest = match args.checkpoints.is_file() {
        true => args.checkpoints.clone(),
        false => {
            let all = checkpoint::list(&args.checkpoints)?;
            let newest = all.into_iter().next();
            newest.with_context(|| format!("{}: no checkpoint", args.checkpoints.display()))?.1
        }
    };
    let start = checkpoint::read(&newest)?;
    let rig = args.rig.open()?;
    compatibility::compare(&compatibility::string(&rig.connectome), &start.manifest.compatibility)?;
    let mut backend = rig.backend(args.backend, args.threads)?;
    backend.import(&start.state)?;
    let mut report = Report::default();
    let mut hashes = Vec::new();
    backend.advance_hashed(args.ticks, &mut report, &mut hashes)?;
    let chain = hashes.iter().fold(0, |c, h| flysim_core::hash::mix(c ^ h));
    println!(
        "{}",
        json!({
            "checkpoint": newest, "from": start.state.tick, "to": backend.tick(), "ticks": args.ticks,
            "backend": backend.name(), "threads": backend.threads(),
            "spikes": report.spikes, "undriven_spikes": report.undriven_spikes,
            "start_hash": start.manifest.state_hash,
            "hash": format!("{:016x}", backend.export()?.hash()), "hash_chain": format!("{chain:016x}"),
            "drive": rig.drive.text, "seed": rig.drive.seed.to_string(),
            "compatibility": start.manifest.compatibility,
        })
    );
    Ok(ExitCode::SUCCESS)
}
