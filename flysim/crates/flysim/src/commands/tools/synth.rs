// SPDX-License-Identifier: Apache-2.0
//! `flysim synth`: a made-up brain of any size.

use std::path::PathBuf;
use std::process::ExitCode;

use flysim_core::synth::{Shape, generate};
use serde_json::json;

/// Pairs per neuron above which the full graph is meant, with every pair from one contact up.
const FULL_GRAPH_DEGREE: usize = 50;

/// Arguments of `synth`.
#[derive(clap::Args)]
pub struct Args {
    /// File to write
    out: PathBuf,
    /// Number of neurons
    #[arg(long, default_value_t = 139_255)]
    neurons: usize,
    /// Number of pairs
    #[arg(long, default_value_t = 2_700_513)]
    edges: usize,
    /// Smallest number of contacts of a pair [default: 5; 1 above 50 pairs per neuron]
    #[arg(long)]
    min_contacts: Option<u32>,
    /// Seed; the same seed gives the same bytes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Generates and writes.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let full = args.edges > FULL_GRAPH_DEGREE * args.neurons;
    let min_contacts = args.min_contacts.unwrap_or(if full { 1 } else { 5 });
    anyhow::ensure!((1..=50).contains(&min_contacts), "--min-contacts {min_contacts}: 1 to 50");
    let shape = Shape { neurons: args.neurons, edges: args.edges, min_contacts, seed: args.seed };
    let parts = generate(shape).map_err(anyhow::Error::msg)?;
    let c = parts.write(&args.out).map_err(|e| anyhow::anyhow!("{}: {e}", args.out.display()))?;
    println!(
        "{}",
        json!({
            "file": args.out, "neurons": c.neurons(), "edges": c.edges(), "min_contacts": min_contacts,
            "seed": args.seed, "index_space": c.index_space(), "fingerprint": c.fingerprint(),
            "default_drive": c.default_drive(),
        })
    );
    Ok(ExitCode::SUCCESS)
}
