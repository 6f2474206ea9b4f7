// SPDX-License-Identifier: Apache-2.0
//! Which PTX to load: a file of the release for exactly this card, or the text in the binary that every card can JIT.

use std::path::{Path, PathBuf};

/// Target of the embedded PTX; cards from it on compile it when it is loaded.
pub const EMBEDDED_TARGET: &str = "sm_75";
const EMBEDDED: &str = include_str!("../kernels/flysim.sm_75.ptx");

/// Where PTX may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PtxSource {
    /// This file and no other.
    File(PathBuf),
    /// `sm_XX.ptx` for the card in the first of these directories that has it, else the embedded text.
    Search(Vec<PathBuf>),
}

/// A PTX text and what it says of itself.
pub(crate) struct Ptx {
    pub(crate) text: String,
    pub(crate) target: String,
    pub(crate) version: String,
    pub(crate) origin: String,
}

impl Ptx {
    /// Chooses and reads. `capability` is the card's, for instance (9, 0).
    pub(crate) fn choose(source: &PtxSource, capability: (i32, i32)) -> Result<Ptx, String> {
        let exact = format!("sm_{}{}.ptx", capability.0, capability.1);
        let file = match source {
            PtxSource::File(path) => Some(path.clone()),
            PtxSource::Search(directories) => {
                directories.iter().map(|d| d.join(&exact)).find(|p| p.is_file())
            }
        };
        let ptx = match file {
            Some(path) => Ptx::read(&path)?,
            None => Ptx::parse(EMBEDDED.into(), "embedded".into())?,
        };
        ptx.check_fits(capability)?;
        Ok(ptx)
    }

    fn read(path: &Path) -> Result<Ptx, String> {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| format!("PTX {origin}: {e}"))?;
        Ptx::parse(text, origin)
    }

    fn parse(text: String, origin: String) -> Result<Ptx, String> {
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.trim().strip_prefix(name));
            let value = line.and_then(|l| l.trim().split([',', ' ']).next()).map(str::to_string);
            value.ok_or_else(|| format!("PTX {origin}: no {name} in it"))
        };
        let (version, target) = (field(".version")?, field(".target")?);
        // Another flag or tool would give other bits, silently; better no kernel than one that drifts.
        if text.lines().any(|l| l.contains("fma.")) {
            return Err(format!("PTX {origin}: holds a fused multiply-add; compile with --fmad=false"));
        }
        if !text.contains(&format!("// source sha256: {}", source_sha256())) {
            return Err(format!(
                "PTX {origin}: made from another flysim.cu than this binary; build it again"
            ));
        }
        Ok(Ptx { text, target, version, origin })
    }

    fn check_fits(&self, (major, minor): (i32, i32)) -> Result<(), String> {
        let number =
            |t: &str| t.trim_start_matches("sm_").trim_end_matches('a').parse::<i32>().unwrap_or(i32::MAX);
        let card = major * 10 + minor;
        if number(&self.target) > card || (self.target.ends_with('a') && number(&self.target) != card) {
            let Ptx { origin, target, .. } = self;
            return Err(format!(
                "PTX {origin}: target {target}, but the card is sm_{card}; build for ARCH=sm_{card}"
            ));
        }
        Ok(())
    }

    /// `exact` when it was made for this very card, else `JIT`.
    pub(crate) fn fit(&self, (major, minor): (i32, i32)) -> &'static str {
        if self.target.trim_end_matches('a') == format!("sm_{major}{minor}") { "exact" } else { "JIT" }
    }
}

fn source_sha256() -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(include_bytes!("../kernels/flysim.cu"));
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_ptx_is_of_this_source_unfused_and_old_enough() {
        let ptx = Ptx::parse(EMBEDDED.into(), "embedded".into()).unwrap_or_else(|e| {
            panic!("{e}\nrun tools/nvrtc.py crates/cuda/kernels/flysim.cu --arch sm_75 with NVRTC 12.0")
        });
        assert_eq!((ptx.version.as_str(), ptx.target.as_str()), ("8.0", EMBEDDED_TARGET));
        // Without .rn the assembler would be free to fuse after all.
        let rounded = |op: &str| EMBEDDED.matches(&format!("{op}.rn.f64")).count();
        let all = |op: &str| EMBEDDED.lines().filter(|l| l.contains(op) && l.contains(".f64")).count();
        for op in ["mul", "add", "sub"] {
            assert_eq!(rounded(op), all(&format!("{op}.")), "{op}");
        }
    }

    #[test]
    fn fused_foreign_and_headless_texts_are_refused() {
        let parse = |text: String| Ptx::parse(text, "x".into()).err();
        assert_eq!(parse(EMBEDDED.into()), None);
        let fused = EMBEDDED.replacen("add.rn.f64", "fma.rn.f64", 1);
        assert!(parse(fused).is_some_and(|e| e.contains("fused")));
        let foreign = EMBEDDED.replacen(&source_sha256(), &"0".repeat(64), 1);
        assert!(parse(foreign).is_some_and(|e| e.contains("another")));
        assert!(parse(EMBEDDED.replacen(".target", ".tarjet", 1)).is_some_and(|e| e.contains(".target")));
    }

    #[test]
    fn the_release_comes_before_the_binary_and_the_card_decides() {
        let dir = tempfile::tempdir().unwrap();
        let search = PtxSource::Search(vec![dir.path().into()]);
        let embedded = Ptx::choose(&search, (9, 0)).unwrap();
        assert_eq!((embedded.origin.as_str(), embedded.fit((9, 0))), ("embedded", "JIT"));
        let exact = dir.path().join("sm_90.ptx");
        std::fs::write(&exact, EMBEDDED.replace(".target sm_75", ".target sm_90")).unwrap();
        let found = Ptx::choose(&search, (9, 0)).unwrap();
        assert_eq!((found.origin, found.target.as_str()), (exact.display().to_string(), "sm_90"));
        assert_eq!(Ptx::choose(&search, (8, 6)).unwrap().origin, "embedded");
        assert!(Ptx::choose(&PtxSource::File(exact), (8, 6)).is_err_and(|e| e.contains("ARCH=sm_86")));
        assert!(Ptx::choose(&search, (7, 0)).is_err());
        assert!(Ptx::choose(&PtxSource::File("/nowhere.ptx".into()), (9, 0)).is_err());
    }
}
