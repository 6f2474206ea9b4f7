// SPDX-License-Identifier: Apache-2.0
//! `sd_notify`, as much of it as this service needs.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The way to tell the service manager how things are; does nothing when there is none.
pub struct Notify {
    socket: Option<UnixDatagram>,
    watchdog_every: Option<Duration>,
    fed: Instant,
}

impl Notify {
    /// Connects to `$NOTIFY_SOCKET`, and reads `$WATCHDOG_USEC` where `$WATCHDOG_PID` is this process or unset.
    pub fn from_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| connect(path.into_vec()).ok());
        let for_us = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let usec =
            std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse::<u64>().ok()).filter(|_| for_us);
        // systemd asks for half the time; a third leaves room for one slow batch.
        let watchdog_every = usec.map(|usec| Duration::from_micros(usec / 3));
        Self { socket, watchdog_every, fed: Instant::now() }
    }

    /// Sends one message; a manager that does not listen is not waited for.
    pub fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(message.as_bytes());
        }
    }

    /// Feeds the watchdog when it is due. Only the thread that makes ticks may call this, and only after ticks.
    pub fn progress(&mut self, now: Instant) {
        let due = self.watchdog_every.is_some_and(|every| now.duration_since(self.fed) >= every);
        if due {
            self.fed = now;
            self.send("WATCHDOG=1");
        }
    }
}

fn connect(path: Vec<u8>) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // The kernel blocks a sender while the receiver's queue is full; the simulator must not wait for its manager.
    socket.set_nonblocking(true)?;
    match path.strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(std::ffi::OsStr::from_bytes(&path))?,
    }
    Ok(socket)
}
