// SPDX-License-Identifier: Apache-2.0
//! A brain on an NVIDIA card.
//!
//! All memory is allocated at attach; a steady-state launch allocates nothing. What leaves the device is marked:
//! `gpu-exit:` in the loop, `checkpoint:` in export.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::DriverError;
use flysim_core::connectome::Connectome;
use flysim_core::params::{DELAY_TICKS, REFRACTORY_TICKS, V_REST_MV};
use flysim_core::spikes::{Kick, Spike, Tally, Watch};
use flysim_core::state::{Pending, State};
use flysim_core::{Backend, BackendError, Drive, Report};

use crate::attach;
use crate::driver::{self, Buffer, Device, Kernel, Pinned};
use crate::plan;
use crate::ptx::{Ptx, PtxSource};

/// Slots of the device's delay ring: a window writes 18 of them while it reads the other 18.
const SLOTS: usize = 2 * DELAY_TICKS as usize;
/// Bytes of flags per group of 32 neurons.
const FLAG_STRIDE: usize = 64;
/// Spikes copied together with their count; more than that takes a second copy.
const FIRST_COPY: usize = 4096;
/// Most kicks that one window takes in.
const KICK_CAPACITY: usize = 1 << 16;

/// What to attach to.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// UUID (`GPU-…`) or index.
    pub gpu: &'a str,
    /// Where PTX may come from.
    pub ptx: PtxSource,
    /// Threads per block, for measurements; `None` takes the most that fit.
    pub block_threads: Option<u32>,
}

/// Mirror of `struct Params` in the kernel, field by field.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    v: u64,
    g: u64,
    refractory: u64,
    period: u64,
    threshold: u64,
    kicks: u64,
    ring: u64,
    touched: u64,
    awake: u64,
    driven: u64,
    offsets: u64,
    targets: u64,
    counts: u64,
    spike_count: u64,
    spikes: u64,
    hashes: u64,
    barrier: u64,
    tick: u64,
    seed: u64,
    neurons: u32,
    stride: u32,
    groups: u32,
    ticks: u32,
    spike_capacity: u32,
    has_kicks: u32,
}

/// Everything on the device.
struct Memory {
    v: Buffer<f64>,
    g: Buffer<f64>,
    refractory: Buffer<u8>,
    period: Buffer<u8>,
    threshold: Buffer<u32>,
    kicks: Buffer<u32>,
    kick_list: Buffer<u64>,
    ring: Buffer<i32>,
    touched: Buffer<u8>,
    awake: Buffer<u8>,
    driven: Buffer<u8>,
    offsets: Buffer<u32>,
    targets: Buffer<u32>,
    counts: Buffer<i16>,
    /// Item 0 is the count (low 32 bits), the spikes follow.
    spikes: Buffer<u64>,
    hashes: Buffer<u64>,
    barrier: Buffer<u32>,
}

/// A brain on a card.
pub struct CudaBackend {
    neurons: usize,
    groups: usize,
    tick: u64,
    seed: u64,
    driven: usize,
    injected: Vec<Kick>,
    tally: Tally,
    attach_line: String,
    blocks: u32,
    block_threads: u32,
    spike_capacity: usize,
    last_spikes: usize,
    windows: Kernel,
    kick: Kernel,
    host_spikes: Pinned<u64>,
    host_hashes: Pinned<u64>,
    memory: Memory,
    device: Arc<Device>,
}

impl CudaBackend {
    /// Attaches, loads the kernel, and uploads the connectome; the brain is at rest.
    pub fn attach(connectome: Arc<Connectome>, request: &Request) -> Result<CudaBackend, BackendError> {
        let refuse = |reason: String| BackendError::Attach { device: format!("gpu {}", request.gpu), reason };
        let failed = |step: &str, e: DriverError| refuse(format!("{step}: {e:?}"));
        if !driver::is_present() {
            return Err(refuse(
                "libcuda.so.1 is not on this machine: is a driver installed, or its library bound in?".into(),
            ));
        }
        let identities = driver::identities().map_err(|e| failed("cuInit", e))?;
        let identity = attach::select(&identities, request.gpu).map_err(&refuse)?;
        let ptx = Ptx::choose(&request.ptx, identity.capability).map_err(&refuse)?;
        let device = Device::open(identity.ordinal, &ptx.text).map_err(|e| {
            refuse(format!("loading PTX ({}, .version {}, {}): {e:?}", ptx.target, ptx.version, ptx.origin))
        })?;
        if !device.is_cooperative().map_err(|e| failed("asking the device", e))? {
            return Err(refuse(format!("{} has no cooperative launch", identity.name)));
        }
        let line = |windows: &Kernel, blocks, threads| {
            attach::attach_line(&identity, &ptx, windows, blocks, threads)
        };
        CudaBackend::build(&connectome, device, request.block_threads, line)
            .map_err(|e| failed("setting up", e))
    }

