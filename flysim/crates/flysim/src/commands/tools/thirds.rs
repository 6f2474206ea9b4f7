// SPDX-License-Identifier: Apache-2.0
//! `flysim thirds`: three backends take turns through checkpoint files and end where an unbroken run ends.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flysim_core::params::DELAY_TICKS;
use flysim_core::{Report, checkpoint, compatibility};
use serde_json::{Value, json};

use super::rig::{Kind, Rig, RigArgs};

/// Arguments of `thirds`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    rig: RigArgs,
    /// Ticks of the whole run
    #[arg(long, default_value_t = 3_001, value_parser = clap::value_parser!(u64).range(60..))]
    ticks: u64,
    /// One backend per part; any number of parts from two up
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cpu,cpu,cpu")]
    backends: Vec<Kind>,
    /// CPU threads of the unbroken run (the parts use one more each)
    #[arg(long, env = "RAYON_NUM_THREADS", default_value_t = 2)]
    threads: usize,
    /// Directory for the checkpoints [default: a new one under the temporary directory, removed afterwards]
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// Runs both ways and compares.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.backends.len() > 1, "--backends: a single part is not cut anywhere");
    let rig = args.rig.open()?;
    let cuts = cuts(args.ticks, args.backends.len() as u64);
    let given = args.directory.is_some();
    let directory = args
        .directory
        .unwrap_or_else(|| std::env::temp_dir().join(format!("flysim-thirds-{}", std::process::id())));
    anyhow::ensure!(
        checkpoint::list(&directory)?.is_empty(),
        "{}: holds checkpoints already",
        directory.display()
    );
    let result = parts(&rig, &args.backends, &cuts, args.threads, &directory);
    if !given {
        // Ours, under a name of this process; a leftover would only waste space.
        let _ = std::fs::remove_dir_all(&directory);
    }
    let (parts, found) = result?;
    let mut unbroken = rig.backend(Kind::Cpu, args.threads)?;
    let mut report = Report::default();
    unbroken.advance(args.ticks, &mut report)?;
    let expected = unbroken.export()?.hash();
    let spikes: u64 = parts.iter().filter_map(|p| p["spikes"].as_u64()).sum();
    let every_part_spiked = parts.iter().all(|p| p["spikes"].as_u64() > Some(0));
    let ok = found == expected && spikes == report.spikes && every_part_spiked;
    println!(
        "{}",
        json!({
            "ok": ok, "ticks": args.ticks, "parts": parts, "spikes": spikes, "unbroken_spikes": report.spikes,
            "hash": format!("{found:016x}"), "unbroken_hash": format!("{expected:016x}"),
            "every_part_spiked": every_part_spiked, "drive": rig.drive.text,
        })
    );
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends of the parts. Each cut but the last falls inside a window, else it would prove less.
fn cuts(ticks: u64, parts: u64) -> Vec<u64> {
    (1..=parts)
        .map(|p| match ticks * p / parts {
            end if p < parts && end % DELAY_TICKS == 0 => end + DELAY_TICKS / 2,
            end => end,
        })
        .collect()
}

fn parts(
    rig: &Rig,
    backends: &[Kind],
    cuts: &[u64],
    threads: usize,
    directory: &Path,
) -> anyhow::Result<(Vec<Value>, u64)> {
    let mut parts = Vec::new();
    let mut hash = 0;
    let ours = compatibility::string(&rig.connectome);
    for (i, (&kind, &end)) in backends.iter().zip(cuts).enumerate() {
        let mut backend = rig.backend(kind, threads + i + 1)?;
        if let Some(before) = checkpoint::read_newest_valid(directory)? {
            compatibility::compare(&ours, &before.manifest.compatibility)?;
            backend.import(&before.state)?;
        }
        let start = backend.tick();
        let mut report = Report::default();
        backend.advance(end - start, &mut report)?;
        let state = backend.export()?;
        hash = state.hash();
        let meta = checkpoint::Meta {
            compatibility: ours.clone(),
            backend: backend.name().into(),
            drive: rig.drive.text.clone(),
            seed: rig.drive.seed,
            ..checkpoint::Meta::default()
        };
        checkpoint::write(directory, &state, &meta)?;
        parts.push(json!({
            "backend": backend.name(), "threads": backend.threads(), "from": start, "to": end,
            "inside_window": end % DELAY_TICKS != 0, "spikes": report.spikes,
            "undriven_spikes": report.undriven_spikes, "hash": format!("{hash:016x}"),
        }));
    }
    Ok((parts, hash))
}
