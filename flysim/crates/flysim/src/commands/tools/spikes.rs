// SPDX-License-Identifier: Apache-2.0
//! `flysim spikes`: fixed spike sources in, every spike out, for comparison with other simulators.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use flysim_core::spikes::{Kick, Watch};
use flysim_core::{Drive, Report};
use serde_json::json;

use super::rig::{Kind, RigArgs};

/// Arguments of `spikes`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    rig: RigArgs,
    /// Ticks to run
    #[arg(long, default_value_t = 10_000)]
    ticks: u64,
    /// Lines `tick,neuron`: 68.75 mV on v of that neuron at that tick
    #[arg(long)]
    sources: PathBuf,
    /// File for lines `tick,neuron`, ordered
    #[arg(long)]
    out: PathBuf,
    /// Also apply the drive; otherwise the sources are all there is
    #[arg(long)]
    with_drive: bool,
    /// Backend
    #[arg(long, value_enum, default_value_t = Kind::Cpu)]
    backend: Kind,
    /// CPU threads (0 = as many as the process may use)
    #[arg(long, env = "RAYON_NUM_THREADS", default_value_t = 0)]
    threads: usize,
}

/// Runs and writes.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let kicks = read(&args.sources)?;
    let rig = args.rig.open()?;
    let mut backend = rig.backend(args.backend, args.threads)?;
    if !args.with_drive {
        backend.set_drive(&Drive::none())?;
    }
    backend.set_watch(&Watch::All);
    backend.inject(&kicks)?;
    let mut report = Report::default();
    backend.advance(args.ticks, &mut report)?;
    let mut text = String::new();
    for spike in &report.watched {
        writeln!(text, "{},{}", spike.tick, spike.neuron)?;
    }
    std::fs::write(&args.out, text).with_context(|| args.out.display().to_string())?;
    println!(
        "{}",
        json!({
            "ticks": args.ticks, "sources": kicks.len(), "spikes": report.spikes, "out": args.out,
            "hash": format!("{:016x}", backend.export()?.hash()),
        })
    );
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Vec<Kick>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            kick(line).with_context(|| {
                format!("{}:{}: expected tick,neuron, found {line:?}", path.display(), i + 1)
            })
        })
        .collect()
}

fn kick(line: &str) -> Option<Kick> {
    let (tick, neuron) = line.split_once(',')?;
    Some(Kick { tick: tick.trim().parse().ok()?, neuron: neuron.trim().parse().ok()? })
}
