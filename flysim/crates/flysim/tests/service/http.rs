// SPDX-License-Identifier: Apache-2.0
//! Status, health, metrics, commands, feed and page of a running service.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{DRIVE, Place, Reaped, TOKEN, flysim, free_port, request};

#[test]
fn status_health_and_metrics_of_a_paced_run() {
    let place = Place::new();
    let service = place.start(&["--threads", "2", "--cpus", "0-999"]);
    std::thread::sleep(Duration::from_millis(3500));
    let status = service.status();
    for (field, wanted) in [
        ("backend", Value::from("cpu")),
        ("backend_wanted", Value::from("cpu")),
        ("neurons", Value::from(600)),
        ("threads", Value::from(2)),
        ("drive", Value::from(DRIVE)),
        ("speed", Value::from(1.0)),
        ("paused", Value::from(false)),
        ("gpu", Value::Null),
        ("restores", Value::from(0)),
        ("pid", Value::from(service.child.id())),
    ] {
        assert_eq!(status[field], wanted, "{field} in {status:#}");
    }
    let factor = status["realtime_factor"].as_f64().unwrap();
    // A machine that cannot keep up says so by its lag; only then may the factor be another one.
    let is_late = status["lag_ms"].as_f64().unwrap() > 20.0;
    assert!((0.97..1.03).contains(&factor) || is_late, "{factor}");
    assert!(status["spikes"].as_u64().unwrap() > 10_000, "{status:#}");
    assert!(status["spikes_undriven"].as_u64().unwrap() > 0, "{status:#}");
    let sensory = status["rates"]["sensory"].as_f64().unwrap();
    assert!((120.0..180.0).contains(&sensory), "{sensory}");
    assert_eq!(service.get("/healthz"), (200, "ok\n".into()));
    let (code, metrics) = service.get("/metrics");
    assert_eq!(code, 200);
    for line in [
        "flysim_backend_info{wanted=\"cpu\",attached=\"cpu\"} 1",
        "# TYPE flysim_ticks_total counter",
        "flysim_rate_hz{group=\"kenyon\"} ",
        "flysim_checkpoint_failures_total 0",
        "flysim_healthy 1",
    ] {
        assert!(metrics.contains(line), "{line} not in\n{metrics}");
    }
    assert_eq!(service.get("/nothing").0, 404);
    let log = service.log();
    assert!(log.contains("cpu backend attached (threads 2, cpus "), "{log}");
    assert!(log.contains("warning: FLY_CPUS says 0-999"), "{log}");
}

#[test]
fn posts_need_the_token_and_pause_holds_the_tick() {
    let place = Place::new();
    let service = place.start(&[]);
    assert_eq!(service.post("/pause", "wrong").0, 401);
    assert_eq!(service.get("/pause").0, 405);
    assert_eq!(service.post("/pause", TOKEN).0, 202);
    service.until("the pause", || service.status()["paused"] == true);
    let held = service.tick();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(service.tick(), held);
    assert_eq!(service.get("/healthz"), (503, format!("paused on request at tick {held}\n")));
    let (code, written) = service.post("/checkpoint", TOKEN);
    assert_eq!((code, serde_json::from_str::<Value>(&written).unwrap()["tick"].as_u64()), (200, Some(held)));
    assert_eq!(service.post("/resume", TOKEN).0, 202);
    service.until("ticks", || service.tick() > held);
    // A pause is no lag: nothing has to be caught up.
    assert!(service.status()["lag_ms"].as_f64().unwrap() < 200.0);
    assert_eq!(service.status()["checkpoint"]["count"], 1);
}

#[test]
fn without_a_token_file_posts_are_forbidden() {
    let place = Place::new();
    let service = place.start(&["--token-file", ""]);
    assert_eq!(service.post("/checkpoint", TOKEN).0, 403);
}

#[test]
fn clients_that_never_finish_stall_nobody() {
    let place = Place::new();
    let service = place.start(&[]);
    let idle: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", place.port)).unwrap();
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n").unwrap();
            stream
        })
        .collect();
    let before = service.tick();
    std::thread::sleep(Duration::from_secs(1));
    let made = service.tick() - before;
    // Wide, because the machine of the test may be busy; a stalled simulator would make none.
    assert!((3_000..20_000).contains(&made), "{made} ticks in a second");
    drop(idle);
}

#[test]
fn a_slow_reader_of_the_feed_loses_frames_and_a_quick_one_does_not() {
    let place = Place::new();
    let service = place.start(&["--speed", "20"]);
    let slow = UnixStream::connect(place.path("feed.sock")).unwrap();
    let mut quick = BufReader::new(UnixStream::connect(place.path("feed.sock")).unwrap());
    let mut read = || {
        let mut line = String::new();
        quick.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    let hello = read();
    assert_eq!(hello["hello"]["groups"][1]["name"], "kenyon");
    let first = read();
    assert_eq!(first["rates"].as_array().unwrap().len(), 4);
    let (mut last, mut spikes) = (first["tick"].as_u64().unwrap(), 0);
    let deadline = Instant::now() + Duration::from_secs(15);
    while service.status()["feed"]["frames_dropped"] == 0 {
        assert!(Instant::now() < deadline, "no frame was dropped: {:#}", service.status());
        for _ in 0..10 {
            let frame = read();
            assert_eq!(frame["from"].as_u64(), Some(last), "a frame is missing");
            last = frame["tick"].as_u64().unwrap();
            spikes += frame["spikes"].as_array().unwrap().len();
        }
    }
    assert!(spikes > 0);
    assert_eq!(service.status()["feed"]["clients"], 2);
    drop(slow);
}

#[test]
fn the_page_shows_the_feed_and_says_when_it_is_away() {
    let place = Place::new();
    let service = place.start(&[]);
    let port = free_port();
    let mut page = flysim();
    page.arg("page")
        .arg("--feed")
        .arg(place.path("feed.sock"))
        .args(["--listen", &format!("127.0.0.1:{port}")]);
    let _page = Reaped(page.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let health = || request(port, "GET", "/healthz", "").map(|(_, body)| body).unwrap_or_default();
    service.until("the page", || health().contains("\"feed\": \"live\""));
    let (code, html) = request(port, "GET", "/", "").unwrap();
    assert!(code == 200 && html.contains("<title>flysim") && !html.contains("https://"));
    assert_eq!(request(port, "POST", "/", "").unwrap().0, 405);
    let mut events = TcpStream::connect(("127.0.0.1", port)).unwrap();
    events.write_all(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut seen = String::new();
    while !seen.contains("event: frame") {
        let mut some = [0; 4096];
        let n = events.read(&mut some).unwrap();
        seen.push_str(&String::from_utf8_lossy(&some[..n]));
    }
    assert!(seen.contains("event: hello\ndata: {\"version\""), "{seen}");
    let (code, _) = service.terminate();
    assert_eq!(code, 0);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !health().contains("\"feed\": \"no data\"") {
        assert!(Instant::now() < deadline, "{}", health());
        std::thread::sleep(Duration::from_millis(50));
    }
    let again = place.start(&[]);
    again.until("the page to see it again", || health().contains("\"feed\": \"live\""));
}
