// SPDX-License-Identifier: Apache-2.0
//! The feed: JSON lines on a unix socket, for `flysim page` and whoever else wants to look.
//!
//! The first line of a connection is `{"hello": ...}`, what does not change; every other one is a frame. The simulator
//! only ever offers a frame to a queue; text is made here, once for all readers, and only while there are readers.

use std::collections::HashMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use flysim_core::Connectome;
use flysim_core::spikes::Spike;
use hyper::body::Bytes;
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::clock::brain_s;
use super::snapshot::{Board, Group};
use crate::exit::{self, Failure};
use crate::http::hub::Hub;

/// Cells whose spikes are told one by one; the raster has no room for more.
const MAX_WATCHED: usize = 240;
/// Groups that are shown: the first of the connectome, which are its roles; region by region would be unreadable.
const MAX_GROUPS: usize = 12;
/// Readers at a time.
const MAX_READERS: usize = 16;
/// Frames between the simulator and this task.
const QUEUE_FRAMES: usize = 4;

/// What the simulator says about one batch (or several, when it is unthrottled).
pub struct Frame {
    /// First tick of the frame.
    pub from: u64,
    /// Ticks completed.
    pub tick: u64,
    /// Spikes of the watched cells.
    pub spikes: Vec<Spike>,
}

/// The simulator's end of the feed.
pub struct FrameSender {
    queue: Sender<Frame>,
    hub: Arc<Hub>,
}

impl FrameSender {
    /// Somebody is listening.
    pub fn wanted(&self) -> bool {
        self.hub.clients() > 0
    }

    /// Takes the frame, or says that there is no place for it.
    pub fn offer(&self, frame: Frame) -> bool {
        self.queue.try_send(frame).is_ok()
    }
}

/// The cells that are watched, by group, in the order of their rows.
pub struct Sample {
    /// Name and number of watched cells of each group that has any.
    pub groups: Vec<Group>,
    /// Neurons in the order of rows; a neuron of two groups has its row in the first.
    pub neurons: Vec<u32>,
}

impl Sample {
    /// An even sample: every group gets the same share until it has no more cells, hubs and edges of it alike.
    pub fn choose(connectome: &Connectome) -> Self {
        let groups = &connectome.groups()[..connectome.groups().len().min(MAX_GROUPS)];
        let share = (MAX_WATCHED / groups.len().max(1)).max(1);
        let mut sample = Self { groups: Vec::new(), neurons: Vec::new() };
        let mut taken = std::collections::HashSet::new();
        for group in groups {
            let room = share.min(MAX_WATCHED - sample.neurons.len());
            let step = (group.members.len() / room.max(1)).max(1);
            let before = sample.neurons.len();
            let candidates = group.members.iter().step_by(step).filter(|&&n| taken.insert(n)).take(room);
            sample.neurons.extend(candidates);
            sample.groups.push(Group { name: group.name.clone(), cells: sample.neurons.len() - before });
        }
        sample
    }

    fn watched(&self) -> impl Iterator<Item = Watched<'_>> {
        let groups = self.groups.iter().filter(|group| group.cells > 0);
        groups.map(|group| Watched { group: &group.name, cells: group.cells })
    }
}

/// Both ends: the simulator's, the queue to hand to `serve`, and the hub with the readers.
pub fn open() -> (FrameSender, Receiver<Frame>, Arc<Hub>) {
    let hub = Arc::new(Hub::new(MAX_READERS));
    let (queue, frames) = channel(QUEUE_FRAMES);
    (FrameSender { queue, hub: Arc::clone(&hub) }, frames, hub)
}

/// Binds the socket, in place of one that a process before left behind.
///
/// # Errors
/// Exit 78 when something that is not a socket stands there, exit 69 when it cannot be bound.
pub fn bind(path: &Path) -> anyhow::Result<std::os::unix::net::UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            let text =
                format!("FLY_FEED: {} exists and is not a socket; choose another path", path.display());
            return Err(Failure::new(exit::CONFIG, text).into());
        }
        Err(_) => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(|error| {
        Failure::new(exit::UNAVAILABLE, format!("FLY_FEED: cannot listen on {}: {error}", path.display()))
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves the feed for ever.
///
/// # Errors
/// When the listener cannot be handed to the runtime.
pub async fn serve(
    listener: std::os::unix::net::UnixListener,
    mut frames: Receiver<Frame>,
    hub: Arc<Hub>,
    board: Arc<Board>,
    sample: Sample,
) -> std::io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let hello = line(&Greeting { hello: Hello::new(&board, &sample) });
    let rows: HashMap<u32, u32> =
        sample.neurons.iter().zip(0..).map(|(&neuron, row)| (neuron, row)).collect();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                if let Some(reader) = hub.join(Some(hello.clone())) {
                    tokio::spawn(tell(stream, reader));
                }
            }
            Some(frame) = frames.recv() => hub.publish(&line(&Line::new(&board, &rows, &frame))),
        }
    }
}

