// SPDX-License-Identifier: Apache-2.0
//! The tools as a user runs them: the program, files, exit codes, and the JSON on the last line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn flysim(arguments: &[&str]) -> Output {
    let clean = ["FLY_DRIVE", "FLY_SEED", "FLY_GPU", "FLY_PTX", "RAYON_NUM_THREADS"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_flysim"));
    for name in clean {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("no output: {output:?}"));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last}"))
}

/// A small brain in which most spikes are not the drive's.
fn brain(directory: &Path) -> PathBuf {
    let file = directory.join("brain.fly");
    let out = flysim(&["synth", "--neurons", "2000", "--edges", "80000", path(&file)]);
    assert!(out.status.success(), "{out:?}");
    file
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const DRIVE: &str = "sensory:200,central:20";

#[test]
fn compare_passes_on_equal_runs_and_fails_on_silence_or_a_single_run() {
    let directory = tempfile::tempdir().expect("directory");
    let file = brain(directory.path());
    let compare = |more: &[&str]| {
        flysim(&[&["compare", path(&file), "--ticks", "600", "--drive", DRIVE], more].concat())
    };
    let good = compare(&["--threads", "1,2,3,7", "--min-spikes", "1000", "--min-undriven", "0"]);
    assert!(good.status.success(), "{good:?}");
    let found = json(&good);
    assert_eq!(found["ok"], true);
    let threads: Vec<u64> =
        found["runs"].as_array().into_iter().flatten().filter_map(|r| r["threads"].as_u64()).collect();
    assert_eq!(threads, [1, 2, 3, 7]);
    for (more, why) in [
        (["--threads", "1,2", "--min-spikes", "100000000"], "too few spikes"),
        (["--threads", "2", "--min-spikes", "0"], "only one run: nothing was compared"),
    ] {
        let bad = compare(&more);
        assert_eq!(bad.status.code(), Some(1));
        assert_eq!(json(&bad)["why"], why);
    }
}

#[test]
fn thirds_through_checkpoints_equal_the_unbroken_run() {
    let directory = tempfile::tempdir().expect("directory");
    let file = brain(directory.path());
    let states = directory.path().join("states");
    let out =
        flysim(&["thirds", path(&file), "--ticks", "1801", "--drive", DRIVE, "--directory", path(&states)]);
    assert!(out.status.success(), "{out:?}");
    let found = json(&out);
    assert_eq!((found["ok"].clone(), found["every_part_spiked"].clone()), (true.into(), true.into()));
    assert!(found["parts"].as_array().is_some_and(|p| p.len() == 3 && p[0]["inside_window"] == true));

    let replay = |more: &[&str]| {
        flysim(&[&["replay", path(&states), path(&file), "--ticks", "500", "--drive", DRIVE], more].concat())
    };
    let (one, three) = (json(&replay(&["--threads", "1"])), json(&replay(&["--threads", "3"])));
    assert_eq!(one["hash_chain"], three["hash_chain"]);
    assert_eq!((one["from"].as_u64(), one["to"].as_u64()), (Some(1801), Some(2301)));
    assert!(one["spikes"].as_u64() > Some(0));

    let other = directory.path().join("other.fly");
    assert!(
        flysim(&["synth", "--neurons", "2000", "--edges", "80000", "--seed", "2", path(&other)])
            .status
            .success()
    );
    let foreign = flysim(&["replay", path(&states), path(&other)]);
    assert!(!foreign.status.success());
    assert!(String::from_utf8_lossy(&foreign.stderr).contains("connectome differs"), "{foreign:?}");
}

#[test]
fn replay_refuses_a_damaged_checkpoint_and_leaves_it_where_it_is() {
    let directory = tempfile::tempdir().expect("directory");
    let file = brain(directory.path());
    let damaged = directory.path().join("ckpt-00000000000000000007.flyck");
    std::fs::write(&damaged, "not a checkpoint").expect("write");
    let out = flysim(&["replay", path(directory.path()), path(&file)]);
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("magic"), "{out:?}");
    assert!(damaged.is_file());
}

#[test]
fn spikes_follow_their_sources_and_bad_lines_are_named() {
    let directory = tempfile::tempdir().expect("directory");
    let file = brain(directory.path());
    let (sources, out) = (directory.path().join("in.csv"), directory.path().join("out.csv"));
    let run = || {
        flysim(&["spikes", path(&file), "--ticks", "60", "--sources", path(&sources), "--out", path(&out)])
    };
    std::fs::write(&sources, "10,5\n10,6\n").expect("write");
    assert!(run().status.success());
    let spikes = std::fs::read_to_string(&out).expect("spikes");
    assert!(spikes.starts_with("11,5\n11,6\n"), "{spikes}");
    std::fs::write(&sources, "10,5\n10;6\n").expect("write");
    assert!(String::from_utf8_lossy(&run().stderr).contains(":2:"));
}

#[test]
fn a_damaged_brain_is_refused_with_its_section() {
    let directory = tempfile::tempdir().expect("directory");
    let file = brain(directory.path());
    assert!(flysim(&["info", path(&file), "--json"]).status.success());
    let mut bytes = std::fs::read(&file).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("write");
    let out = flysim(&["info", path(&file)]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("section targets"), "{out:?}");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn cuda_in_a_binary_without_it_is_an_error_that_says_how_to_build() {
    let directory = tempfile::tempdir().expect("directory");
    let file = brain(directory.path());
    let out = flysim(&["compare", path(&file), "--ticks", "20", "--cuda"]);
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("--features cuda"), "{out:?}");
}
