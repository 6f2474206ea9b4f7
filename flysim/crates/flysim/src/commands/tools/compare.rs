// SPDX-License-Identifier: Apache-2.0
//! `flysim compare`: the proof that thread counts and backends cannot be told apart.

use std::process::ExitCode;

use flysim_core::Report;
use flysim_core::hash::mix;
use serde_json::json;

use super::rig::{Kind, Rig, RigArgs};

/// Ticks between two looks at the ring: a whole number of windows and some, so that cuts fall everywhere.
const RING_EVERY: u64 = 500;

/// Arguments of `compare`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    rig: RigArgs,
    /// Ticks to run (0.1 ms each)
    #[arg(long, default_value_t = 2_000)]
    ticks: u64,
    /// Compare after every K ticks; all ticks are hashed inside the production window either way
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// CPU thread counts; the first one is the reference
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,7")]
    threads: Vec<usize>,
    /// Compare the CUDA backend as well
    #[arg(long)]
    cuda: bool,
    /// Fail below this many spikes
    #[arg(long, default_value_t = 0)]
    min_spikes: u64,
    /// Fail below this many spikes outside the driven set
    #[arg(long, default_value_t = 0)]
    min_undriven: u64,
}

struct Run {
    label: String,
    attach: String,
    threads: usize,
    report: Report,
    hashes: Vec<u64>,
    rings: Vec<u64>,
    final_hash: u64,
}

/// Runs everything, prints a table and a JSON line; 1 on any difference or too little activity.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rig = args.rig.open()?;
    let mut plan: Vec<(Kind, usize)> = args.threads.iter().map(|&t| (Kind::Cpu, t)).collect();
    if args.cuda {
        plan.push((Kind::Cuda, args.threads.iter().copied().max().unwrap_or(1)));
    }
    let mut runs = Vec::new();
    for (kind, threads) in plan {
        let run = one(&rig, kind, threads, args.ticks)?;
        anyhow::ensure!(
            kind == Kind::Cuda || threads == 0 || run.threads == threads,
            "asked for {threads} threads, the pool has {}",
            run.threads
        );
        runs.push(run);
    }
    let (reference, others) =
        runs.split_first().ok_or_else(|| anyhow::anyhow!("nothing to compare: give --threads"))?;
    let differences: Vec<_> = others.iter().filter_map(|r| difference(reference, r, args.every)).collect();
    let active =
        reference.report.spikes >= args.min_spikes && reference.report.undriven_spikes >= args.min_undriven;
    let compared = !others.is_empty();
    let ok = differences.is_empty() && active && compared;
    print(&runs);
    let why = if !compared {
        "only one run: nothing was compared"
    } else if !active {
        "too few spikes"
    } else {
        ""
    };
    println!(
        "{}",
        json!({
            "ok": ok,
            "why": why,
            "ticks": args.ticks,
            "every": args.every,
            "spikes": reference.report.spikes,
            "undriven_spikes": reference.report.undriven_spikes,
            "min_spikes": args.min_spikes,
            "min_undriven": args.min_undriven,
            "final_hash": format!("{:016x}", reference.final_hash),
            "hash_chain": format!("{:016x}", chain(&reference.hashes)),
            "runs": runs.iter().map(|r| json!({
                "backend": r.label, "attach": r.attach, "threads": r.threads, "spikes": r.report.spikes,
                "final_hash": format!("{:016x}", r.final_hash)})).collect::<Vec<_>>(),
            "differences": differences,
            "kernel": flysim_core::params::kernel_version(),
            "connectome": rig.connectome.fingerprint(),
            "drive": rig.drive.text,
        })
    );
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(rig: &Rig, kind: Kind, threads: usize, ticks: u64) -> anyhow::Result<Run> {
    let mut backend = rig.backend(kind, threads)?;
    let (mut report, mut hashes, mut rings) = (Report::default(), Vec::new(), Vec::new());
    while report.ticks < ticks {
        backend.advance_hashed(RING_EVERY.min(ticks - report.ticks), &mut report, &mut hashes)?;
        rings.push(backend.export()?.ring_hash());
    }
    let final_hash = backend.export()?.hash();
    let attach = backend.attach_line();
    Ok(Run {
        label: backend.name().into(),
        attach,
        threads: backend.threads(),
        report,
        hashes,
        rings,
        final_hash,
    })
}

/// What differs first, or nothing.
fn difference(a: &Run, b: &Run, every: u64) -> Option<serde_json::Value> {
    let compared =
        (0..a.hashes.len()).filter(|i| (*i as u64 + 1).is_multiple_of(every) || i + 1 == a.hashes.len());
    let tick = compared.into_iter().find(|&i| a.hashes.get(i) != b.hashes.get(i));
    let ring = a.rings.iter().zip(&b.rings).position(|(x, y)| x != y);
    let same = tick.is_none() && ring.is_none() && a.report == b.report && a.final_hash == b.final_hash;
    (!same).then(|| {
        json!({
            "between": [format!("{} x{}", a.label, a.threads), format!("{} x{}", b.label, b.threads)],
            "first_differing_tick": tick,
            "first_differing_ring_at_tick": ring.map(|r| (r as u64 + 1) * RING_EVERY),
            "counts_differ": a.report != b.report,
        })
    })
}

fn chain(hashes: &[u64]) -> u64 {
    hashes.iter().fold(0, |c, h| mix(c ^ h))
}

fn print(runs: &[Run]) {
    println!("{:<8} {:>7} {:>10} {:>10}  hash", "backend", "threads", "spikes", "undriven");
    for r in runs {
        let (spikes, own) = (r.report.spikes, r.report.undriven_spikes);
        println!("{:<8} {:>7} {spikes:>10} {own:>10}  {:016x}", r.label, r.threads, r.final_hash);
    }
}
