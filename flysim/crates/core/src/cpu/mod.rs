// SPDX-License-Identifier: Apache-2.0
//! The CPU backend: one rayon fan-out per window of 18 ticks.
//!
//! Nothing emitted inside a window reaches another neuron in it. So each thread first scatters the spikes of the
//! window before into its own neurons' ring, then runs its own neurons through the window; there is one join per
//! window and no lock. All sums between neurons are integers, so the number of threads cannot change a bit.

mod kicks;
mod lanes;
mod partition;
pub mod simd;

use std::sync::Arc;

use rayon::prelude::*;

use crate::backend::{Backend, BackendError, Report};
use crate::connectome::Connectome;
use crate::drive::Drive;
use crate::params::{DELAY_TICKS, WINDOW};
use crate::spikes::{Kick, Spike, Tally, Watch};
use crate::state::State;
use lanes::{Emitted, LANES};
use partition::{Partition, Window};
use simd::Level;

/// A brain on this machine's processors.
pub struct CpuBackend {
    connectome: Arc<Connectome>,
    pool: Arc<rayon::ThreadPool>,
    level: Level,
    tick: u64,
    seed: u64,
    partitions: Vec<Partition>,
    emitted: Vec<Vec<Emitted>>,
    emitted_from: u64,
    tally: Tally,
}

impl CpuBackend {
    /// A brain at rest on `threads` threads (0 = as many as the process may use).
    pub fn new(connectome: Arc<Connectome>, threads: usize) -> Result<CpuBackend, BackendError> {
        CpuBackend::with_level(connectome, threads, Level::detect())
    }

    /// As `new`, with a chosen instruction set (one of [`Level::available`]).
    pub fn with_level(
        connectome: Arc<Connectome>,
        threads: usize,
        level: Level,
    ) -> Result<CpuBackend, BackendError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("fly-lif-{i}"))
            .build()
            .map_err(|e| BackendError::Attach { device: "cpu".into(), reason: e.to_string() })?;
        let pool = Arc::new(pool);
        let partitions = split(connectome.neurons(), pool.current_num_threads());
        let tally = Tally::new(&connectome);
        let emitted = partitions.iter().map(|_| Vec::new()).collect();
        Ok(CpuBackend {
            connectome,
            pool,
            level,
            tick: 0,
            seed: 0,
            partitions,
            emitted,
            emitted_from: 0,
            tally,
        })
    }

    fn run(&mut self, ticks: u64, report: &mut Report, mut hashes: Option<&mut Vec<u64>>) {
        let mut left = ticks;
        let listed = report.watched.len();
        while left > 0 {
            let ticks = left.min(DELAY_TICKS) as usize;
            self.window(ticks, hashes.is_some());
            self.count(report);
            if let Some(hashes) = &mut hashes {
                hashes.extend_from_slice(&self.hashes()[..ticks]);
            }
            left -= ticks as u64;
        }
        report.ticks += ticks;
        report.watched[listed..].sort_unstable();
    }

    fn window(&mut self, ticks: usize, hashed: bool) {
        let window = Window {
            connectome: &self.connectome,
            level: self.level,
            seed: self.seed,
            tick: self.tick,
            ticks,
            hashed,
            emitted: &self.emitted,
            emitted_from: self.emitted_from,
        };
        match &mut self.partitions[..] {
            [only] => only.run(&window),
            many => many.par_iter_mut().with_max_len(1).for_each(|p| p.run(&window)),
        }
        for (partition, emitted) in self.partitions.iter_mut().zip(&mut self.emitted) {
            std::mem::swap(&mut partition.outcome.emitted, emitted);
        }
        self.emitted_from = self.tick;
        self.tick += ticks as u64;
    }

    fn count(&self, report: &mut Report) {
        for emitted in self.emitted.iter().flatten() {
            let tick = self.emitted_from + u64::from(emitted.after);
            self.tally.count(Spike { tick, neuron: emitted.neuron }, report);
        }
    }

    fn hashes(&self) -> [u64; WINDOW] {
        let mut sums = [0u64; WINDOW];
        for shares in self.partitions.iter().filter_map(|p| p.outcome.hashes) {
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum = sum.wrapping_add(share));
        }
        sums
    }

    /// Puts emitted spikes into the ring now, so that the state stands in the partitions alone.
    fn settle(&mut self) {
        let window = Window {
            connectome: &self.connectome,
            level: self.level,
            seed: self.seed,
            tick: self.tick,
            ticks: 0,
            hashed: false,
            emitted: &self.emitted,
            emitted_from: self.emitted_from,
        };
        self.partitions.iter_mut().for_each(|p| p.scatter(&window));
        self.emitted.iter_mut().for_each(Vec::clear);
    }

    /// Runs on the pool, so that a window's fan-out starts from one of its threads.
    fn on_pool(&mut self, work: impl FnOnce(&mut CpuBackend) + Send) {
        let pool = Arc::clone(&self.pool);
        pool.install(|| work(self));
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn attach_line(&self) -> String {
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        format!("cpu backend attached: threads {}, cpus {cpus}, vectors {:?}", self.threads(), self.level)
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn tick(&self) -> u64 {
        self.tick
    }

    fn set_drive(&mut self, drive: &Drive) -> Result<(), BackendError> {
        drive.validate(self.connectome.neurons()).map_err(BackendError::Argument)?;
        self.seed = drive.seed;
        self.partitions.iter_mut().for_each(|p| p.set_drive(drive));
        self.tally.set_driven(drive.neurons.iter().map(|d| d.0));
        Ok(())
    }

    fn inject(&mut self, kicks: &[Kick]) -> Result<(), BackendError> {
        Kick::validate(kicks, self.tick, self.connectome.neurons()).map_err(BackendError::Argument)?;
        self.partitions.iter_mut().for_each(|p| p.inject(kicks));
        Ok(())
    }

    fn set_watch(&mut self, watch: &Watch) {
        self.tally.set_watch(watch);
    }

    fn advance(&mut self, ticks: u64, report: &mut Report) -> Result<(), BackendError> {
        self.on_pool(|cpu| cpu.run(ticks, report, None));
        Ok(())
    }

    fn advance_hashed(
        &mut self,
        ticks: u64,
        report: &mut Report,
        hashes: &mut Vec<u64>,
    ) -> Result<(), BackendError> {
        self.on_pool(|cpu| cpu.run(ticks, report, Some(hashes)));
        Ok(())
    }

    fn export(&mut self) -> Result<State, BackendError> {
        self.settle();
        let mut state = State::at_rest(self.connectome.neurons());
        state.tick = self.tick;
        self.partitions.iter().for_each(|p| p.export(&mut state));
        for tick in self.tick..self.tick + DELAY_TICKS {
            self.partitions.iter().for_each(|p| p.export_due(tick, &mut state.pending));
        }
        Ok(state)
    }

    fn import(&mut self, state: &State) -> Result<(), BackendError> {
        state.validate(self.connectome.neurons())?;
        self.tick = state.tick;
        self.emitted.iter_mut().for_each(Vec::clear);
        self.partitions.iter_mut().for_each(|p| p.import(state));
        Ok(())
    }
}

/// Equal ranges of whole blocks, one per thread while there are blocks for all.
fn split(neurons: usize, threads: usize) -> Vec<Partition> {
    let blocks = neurons.div_ceil(LANES);
    let parts = threads.clamp(1, blocks);
    let start = |part: usize| (blocks * part / parts * LANES).min(neurons);
    (0..parts).map(|p| Partition::new(start(p) as u32, start(p + 1) - start(p))).collect()
}
