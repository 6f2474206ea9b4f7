// SPDX-License-Identifier: Apache-2.0
//! From bytes to a [`Connectome`]: nothing in a file is believed before it was checked.

use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::map::Bytes;
use super::{Connectome, ConnectomeError, Group, VERSION, layout};
use crate::params::DELAY_TICKS;

const REMAKE: &str = "make the file again from its source";

struct Checker<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    neurons: usize,
    edges: usize,
    entries: Vec<layout::Entry>,
}

#[derive(serde::Deserialize)]
struct Meta {
    index_space: String,
    source: String,
    default_drive: String,
}

pub(super) fn open(bytes: Bytes, file: &Path) -> Result<Connectome, ConnectomeError> {
    let slice = bytes.as_slice();
    let header = layout::decode(slice)
        .map_err(|layout::BadHeader(expected, found)| error(file, "header", expected, found, REMAKE))?;
    let check = Checker {
        file,
        bytes: slice,
        neurons: header.neurons.try_into().unwrap_or(usize::MAX),
        edges: header.edges.try_into().unwrap_or(usize::MAX),
        entries: header.entries,
    };
    check.sizes()?;
    check.hashes()?;
    let meta = check.meta()?;
    check.rows()?;
    check.accumulator()?;
    let groups = check.groups()?;
    std::str::from_utf8(&slice[check.range("attribution")])
        .map_err(|e| check.error("attribution", "UTF-8 text", e.to_string()))?;
    let range = |name| check.range(name);
    let connectome = Connectome {
        roots: range("roots"),
        offsets: range("offsets"),
        targets: range("targets"),
        counts: range("counts"),
        attribution: range("attribution"),
        fingerprint: check.fingerprint(&meta.index_space),
        index_space: meta.index_space,
        source: meta.source,
        default_drive: meta.default_drive,
        groups,
        file: file.to_path_buf(),
        bytes: Bytes::copy(&[]),
    };
    Ok(Connectome { bytes, ..connectome })
}