    fn build(
        connectome: &Connectome,
        device: Arc<Device>,
        block_threads: Option<u32>,
        line: impl Fn(&Kernel, u32, u32) -> Result<String, DriverError>,
    ) -> Result<CudaBackend, DriverError> {
        let neurons = connectome.neurons();
        let groups = neurons.div_ceil(32);
        let spike_capacity = 16 * neurons + 1024;
        let windows = device.kernel("fly_windows")?;
        let (blocks, block_threads) = attach::grid(&device, &windows, groups, block_threads)?;
        let mut backend = CudaBackend {
            neurons,
            groups,
            tick: 0,
            seed: 0,
            driven: 0,
            injected: Vec::new(),
            tally: Tally::new(connectome),
            attach_line: line(&windows, blocks, block_threads)?,
            blocks,
            block_threads,
            spike_capacity,
            last_spikes: 0,
            windows,
            kick: device.kernel("fly_kick")?,
            host_spikes: Pinned::new(&device, spike_capacity + 1)?,
            host_hashes: Pinned::new(&device, plan::MAX_TICKS as usize)?,
            memory: Memory::new(&device, connectome, groups, spike_capacity)?,
            device,
        };
        backend.load(&State::at_rest(neurons))?;
        backend.load_drive(&Drive::none())?;
        Ok(backend)
    }

    fn run(
        &mut self,
        ticks: u64,
        report: &mut Report,
        mut hashes: Option<&mut Vec<u64>>,
    ) -> Result<(), DriverError> {
        let listed = report.watched.len();
        let end = self.tick + ticks;
        let per_window = plan::spikes_per_window(self.neurons, self.driven);
        while self.tick < end {
            let kick = self.injected.first().map(|k| k.tick);
            let ticks = plan::next(end - self.tick, self.tick, kick, self.spike_capacity, per_window);
            let has_kicks = self.deliver_kicks(ticks)?;
            self.launch(ticks, has_kicks, hashes.is_some())?;
            self.collect(ticks, hashes.as_deref_mut())?;
            self.count(report);
            report.ticks += ticks;
            self.tick += ticks;
        }
        report.watched[listed..].sort_unstable();
        Ok(())
    }

    /// Puts the kicks of the next `ticks` ticks (one window at most) on the device; false when there are none.
    fn deliver_kicks(&mut self, ticks: u64) -> Result<bool, DriverError> {
        let end = self.tick + ticks;
        let due = self.injected.partition_point(|k| k.tick < end);
        if due == 0 {
            return Ok(false);
        }
        let list: Vec<u64> =
            self.injected.drain(..due).map(|k| (k.tick - self.tick) << 32 | u64::from(k.neuron)).collect();
        for part in list.chunks(KICK_CAPACITY) {
            self.memory.kick_list.write(part)?;
            let (mut kicks, mut awake) = (self.memory.kicks.address(), self.memory.awake.address());
            let (mut from, mut count) = (self.memory.kick_list.address(), part.len() as u32);
            let mut arguments =
                [pointer(&mut kicks), pointer(&mut awake), pointer(&mut from), pointer(&mut count)];
            // SAFETY: fly_kick(u32*, u8*, const u64*, u32); neurons were checked by `inject`, bits are below 18.
            unsafe { self.kick.launch(64, 256, &mut arguments) }?;
            self.device.wait()?;
        }
        Ok(true)
    }

    fn launch(&mut self, ticks: u64, has_kicks: bool, hashed: bool) -> Result<(), DriverError> {
        self.memory.spikes.clear(1)?;
        if hashed {
            self.memory.hashes.clear(ticks as usize)?;
        }
        let params = self.params(ticks as u32, has_kicks, hashed);
        // SAFETY: `params` mirrors the kernel's struct; every buffer has the size that Memory::new gave it, which is
        // what the kernel indexes; the connectome was validated, so targets are below `neurons`.
        unsafe { self.windows.launch_cooperative(self.blocks, self.block_threads, &params) }
    }

