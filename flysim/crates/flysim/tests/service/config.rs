// SPDX-License-Identifier: Apache-2.0
//! Settings: layers, refusals, exit codes.

use crate::support::{Place, flysim, text};

#[test]
fn an_env_file_error_names_file_line_expectation_and_value() {
    let place = Place::new();
    let file = place.path("fly.env");
    std::fs::write(&file, "# comment\nFLY_SPEED=fast\n\nthis is no assignment\nFLY_LIF_CUDA='2'\n").unwrap();
    let output = flysim().args(["run", "--env-file"]).arg(&file).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    for part in [
        format!("{}:2", file.display()),
        format!("{}:4", file.display()),
        format!("{}:5", file.display()),
        "flysim run: FLY_SPEED is not usable".into(),
        "expected: 0 (CPU) or 1 (GPU)".into(),
        "found:    \"fast\"".into(),
        "FLY_CONNECTOME is not usable".into(),
        "do:       set FLY_STATE_DIR in the env file or pass --state-dir".into(),
    ] {
        assert!(said.contains(&part), "{part} not in\n{said}");
    }
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let place = Place::new();
    let file = place.path("fly.env");
    std::fs::write(&file, "FLY_SEED=1\nFLY_SPEED=0\nFLY_UNTIL_TICK=400\nFLY_NOT_KNOWN=1\n").unwrap();
    let mut command = place.command(&["--until-tick", "900"]);
    command.arg("--env-file").arg(&file).env("FLY_SEED", "2").env("FLY_UNTIL_TICK", "500");
    let output = command.output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("fly.env:4: FLY_NOT_KNOWN is not a setting"), "{said}");
    let newest = flysim_core::checkpoint::read(&place.checkpoints()[0].1).unwrap().manifest;
    assert_eq!((newest.tick, newest.seed.as_str()), (900, "2"));
}

#[test]
fn things_that_a_restart_cannot_mend_end_with_78() {
    let place = Place::new();
    std::fs::write(place.path("not.fly"), "hello").unwrap();
    std::fs::write(place.path("short"), "abc").unwrap();
    let not_fly = place.path("not.fly");
    let short = place.path("short");
    for (flag, value, part) in [
        ("--connectome", not_fly.to_str().unwrap(), "not.fly"),
        ("--connectome", "/nonexistent.fly", "FLY_CONNECTOME"),
        ("--drive", "nobody:10", "there are: sensory kenyon mbon motor"),
        ("--listen", "192.0.2.1:80", "not a loopback address"),
        ("--token-file", short.to_str().unwrap(), "16 to 256"),
        ("--state-dir", "/proc/nonexistent", "FLY_STATE_DIR"),
    ] {
        let output = place.finish(&[flag, value]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(78), "{flag} {value}: {said}");
        assert!(said.contains(part), "{part} not in\n{said}");
    }
}

#[test]
fn a_wanted_gpu_is_never_replaced_by_the_cpu() {
    let place = Place::new();
    let output = place.finish(&["--lif-cuda", "1", "--gpu", "99", "--until-tick", "18"]);
    let said = text(&output);
    if cfg!(feature = "cuda") {
        assert_eq!(output.status.code(), Some(75), "{said}");
        assert!(said.starts_with("cuda feature compiled in (PTX sm_75"), "{said}");
    } else {
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains("cargo build --release --features cuda"), "{said}");
        assert!(!said.contains("cuda feature compiled in"), "{said}");
    }
    assert!(!said.contains("backend attached"), "{said}");
}

#[cfg(not(feature = "fault"))]
#[test]
fn faults_are_refused_by_a_binary_that_cannot() {
    let output = Place::new().finish(&["--fault", "stall@1"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(text(&output).contains("built without the feature fault"), "{}", text(&output));
}

#[test]
fn a_taken_port_ends_with_69() {
    let place = Place::new();
    let _holder = std::net::TcpListener::bind(("127.0.0.1", place.port)).unwrap();
    let output = place.finish(&["--until-tick", "18"]);
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));
    assert!(text(&output).contains("cannot listen on 127.0.0.1"), "{}", text(&output));
}

#[test]
fn the_binary_says_what_it_is() {
    let place = Place::new();
    let brain = place.path("brain.fly");
    let say = |args: &[&str]| {
        let output = flysim().args(args).env("FLY_CONNECTOME", &brain).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let version = say(&["--version"]);
    assert!(version.starts_with("flysim "), "{version}");
    assert_eq!(version.contains("PTX sm_75"), cfg!(feature = "cuda"), "{version}");
    let kernel = say(&["--print-kernel-version"]);
    let compatibility = say(&["--print-compatibility"]);
    assert!(compatibility.starts_with(&format!("{kernel}/test/")), "{compatibility}");
    let state = place.path("state");
    let state = state.to_str().unwrap();
    assert_eq!(say(&["--print-state-compatibility", state]), "none");
    assert_eq!(place.finish(&["--speed", "0", "--until-tick", "40"]).status.code(), Some(0));
    assert_eq!(say(&["--print-state-compatibility", state]), compatibility);
}

#[test]
fn exit_codes_stand_in_the_help() {
    let output = flysim().args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for code in ["  69  ", "  70  ", "  74  ", "  75  ", "  78  ", "FLY_CHECKPOINT_S"] {
        assert!(help.contains(code), "{code} not in\n{help}");
    }
}