/// Writes to one reader until it goes away. A reader that does not read makes only this task wait.
async fn tell(mut stream: UnixStream, mut frames: Receiver<Bytes>) {
    while let Some(frame) = frames.recv().await {
        if stream.write_all(&frame).await.is_err() {
            return;
        }
    }
}

fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

#[derive(Serialize)]
struct Greeting<'a> {
    hello: Hello<'a>,
}

#[derive(Serialize)]
struct Hello<'a> {
    version: &'a str,
    kernel_version: &'a str,
    backend: &'a str,
    device: Option<&'a str>,
    neurons: usize,
    edges: usize,
    dt_s: f64,
    threads: usize,
    cpus: &'a str,
    drive: &'a str,
    speed: f64,
    groups: &'a [Group],
    groups_left_out: usize,
    watch: Vec<Watched<'a>>,
}

#[derive(Serialize)]
struct Watched<'a> {
    group: &'a str,
    cells: usize,
}

impl<'a> Hello<'a> {
    fn new(board: &'a Board, sample: &'a Sample) -> Self {
        let info = &board.info;
        Self {
            version: &info.version,
            kernel_version: info.kernel_version,
            backend: info.backend,
            device: info.gpu.as_ref().map(|gpu| gpu.attached.as_str()),
            neurons: info.neurons,
            edges: info.edges,
            dt_s: brain_s(1),
            threads: info.threads,
            cpus: &info.cpus,
            drive: &info.drive,
            speed: info.speed,
            groups: &info.groups[..info.groups.len().min(MAX_GROUPS)],
            groups_left_out: info.groups.len().saturating_sub(MAX_GROUPS),
            watch: sample.watched().collect(),
        }
    }
}

/// One frame as text. Times in the unit of their name, rates in spikes per cell and second, in the order of `groups`.
#[derive(Serialize)]
struct Line {
    from: u64,
    tick: u64,
    brain_s: f64,
    /// Pairs of tick minus `from`, and row.
    spikes: Vec<(u64, u32)>,
    rates: Vec<f64>,
    spikes_per_s: f64,
    #[serde(rename = "spikes_total")]
    total: u64,
    realtime_factor: f64,
    lag_ms: f64,
    host_cores: f64,
    checkpoint_age_s: Option<f64>,
    checkpoint_failures: u64,
    paused: bool,
}

impl Line {
    fn new(board: &Board, rows: &HashMap<u32, u32>, frame: &Frame) -> Self {
        let (snapshot, checkpoint) = (board.snapshot.load(), board.checkpoint());
        let spikes = frame.spikes.iter().filter_map(|spike| {
            rows.get(&spike.neuron).map(|&row| (spike.tick.saturating_sub(frame.from), row))
        });
        Self {
            from: frame.from,
            tick: frame.tick,
            brain_s: brain_s(frame.tick),
            spikes: spikes.collect(),
            rates: snapshot.rates.iter().take(MAX_GROUPS).map(|rate| round(*rate, 1000.0)).collect(),
            spikes_per_s: round(snapshot.spikes_per_s, 10.0),
            total: snapshot.spikes,
            realtime_factor: round(snapshot.realtime_factor, 10_000.0),
            lag_ms: round(snapshot.lag.as_secs_f64() * 1e3, 1000.0),
            host_cores: round(snapshot.host_cores, 1000.0),
            checkpoint_age_s: checkpoint.at.map(|at| round(at.elapsed().as_secs_f64(), 10.0)),
            checkpoint_failures: checkpoint.failures,
            paused: snapshot.paused,
        }
    }
}

/// Short numbers make short frames; the page shows fewer digits anyway.
fn round(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}