    fn params(&self, ticks: u32, has_kicks: bool, hashed: bool) -> Params {
        let m = &self.memory;
        Params {
            v: m.v.address(),
            g: m.g.address(),
            refractory: m.refractory.address(),
            period: m.period.address(),
            threshold: m.threshold.address(),
            kicks: m.kicks.address(),
            ring: m.ring.address(),
            touched: m.touched.address(),
            awake: m.awake.address(),
            driven: m.driven.address(),
            offsets: m.offsets.address(),
            targets: m.targets.address(),
            counts: m.counts.address(),
            spike_count: m.spikes.address(),
            spikes: m.spikes.address() + 8,
            hashes: if hashed { m.hashes.address() } else { 0 },
            barrier: m.barrier.address(),
            tick: self.tick,
            seed: self.seed,
            neurons: self.neurons as u32,
            stride: self.groups as u32 * 32,
            groups: self.groups as u32,
            ticks,
            spike_capacity: self.spike_capacity as u32,
            has_kicks: u32::from(has_kicks),
        }
    }

    /// Brings spikes (and hashes) of a launch to the host. One wait, or two when there were many more than last time.
    fn collect(&mut self, ticks: u64, hashes: Option<&mut Vec<u64>>) -> Result<(), DriverError> {
        let first = 1 + (self.last_spikes * 5 / 4).max(FIRST_COPY).min(self.spike_capacity);
        // gpu-exit: count and list of spikes, once per launch, 8 bytes each.
        self.memory.spikes.read_pinned(&mut self.host_spikes, first)?;
        if hashes.is_some() {
            // test-only: one u64 per tick.
            self.memory.hashes.read_pinned(&mut self.host_hashes, ticks as usize)?;
        }
        self.device.wait()?;
        self.last_spikes = self.host_spikes.as_slice()[0] as u32 as usize;
        // plan::next makes launches short enough; a list that overflowed would be a lie about the brain.
        assert!(self.last_spikes <= self.spike_capacity, "{} spikes in one launch", self.last_spikes);
        if 1 + self.last_spikes > first {
            // gpu-exit: the rest of the list.
            self.memory.spikes.read_pinned(&mut self.host_spikes, 1 + self.last_spikes)?;
            self.device.wait()?;
        }
        if let Some(hashes) = hashes {
            hashes.extend_from_slice(&self.host_hashes.as_slice()[..ticks as usize]);
        }
        Ok(())
    }

    fn count(&self, report: &mut Report) {
        for &entry in &self.host_spikes.as_slice()[1..=self.last_spikes] {
            self.tally.count(Spike { tick: self.tick + (entry >> 32), neuron: entry as u32 }, report);
        }
    }

    fn load(&mut self, state: &State) -> Result<(), DriverError> {
        let stride = self.groups * 32;
        let padded = |values: &[f64], rest: f64| {
            let mut all = values.to_vec();
            all.resize(stride, rest);
            all
        };
        let mut refractory = state.refractory.clone();
        refractory.resize(stride, 0);
        let mut ring = vec![0i32; SLOTS * stride];
        let mut touched = vec![0u8; self.groups * FLAG_STRIDE];
        for p in &state.pending {
            let slot = (p.tick % SLOTS as u64) as usize;
            ring[slot * stride + p.neuron as usize] = p.contacts;
            touched[p.neuron as usize / 32 * FLAG_STRIDE + slot] = 1;
        }
        let m = &mut self.memory;
        m.v.write(&padded(&state.v, V_REST_MV))?;
        m.g.write(&padded(&state.g, 0.0))?;
        m.refractory.write(&refractory)?;
        m.ring.write(&ring)?;
        m.touched.write(&touched)?;
        m.awake.write(&vec![1; self.groups])?;
        m.kicks.clear(stride)?;
        self.device.wait()?;
        self.injected.clear();
        self.tick = state.tick;
        Ok(())
    }

    fn load_drive(&mut self, drive: &Drive) -> Result<(), DriverError> {
        let stride = self.groups * 32;
        let mut period = vec![REFRACTORY_TICKS; stride];
        let mut threshold = vec![0u32; stride];
        let mut driven = vec![0u8; self.groups];
        for &(neuron, below) in &drive.neurons {
            period[neuron as usize] = 0;
            threshold[neuron as usize] = below;
            driven[neuron as usize / 32] = 1;
        }
        self.memory.period.write(&period)?;
        self.memory.threshold.write(&threshold)?;
        self.memory.driven.write(&driven)?;
        self.seed = drive.seed;
        self.driven = drive.neurons.len();
        Ok(())
    }

