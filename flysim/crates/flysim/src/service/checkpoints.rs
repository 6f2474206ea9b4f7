// SPDX-License-Identifier: Apache-2.0
//! The checkpoint writer: a thread that encodes and writes what the simulator exports, one state at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use flysim_core::State;
use serde::Serialize;
use tokio::sync::oneshot;

use super::snapshot::Board;
use super::store::Store;
use crate::log::say;

/// Where to say how a checkpoint went.
pub type Reply = oneshot::Sender<Result<Written, String>>;

/// A checkpoint on disk.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Its tick.
    pub tick: u64,
    /// Name in the state directory.
    pub name: String,
    /// Order-free hash of the state, as 16 hex digits.
    pub state_hash: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Time to encode, write and sync, in ms.
    pub took_ms: u64,
}

/// A state to be written.
pub struct Job {
    /// The state.
    pub state: State,
    /// Spikes since the process started.
    pub spikes: u64,
    /// Somebody who waits for it.
    pub reply: Option<Reply>,
}

/// What the simulator sends.
enum Order {
    /// Write a state.
    Write(Job),
    /// Count and tell that one was due and is not written. Telling may block, so it is not done by the simulator.
    Refuse(Option<Reply>, String),
}

/// The simulator's end of the writer.
#[derive(Clone)]
pub struct Writer {
    orders: Sender<Order>,
    busy: Arc<AtomicBool>,
}

impl Writer {
    /// Nothing is being written.
    pub fn is_free(&self) -> bool {
        !self.busy.load(Ordering::Acquire)
    }

    /// Hands a state over. Does not wait; a last job of a stopping run queues behind the one under way.
    pub fn give(&self, job: Job) {
        self.busy.store(true, Ordering::Release);
        // Without a thread behind it the job is dropped, and whoever waits for its reply hears that at once.
        let _ = self.orders.send(Order::Write(job));
    }

    /// Counts and tells a checkpoint that was due and is not written.
    pub fn refuse(&self, reply: Option<Reply>, why: &str) {
        let _ = self.orders.send(Order::Refuse(reply, why.into()));
    }
}

/// Starts the thread. It ends when the last `Writer` is dropped, and says whether its last write went well.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(store: Store, board: Arc<Board>) -> std::io::Result<(Writer, JoinHandle<bool>)> {
    let (orders, queue) = channel();
    let busy = Arc::new(AtomicBool::new(false));
    let writer = Writer { orders, busy: Arc::clone(&busy) };
    let thread = std::thread::Builder::new().name("flysim-ckpt".into());
    Ok((writer, thread.spawn(move || work(&store, &queue, &busy, &board))?))
}

fn work(store: &Store, queue: &Receiver<Order>, busy: &AtomicBool, board: &Board) -> bool {
    let mut well = true;
    while let Ok(order) = queue.recv() {
        let job = match order {
            Order::Write(job) => job,
            Order::Refuse(reply, why) => {
                failed(board, &why, reply);
                continue;
            }
        };
        let made = Instant::now();
        let spikes = board.info.spikes_restored_total + job.spikes;
        let result = store.write(&job.state, spikes);
        busy.store(false, Ordering::Release);
        well = result.is_ok();
        match result {
            Ok(written) => succeeded(board, made, written, job.reply),
            Err(error) => failed(board, &format!("{error:#}"), job.reply),
        }
    }
    well
}

fn succeeded(board: &Board, made: Instant, written: Written, reply: Option<Reply>) {
    say!(
        "checkpoint written: tick {}, {}, state hash {}, {} bytes, {} ms",
        written.tick,
        written.name,
        written.state_hash,
        written.bytes,
        written.took_ms
    );
    board.with_checkpoint(|state| {
        state.at = Some(made);
        state.tick = Some(written.tick);
        state.count += 1;
        state.last_error = None;
    });
    if let Some(reply) = reply {
        let _ = reply.send(Ok(written));
    }
}

fn failed(board: &Board, why: &str, reply: Option<Reply>) {
    say!("checkpoint failed: {why}; the older ones are kept and the run goes on");
    board.with_checkpoint(|state| {
        state.failures += 1;
        state.last_error = Some(why.into());
    });
    if let Some(reply) = reply {
        let _ = reply.send(Err(why.into()));
    }
}