impl Checker<'_> {
    fn range(&self, name: &str) -> Range<usize> {
        self.entries.iter().find(|e| e.name == name).map(|e| e.range.clone()).unwrap_or(0..0)
    }

    fn slice<T: bytemuck::AnyBitPattern>(&self, name: &str) -> &[T] {
        bytemuck::cast_slice(&self.bytes[self.range(name)])
    }

    fn error(&self, section: &str, expected: impl ToString, found: impl ToString) -> ConnectomeError {
        error(self.file, section, expected, found, REMAKE)
    }

    fn sizes(&self) -> Result<(), ConnectomeError> {
        if self.neurons == 0 || self.neurons > i32::MAX as usize || self.edges > i32::MAX as usize {
            let found = format!("{} neurons, {} edges", self.neurons, self.edges);
            return Err(self.error("header", "1 to 2^31 - 1 neurons, at most 2^31 - 1 edges", found));
        }
        for (entry, name) in self.entries.iter().zip(layout::NAMES) {
            if entry.name != name {
                return Err(self.error("header", format!("section {name}"), &entry.name));
            }
        }
        let sizes = [
            ("roots", self.neurons * 8),
            ("offsets", (self.neurons + 1) * 8),
            ("targets", self.edges * 4),
            ("counts", self.edges * 2),
        ];
        for (name, expected) in sizes {
            let found = self.range(name).len();
            if found != expected {
                return Err(self.error(name, format!("{expected} bytes"), format!("{found} bytes")));
            }
        }
        match self.range("members").len() % 4 {
            0 => Ok(()),
            rest => Err(self.error("members", "whole u32 numbers", format!("{rest} bytes left over"))),
        }
    }

    fn hashes(&self) -> Result<(), ConnectomeError> {
        for entry in &self.entries {
            let found = layout::sha256(&self.bytes[entry.range.clone()]);
            if found != entry.sha256 {
                let expected = format!("sha256 {}", layout::hex(&entry.sha256));
                return Err(self.error(&entry.name, expected, format!("sha256 {}", layout::hex(&found))));
            }
        }
        Ok(())
    }

    fn meta(&self) -> Result<Meta, ConnectomeError> {
        let meta: Meta = serde_json::from_slice(&self.bytes[self.range("meta")])
            .map_err(|e| self.error("meta", "JSON with index_space, source and default_drive", e))?;
        let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if meta.index_space.is_empty() || !meta.index_space.chars().all(named) {
            // It becomes a segment of the compatibility string.
            return Err(self.error("meta", "index_space of letters, digits, - . _", meta.index_space));
        }
        Ok(meta)
    }

    fn rows(&self) -> Result<(), ConnectomeError> {
        let (offsets, targets): (&[u64], &[u32]) = (self.slice("offsets"), self.slice("targets"));
        if offsets[0] != 0 || offsets[self.neurons] != self.edges as u64 {
            let found = format!("{} to {}", offsets[0], offsets[self.neurons]);
            return Err(self.error("offsets", format!("0 to {}", self.edges), found));
        }
        if let Some(i) = offsets.windows(2).position(|w| w[0] > w[1]) {
            let found = format!("{} then {} at row {i}", offsets[i], offsets[i + 1]);
            return Err(self.error("offsets", "row starts that never fall", found));
        }
        for (i, w) in offsets.windows(2).enumerate() {
            let row = &targets[w[0] as usize..w[1] as usize];
            if let Some(&t) = row.iter().find(|&&t| t as usize >= self.neurons) {
                let expected = format!("targets below {}", self.neurons);
                return Err(self.error("targets", expected, format!("{t} in row {i}")));
            }
            if let Some(pair) = row.windows(2).find(|p| p[0] >= p[1]) {
                let found = format!("{} then {} in row {i}", pair[0], pair[1]);
                return Err(self.error("targets", "ascending targets, each once", found));
            }
        }
        match self.slice::<i16>("counts").iter().position(|&c| c == 0) {
            Some(i) => Err(self.error("counts", "contacts other than 0", format!("0 at edge {i}"))),
            None => Ok(()),
        }
    }

    /// One (tick, target) sum must fit i32 even if every source spikes at once.
    fn accumulator(&self) -> Result<(), ConnectomeError> {
        let mut sums = vec![0u64; self.neurons];
        let edges = self.slice::<u32>("targets").iter().zip(self.slice::<i16>("counts"));
        edges.for_each(|(&t, &c)| sums[t as usize] += u64::from(c.unsigned_abs()));
        match sums.iter().position(|&s| s > i32::MAX as u64) {
            Some(i) => {
                let found = format!("{} at neuron {i}", sums[i]);
                let expected =
                    format!("sum of |contacts| per target at most {} ({DELAY_TICKS}-tick ring)", i32::MAX);
                Err(self.error("counts", expected, found))
            }
            None => Ok(()),
        }
    }

    fn groups(&self) -> Result<Vec<Group>, ConnectomeError> {
        let named: Vec<(String, usize)> = serde_json::from_slice(&self.bytes[self.range("groups")])
            .map_err(|e| self.error("groups", "JSON list of [name, size]", e))?;
        let mut members: &[u32] = self.slice("members");
        let total = named.iter().fold(0usize, |sum, g| sum.saturating_add(g.1));
        if total != members.len() || named.len() > usize::from(u16::MAX) {
            let found = format!("{} members, {} groups", members.len(), named.len());
            return Err(self.error("members", format!("{total} members, at most 65535 groups"), found));
        }
        let mut groups: Vec<Group> = Vec::with_capacity(named.len());
        for (name, size) in named {
            let (head, tail) = members.split_at(size);
            members = tail;
            self.group(&name, head, &groups)?;
            groups.push(Group { name, members: head.to_vec() });
        }
        Ok(groups)
    }

    fn group(&self, name: &str, members: &[u32], before: &[Group]) -> Result<(), ConnectomeError> {
        // A comma would end the name in a drive text.
        if name.is_empty() || name.contains([',', '\n']) || before.iter().any(|g| g.name == name) {
            return Err(self.error("groups", "names without comma, each once", format!("{name:?}")));
        }
        let ascending = members.windows(2).all(|w| w[0] < w[1]);
        if !ascending || members.last().is_some_and(|&m| m as usize >= self.neurons) {
            let expected = format!("ascending members below {}", self.neurons);
            return Err(self.error("members", expected, format!("others in group {name}")));
        }
        Ok(())
    }

    fn fingerprint(&self, index_space: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(VERSION.to_le_bytes());
        hash.update(index_space);
        for name in ["roots", "offsets", "targets", "counts"] {
            let entry = self.entries.iter().find(|e| e.name == name);
            hash.update(entry.map(|e| e.sha256).unwrap_or_default());
        }
        layout::hex(&hash.finalize()[..8])
    }
}

fn error(
    file: &Path,
    section: &str,
    expected: impl ToString,
    found: impl ToString,
    advice: &str,
) -> ConnectomeError {
    ConnectomeError {
        file: file.display().to_string(),
        section: section.into(),
        expected: expected.to_string(),
        found: found.to_string(),
        advice: advice.into(),
    }
}
