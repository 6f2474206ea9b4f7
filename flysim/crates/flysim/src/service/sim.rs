// SPDX-License-Identifier: Apache-2.0
//! The simulator's thread: ticks, and nothing that could make ticks wait.
//!
//! It reads commands from a channel, leaves snapshots on the board and hands states to the checkpoint writer. It never
//! touches a file or a socket that can block, and nobody else touches the backend.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use flysim_core::spikes::Spike;
use flysim_core::{Backend, BackendError, Report};

use super::checkpoints::{Job, Reply, Writer};
use super::clock::{FactorMeter, Pacer};
use super::feed::{Frame, FrameSender};
use super::host::CoreMeter;
use super::notify::Notify;
use super::rates::RateMeter;
use super::snapshot::{Board, Snapshot};
use crate::config::run::Fault;
use crate::log::say;

/// Name of the thread, for `top -H` and for tests that stop it.
pub const THREAD: &str = "flysim-sim";
/// How long a paused loop sleeps when nobody speaks to it.
const PAUSED_TURN: Duration = Duration::from_millis(200);
/// Least time between two frames and snapshots of an unthrottled run.
const PUBLISH_EVERY: Duration = Duration::from_millis(30);
/// More spikes than this in one frame are not told: nobody could see them, and an unthrottled run makes millions.
const MAX_FRAME_SPIKES: usize = 4000;

/// What others may ask of the simulator.
pub enum Command {
    /// Stop ticking until told otherwise.
    Pause,
    /// Tick again.
    Resume,
    /// Write a checkpoint now and say how it went.
    Checkpoint(Reply),
    /// Write a checkpoint and end; the text says who asked.
    Stop(&'static str),
}

/// How the thread ended.
#[derive(Debug)]
pub enum Outcome {
    /// On request; the last checkpoint is with the writer.
    Stopped,
    /// The GPU is gone; what it held is lost, the checkpoints on disk are not.
    GpuLost(String),
    /// The backend refused to go on for another reason.
    Failed(String),
}

/// Settings of the loop.
pub struct Plan {
    /// Brain seconds per wall second; 0 is unthrottled.
    pub speed: f64,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
    /// Tick at which to stop.
    pub until_tick: Option<u64>,
    /// Fault to inject.
    pub fault: Option<Fault>,
}

/// The simulator with everything it speaks to.
pub struct Sim {
    backend: Box<dyn Backend>,
    plan: Plan,
    board: Arc<Board>,
    commands: Receiver<Command>,
    writer: Writer,
    frames: Option<FrameSender>,
    notify: Notify,
    report: Report,
    watched: Vec<Spike>,
    pacer: Pacer,
    factor: FactorMeter,
    rates: RateMeter,
    cores: CoreMeter,
    spikes: u64,
    spikes_undriven: u64,
    frames_lost: u64,
    frame_from: u64,
    paused: bool,
    ready: bool,
    lag: Duration,
    published: Instant,
    checkpointed: Instant,
}

impl Sim {
    /// A simulator that is ready to run from the backend's present tick.
    pub fn new(
        backend: Box<dyn Backend>,
        plan: Plan,
        board: Arc<Board>,
        commands: Receiver<Command>,
        writer: Writer,
        frames: Option<FrameSender>,
    ) -> Self {
        let (now, tick) = (Instant::now(), backend.tick());
        let cells: Vec<usize> = board.info.groups.iter().map(|group| group.cells).collect();
        Self {
            pacer: Pacer::new(plan.speed, now, tick),
            backend,
            plan,
            board,
            commands,
            writer,
            frames,
            notify: Notify::from_environment(),
            report: Report::default(),
            watched: Vec::new(),
            factor: FactorMeter::default(),
            rates: RateMeter::new(&cells),
            cores: CoreMeter::new(now),
            spikes: 0,
            spikes_undriven: 0,
            frames_lost: 0,
            frame_from: tick,
            paused: false,
            ready: false,
            lag: Duration::ZERO,
            published: now,
            checkpointed: now,
        }
    }

    /// Ticks until somebody asks it to stop or the backend cannot go on.
    pub fn run(mut self) -> Outcome {
        self.pacer.anchor(Instant::now(), self.backend.tick());
        loop {
            if let Some(who) = self.wait() {
                return self.stop(who);
            }
            if self.paused {
                self.publish(Instant::now());
                continue;
            }
            if self.plan.until_tick.is_some_and(|until| self.backend.tick() >= until) {
                return self.stop("--until-tick");
            }
            if let Err(error) = self.batch() {
                return self.broken(&error);
            }
        }
    }

