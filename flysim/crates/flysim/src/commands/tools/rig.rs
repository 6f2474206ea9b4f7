// SPDX-License-Identifier: Apache-2.0
//! What the running commands share: a file, a drive, a backend by name.

use std::path::PathBuf;
use std::sync::Arc;

use flysim_core::cpu::CpuBackend;
use flysim_core::{Backend, Connectome, Drive};

use crate::cuda;

/// Which brain, and what drives it.
#[derive(clap::Args)]
pub struct RigArgs {
    /// Connectome
    pub file: PathBuf,
    /// Poisson drive, `group:Hz,group:Hz` [default: the one the file names]
    #[arg(long, env = "FLY_DRIVE")]
    drive: Option<String>,
    /// Seed of the drive
    #[arg(long, env = "FLY_SEED", default_value_t = 1)]
    seed: u64,
    /// GPU by UUID or index [default: the first]
    #[arg(long, env = "FLY_GPU", default_value = "0")]
    gpu: String,
    /// PTX file to load in place of the release's or the embedded one
    #[arg(long, env = "FLY_PTX")]
    ptx: Option<PathBuf>,
}

/// The same, opened and parsed.
pub struct Rig {
    pub connectome: Arc<Connectome>,
    pub drive: Drive,
    gpu: String,
    ptx: Option<PathBuf>,
}

/// A backend as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Cpu,
    Cuda,
}

impl RigArgs {
    pub fn open(self) -> anyhow::Result<Rig> {
        let connectome = Arc::new(Connectome::open(&self.file)?);
        let text = self.drive.unwrap_or_else(|| connectome.default_drive().to_string());
        let drive = Drive::parse(&text, self.seed, &connectome)?;
        Ok(Rig { connectome, drive, gpu: self.gpu, ptx: self.ptx })
    }
}

impl Rig {
    /// A backend at rest under the rig's drive. Says on stderr what was attached.
    pub fn backend(&self, kind: Kind, threads: usize) -> anyhow::Result<Box<dyn Backend>> {
        let mut backend: Box<dyn Backend> = match kind {
            Kind::Cpu => Box::new(CpuBackend::new(self.connectome.clone(), threads)?),
            Kind::Cuda => cuda::attach(self.connectome.clone(), &self.gpu, self.ptx.as_deref(), threads)?,
        };
        eprintln!("{}", backend.attach_line());
        backend.set_drive(&self.drive)?;
        Ok(backend)
    }
}
