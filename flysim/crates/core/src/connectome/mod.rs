// SPDX-License-Identifier: Apache-2.0
//! The `.fly` file: a connectome, checked once and then only read.
//!
//! Layout, version 1, all numbers little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic `FLYCON1\n` |
//! | 8..12, 12..16 | version (u32), number of sections (u32) |
//! | 16..24, 24..32 | neurons (u64), edges (u64) |
//! | 32..64 | sha256 of the bytes 0..32 followed by the section table |
//! | 64.. | table: per section 16 bytes name (zero padded), offset u64, length u64, sha256 |
//! | then | sections, each at a multiple of 64 |
//!
//! Sections: `meta` (JSON: index_space, source, default_drive), `roots` (u64 per neuron), `offsets` (u64, neurons + 1), `targets`
//! (u32 per edge, ascending within a row), `counts` (i16 per edge, signed contacts), `groups` (JSON list of name and
//! size), `members` (u32, the groups' members one after another), `attribution` (UTF-8).

mod layout;
mod map;
mod parts;
mod validate;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use parts::Parts;

use map::Bytes;

/// Index of a neuron's outgoing edges: from `offsets[n]` to `offsets[n + 1]`.
pub const VERSION: u32 = 1;

/// A role: a named list of neurons, ascending, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name as used in drives and counters.
    pub name: String,
    /// Members.
    pub members: Vec<u32>,
}

/// A `.fly` file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: section {section}: expected {expected}, found {found}; {advice}")]
pub struct ConnectomeError {
    /// The file.
    pub file: String,
    /// Section, or `header`.
    pub section: String,
    /// What had to be there.
    pub expected: String,
    /// What was there.
    pub found: String,
    /// What to do.
    pub advice: String,
}

/// A validated connectome. Cheap to read from many threads.
#[derive(Debug)]
pub struct Connectome {
    bytes: Bytes,
    file: PathBuf,
    roots: Range<usize>,
    offsets: Range<usize>,
    targets: Range<usize>,
    counts: Range<usize>,
    attribution: Range<usize>,
    index_space: String,
    source: String,
    default_drive: String,
    groups: Vec<Group>,
    fingerprint: String,
}

impl Connectome {
    /// Maps and validates a file: every hash, every bound, every row, and the range of every target's input.
    pub fn open(path: &Path) -> Result<Connectome, ConnectomeError> {
        let bytes = Bytes::map(path).map_err(|e| ConnectomeError {
            file: path.display().to_string(),
            section: "header".into(),
            expected: "a readable file".into(),
            found: e.to_string(),
            advice: "check the path, or make one with `flysim synth` or `flysim import`".into(),
        })?;
        validate::open(bytes, path)
    }

    /// Validates bytes in memory; `name` stands for the file in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Connectome, ConnectomeError> {
        validate::open(Bytes::copy(bytes), Path::new(name))
    }

    /// Number of neurons.
    pub fn neurons(&self) -> usize {
        self.roots.len() / 8
    }

    /// Number of edges (pairs, not contacts).
    pub fn edges(&self) -> usize {
        self.targets.len() / 4
    }

    /// Where it was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Which set of neurons the indices count, for instance `codex-783`.
    pub fn index_space(&self) -> &str {
        &self.index_space
    }

    /// How the file was made.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Drive that makes this brain active, for whoever names none; may be empty.
    pub fn default_drive(&self) -> &str {
        &self.default_drive
    }

    /// Licence and attribution of the data.
    pub fn attribution(&self) -> &str {
        std::str::from_utf8(&self.bytes.as_slice()[self.attribution.clone()]).unwrap_or_default()
    }

    /// First 16 hex digits of the sha256 over index space, root ids and edges. Groups are names for inputs, not
    /// part of the dynamics, and do not count.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// All groups, in file order.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The group of that name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.name == name)
    }

    /// Root ids by index. They exceed 2^53: never pass them through a float or a JSON number.
    pub fn roots(&self) -> &[u64] {
        self.section(&self.roots)
    }

    /// Row starts, one more than there are neurons.
    pub fn offsets(&self) -> &[u64] {
        self.section(&self.offsets)
    }

    /// Targets of all edges, row after row.
    pub fn targets(&self) -> &[u32] {
        self.section(&self.targets)
    }

    /// Signed contacts of all edges, row after row.
    pub fn counts(&self) -> &[i16] {
        self.section(&self.counts)
    }

    /// Targets and signed contacts of one neuron's outgoing edges.
    #[inline]
    pub fn row(&self, neuron: u32) -> (&[u32], &[i16]) {
        let offsets = self.offsets();
        let range = offsets[neuron as usize] as usize..offsets[neuron as usize + 1] as usize;
        (&self.targets()[range.clone()], &self.counts()[range])
    }

    fn section<T: bytemuck::AnyBitPattern>(&self, range: &Range<usize>) -> &[T] {
        bytemuck::cast_slice(&self.bytes.as_slice()[range.clone()])
    }
}

#[cfg(test)]
mod tests;
