// SPDX-License-Identifier: Apache-2.0
//! What the kernel says about this process.

use std::time::{Duration, Instant};

/// `Cpus_allowed_list` of this process, for example `0-3,8`; `unknown` where there is no such line.
pub fn cpus_allowed() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.map_or_else(|| "unknown".into(), |list| list.trim().into())
}

/// Cpu time of all threads of this process, user and system.
pub fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold anything, so fields are counted from behind it: utime is 14, stime 15.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // USER_HZ is 100 on every Linux that Rust runs on, whatever the kernel's own tick.
    Some(Duration::from_millis((user + system) * 10))
}

/// Host cores used over the last seconds.
pub struct CoreMeter {
    since: Instant,
    spent: Duration,
    cores: f64,
}

impl CoreMeter {
    /// Starts to measure.
    pub fn new(now: Instant) -> Self {
        Self { since: now, spent: cpu_time().unwrap_or_default(), cores: 0.0 }
    }

    /// Cores over the last 2 to 4 s; measured anew at most every 2 s because reading /proc is not free.
    pub fn cores(&mut self, now: Instant) -> f64 {
        let wall = now.duration_since(self.since);
        if wall >= Duration::from_secs(2) {
            let spent = cpu_time().unwrap_or_default();
            self.cores = spent.saturating_sub(self.spent).as_secs_f64() / wall.as_secs_f64();
            (self.since, self.spent) = (now, spent);
        }
        self.cores
    }
}
