// SPDX-License-Identifier: Apache-2.0
//! What this binary says it is.

/// Version: `FLY_BUILD_VERSION` of the build (flyops: crate version and hash of the sources), else the crate's own,
/// with `+cuda` when the feature is in.
pub fn version() -> String {
    match option_env!("FLY_BUILD_VERSION").filter(|version| !version.is_empty()) {
        Some(version) => version.into(),
        None if cfg!(feature = "cuda") => concat!(env!("CARGO_PKG_VERSION"), "+cuda").into(),
        None => env!("CARGO_PKG_VERSION").into(),
    }
}

/// The text behind `flysim` in `--version`: version, and the PTX inside when there is one.
pub fn long() -> String {
    match crate::cuda::ptx_targets() {
        Some(targets) => format!("{} (PTX {targets})", version()),
        None => version(),
    }
}

/// Cargo features in the binary.
pub fn features() -> Vec<&'static str> {
    [("cuda", cfg!(feature = "cuda")), ("fault", cfg!(feature = "fault"))]
        .into_iter()
        .filter_map(|(name, is_in)| is_in.then_some(name))
        .collect()
}
