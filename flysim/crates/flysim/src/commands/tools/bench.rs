// SPDX-License-Identifier: Apache-2.0
//! `flysim bench`: how fast one backend runs one brain.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use flysim_core::Report;
use flysim_core::params::TICKS_PER_SECOND;
use serde_json::json;

use super::rig::{Kind, RigArgs};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    rig: RigArgs,
    /// Ticks to measure
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    ticks: u64,
    /// Ticks to run before the clock starts
    #[arg(long, default_value_t = 2_000)]
    warmup: u64,
    /// Ticks per call, as the service would ask
    #[arg(long, default_value_t = 360, value_parser = clap::value_parser!(u64).range(1..))]
    chunk: u64,
    /// CPU threads (0 = as many as the process may use)
    #[arg(long, env = "RAYON_NUM_THREADS", default_value_t = 0)]
    threads: usize,
    /// Backend
    #[arg(long, value_enum, default_value_t = Kind::Cpu)]
    backend: Kind,
    /// Pace at this multiple of real time; 0 runs unthrottled. Shows the host cores that a paced run costs
    #[arg(long, default_value_t = 0.0)]
    speed: f64,
}

/// Measures and prints.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rig = args.rig.open()?;
    let mut backend = rig.backend(args.backend, args.threads)?;
    let mut report = Report::default();
    backend.advance(args.warmup, &mut report)?;
    report.clear();
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    while report.ticks < args.ticks {
        backend.advance(args.chunk.min(args.ticks - report.ticks), &mut report)?;
        pace(start, report.ticks, args.speed);
    }
    let wall_s = start.elapsed().as_secs_f64();
    let biological_s = args.ticks as f64 / TICKS_PER_SECOND as f64;
    let mean_hz = report.spikes as f64 / biological_s / rig.connectome.neurons() as f64;
    println!(
        "{}",
        json!({
            "backend": backend.name(),
            "threads": backend.threads(),
            "attach": backend.attach_line(),
            "neurons": rig.connectome.neurons(),
            "edges": rig.connectome.edges(),
            "ticks": args.ticks,
            "wall_s": wall_s,
            "us_per_tick": wall_s * 1e6 / args.ticks as f64,
            "realtime_factor": biological_s / wall_s,
            "wall_s_per_biological_s": wall_s / biological_s,
            "host_cores": cpu_start.zip(cpu_seconds()).map(|(a, b)| (b - a) / wall_s),
            "spikes": report.spikes,
            "undriven_spikes": report.undriven_spikes,
            "mean_hz": mean_hz,
            "drive": rig.drive.text,
            "hash": format!("{:016x}", backend.export()?.hash()),
        })
    );
    Ok(ExitCode::SUCCESS)
}

fn pace(start: Instant, ticks: u64, speed: f64) {
    if speed > 0.0 {
        let due = start + Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND as f64 / speed);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Processor time of this process, from the kernel's count in clock ticks of 10 ms.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields 14 and 15 (utime, stime), counted behind the name, which may hold spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
