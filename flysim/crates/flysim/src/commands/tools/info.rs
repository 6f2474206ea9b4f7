// SPDX-License-Identifier: Apache-2.0
//! `flysim info`: what a `.fly` file holds, after it was validated.

use std::path::PathBuf;
use std::process::ExitCode;

use flysim_core::{Connectome, compatibility};
use serde_json::json;

/// Arguments of `info`.
#[derive(clap::Args)]
pub struct Args {
    /// Connectome
    file: PathBuf,
    /// Print one JSON object in place of text
    #[arg(long)]
    json: bool,
}

/// Prints.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let c = Connectome::open(&args.file)?;
    let contacts: u64 = c.counts().iter().map(|x| u64::from(x.unsigned_abs())).sum();
    if args.json {
        println!(
            "{}",
            json!({
                "neurons": c.neurons(),
                "edges": c.edges(),
                "contacts": contacts,
                "inhibitory_edges": c.counts().iter().filter(|x| **x < 0).count(),
                "index_space": c.index_space(),
                "fingerprint": c.fingerprint(),
                "source": c.source(),
                "default_drive": c.default_drive(),
                "compatibility": compatibility::string(&c),
                "groups": c.groups().iter().map(|g| json!({"name": g.name, "members": g.members.len()})).collect::<Vec<_>>(),
                "attribution": c.attribution(),
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}: {} neurons, {} pairs, {contacts} contacts", c.file().display(), c.neurons(), c.edges());
    println!("index space    {}\nfingerprint    {}", c.index_space(), c.fingerprint());
    println!("compatibility  {}\nsource         {}", compatibility::string(&c), c.source());
    println!("default drive  {}", c.default_drive());
    let groups: Vec<String> =
        c.groups().iter().map(|g| format!("{} ({})", g.name, g.members.len())).collect();
    println!("groups         {}\n\n{}", groups.join(", "), c.attribution());
    Ok(ExitCode::SUCCESS)
}
