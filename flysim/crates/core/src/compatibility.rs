// SPDX-License-Identifier: Apache-2.0
//! The compatibility string: who can go on from whose checkpoint.
//!
//! Segments joined by `/`: kernel, index space, connectome fingerprint, plasticity, state format. Compared whole.

use crate::connectome::Connectome;
use crate::params::kernel_version;
use crate::state;

/// Names of the segments, in order.
pub const SEGMENTS: [&str; 5] = ["kernel", "index space", "connectome", "plasticity", "state format"];

/// Plasticity segment while no edge can change.
pub const PLASTICITY: &str = "none";

/// The string of this binary on `connectome`.
pub fn string(connectome: &Connectome) -> String {
    [kernel_version(), connectome.index_space(), connectome.fingerprint(), PLASTICITY, state::FORMAT]
        .join("/")
}

/// First segment in which two strings differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not compatible: {segment} differs: {ours:?} here, {theirs:?} there")]
pub struct Mismatch {
    /// One of [`SEGMENTS`], or `number of segments`.
    pub segment: &'static str,
    /// What this side has.
    pub ours: String,
    /// What the other side has.
    pub theirs: String,
}

/// Accepts equal strings; otherwise names the segment that differs.
pub fn compare(ours: &str, theirs: &str) -> Result<(), Mismatch> {
    if ours == theirs {
        return Ok(());
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (ours.split('/').collect(), theirs.split('/').collect());
    let mismatch = |segment, a: &str, b: &str| Mismatch { segment, ours: a.into(), theirs: b.into() };
    if a.len() != SEGMENTS.len() || b.len() != SEGMENTS.len() {
        return Err(mismatch("number of segments", ours, theirs));
    }
    match (0..SEGMENTS.len()).find(|&i| a[i] != b[i]) {
        Some(i) => Err(mismatch(SEGMENTS[i], a[i], b[i])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_accepted() {
        assert_eq!(compare("k/i/c/none/s", "k/i/c/none/s"), Ok(()));
    }

    #[test]
    fn the_differing_segment_is_named() {
        for (i, name) in SEGMENTS.iter().enumerate() {
            let mut other = ["k", "i", "c", "none", "s"];
            other[i] = "x";
            assert_eq!(compare("k/i/c/none/s", &other.join("/")).unwrap_err().segment, *name);
        }
        assert_eq!(compare("k/i/c/none/s", "k/i/c/s").unwrap_err().segment, "number of segments");
    }
}
