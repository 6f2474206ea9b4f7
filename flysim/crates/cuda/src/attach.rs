// SPDX-License-Identifier: Apache-2.0
//! Which card, how large a grid, and what the log says about it.

use cudarc::driver::result::DriverError;

use crate::driver::{self, Device, Identity, Kernel};
use crate::ptx::Ptx;

/// Threads per block; the kernel is compiled for at most this many.
const MAX_BLOCK: u32 = 1024;

/// The device that `wanted` names, by index or UUID (with or without `GPU-`).
pub(crate) fn select(identities: &[Identity], wanted: &str) -> Result<Identity, String> {
    let bare = |uuid: &str| uuid.trim_start_matches("GPU-").to_ascii_lowercase();
    let found = match wanted.parse::<usize>() {
        Ok(index) => identities.get(index),
        Err(_) => identities.iter().find(|i| bare(&i.uuid) == bare(wanted)),
    };
    found.cloned().ok_or_else(|| {
        let there: Vec<String> =
            identities.iter().map(|i| format!("{} {} ({})", i.ordinal, i.uuid, i.name)).collect();
        format!(
            "no such device; there are: {}",
            if there.is_empty() { "none".into() } else { there.join(", ") }
        )
    })
}

/// Blocks and threads per block: all resident at once, and no more warps than there are groups.
pub(crate) fn grid(
    device: &Device,
    kernel: &Kernel,
    groups: usize,
    threads: Option<u32>,
) -> Result<(u32, u32), DriverError> {
    let threads = threads.unwrap_or(MAX_BLOCK).clamp(32, MAX_BLOCK) / 32 * 32;
    let resident = device.multiprocessors()? * kernel.blocks_per_multiprocessor(threads)?.max(1);
    let useful = (groups as u32).div_ceil(threads / 32);
    Ok((resident.min(useful).max(1), threads))
}

pub(crate) fn attach_line(
    identity: &Identity,
    ptx: &Ptx,
    kernel: &Kernel,
    blocks: u32,
    threads: u32,
) -> Result<String, DriverError> {
    let (major, minor) = identity.capability;
    let (cuda_major, cuda_minor) = driver::version()?;
    let (registers, spilled) = kernel.footprint()?;
    Ok(format!(
        "cuda backend attached: device {} \"{}\", {}, compute capability {major}.{minor}, driver CUDA \
         {cuda_major}.{cuda_minor} ({}), PTX {} {} from {}, grid {blocks} x {threads}, {registers} registers, \
         {spilled} bytes local",
        identity.ordinal,
        identity.name,
        identity.uuid,
        kernel_driver().unwrap_or_else(|| "module version unknown".into()),
        ptx.target,
        ptx.fit(identity.capability),
        ptx.origin,
    ))
}

/// Version of the kernel module, for instance `580.95.05`.
fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(version).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities() -> Vec<Identity> {
        let one = |ordinal, uuid: &str| Identity {
            ordinal,
            name: "card".into(),
            uuid: uuid.into(),
            capability: (9, 0),
        };
        vec![one(0, "GPU-aa-bb"), one(1, "GPU-cc-dd")]
    }

    #[test]
    fn a_device_is_found_by_index_or_uuid() {
        let found = |wanted| select(&identities(), wanted).map(|i| i.ordinal).ok();
        assert_eq!(found("1"), Some(1));
        assert_eq!(found("GPU-cc-dd"), Some(1));
        assert_eq!(found("AA-BB"), Some(0));
        assert_eq!(found("2"), None);
        assert!(select(&identities(), "GPU-x").is_err_and(|e| e.contains("GPU-aa-bb")));
    }
}