    /// Sleeps until the next batch is due and obeys commands meanwhile; `Some` when told to stop.
    fn wait(&mut self) -> Option<&'static str> {
        loop {
            let now = Instant::now();
            let due =
                if self.paused { Some(now + PAUSED_TURN) } else { self.pacer.deadline(self.backend.tick()) };
            let left = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
            let command = if left.is_zero() {
                self.commands.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            } else {
                self.commands.recv_timeout(left).map_err(|error| error == RecvTimeoutError::Disconnected)
            };
            match command {
                Ok(Command::Stop(who)) => return Some(who),
                Ok(command) => self.obey(command),
                Err(true) => return Some("the main thread, which is gone"),
                Err(false) => return None,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Pause => self.paused = true,
            Command::Resume if self.paused => {
                self.paused = false;
                self.factor.clear();
                self.pacer.anchor(now, self.backend.tick());
            }
            Command::Checkpoint(reply) => self.checkpoint(Some(reply)),
            Command::Resume | Command::Stop(_) => {}
        }
        self.publish(now);
    }

    fn batch(&mut self) -> Result<(), BackendError> {
        let started = Instant::now();
        let tick = self.backend.tick();
        self.factor.note(started, tick);
        let ticks = self.pacer.batch(tick, self.plan.until_tick);
        self.inject(tick + ticks)?;
        self.report.clear();
        self.backend.advance(ticks, &mut self.report)?;
        let now = Instant::now();
        self.pacer.took(now.duration_since(started));
        self.lag = self.pacer.lag(tick + ticks, now);
        self.count();
        if self.plan.speed > 0.0 || now.duration_since(self.published) >= PUBLISH_EVERY || !self.ready {
            self.publish(now);
            self.frame();
        }
        self.tell_ready();
        if now.duration_since(self.checkpointed) >= self.plan.checkpoint_every {
            self.checkpoint(None);
        }
        Ok(())
    }

    fn count(&mut self) {
        let report = &self.report;
        self.rates.add(report.ticks, report.spikes, &report.group_spikes);
        self.spikes += report.spikes;
        self.spikes_undriven += report.undriven_spikes;
        let room = MAX_FRAME_SPIKES.saturating_sub(self.watched.len());
        self.watched.extend(report.watched.iter().take(room));
    }

    /// The service is ready when ticks are being made, not when it means to make them.
    fn tell_ready(&mut self) {
        if !self.ready {
            self.ready = true;
            self.notify.send(&format!(
                "READY=1\nSTATUS={} backend, tick {}",
                self.backend.name(),
                self.backend.tick()
            ));
        }
    }

    /// Leaves a snapshot on the board and feeds the watchdog: this is the only place that does, so a thread that makes
    /// no ticks (and does not stand still on request) feeds nothing.
    fn publish(&mut self, now: Instant) {
        self.published = now;
        self.board.snapshot.store(Arc::new(Snapshot {
            at: now,
            tick: self.backend.tick(),
            realtime_factor: self.factor.factor(),
            lag: self.lag,
            spikes: self.spikes,
            spikes_undriven: self.spikes_undriven,
            spikes_per_s: self.rates.total(),
            rates: self.rates.by_group(),
            host_cores: self.cores.cores(now),
            paused: self.paused,
            frames_lost: self.frames_lost,
        }));
        self.notify.progress(now);
    }

    /// Offers what happened since the last frame to the feed, which may have no place for it.
    fn frame(&mut self) {
        let (from, tick) = (self.frame_from, self.backend.tick());
        self.frame_from = tick;
        if let Some(frames) = self.frames.as_ref().filter(|frames| frames.wanted()) {
            let frame = Frame { from, tick, spikes: std::mem::take(&mut self.watched) };
            self.frames_lost += u64::from(!frames.offer(frame));
        }
        self.watched.clear();
    }

    /// Exports the state and gives it away; encoding and writing happen in the writer's thread.
    fn checkpoint(&mut self, reply: Option<Reply>) {
        self.checkpointed = Instant::now();
        if !self.writer.is_free() {
            self.writer.refuse(reply, "the checkpoint before is still being written");
            return;
        }
        match self.backend.export() {
            Ok(state) => self.writer.give(Job { state, spikes: self.spikes, reply }),
            Err(error) => self.writer.refuse(reply, &error.to_string()),
        }
    }

    fn stop(mut self, who: &str) -> Outcome {
        self.notify.send("STOPPING=1");
        say!("stopping at tick {}: {who}", self.backend.tick());
        match self.backend.export() {
            Ok(state) => {
                self.writer.give(Job { state, spikes: self.spikes, reply: None });
                Outcome::Stopped
            }
            Err(error) => self.broken(&error),
        }
    }

    fn broken(&self, error: &BackendError) -> Outcome {
        self.notify.send("STOPPING=1");
        match error {
            BackendError::DeviceLost { .. } => Outcome::GpuLost(error.to_string()),
            other => Outcome::Failed(other.to_string()),
        }
    }

    /// Faults for tests, at the first batch that ends at or after their tick.
    fn inject(&self, end: u64) -> Result<(), BackendError> {
        match self.plan.fault {
            Some(Fault::GpuLost(tick)) if end >= tick => {
                let reason = "injected by FLY_FAULT".into();
                Err(BackendError::DeviceLost { tick: self.backend.tick(), reason })
            }
            Some(Fault::Stall(tick)) if end >= tick => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            Some(Fault::Panic(tick)) if end >= tick => panic!("injected by FLY_FAULT"),
            _ => Ok(()),
        }
    }
}
