// SPDX-License-Identifier: Apache-2.0
//! Header and section table: encoding and decoding, nothing about their meaning.

use std::ops::Range;

use sha2::{Digest, Sha256};

pub(super) const MAGIC: &[u8; 8] = b"FLYCON1\n";
pub(super) const NAMES: [&str; 8] =
    ["meta", "roots", "offsets", "targets", "counts", "groups", "members", "attribution"];
const HEADER: usize = 64;
const ENTRY: usize = 64;
const ALIGN: usize = 64;

/// One row of the table.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) range: Range<usize>,
    pub(super) sha256: [u8; 32],
}

/// What the header says, once its own hash is right.
pub(super) struct Header {
    pub(super) neurons: u64,
    pub(super) edges: u64,
    pub(super) entries: Vec<Entry>,
}

/// What is wrong with a header: expected and found.
pub(super) struct BadHeader(pub(super) String, pub(super) String);

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Puts header, table and sections into one file image.
pub(super) fn encode(neurons: usize, edges: usize, sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut table = Vec::new();
    let mut at = align(HEADER + ENTRY * sections.len());
    for (name, bytes) in sections {
        let mut padded = [0u8; 16];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        table.extend_from_slice(&padded);
        table.extend_from_slice(&(at as u64).to_le_bytes());
        table.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        table.extend_from_slice(&sha256(bytes));
        at = align(at + bytes.len());
    }
    let mut out = Vec::with_capacity(at);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&super::VERSION.to_le_bytes());
    out.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    out.extend_from_slice(&(neurons as u64).to_le_bytes());
    out.extend_from_slice(&(edges as u64).to_le_bytes());
    let hash = Sha256::new().chain_update(&out).chain_update(&table).finalize();
    out.extend_from_slice(&hash);
    out.extend_from_slice(&table);
    for (_, bytes) in sections {
        out.resize(align(out.len()), 0);
        out.extend_from_slice(bytes);
    }
    out
}

/// Reads header and table; every range it returns lies inside `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Result<Header, BadHeader> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        let found = String::from_utf8_lossy(&bytes[..bytes.len().min(8)]).into_owned();
        return Err(BadHeader("magic FLYCON1".into(), format!("{found:?} in {} bytes", bytes.len())));
    }
    let version = u32_at(bytes, 8);
    if version != super::VERSION {
        return Err(BadHeader(format!("version {}", super::VERSION), format!("version {version}")));
    }
    let count = u32_at(bytes, 12) as usize;
    let end = HEADER + ENTRY * count.min(1024);
    if bytes.len() < end || count != NAMES.len() {
        let found = format!("{count} sections in {} bytes", bytes.len());
        return Err(BadHeader(format!("{} sections and their table", NAMES.len()), found));
    }
    let hash = Sha256::new().chain_update(&bytes[..32]).chain_update(&bytes[HEADER..end]).finalize();
    if hash[..] != bytes[32..64] {
        return Err(BadHeader(hex(&bytes[32..64]), hex(&hash)));
    }
    let entries = bytes[HEADER..end].chunks_exact(ENTRY).map(|e| entry(e, bytes.len()));
    Ok(Header {
        neurons: u64_at(bytes, 16),
        edges: u64_at(bytes, 24),
        entries: entries.collect::<Result<_, _>>()?,
    })
}

fn entry(raw: &[u8], file_bytes: usize) -> Result<Entry, BadHeader> {
    let name = String::from_utf8_lossy(&raw[..16]).trim_end_matches('\0').to_string();
    let (start, len) = (u64_at(raw, 16), u64_at(raw, 24));
    let end = start.checked_add(len).filter(|&end| end <= file_bytes as u64);
    match end {
        Some(end) if start % ALIGN as u64 == 0 => {
            let sha256 = raw[32..64].try_into().expect("32 bytes");
            Ok(Entry { name, range: start as usize..end as usize, sha256 })
        }
        _ => {
            let found = format!("{len} bytes at {start} of {file_bytes}");
            Err(BadHeader(format!("section {name} aligned and inside the file"), found))
        }
    }
}

/// Lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn align(at: usize) -> usize {
    at.next_multiple_of(ALIGN)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
