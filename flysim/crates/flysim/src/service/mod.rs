// SPDX-License-Identifier: Apache-2.0
//! The service: joins simulator, checkpoint writer, HTTP and feed, and turns the end of the simulator into an exit code.
//!
//! Four threads: `flysim-sim` makes ticks, `flysim-ckpt` writes, `flysim-http` speaks to everybody, and the first one
//! waits for the end.

pub mod api;
pub mod attach;
pub mod checkpoints;
pub mod clock;
pub mod feed;
pub mod host;
pub mod lock;
pub mod metrics;
pub mod notify;
pub mod rates;
pub mod sim;
pub mod snapshot;
pub mod store;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use flysim_core::spikes::Watch;
use flysim_core::{Backend, Connectome, compatibility, params};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::run::RunConfig;
use crate::exit::{self, Failure};
use crate::http;
use sim::{Command, Outcome, Plan, Sim};
use snapshot::{Board, CheckpointState, Gpu, Group, Info, Snapshot};
use store::{Restored, Store};

/// Runs the service until it is stopped or cannot go on.
///
/// # Errors
/// Each carries its exit code; `exit::HELP` is the list.
pub fn run(config: RunConfig) -> anyhow::Result<u8> {
    let started = Instant::now();
    attach::say_features();
    attach::refuse_missing_feature(&config)?;
    let lock = lock::hold(&config.state_dir)?;
    let connectome = Connectome::open(&config.connectome);
    let connectome = Arc::new(connectome.map_err(|error| Failure::new(exit::CONFIG, error.to_string()))?);
    let listener = http::bind(config.listen)?;
    let feed_listener = config.feed.as_deref().map(feed::bind).transpose()?;
    let mut backend = attach::attach(&config, &connectome)?;
    let store = Store::open(&config, &compatibility::string(&connectome));
    let restored = store.restore(backend.as_mut())?;
    let board = Arc::new(board(&config, &connectome, backend.as_ref(), &restored, started));
    let (commands, orders) = channel();
    let (writer, writing) = checkpoints::start(store, Arc::clone(&board))?;
    let feed = feed_listener.map(|listener| {
        let sample = feed::Sample::choose(&connectome);
        backend.set_watch(&Watch::Neurons(sample.neurons.clone()));
        (listener, sample, feed::open())
    });
    let (frames, feed) = match feed {
        Some((listener, sample, (sender, queue, hub))) => {
            (Some(sender), Some((listener, sample, queue, hub)))
        }
        None => (None, None),
    };
    let plan = Plan {
        speed: config.speed,
        checkpoint_every: config.checkpoint_every,
        until_tick: config.until_tick,
        fault: config.fault,
    };
    let sim = Sim::new(backend, plan, Arc::clone(&board), orders, writer, frames);
    let outside = Outside { board, commands, token: config.token.clone(), listener, feed };
    let outcome = outside.run_beside(sim)?;
    let well = writing.join().unwrap_or(false);
    drop(lock);
    end(outcome, well)
}

/// What the process tells and hears while the simulator runs.
struct Outside {
    board: Arc<Board>,
    commands: Sender<Command>,
    token: Option<String>,
    listener: std::net::TcpListener,
    feed: Option<FeedEnd>,
}

type FeedEnd = (
    std::os::unix::net::UnixListener,
    feed::Sample,
    tokio::sync::mpsc::Receiver<feed::Frame>,
    Arc<http::hub::Hub>,
);

impl Outside {
    /// Starts both threads, waits for the simulator's end.
    fn run_beside(self, sim: Sim) -> anyhow::Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ticking = std::thread::Builder::new().name(sim::THREAD.into()).spawn(move || sim.run())?;
        let speaking = std::thread::Builder::new().name("flysim-http".into());
        let outside = speaking.spawn(move || runtime.block_on(self.speak()))?;
        let outcome = ticking.join();
        // The speaking thread ends with the process: a client that is still reading must not hold it up.
        drop(outside);
        outcome.map_err(|_| {
            Failure::new(exit::SOFTWARE, "the simulator's thread panicked; its words are above").into()
        })
    }

    async fn speak(self) -> std::io::Result<()> {
        let hub = self.feed.as_ref().map(|(_, _, _, hub)| Arc::clone(hub));
        let board = Arc::clone(&self.board);
        let api =
            Arc::new(api::Api { board: self.board, commands: self.commands.clone(), hub, token: self.token });
        if let Some((listener, sample, frames, hub)) = self.feed {
            tokio::spawn(feed::serve(listener, frames, hub, board, sample));
        }
        tokio::spawn(http::serve(self.listener, move |request| api::answer(Arc::clone(&api), request)));
        let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        loop {
            let who = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            let _ = self.commands.send(Command::Stop(who));
        }
    }
}

fn end(outcome: Outcome, well: bool) -> anyhow::Result<u8> {
    match outcome {
        Outcome::Stopped if well => Ok(exit::OK),
        Outcome::Stopped => {
            let text = "the last checkpoint was not written; the next start goes on from the one before";
            Err(Failure::new(exit::IO, text).into())
        }
        Outcome::GpuLost(why) => {
            let text = format!("gpu lost: {why}; the newest checkpoint on disk is the place to go on from");
            Err(Failure::new(exit::GPU, text).into())
        }
        Outcome::Failed(why) => Err(Failure::new(exit::SOFTWARE, why).into()),
    }
}

fn board(
    config: &RunConfig,
    connectome: &Connectome,
    backend: &dyn Backend,
    restored: &Restored,
    started: Instant,
) -> Board {
    let groups = connectome.groups().iter();
    let groups: Vec<Group> =
        groups.map(|group| Group { name: group.name.clone(), cells: group.members.len() }).collect();
    let gpu = config
        .cuda
        .then(|| Gpu { attached: attach::details(&backend.attach_line()), asked: config.gpu.clone() });
    let snapshot = Snapshot {
        at: Instant::now(),
        tick: backend.tick(),
        realtime_factor: 0.0,
        lag: Duration::ZERO,
        spikes: 0,
        spikes_undriven: 0,
        spikes_per_s: 0.0,
        rates: vec![0.0; groups.len()],
        host_cores: 0.0,
        paused: false,
        frames_lost: 0,
    };
    let info = Info {
        backend: backend.name(),
        backend_wanted: if config.cuda { "cuda" } else { "cpu" },
        version: crate::version::version(),
        features: crate::version::features(),
        kernel_version: params::kernel_version(),
        compatibility: compatibility::string(connectome),
        pid: std::process::id(),
        neurons: connectome.neurons(),
        edges: connectome.edges(),
        connectome: connectome.fingerprint().into(),
        groups,
        threads: backend.threads(),
        cpus: host::cpus_allowed(),
        drive: config.drive.clone(),
        seed: config.seed,
        speed: config.speed,
        gpu,
        restores: u64::from(restored.tick.is_some()),
        restored_tick: restored.tick,
        set_aside: restored.set_aside,
        spikes_restored_total: restored.spikes,
        started,
    };
    let checkpoint = CheckpointState { at: restored.made, tick: restored.tick, ..CheckpointState::default() };
    Board { info, snapshot: ArcSwap::from_pointee(snapshot), checkpoint: Mutex::new(checkpoint) }
}
