# SPDX-License-Identifier: Apache-2.0
"""The domain modules with the real flysim: a built release, its trial, its checkpoints, and the checks that need no card."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from flyops import places
from flyops.agent.host import RealHost
from flyops.agent.run import run_module
from flyops.domain import checks, probes
from flyops.modules import checkpoint_gate, flysim_check, release, trial

ROOT = Path(__file__).resolve().parents[3]
DRIVE = "sensory:50"


def newest_build() -> Path | None:
    """The folder of the newest release in the build cache (a build of the CPU)."""
    found = sorted(places.cache("builds").glob("*/flysim-*.tar.gz"), key=lambda p: p.stat().st_mtime)
    return next((tar for tar in reversed(found) if "+cuda" not in tar.name), None)


TAR = newest_build()
pytestmark = pytest.mark.skipif(TAR is None, reason="no build of flysim in the cache: ./fly build makes one")


def check(name, **args):
    return run_module(flysim_check, {"check": name, **args}, RealHost())


@pytest.fixture(scope="module")
def fly(tmp_path_factory):
    """A staged release, a small brain, and a first run of it that left a checkpoint."""
    where = tmp_path_factory.mktemp("fly")
    version = TAR.name[len("flysim-") : -len(".tar.gz")]
    source = {"path": str(TAR), "sha256": hashlib.sha256(TAR.read_bytes()).hexdigest(), "size": TAR.stat().st_size}
    host = RealHost(lambda _: str(TAR))
    staged = run_module(release, {"home": str(where / "home"), "version": version, "src": source, "state": "staged"}, host)
    assert staged["changed"], staged
    binary = Path(staged["path"]) / "bin/flysim"
    brain = where / "brain.fly"
    subprocess.run([binary, "synth", "--neurons", "1000", "--edges", "20000", "--seed", "7", brain], check=True, capture_output=True)
    (where / "flysim.env").write_text(
        f"FLY_CONNECTOME={brain}\nFLY_DRIVE={DRIVE}\nFLY_SEED=783\nFLY_STATE_DIR=/nowhere\nFLY_LISTEN=127.0.0.1:1\nRAYON_NUM_THREADS=1\n"
    )
    base = {"manager": "supervisor", "binary": str(binary), "env_files": [str(where / "flysim.env")], "wait": 60}

    def start(name="trial", **more):
        return run_module(trial, {"dir": str(where / name), **base, **more}, RealHost())

    def end(name="trial", state="absent"):
        return run_module(trial, {"dir": str(where / name), "manager": "supervisor", "state": state}, RealHost())

    start.end, start.binary, start.brain, start.where, start.version = end, binary, brain, where, version
    first = start("live")
    assert first["running"], first
    start.live = first
    yield start
    end("trial")
    end("live")


@pytest.fixture
def state(fly, tmp_path):
    """A state folder with the checkpoint of a run that was stopped."""
    run = fly("before", env={"FLY_CHECKPOINT_S": 1})
    assert run["running"], run
    fly.end("before", "stopped")
    folder = fly.where / "before/state"
    assert list(folder.glob("ckpt-*.flyck"))
    return folder


def test_the_staged_release_is_whole(fly):
    seen = run_module(release, {"home": str(fly.where / "home"), "state": "read"}, RealHost())
    assert seen["releases"] == [{"version": fly.version, "valid": True, "problems": []}]


def test_health_by_an_outside_clock(fly):
    seen = check("health", url=fly.live["url"], backend="cpu", gap=3)
    assert seen["verdict"] == "passed", seen
    assert seen["details"]["first"]["pid"] == fly.live["pid"]


def test_a_window_of_the_real_one(fly):
    seen = check("window", url=fly.live["url"], warmup=0.5, window=4)
    assert seen["verdict"] == "passed", seen
    assert seen["window"]["hz"] > 0
    assert 0 < seen["window"]["cores"] < 2
    assert abs(seen["window"]["cores"] - seen["samples"][-1]["cores_said"]) < 0.5


def test_a_trial_goes_on_from_a_copy_while_the_live_one_runs(fly, state):
    before = sorted(p.name for p in state.iterdir())
    found = fly(state_dir=str(state), env={"RAYON_NUM_THREADS": 2})
    try:
        assert found["running"], found
        assert "checkpoint restored" in found["log"]
        assert "cpu backend attached (threads 2" in found["log"]
        assert found["status"]["restored_tick"] == int(found["checkpoint"][5:25])
        assert found["status"]["pid"] == found["pid"]
        assert sorted(p.name for p in state.iterdir()) == before
        assert check("health", url=fly.live["url"], gap=1, min_factor=0.5)["details"]["second"]["pid"] == fly.live["pid"]
    finally:
        fly.end("trial")


def test_the_gate_of_the_real_one(fly, state):
    args = {"binary": str(fly.binary), "connectome": str(fly.brain), "state_dir": str(state)}
    passed = run_module(checkpoint_gate, args, RealHost())
    assert passed["differs"] == [], passed
    assert passed["binary_compatibility"].count("/") == 4
    other = fly.where / "other.fly"
    subprocess.run([fly.binary, "synth", "--neurons", "1000", "--edges", "20000", "--seed", "8", other], check=True, capture_output=True)
    refused = run_module(checkpoint_gate, {**args, "connectome": str(other)}, RealHost())
    assert refused["refused"]
    assert refused["open_segments"] == ["connectome"]
    archived = run_module(checkpoint_gate, {**args, "connectome": str(other), "accept": ["connectome"], "archive": True}, RealHost())
    assert archived["changed"], archived
    assert list(Path(archived["archive"]).glob("ckpt-*.flyck"))
    empty = run_module(checkpoint_gate, {**args, "connectome": str(other)}, RealHost())
    assert empty["state_compatibility"] == "none"


def test_a_cpu_build_asked_for_the_card_ends_with_78_and_check_1_says_how_to_build(fly):
    found = fly(env={"FLY_LIF_CUDA": 1}, fail=False)
    fly.end("trial")
    assert found["exit_code"] == 78, found
    refused = check("feature", log=found["log"], exit_code=found["exit_code"])
    assert refused["refused"]
    assert "FLY_CARGO_FEATURES=cuda" in refused["msg"]


def test_replay_of_one_checkpoint_on_one_and_two_threads_is_equal(fly, state):
    runs = [[str(fly.binary), "replay", "{dir}", str(fly.brain), "--ticks", "2000", "--threads", n] for n in ("1", "2")]
    asked = {"state_dir": str(state), "runs": runs, "env": {"FLY_DRIVE": DRIVE, "FLY_SEED": "783"}, "limit_s": 60}
    host = RealHost()
    found = probes.answer(host.run(probes.argv("replay", asked, host), query=True, stdin=probes.text("replay"), timeout=120))
    one, two = (json.loads(run["out"]) for run in found["runs"])
    assert one["hash_chain"] == two["hash_chain"]
    assert one["spikes"] > 0
    other = json.loads(subprocess.check_output([*runs[0][:2], str(state), *runs[0][3:]], env={**os.environ, "FLY_DRIVE": DRIVE, "FLY_SEED": "784"}))
    assert other["hash_chain"] != one["hash_chain"]


def test_thirds_on_the_cpu_are_equal_and_are_not_enough(fly):
    done = subprocess.run(
        [fly.binary, "thirds", fly.brain, "--ticks", "3001", "--backends", "cpu,cpu,cpu"],
        capture_output=True,
        check=True,
        env={**os.environ, "FLY_DRIVE": DRIVE},
    )
    thirds = json.loads(done.stdout)
    run = {"hash": "aa", "ticks": 2000}
    judged = checks.judge_bitexact(checks.Exactness(("a", "a"), ("k", "k"), (run, run), thirds, 2000))
    assert judged.seen == "thirds: none of them ran on the GPU"


def test_bitexact_without_a_card_fails_and_says_where(fly, state):
    seen = check(
        "bitexact", binary=str(fly.binary), old_binary=str(fly.binary), connectome=str(fly.brain), state_dir=str(state), drive=DRIVE, seed="783"
    )
    assert seen["refused"]
    assert "replay: this release gave no hash" in seen["msg"]
    assert "string" not in seen["seen"]  # the strings are equal: that part held
