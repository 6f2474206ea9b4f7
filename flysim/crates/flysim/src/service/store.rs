// SPDX-License-Identifier: Apache-2.0
//! The state directory: restore at start, write while running, keep the newest few.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use flysim_core::checkpoint::{self, CheckpointError, Meta};
use flysim_core::{Backend, State, compatibility};

use super::checkpoints::Written;
use crate::config::run::{Fault, RunConfig};
use crate::exit::{self, Failure};
use crate::log::say;

/// Key in a checkpoint's `extra`: spikes counted since the brain began.
const SPIKES: &str = "spikes_total";
/// Where core puts damaged checkpoints.
const ASIDE: &str = "damaged";

/// The checkpoints of one state directory. Whoever has it holds the directory's lock.
pub struct Store {
    directory: PathBuf,
    keep: usize,
    meta: Meta,
    disk_full: bool,
}

/// What the start found.
#[derive(Debug, Default)]
pub struct Restored {
    /// Tick gone on from; `None` for a fresh brain.
    pub tick: Option<u64>,
    /// Spikes counted before this process.
    pub spikes: u64,
    /// Damaged checkpoints put aside now.
    pub set_aside: u64,
    /// When the checkpoint was made, on this process's clock.
    pub made: Option<Instant>,
}

impl Store {
    /// The store of `config`, writing for `compatibility` and for the backend that is wanted.
    pub fn open(config: &RunConfig, compatibility: &str) -> Self {
        let meta = Meta {
            compatibility: compatibility.into(),
            backend: if config.cuda { "cuda" } else { "cpu" }.into(),
            drive: config.drive.clone(),
            seed: config.seed,
            created_unix_s: 0,
            extra: BTreeMap::from([("version".into(), crate::version::version())]),
        };
        let disk_full = config.fault == Some(Fault::DiskFull);
        let store =
            Self { directory: config.state_dir.clone(), keep: config.checkpoint_keep, meta, disk_full };
        store.sweep();
        store
    }

    /// Removes half-written files of a process that was killed while it wrote. They were never a checkpoint.
    fn sweep(&self) {
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(".ckpt-") && name.ends_with(".tmp") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Goes on from the newest checkpoint that is whole; a directory without any gives a fresh brain.
    ///
    /// # Errors
    /// Exit 78 when all are damaged, when the newest was made for something else (the segment is named), or when it
    /// cannot be read.
    pub fn restore(&self, backend: &mut dyn Backend) -> anyhow::Result<Restored> {
        let refuse = |error: CheckpointError| Failure::new(exit::CONFIG, error.to_string());
        let before = checkpoint::list(&self.directory).map_err(refuse)?;
        let newest = checkpoint::read_newest_valid(&self.directory);
        let set_aside = self.tell_aside(&before);
        let Some(found) = newest.map_err(refuse)? else {
            say!("no checkpoint in {}: fresh brain at tick 0", self.directory.display());
            return Ok(Restored::default());
        };
        compatibility::compare(&self.meta.compatibility, &found.manifest.compatibility).map_err(|mismatch| {
            let text = format!(
                "{}: {mismatch}; start the release and connectome that made it, or give another FLY_STATE_DIR",
                found.path.display()
            );
            Failure::new(exit::CONFIG, text)
        })?;
        backend.import(&found.state).map_err(|error| Failure::new(exit::CONFIG, error.to_string()))?;
        let restored = restored(&found, set_aside);
        say!(
            "checkpoint restored: tick {}, {}, state hash {}, made by {}, {} put aside",
            found.manifest.tick,
            name_of(&found.path),
            found.manifest.state_hash,
            found.manifest.backend,
            set_aside
        );
        self.tell_other_drive(&found.manifest.drive, &found.manifest.seed);
        Ok(restored)
    }

    /// Says which checkpoints were put aside, and why; core left the reason beside each.
    fn tell_aside(&self, before: &[(u64, PathBuf)]) -> u64 {
        let gone: Vec<&PathBuf> = before.iter().map(|(_, path)| path).filter(|path| !path.exists()).collect();
        for path in &gone {
            let reason = self.directory.join(ASIDE).join(name_of(path)).with_extension("reason");
            let reason = std::fs::read_to_string(reason).unwrap_or_default();
            say!("checkpoint damaged, put aside in {ASIDE}/: {}", reason.trim());
        }
        gone.len() as u64
    }

    /// Another drive is allowed, but a trajectory that bends for no visible reason costs somebody a day.
    fn tell_other_drive(&self, drive: &str, seed: &str) {
        if drive != self.meta.drive || seed != self.meta.seed.to_string() {
            say!(
                "note: the checkpoint was made with drive {drive:?} seed {seed}; from here on drive {:?} seed {}",
                self.meta.drive,
                self.meta.seed
            );
        }
    }

    /// Writes `state` durably, then removes what is older than the newest few.
    ///
    /// # Errors
    /// Those of the file system; the checkpoints before stay.
    pub fn write(&self, state: &State, spikes: u64) -> anyhow::Result<Written> {
        let started = Instant::now();
        anyhow::ensure!(!self.disk_full, "{}: no space left on device (injected)", self.directory.display());
        let mut meta = self.meta.clone();
        meta.extra.insert(SPIKES.into(), spikes.to_string());
        meta.created_unix_s = unix_now().as_secs();
        let path = checkpoint::write(&self.directory, state, &meta)?;
        let bytes = std::fs::metadata(&path).context("the checkpoint just written")?.len();
        self.prune();
        Ok(Written {
            tick: state.tick,
            name: name_of(&path),
            state_hash: format!("{:016x}", state.hash()),
            bytes,
            took_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn prune(&self) {
        for (_, path) in checkpoint::list(&self.directory).into_iter().flatten().skip(self.keep) {
            if let Err(error) = std::fs::remove_file(&path) {
                say!("old checkpoint {} not removed: {error}", path.display());
            }
        }
    }
}

/// Compatibility string of the newest checkpoint that is whole, without moving anything; `None` when there is none.
///
/// # Errors
/// Exit 78 when there are checkpoints and none is whole.
pub fn newest_compatibility(directory: &Path) -> anyhow::Result<Option<String>> {
    let refuse = |error: CheckpointError| Failure::new(exit::CONFIG, error.to_string());
    let mut refused = Vec::new();
    for (_, path) in checkpoint::list(directory).map_err(refuse)? {
        match checkpoint::read(&path) {
            Ok(found) => return Ok(Some(found.manifest.compatibility)),
            Err(error) => refused.push(error.to_string()),
        }
    }
    if refused.is_empty() {
        return Ok(None);
    }
    let text = format!("{}: no checkpoint is whole: {}", directory.display(), refused.join("; "));
    Err(Failure::new(exit::CONFIG, text).into())
}

fn restored(found: &checkpoint::Checkpoint, set_aside: u64) -> Restored {
    let age = unix_now().saturating_sub(Duration::from_secs(found.manifest.created_unix_s));
    Restored {
        tick: Some(found.manifest.tick),
        spikes: found.manifest.extra.get(SPIKES).and_then(|text| text.parse().ok()).unwrap_or(0),
        set_aside,
        made: Instant::now().checked_sub(age),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
