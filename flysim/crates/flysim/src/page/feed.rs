// SPDX-License-Identifier: Apache-2.0
//! The page's end of the feed: reads lines, hands them to viewers, and knows how old the newest one is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc::Receiver;

use crate::http::hub::Hub;
use crate::log::say;

/// Viewers at a time; each costs one connection and a queue of a few frames.
const MAX_VIEWERS: usize = 100;
/// A frame is some kilobytes; a longer line is not from a simulator.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Time between attempts to reach the simulator.
const RETRY: Duration = Duration::from_millis(500);
/// Without a frame for this long the simulator counts as away.
const AWAY: Duration = Duration::from_secs(2);

/// What is known of the simulator, and who wants to know it.
pub struct Wire {
    /// Browsers.
    pub viewers: Hub,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    hello: Option<Bytes>,
    frame: Option<Bytes>,
    at: Option<Instant>,
}

/// `/healthz` of the page.
#[derive(Serialize)]
pub struct Health {
    ok: bool,
    feed: &'static str,
    feed_age_s: Option<f64>,
    viewers: usize,
    frames_dropped: u64,
}

impl Default for Wire {
    fn default() -> Self {
        Self { viewers: Hub::new(MAX_VIEWERS), known: Mutex::default() }
    }
}

impl Wire {
    /// A new viewer; it gets what does not change first.
    pub fn join(&self) -> Option<Receiver<Bytes>> {
        let hello = self.known().hello.clone();
        self.viewers.join(hello)
    }

    /// The newest frame as it came.
    pub fn newest(&self) -> Option<Bytes> {
        self.known().frame.clone()
    }

    /// Health of the page and freshness of the feed.
    pub fn health(&self) -> Health {
        let age = self.age();
        let feed = match age {
            None => "no data yet",
            Some(age) if age > AWAY => "no data",
            Some(_) => "live",
        };
        let feed_age_s = age.map(|age| age.as_secs_f64());
        Health {
            ok: true,
            feed,
            feed_age_s,
            viewers: self.viewers.clients(),
            frames_dropped: self.viewers.dropped(),
        }
    }

    /// The same in words, for the service manager.
    pub fn words(&self) -> String {
        match self.age() {
            None => "no data yet".into(),
            Some(age) if age > AWAY => format!("no data for {:.0} s", age.as_secs_f64()),
            Some(_) => "live".into(),
        }
    }

    /// A comment line: proxies keep the connection, and a viewer that went away is noticed.
    pub fn keep_alive(&self) {
        if self.age().is_none_or(|age| age > AWAY) {
            self.viewers.publish(&Bytes::from_static(b": waiting for the simulator\n\n"));
        }
    }

    fn age(&self) -> Option<Duration> {
        self.known().at.map(|at| at.elapsed())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, line: &[u8]) {
        let (name, body) = match line.strip_prefix(b"{\"hello\":") {
            Some(rest) => ("hello", rest.strip_suffix(b"}").unwrap_or(rest)),
            None => ("frame", line),
        };
        let event: Bytes = [b"event: ", name.as_bytes(), b"\ndata: ", body, b"\n\n"].concat().into();
        let mut known = self.known();
        if name == "hello" {
            known.hello = Some(event.clone());
        } else {
            known.frame = Some(Bytes::copy_from_slice(line));
            known.at = Some(Instant::now());
        }
        drop(known);
        self.viewers.publish(&event);
    }
}

/// Reads the feed for ever; connects anew when the simulator went away.
pub async fn follow(socket: PathBuf, wire: Arc<Wire>) {
    loop {
        if let Ok(stream) = UnixStream::connect(&socket).await {
            say!("feed connected");
            let why = read(stream, &wire).await;
            say!("feed lost: {why}; trying again every {} ms", RETRY.as_millis());
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn read(stream: UnixStream, wire: &Wire) -> String {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await {
            Ok(0) => return "the simulator closed it".into(),
            Ok(_) if line.pop() == Some(b'\n') => wire.take(&line),
            Ok(_) => return format!("a line of more than {MAX_LINE_BYTES} bytes, or cut off"),
            Err(error) => return error.to_string(),
        }
    }
}
