// SPDX-License-Identifier: Apache-2.0
//! Checkpoint files in a state directory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::codec::{self, Damage};
use super::{Checkpoint, CheckpointError, Meta};
use crate::state::State;

const PREFIX: &str = "ckpt-";
const SUFFIX: &str = ".flyck";
const ASIDE: &str = "damaged";

/// Writes a checkpoint and returns its path once it would survive a power cut.
pub fn write(directory: &Path, state: &State, meta: &Meta) -> Result<PathBuf, CheckpointError> {
    fs::create_dir_all(directory).map_err(CheckpointError::io(directory, "create the directory"))?;
    let path = directory.join(format!("{PREFIX}{:020}{SUFFIX}", state.tick));
    let temporary = directory.join(format!(".{PREFIX}{:020}.{}.tmp", state.tick, std::process::id()));
    let result = write_synced(&temporary, &codec::encode(state, meta)).and_then(|()| {
        fs::rename(&temporary, &path).map_err(CheckpointError::io(&path, "rename into place"))
    });
    if result.is_err() {
        // A full disk must not fill further with leftovers; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    result?;
    sync_directory(directory)?;
    Ok(path)
}

/// All checkpoint files of a directory, newest (highest tick) first. A directory that is not there has none.
pub fn list(directory: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(CheckpointError::io(directory, "list")(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(CheckpointError::io(directory, "list"))?.path();
        if let Some(tick) = tick_of(&path) {
            found.push((tick, path));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Reads and validates one file: hashes, lengths, and that the state is one a run could have.
pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let bytes = fs::read(path).map_err(CheckpointError::io(path, "read"))?;
    let (manifest, state) = codec::decode(&bytes).map_err(|Damage(section, expected, found)| {
        CheckpointError::Damaged { path: path.to_path_buf(), section, expected, found }
    })?;
    Ok(Checkpoint { path: path.to_path_buf(), manifest, state })
}

/// The newest checkpoint that is whole, or `None` when there is no checkpoint at all.
///
/// A damaged one moves to `damaged/` with its reason beside it. A file that cannot be read for another cause
/// (permission, failing disk) is an error and stays where it is: it may be whole.
pub fn read_newest_valid(directory: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    let mut reasons = Vec::new();
    for (_, path) in list(directory)? {
        match read(&path) {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            Err(CheckpointError::Io { path, action, source }) => {
                return Err(CheckpointError::Io { path, action, source });
            }
            Err(damaged) => {
                set_aside(directory, &path, &damaged.to_string())?;
                reasons.push(damaged.to_string());
            }
        }
    }
    if reasons.is_empty() && !has_damaged(directory) {
        return Ok(None);
    }
    if reasons.is_empty() {
        reasons.push("set aside by an earlier start".into());
    }
    Err(CheckpointError::AllRefused { directory: directory.to_path_buf(), reasons })
}

/// Without this the second start after a total loss would be the silent fresh start that the first one refused.
fn has_damaged(directory: &Path) -> bool {
    let aside = directory.join(ASIDE);
    list(&aside).is_ok_and(|files| !files.is_empty())
}

fn set_aside(directory: &Path, path: &Path, reason: &str) -> Result<(), CheckpointError> {
    let aside = directory.join(ASIDE);
    fs::create_dir_all(&aside).map_err(CheckpointError::io(&aside, "create the directory"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = name.trim_end_matches(SUFFIX);
    let free = |n: u32| if n == 0 { name.clone() } else { format!("{stem}-{n}{SUFFIX}") };
    let target = (0..).map(|n| aside.join(free(n))).find(|p| !p.exists()).expect("a free number");
    write_synced(&target.with_extension("reason"), format!("{reason}\n").as_bytes())?;
    fs::rename(path, &target).map_err(CheckpointError::io(path, "set aside"))?;
    sync_directory(&aside)?;
    sync_directory(directory)
}

fn tick_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    stem.split('-').next()?.parse().ok()
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut file = File::create(path).map_err(CheckpointError::io(path, "create"))?;
    file.write_all(bytes).map_err(CheckpointError::io(path, "write"))?;
    file.sync_all().map_err(CheckpointError::io(path, "sync"))
}

fn sync_directory(directory: &Path) -> Result<(), CheckpointError> {
    let open = File::open(directory).map_err(CheckpointError::io(directory, "open"))?;
    open.sync_all().map_err(CheckpointError::io(directory, "sync"))
}
