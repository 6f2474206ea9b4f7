// SPDX-License-Identifier: Apache-2.0
//! `/metrics` in the text format of Prometheus.

use std::fmt::Write;
use std::time::Instant;

use super::clock::brain_s;
use super::snapshot::Board;
use crate::http::hub::Hub;

/// All metrics of this moment.
pub fn text(board: &Board, hub: Option<&Hub>) -> String {
    let (info, snapshot, checkpoint) = (&board.info, board.snapshot.load(), board.checkpoint());
    let mut page = Page(String::with_capacity(4096));
    let backend = [("wanted", info.backend_wanted), ("attached", info.backend)];
    page.labelled("backend_info", "gauge", "Backend asked for and backend in use", backend, 1.0);
    let build = [("version", info.version.as_str()), ("kernel", info.kernel_version)];
    page.labelled("build_info", "gauge", "Version and kernel", build, 1.0);
    page.counter("ticks_total", "Ticks of the brain since its start", snapshot.tick as f64);
    page.counter("brain_seconds_total", "Brain time since its start", brain_s(snapshot.tick));
    page.counter("spikes_total", "Spikes since the process started", snapshot.spikes as f64);
    page.counter("spikes_undriven_total", "Spikes outside the driven set", snapshot.spikes_undriven as f64);
    page.gauge("spikes_per_second", "Spikes per brain second, last 1 s", snapshot.spikes_per_s);
    page.gauge("realtime_factor", "Brain time over wall time, last 10 s", snapshot.realtime_factor);
    page.gauge("speed", "Brain time over wall time as configured; 0 is unthrottled", info.speed);
    page.gauge("lag_seconds", "How late the last batch was", snapshot.lag.as_secs_f64());
    page.gauge("host_cores", "Host cores of the process, last 2 to 4 s", snapshot.host_cores);
    page.gauge("threads", "Worker threads", info.threads as f64);
    page.gauge("uptime_seconds", "Age of the process", info.started.elapsed().as_secs_f64());
    page.gauge("paused", "1 while paused on request", f64::from(u8::from(snapshot.paused)));
    page.gauge(
        "healthy",
        "1 while /healthz says ok",
        f64::from(u8::from(board.sick(Instant::now()).is_none())),
    );
    page.head("rate_hz", "gauge", "Spikes per cell and second by group, last 1 s");
    for (group, rate) in board.rates() {
        page.sample("rate_hz", [("group", group)], rate);
    }
    if let Some(at) = checkpoint.at {
        page.gauge("checkpoint_age_seconds", "Age of the newest checkpoint", at.elapsed().as_secs_f64());
    }
    page.counter("checkpoints_total", "Checkpoints written", checkpoint.count as f64);
    page.counter(
        "checkpoint_failures_total",
        "Checkpoints that could not be written",
        checkpoint.failures as f64,
    );
    page.counter("restores_total", "Checkpoints gone on from", info.restores as f64);
    page.counter("checkpoints_set_aside_total", "Damaged checkpoints put aside", info.set_aside as f64);
    if let Some(hub) = hub {
        page.gauge("feed_clients", "Readers of the feed", hub.clients() as f64);
        let lost = hub.dropped() + snapshot.frames_lost;
        page.counter(
            "feed_frames_dropped_total",
            "Frames that a reader or the queue had no place for",
            lost as f64,
        );
    }
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP flysim_{name} {help}.\n# TYPE flysim_{name} {kind}");
    }

    fn sample<'a>(&mut self, name: &str, labels: impl IntoIterator<Item = (&'a str, &'a str)>, value: f64) {
        let labels: Vec<String> =
            labels.into_iter().map(|(key, text)| format!("{key}=\"{}\"", escape(text))).collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "flysim_{name}{braces} {value}");
    }

    fn labelled<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: f64,
    ) {
        self.head(name, kind, help);
        self.sample(name, labels, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.labelled(name, "gauge", help, [], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.labelled(name, "counter", help, [], value);
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page(String::new());
        page.sample("x", [("group", "a\"b\\c")], 1.5);
        assert_eq!(page.0, "flysim_x{group=\"a\\\"b\\\\c\"} 1.5\n");
    }
}
