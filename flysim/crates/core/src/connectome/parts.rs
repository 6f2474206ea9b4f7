// SPDX-License-Identifier: Apache-2.0
//! A connectome being made: what importers and the generator fill in.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::{Connectome, ConnectomeError, Group, layout};

/// Everything a `.fly` file holds. Checked when it is encoded, by the same code that checks files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Which set of neurons the indices count.
    pub index_space: String,
    /// How it was made.
    pub source: String,
    /// Drive for whoever names none.
    pub default_drive: String,
    /// Licence and attribution.
    pub attribution: String,
    /// Root ids.
    pub roots: Vec<u64>,
    /// Row starts.
    pub offsets: Vec<u64>,
    /// Targets, ascending within a row.
    pub targets: Vec<u32>,
    /// Signed contacts.
    pub counts: Vec<i16>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Parts {
    /// Sets the edges from (source, target, signed contacts), in any order.
    ///
    /// # Errors
    /// Names the first edge that is double, out of range, zero, or too large for 16 bits.
    pub fn set_edges(&mut self, mut edges: Vec<(u32, u32, i32)>) -> Result<(), String> {
        let neurons = self.roots.len();
        edges.sort_unstable_by_key(|e| (e.0, e.1));
        if let Some(w) = edges.windows(2).find(|w| (w[0].0, w[0].1) == (w[1].0, w[1].1)) {
            return Err(format!("edge {} -> {} stands there twice; sum or drop one", w[0].0, w[0].1));
        }
        self.offsets = vec![0; neurons + 1];
        self.targets = Vec::with_capacity(edges.len());
        self.counts = Vec::with_capacity(edges.len());
        for (from, to, contacts) in edges {
            if from as usize >= neurons || to as usize >= neurons || contacts == 0 {
                return Err(format!("edge {from} -> {to} with {contacts} contacts among {neurons} neurons"));
            }
            let narrow = i16::try_from(contacts).map_err(|_| {
                format!("edge {from} -> {to} has {contacts} contacts; this format holds 16 bits")
            })?;
            self.offsets[from as usize + 1] += 1;
            self.targets.push(to);
            self.counts.push(narrow);
        }
        (0..neurons).for_each(|i| self.offsets[i + 1] += self.offsets[i]);
        Ok(())
    }

    /// The file image.
    pub fn encode(&self) -> Vec<u8> {
        let meta = serde_json::json!({
            "index_space": self.index_space, "source": self.source, "default_drive": self.default_drive,
        })
        .to_string();
        let named: Vec<_> = self.groups.iter().map(|g| (&g.name, g.members.len())).collect();
        let groups = serde_json::to_string(&named).expect("strings and numbers");
        let members: Vec<u32> = self.groups.iter().flat_map(|g| g.members.iter().copied()).collect();
        let sections: [(&str, &[u8]); 8] = [
            ("meta", meta.as_bytes()),
            ("roots", bytemuck::cast_slice(&self.roots)),
            ("offsets", bytemuck::cast_slice(&self.offsets)),
            ("targets", bytemuck::cast_slice(&self.targets)),
            ("counts", bytemuck::cast_slice(&self.counts)),
            ("groups", groups.as_bytes()),
            ("members", bytemuck::cast_slice(&members)),
            ("attribution", self.attribution.as_bytes()),
        ];
        layout::encode(self.roots.len(), self.targets.len(), &sections)
    }

    /// Validates in memory.
    pub fn build(&self) -> Result<Connectome, ConnectomeError> {
        Connectome::from_bytes(&self.encode(), "(in memory)")
    }

    /// Validates, then writes under a temporary name, syncs and renames; returns what was written.
    pub fn write(&self, path: &Path) -> Result<Connectome, Box<dyn std::error::Error + Send + Sync>> {
        let image = self.encode();
        Connectome::from_bytes(&image, &path.display().to_string())?;
        write_durably(path, &image)?;
        Ok(Connectome::open(path)?)
    }
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let mut file = fs::File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
