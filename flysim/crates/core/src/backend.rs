// SPDX-License-Identifier: Apache-2.0
//! What a running brain offers, whatever it runs on.

use crate::drive::Drive;
use crate::spikes::{Kick, Spike, Watch};
use crate::state::{State, StateError};

/// What happened in the ticks of one or more `advance` calls. Reuse it: `clear` keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Ticks advanced.
    pub ticks: u64,
    /// Spikes of all neurons.
    pub spikes: u64,
    /// Spikes of neurons outside the driven set: what the brain did by itself.
    pub undriven_spikes: u64,
    /// Spikes per group, in the order of [`crate::Connectome::groups`]; empty while nothing has spiked.
    pub group_spikes: Vec<u64>,
    /// Spikes of the watched set ([`Watch`]), ordered by tick, then neuron, within each `advance` call.
    pub watched: Vec<Spike>,
}

impl Report {
    /// Empties the report for reuse.
    pub fn clear(&mut self) {
        self.ticks = 0;
        self.spikes = 0;
        self.undriven_spikes = 0;
        self.group_spikes.fill(0);
        self.watched.clear();
    }
}

/// Why a backend could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// This binary cannot use the device at all (feature not built in). Exit 78 in the service.
    #[error("{0}")]
    NotBuiltIn(String),
    /// The device could not be attached. Exit 75 in the service.
    #[error("cannot attach {device}: {reason}")]
    Attach {
        /// What was asked for.
        device: String,
        /// What stood in the way, and what to do.
        reason: String,
    },
    /// The device was there and is gone or broken: nothing on it can be trusted. Exit 75 in the service.
    #[error("device lost at tick {tick}: {reason}")]
    DeviceLost {
        /// Last tick known to be complete.
        tick: u64,
        /// The driver's words.
        reason: String,
    },
    /// The state does not fit this connectome or kernel.
    #[error(transparent)]
    State(#[from] StateError),
    /// An argument that no run could use (a kick in the past, a neuron out of range).
    #[error("{0}")]
    Argument(String),
}

/// One brain in flight. All calls come from one thread, the simulator's.
///
/// `advance` of n ticks followed by m ticks is the same run as n + m ticks, on every backend, for every n and m.
pub trait Backend: Send {
    /// `cpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// One line for the log, beginning with `cpu backend attached` or `cuda backend attached`.
    fn attach_line(&self) -> String;

    /// Worker threads really used, as counted by the pool and not as asked for.
    fn threads(&self) -> usize;

    /// Ticks completed since the start of the run; the next one to run has this number.
    fn tick(&self) -> u64;

    /// Replaces the Poisson drive from the next tick on. Not part of [`State`]: set it again after `import`.
    fn set_drive(&mut self, drive: &Drive) -> Result<(), BackendError>;

    /// Adds external events at the next tick or later. Not part of [`State`]: the journal gives them again.
    fn inject(&mut self, kicks: &[Kick]) -> Result<(), BackendError>;

    /// Chooses which spikes reports list one by one.
    fn set_watch(&mut self, watch: &Watch);

    /// Runs `ticks` ticks and adds what happened to `report`.
    fn advance(&mut self, ticks: u64, report: &mut Report) -> Result<(), BackendError>;

    /// As `advance`, and appends the state hash after every tick ([`crate::hash`]), computed inside the
    /// production window.
    fn advance_hashed(
        &mut self,
        ticks: u64,
        report: &mut Report,
        hashes: &mut Vec<u64>,
    ) -> Result<(), BackendError>;

    /// The state after the last completed tick.
    fn export(&mut self) -> Result<State, BackendError>;

    /// Goes on from `state`. Forgets kicks not yet delivered; keeps drive and watch.
    fn import(&mut self, state: &State) -> Result<(), BackendError>;
}
