// SPDX-License-Identifier: Apache-2.0
//! A run that was stopped, killed or damaged goes on as if nothing had happened, or says why it does not.

use std::fs;

use crate::support::{Place, TOKEN, newest, parts, text};

/// State hash at `tick` of a run that nobody disturbed.
fn unbroken(tick: u64) -> String {
    let place = Place::new();
    let output = place.finish(&["--speed", "0", "--until-tick", &tick.to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let (at, hash) = newest(&place.path("state"));
    assert_eq!(at, tick);
    hash
}

#[test]
fn sigterm_then_restart_equals_the_unbroken_run() {
    let place = Place::new();
    let service = place.start(&["--speed", "3"]);
    service.until("some ticks", || service.tick() > 2_000);
    let (code, log) = service.terminate();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains(": SIGTERM"), "{log}");
    let (stopped, _) = newest(&place.path("state"));
    assert!(log.contains(&format!("checkpoint written: tick {stopped}, ")), "{log}");
    // Two ticks more is inside a delay window: the ring is part of the state.
    let inside = (stopped + 2).to_string();
    assert_eq!(place.finish(&["--speed", "0", "--until-tick", &inside]).status.code(), Some(0));
    let service = place.start(&[]);
    let status = service.status();
    assert_eq!(status["restored_tick"].as_u64(), Some(stopped + 2), "{status:#}");
    assert_eq!(status["restores"], 1);
    assert!(status["spikes_restored_total"].as_u64().unwrap() > 0);
    assert!(service.tick() >= stopped + 2);
    let (_, log) = service.terminate();
    assert!(log.contains(&format!("checkpoint restored: tick {}, ", stopped + 2)), "{log}");
    let end = newest(&place.path("state")).0 + 4_001;
    assert_eq!(place.finish(&["--speed", "0", "--until-tick", &end.to_string()]).status.code(), Some(0));
    assert_eq!(newest(&place.path("state")), (end, unbroken(end)));
}

#[test]
fn kill_nine_at_any_time_loses_no_more_than_the_time_between_checkpoints() {
    let rounds = std::env::var("FLY_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let place = Place::new();
    let mut reached = 0;
    for round in 0..rounds {
        let service = place.start(&["--speed", "2", "--checkpoint-s", "0.1"]);
        let status = service.status();
        assert!(status["restored_tick"].as_u64().unwrap_or(0) >= reached, "round {round}: {status:#}");
        service.until("two checkpoints", || service.status()["checkpoint"]["count"].as_u64() >= Some(2));
        std::thread::sleep(std::time::Duration::from_millis(7 * round % 50));
        reached = service.status()["checkpoint"]["tick"].as_u64().unwrap();
        drop(service);
        let leftovers = place.checkpoints().len();
        assert!((1..=4).contains(&leftovers), "{leftovers} checkpoints");
    }
    let end = place.checkpoints()[0].0 + 1_000;
    let output = place.finish(&["--speed", "0", "--until-tick", &end.to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(newest(&place.path("state")), (end, unbroken(end)));
    let litter: Vec<_> =
        fs::read_dir(place.path("state")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!litter.iter().any(|name| name.to_string_lossy().ends_with(".tmp")), "{litter:?}");
}

/// Three checkpoints, the last one at tick 300.
fn three() -> Place {
    let place = Place::new();
    for tick in ["100", "200", "300"] {
        assert_eq!(place.finish(&["--speed", "0", "--until-tick", tick]).status.code(), Some(0));
    }
    assert_eq!(place.checkpoints().len(), 3);
    place
}

#[test]
fn a_truncated_newest_one_is_put_aside_and_the_one_before_restored() {
    let place = three();
    let (tick, path) = place.checkpoints().remove(0);
    assert_eq!(tick, 300);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let output = place.finish(&["--speed", "0", "--until-tick", "500"]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("checkpoint damaged, put aside in damaged/: "), "{said}");
    assert!(said.contains("checkpoint restored: tick 200, "), "{said}");
    let aside = place.path("state/damaged").join(path.file_name().unwrap());
    assert_eq!(fs::read(&aside).unwrap(), &whole[..whole.len() / 2]);
    assert!(fs::read_to_string(aside.with_extension("reason")).unwrap().contains("expected"));
    assert_eq!(newest(&place.path("state")), (500, unbroken(500)));
}

#[test]
fn when_all_are_damaged_there_is_no_fresh_start() {
    let place = three();
    for (_, path) in place.checkpoints() {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    for _ in 0..2 {
        let output = place.finish(&["--speed", "0", "--until-tick", "500"]);
        assert_eq!(output.status.code(), Some(78), "{}", text(&output));
        assert!(text(&output).contains("damaged"), "{}", text(&output));
    }
    assert_eq!(place.checkpoints(), []);
}

#[test]
fn another_connectome_is_refused_by_the_name_of_the_segment() {
    let place = three();
    fs::write(place.path("brain.fly"), parts(600, 2).encode()).unwrap();
    let output = place.finish(&["--until-tick", "500"]);
    assert_eq!(output.status.code(), Some(78), "{}", text(&output));
    assert!(text(&output).contains("not compatible: connectome differs"), "{}", text(&output));
    assert_eq!(place.checkpoints().len(), 3);
}

#[test]
fn a_second_instance_refuses_and_names_the_first() {
    let place = Place::new();
    let first = place.start(&[]);
    let output = place.finish(&["--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));
    let named = format!("is held by the flysim with pid {}", first.child.id());
    assert!(text(&output).contains(&named), "{}", text(&output));
}

#[test]
fn only_the_newest_are_kept() {
    let place = Place::new();
    let service = place.start(&["--checkpoint-keep", "2"]);
    let mut ticks = Vec::new();
    for _ in 0..4 {
        let (code, body) = service.post("/checkpoint", TOKEN);
        assert_eq!(code, 200, "{body}");
        let written: serde_json::Value = serde_json::from_str(&body).unwrap();
        ticks.push(written["tick"].as_u64().unwrap());
        service.until("another tick", || service.tick() > ticks[ticks.len() - 1]);
    }
    let kept: Vec<u64> = place.checkpoints().into_iter().map(|(tick, _)| tick).collect();
    assert_eq!(kept, [ticks[3], ticks[2]]);
}

#[cfg(feature = "fault")]
#[test]
fn a_full_disk_is_counted_and_the_brain_goes_on() {
    let place = three();
    let service = place.start(&["--fault", "disk-full", "--checkpoint-s", "0.2"]);
    service.until("failures", || service.status()["checkpoint"]["failures"].as_u64() >= Some(2));
    let before = service.tick();
    service.until("ticks", || service.tick() > before + 1_000);
    assert_eq!(service.get("/healthz").0, 200);
    let (code, log) = service.terminate();
    assert_eq!(code, 74, "{log}");
    assert!(log.contains("checkpoint failed: ") && log.contains("no space left"), "{log}");
    assert_eq!(place.checkpoints().len(), 3);
}

#[test]
fn a_closed_stderr_stops_neither_brain_nor_checkpoints() {
    let place = Place::new();
    let mut command = place.command(&[]);
    let mut child = crate::support::Reaped(command.stderr(std::process::Stdio::piped()).spawn().unwrap());
    drop(child.0.stderr.take());
    let post = || {
        crate::support::request(
            place.port,
            "POST",
            "/checkpoint",
            &format!("Authorization: Bearer {TOKEN}\r\n"),
        )
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !matches!(post(), Some((200, _))) {
        assert!(std::time::Instant::now() < deadline, "no checkpoint was written");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(std::process::Command::new("kill").arg(child.0.id().to_string()).status().unwrap().success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}
