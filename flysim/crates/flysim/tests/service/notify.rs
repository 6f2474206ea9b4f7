// SPDX-License-Identifier: Apache-2.0
//! What the service manager hears, and what faults look like from outside.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use crate::support::{Place, Running};

fn manager(place: &Place, extra: &[&str]) -> (UnixDatagram, Running) {
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut command = place.command(extra);
    command.env("NOTIFY_SOCKET", place.path("notify")).env("WATCHDOG_USEC", "600000");
    let service = place.start_command(command);
    (socket, service)
}

fn hear(socket: &UnixDatagram) -> Option<String> {
    let mut buffer = [0; 512];
    let n = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

#[test]
fn ready_then_watchdog_then_stopping() {
    let place = Place::new();
    let (socket, service) = manager(&place, &[]);
    let first = hear(&socket).unwrap();
    assert!(first.starts_with("READY=1\nSTATUS=cpu backend, tick "), "{first}");
    for _ in 0..3 {
        assert_eq!(hear(&socket).as_deref(), Some("WATCHDOG=1"));
    }
    let (code, log) = service.terminate();
    assert_eq!(code, 0, "{log}");
    assert!(std::iter::from_fn(|| hear(&socket)).take(10).any(|text| text == "STOPPING=1"));
}

#[test]
fn a_stopped_process_feeds_no_watchdog() {
    let place = Place::new();
    let (socket, service) = manager(&place, &[]);
    assert!(hear(&socket).unwrap().starts_with("READY=1"));
    service.signal("STOP");
    socket.set_read_timeout(Some(Duration::from_millis(900))).unwrap();
    let started = Instant::now();
    while hear(&socket).is_some() {
        assert!(started.elapsed() < Duration::from_secs(3), "the watchdog is still fed");
    }
    service.signal("CONT");
    assert_eq!(hear(&socket).as_deref(), Some("WATCHDOG=1"));
}

#[test]
fn the_simulator_thread_has_a_name() {
    let place = Place::new();
    let service = place.start(&[]);
    // A thread names itself once it runs, which on a busy machine is a moment after the service answers.
    let started = Instant::now();
    let mut names: Vec<String> = vec![];
    while !names.iter().any(|name| name == "flysim-sim\n") && started.elapsed() < Duration::from_secs(10) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", service.child.id())).unwrap();
        names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect();
    }
    assert!(names.iter().any(|name| name == "flysim-sim\n"), "{names:?}");
}

#[cfg(feature = "fault")]
#[test]
fn a_thread_that_makes_no_ticks_feeds_no_watchdog_and_is_not_healthy() {
    let place = Place::new();
    let (socket, service) = manager(&place, &["--fault", "stall@2000"]);
    std::thread::sleep(Duration::from_millis(2600));
    let (code, reason) = service.get("/healthz");
    assert_eq!(code, 503);
    assert!(reason.starts_with("no tick for 2."), "{reason}");
    socket.set_nonblocking(true).unwrap();
    while hear(&socket).is_some() {}
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(900))).unwrap();
    assert_eq!(hear(&socket), None);
}

#[cfg(feature = "fault")]
#[test]
fn a_lost_gpu_ends_with_75_and_a_panic_with_70() {
    for (fault, wanted, part) in [
        ("gpu-lost@9000", 75, "gpu lost: device lost at tick "),
        ("panic@9000", 70, "the simulator's thread panicked"),
    ] {
        let place = Place::new();
        let mut service = place.start(&["--fault", fault]);
        assert_eq!(service.wait(), wanted, "{}", service.log());
        assert!(service.log().contains(part), "{}", service.log());
    }
}
