// SPDX-License-Identifier: Apache-2.0
//! Checkpoints on disk: neutral to the backend, durable, and never lost by the program.
//!
//! One file per checkpoint, `ckpt-<tick, 20 digits>.flyck`: the magic, the length of the manifest, its sha256, the
//! manifest (JSON, [`Manifest`]), then the sections it names. Written under a temporary name, synced, renamed, and
//! the directory synced. [`read_newest_valid`] sets a damaged one aside under `damaged/`, with its reason in a file
//! beside it, and goes on to the next; when all are refused it fails: never a silent fresh start.

mod codec;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use store::{list, read, read_newest_valid, write};

use crate::state::State;

/// What a writer says about its run. Nothing in it moves a trajectory, except `extra` for the caller's own use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    /// [`crate::compatibility::string`] of the writer.
    pub compatibility: String,
    /// Backend that the state was exported from.
    pub backend: String,
    /// Text of the drive at that tick, for the record.
    pub drive: String,
    /// Seed of the drive.
    pub seed: u64,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// Whatever the caller needs to find again (journal position, release).
    pub extra: BTreeMap<String, String>,
}

/// The JSON at the head of a checkpoint.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this layout.
    pub format: u32,
    /// Ticks completed.
    pub tick: u64,
    /// Number of neurons.
    pub neurons: u64,
    /// [`State::hash`] as 16 hex digits.
    pub state_hash: String,
    /// See [`Meta`].
    pub compatibility: String,
    /// See [`Meta`].
    pub backend: String,
    /// See [`Meta`].
    pub drive: String,
    /// See [`Meta`]; text, because a u64 does not fit a JSON number.
    pub seed: String,
    /// See [`Meta`].
    pub created_unix_s: u64,
    /// See [`Meta`].
    pub extra: BTreeMap<String, String>,
    /// Sections in file order.
    pub sections: Vec<Section>,
}

/// One named run of bytes behind the manifest.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Name.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// A checkpoint that was read and is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its file.
    pub path: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
    /// The state.
    pub state: State,
}

/// Why checkpoints cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system said no.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
    /// Not a whole checkpoint.
    #[error("{path}: {section}: expected {expected}, found {found}")]
    Damaged {
        /// File.
        path: PathBuf,
        /// `header`, `manifest`, or a section.
        section: String,
        /// What had to be there.
        expected: String,
        /// What was there.
        found: String,
    },
    /// There were checkpoints and none could be read; all were set aside.
    #[error("{directory}: all {} checkpoints are damaged and were set aside under damaged/; \
             put a whole one back, or empty the directory to start afresh: {}", reasons.len(), reasons.join("; "))]
    AllRefused {
        /// State directory.
        directory: PathBuf,
        /// One reason per file, newest first.
        reasons: Vec<String>,
    },
}

impl CheckpointError {
    fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> CheckpointError {
        let path = path.to_path_buf();
        move |source| CheckpointError::Io { path, action, source }
    }
}

#[cfg(test)]
mod tests;
