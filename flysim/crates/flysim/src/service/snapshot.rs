// SPDX-License-Identifier: Apache-2.0
//! What the outside may know: facts of the whole run, and one snapshot per batch that replaces the one before.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use serde::Serialize;

/// A named group of neurons.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Name in the connectome.
    pub name: String,
    /// Number of neurons.
    pub cells: usize,
}

/// Facts that do not change while the process lives.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// `cpu` or `cuda`: what runs.
    pub backend: &'static str,
    /// `cpu` or `cuda`: what `FLY_LIF_CUDA` asked for.
    pub backend_wanted: &'static str,
    /// Version with build metadata, for example `0.1.0+cuda`.
    pub version: String,
    /// Cargo features in the binary.
    pub features: Vec<&'static str>,
    /// Name of the kernel's trajectory.
    pub kernel_version: &'static str,
    /// Who can go on from this run's checkpoints.
    pub compatibility: String,
    /// Process id.
    pub pid: u32,
    /// Neurons.
    pub neurons: usize,
    /// Directed connections.
    pub edges: usize,
    /// Fingerprint of the connectome.
    pub connectome: String,
    /// Groups, in the order in which rates are kept.
    #[serde(skip)]
    pub groups: Vec<Group>,
    /// Worker threads really used.
    pub threads: usize,
    /// Cpus the kernel lets this process use.
    pub cpus: String,
    /// Poisson drive as configured.
    pub drive: String,
    /// Seed of the drive.
    pub seed: u64,
    /// Brain seconds per wall second; 0 is unthrottled.
    pub speed: f64,
    /// What the attach line says about the GPU; null on the CPU.
    pub gpu: Option<Gpu>,
    /// Checkpoints this process went on from: 0 or 1.
    pub restores: u64,
    /// Tick of that checkpoint.
    pub restored_tick: Option<u64>,
    /// Damaged checkpoints put aside at start.
    pub set_aside: u64,
    /// Spikes counted by the processes before this one.
    pub spikes_restored_total: u64,
    /// When this process began.
    #[serde(skip)]
    pub started: Instant,
}

/// The GPU in use.
#[derive(Clone, Debug, Serialize)]
pub struct Gpu {
    /// Device, compute capability, driver and PTX in the words of the log line.
    pub attached: String,
    /// `FLY_GPU` as configured.
    pub asked: String,
}

/// One moment of the run.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the last batch of ticks ended (or the last turn of the paused loop).
    pub at: Instant,
    /// Ticks completed since the start of the brain.
    pub tick: u64,
    /// Brain time over wall time, last 10 s.
    pub realtime_factor: f64,
    /// How late the last batch was.
    pub lag: Duration,
    /// Spikes since the process started.
    pub spikes: u64,
    /// Those of neurons that the drive does not touch.
    pub spikes_undriven: u64,
    /// Spikes per brain second, all neurons, last 1 s.
    pub spikes_per_s: f64,
    /// Spikes per cell and second by group, last 1 s.
    pub rates: Vec<f64>,
    /// Host cores of the whole process.
    pub host_cores: f64,
    /// Ticks are stopped by request.
    pub paused: bool,
    /// Frames that the feed had no place for.
    pub frames_lost: u64,
}

/// How the checkpoints are doing.
#[derive(Clone, Debug, Default)]
pub struct CheckpointState {
    /// When the newest one was made; for a restored one, as long ago as its file says.
    pub at: Option<Instant>,
    /// Its tick.
    pub tick: Option<u64>,
    /// Written by this process.
    pub count: u64,
    /// Not written although due.
    pub failures: u64,
    /// Words of the newest failure, null after a success.
    pub last_error: Option<String>,
}

/// The board: written by the simulator and the checkpoint writer, read by everybody else.
pub struct Board {
    /// Facts of the run.
    pub info: Info,
    /// The newest snapshot.
    pub snapshot: ArcSwap<Snapshot>,
    /// How the checkpoints are doing.
    pub checkpoint: Mutex<CheckpointState>,
}

/// Ticks that stand still for this long make the service unhealthy.
pub const STALL: Duration = Duration::from_secs(2);

impl Board {
    /// The checkpoint state, copied.
    pub fn checkpoint(&self) -> CheckpointState {
        self.checkpoint.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Changes the checkpoint state.
    pub fn with_checkpoint(&self, change: impl FnOnce(&mut CheckpointState)) {
        change(&mut self.checkpoint.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Why the service is not healthy at `now`, if it is not.
    pub fn sick(&self, now: Instant) -> Option<String> {
        let snapshot = self.snapshot.load();
        let quiet = now.saturating_duration_since(snapshot.at);
        if quiet > STALL {
            return Some(format!(
                "no tick for {:.1} s, the last one was {}",
                quiet.as_secs_f64(),
                snapshot.tick
            ));
        }
        snapshot.paused.then(|| format!("paused on request at tick {}", snapshot.tick))
    }

    /// Rates by group name.
    pub fn rates(&self) -> BTreeMap<&str, f64> {
        let snapshot = self.snapshot.load();
        self.info.groups.iter().map(|group| group.name.as_str()).zip(snapshot.rates.iter().copied()).collect()
    }
}
