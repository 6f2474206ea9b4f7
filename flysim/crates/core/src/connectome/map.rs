// SPDX-License-Identifier: Apache-2.0
//! The bytes of a `.fly` file: mapped from disk, or held in memory with the same alignment.
//!
//! The one file of this crate that is allowed `unsafe` for memory maps.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

/// Bytes whose start is aligned for u64.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// A file on disk.
    Mapped(memmap2::Mmap),
    /// Built in memory; the length in bytes may end before the last word does.
    Owned(Vec<u64>, usize),
}

impl Bytes {
    /// Maps a file read-only.
    pub(crate) fn map(path: &Path) -> io::Result<Bytes> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this value. A .fly file is written under another name and
        // renamed, never changed in place, so nobody writes below us; the content is hashed before it is used,
        // and every index in it is checked, so bytes that nevertheless differ later can panic but not escape.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Bytes::Mapped(map))
    }

    /// Takes a copy of `bytes` at an aligned address.
    pub(crate) fn copy(bytes: &[u8]) -> Bytes {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Bytes::Owned(words, bytes.len())
    }

    /// All bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(words, len) => &bytemuck::cast_slice(words)[..*len],
        }
    }
}