    fn store(&self) -> Result<State, DriverError> {
        let stride = self.groups * 32;
        // checkpoint: the whole state, when one is asked for.
        let (mut v, mut g) = (self.memory.v.read(0.0)?, self.memory.g.read(0.0)?);
        // checkpoint: as above.
        let mut refractory = self.memory.refractory.read(0)?;
        // checkpoint: as above.
        let ring = self.memory.ring.read(0)?;
        v.truncate(self.neurons);
        g.truncate(self.neurons);
        refractory.truncate(self.neurons);
        let mut pending = Vec::new();
        for tick in self.tick..self.tick + DELAY_TICKS {
            let start = (tick % SLOTS as u64) as usize * stride;
            let row = ring[start..start + self.neurons].iter().enumerate();
            pending.extend(row.filter(|(_, c)| **c != 0).map(|(i, &contacts)| Pending {
                tick,
                neuron: i as u32,
                contacts,
            }));
        }
        Ok(State { tick: self.tick, v, g, refractory, pending })
    }

    fn lost(&self) -> impl FnOnce(DriverError) -> BackendError + use<> {
        let tick = self.tick;
        move |e| BackendError::DeviceLost { tick, reason: format!("{e:?}") }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn attach_line(&self) -> String {
        self.attach_line.clone()
    }

    /// The simulator's own thread drives the card; there is no pool behind it.
    fn threads(&self) -> usize {
        1
    }

    fn tick(&self) -> u64 {
        self.tick
    }

    fn set_drive(&mut self, drive: &Drive) -> Result<(), BackendError> {
        drive.validate(self.neurons).map_err(BackendError::Argument)?;
        let lost = self.lost();
        self.load_drive(drive).map_err(lost)?;
        self.tally.set_driven(drive.neurons.iter().map(|d| d.0));
        Ok(())
    }

    fn inject(&mut self, kicks: &[Kick]) -> Result<(), BackendError> {
        Kick::validate(kicks, self.tick, self.neurons).map_err(BackendError::Argument)?;
        self.injected.extend_from_slice(kicks);
        self.injected.sort_unstable();
        Ok(())
    }

    fn set_watch(&mut self, watch: &Watch) {
        self.tally.set_watch(watch);
    }

    fn advance(&mut self, ticks: u64, report: &mut Report) -> Result<(), BackendError> {
        let result = self.run(ticks, report, None);
        result.map_err(self.lost())
    }

    fn advance_hashed(
        &mut self,
        ticks: u64,
        report: &mut Report,
        hashes: &mut Vec<u64>,
    ) -> Result<(), BackendError> {
        let result = self.run(ticks, report, Some(hashes));
        result.map_err(self.lost())
    }

    fn export(&mut self) -> Result<State, BackendError> {
        self.store().map_err(self.lost())
    }

    fn import(&mut self, state: &State) -> Result<(), BackendError> {
        state.validate(self.neurons)?;
        let lost = self.lost();
        self.load(state).map_err(lost)
    }
}

impl Memory {
    fn new(
        device: &Arc<Device>,
        connectome: &Connectome,
        groups: usize,
        spike_capacity: usize,
    ) -> Result<Memory, DriverError> {
        let stride = groups * 32;
        // The format allows at most 2^31 - 1 edges.
        let offsets: Vec<u32> = connectome.offsets().iter().map(|&o| o as u32).collect();
        Ok(Memory {
            v: device.alloc(stride)?,
            g: device.alloc(stride)?,
            refractory: device.alloc(stride)?,
            period: device.alloc(stride)?,
            threshold: device.alloc(stride)?,
            kicks: device.alloc(stride)?,
            kick_list: device.alloc(KICK_CAPACITY)?,
            ring: device.alloc(SLOTS * stride)?,
            touched: device.alloc(groups * FLAG_STRIDE)?,
            awake: device.alloc(groups)?,
            driven: device.alloc(groups)?,
            offsets: device.upload(&offsets)?,
            targets: device.upload(connectome.targets())?,
            counts: device.upload(connectome.counts())?,
            spikes: device.alloc(spike_capacity + 1)?,
            hashes: device.alloc(plan::MAX_TICKS as usize)?,
            barrier: device.alloc(1)?,
        })
    }
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_attach_is_an_error_and_not_a_panic() {
        if driver::is_present() {
            return;
        }
        let brain = flysim_testkit::random_brain(1, 10, 2);
        let request = Request { gpu: "0", ptx: PtxSource::Search(vec![]), block_threads: None };
        let error = CudaBackend::attach(brain, &request).err().expect("no driver here");
        assert!(matches!(error, BackendError::Attach { .. }), "{error}");
    }

    #[test]
    fn the_parameter_block_has_the_kernels_layout() {
        // 19 words of 8 bytes, then 6 of 4; the kernel's parameter space says the same.
        assert_eq!(size_of::<Params>(), 19 * 8 + 6 * 4);
        assert!(include_str!("../kernels/flysim.sm_75.ptx").contains("fly_windows_param_0[176]"));
    }
}
