// SPDX-License-Identifier: Apache-2.0
//! State to bytes and back. No files here.

use sha2::{Digest, Sha256};

use super::{Manifest, Meta, Section};
use crate::state::{Pending, State};

const MAGIC: &[u8; 8] = b"FLYCKP1\n";
const FORMAT: u32 = 1;
const HEADER: usize = 8 + 8 + 32;
/// No manifest of ours comes near it; a damaged length must not make us read a gigabyte.
const MANIFEST_LIMIT: u64 = 1 << 20;
const PENDING_BYTES: usize = 16;

/// What is wrong: section, expected, found.
pub(super) struct Damage(pub(super) String, pub(super) String, pub(super) String);

pub(super) fn encode(state: &State, meta: &Meta) -> Vec<u8> {
    let sections = [
        ("v", bytemuck::cast_slice(&state.v).to_vec()),
        ("g", bytemuck::cast_slice(&state.g).to_vec()),
        ("refractory", state.refractory.clone()),
        ("pending", encode_pending(&state.pending)),
    ];
    let manifest = serde_json::to_vec(&manifest(state, meta, &sections)).expect("plain data");
    let mut out = Vec::with_capacity(HEADER + manifest.len() + state.v.len() * 18);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    out.extend_from_slice(&Sha256::digest(&manifest));
    out.extend_from_slice(&manifest);
    sections.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
    out
}

fn manifest(state: &State, meta: &Meta, sections: &[(&str, Vec<u8>)]) -> Manifest {
    let section = |(name, bytes): &(&str, Vec<u8>)| Section {
        name: (*name).into(),
        bytes: bytes.len() as u64,
        sha256: sha256_hex(bytes),
    };
    Manifest {
        format: FORMAT,
        tick: state.tick,
        neurons: state.v.len() as u64,
        state_hash: format!("{:016x}", state.hash()),
        compatibility: meta.compatibility.clone(),
        backend: meta.backend.clone(),
        drive: meta.drive.clone(),
        seed: meta.seed.to_string(),
        created_unix_s: meta.created_unix_s,
        extra: meta.extra.clone(),
        sections: sections.iter().map(section).collect(),
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<(Manifest, State), Damage> {
    let (manifest, mut rest) = decode_manifest(bytes)?;
    let mut next = |name: &str| {
        let section = manifest.sections.iter().find(|s| s.name == name);
        let section = section.ok_or_else(|| damage(name, "a section of that name", "none"))?;
        take(&mut rest, section)
    };
    let v = floats(next("v")?);
    let g = floats(next("g")?);
    let refractory = next("refractory")?.to_vec();
    let pending = decode_pending(next("pending")?)?;
    if !rest.is_empty() || manifest.sections.len() != 4 {
        return Err(damage("end of file", "nothing behind section pending", format!("{} bytes", rest.len())));
    }
    let state = State { tick: manifest.tick, v, g, refractory, pending };
    // A neuron count that does not fit ends here too: the lengths must agree with it.
    state.validate(manifest.neurons as usize).map_err(|e| Damage(e.what, e.expected, e.found))?;
    let hash = format!("{:016x}", state.hash());
    if hash != manifest.state_hash {
        return Err(damage("state hash", &manifest.state_hash, hash));
    }
    Ok((manifest, state))
}

pub(super) fn decode_manifest(bytes: &[u8]) -> Result<(Manifest, &[u8]), Damage> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(damage("header", "magic FLYCKP1", format!("{} other bytes", bytes.len())));
    }
    let len = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    let rest = &bytes[HEADER..];
    if len > MANIFEST_LIMIT || len > rest.len() as u64 {
        return Err(damage("manifest", format!("{len} bytes"), format!("{} bytes", rest.len())));
    }
    let (text, rest) = rest.split_at(len as usize);
    if Sha256::digest(text)[..] != bytes[16..48] {
        return Err(damage("manifest", "its sha256", "another"));
    }
    let manifest: Manifest =
        serde_json::from_slice(text).map_err(|e| damage("manifest", "a manifest of format 1", e))?;
    if manifest.format != FORMAT {
        return Err(damage("manifest", format!("format {FORMAT}"), format!("format {}", manifest.format)));
    }
    Ok((manifest, rest))
}

fn take<'a>(rest: &mut &'a [u8], section: &Section) -> Result<&'a [u8], Damage> {
    if section.bytes > rest.len() as u64 {
        return Err(damage(&section.name, format!("{} bytes", section.bytes), format!("{}", rest.len())));
    }
    let (bytes, tail) = rest.split_at(section.bytes as usize);
    *rest = tail;
    let found = sha256_hex(bytes);
    if found != section.sha256 {
        return Err(damage(&section.name, format!("sha256 {}", section.sha256), format!("sha256 {found}")));
    }
    Ok(bytes)
}

fn encode_pending(pending: &[Pending]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pending.len() * PENDING_BYTES);
    for p in pending {
        out.extend_from_slice(&p.tick.to_le_bytes());
        out.extend_from_slice(&p.neuron.to_le_bytes());
        out.extend_from_slice(&p.contacts.to_le_bytes());
    }
    out
}

fn decode_pending(bytes: &[u8]) -> Result<Vec<Pending>, Damage> {
    if !bytes.len().is_multiple_of(PENDING_BYTES) {
        return Err(damage("pending", "entries of 16 bytes", format!("{} bytes", bytes.len())));
    }
    let entry = |e: &[u8]| Pending {
        tick: u64::from_le_bytes(e[..8].try_into().expect("8 bytes")),
        neuron: u32::from_le_bytes(e[8..12].try_into().expect("4 bytes")),
        contacts: i32::from_le_bytes(e[12..].try_into().expect("4 bytes")),
    };
    Ok(bytes.chunks_exact(PENDING_BYTES).map(entry).collect())
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
}

fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn damage(section: &str, expected: impl ToString, found: impl ToString) -> Damage {
    Damage(section.into(), expected.to_string(), found.to_string())
}
