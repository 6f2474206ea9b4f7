// SPDX-License-Identifier: Apache-2.0
//! `flysim import`: published data to `.fly`. One file per source; each prints what it decided and counts it.

mod cect;
mod flywire_seed;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use flysim_core::connectome::{Group, Parts};
use serde_json::{Value, json};

/// Where the data comes from.
#[derive(clap::Subcommand)]
pub enum Source {
    /// 668 cells of FlyWire v783: assets/circuit.seed.json of the PyPI package flywire-coding-cortex
    FlywireSeed(Files),
    /// C. elegans, hermaphrodite: data/herm_full_edgelist.csv of the PyPI package cect
    Cect(Files),
}

/// In and out.
#[derive(clap::Args)]
pub struct Files {
    /// File of the source
    input: PathBuf,
    /// File to write
    out: PathBuf,
}

/// Reads, checks, writes, and prints the counts as JSON.
pub fn run(source: Source) -> anyhow::Result<ExitCode> {
    let (files, parse): (Files, fn(&str) -> anyhow::Result<Imported>) = match source {
        Source::FlywireSeed(files) => (files, flywire_seed::parse),
        Source::Cect(files) => (files, cect::parse),
    };
    let name = files.input.display().to_string();
    let text = std::fs::read_to_string(&files.input).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    let imported = parse(&text).map_err(|e| anyhow::anyhow!("{name}: {e:#}"))?;
    let written = imported.parts.write(&files.out);
    let c = written.map_err(|e| anyhow::anyhow!("{}: {e}", files.out.display()))?;
    println!(
        "{}",
        json!({
            "file": files.out, "neurons": c.neurons(), "edges": c.edges(), "index_space": c.index_space(),
            "fingerprint": c.fingerprint(), "default_drive": c.default_drive(), "counts": imported.counts,
        })
    );
    Ok(ExitCode::SUCCESS)
}

/// What a source gave, and what its reader counted on the way.
struct Imported {
    parts: Parts,
    counts: Value,
}

/// Groups from (name, member) pairs, in the order of names.
fn groups(pairs: impl Iterator<Item = (String, u32)>) -> Vec<Group> {
    let mut by_name = BTreeMap::<String, Vec<u32>>::new();
    for (name, member) in pairs {
        by_name.entry(name).or_default().push(member);
    }
    let group = |(name, mut members): (String, Vec<u32>)| {
        members.sort_unstable();
        members.dedup();
        Group { name, members }
    };
    by_name.into_iter().map(group).collect()
}
