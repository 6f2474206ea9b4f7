# SPDX-License-Identifier: Apache-2.0
"""trial, checkpoint_gate and flysim_check with real processes, by a stand-in that speaks flysim's words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.modules import checkpoint_gate, cpuset, flysim_check, trial
from tests.beds.killed import tree
from tests.beds.standin import CKPT, COMPATIBILITY, STAND_IN, SYSTEM_PYTHON, alive

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def stand(tmp_path):
    """A staged stand-in, a live state with one checkpoint; what is started is ended."""
    folder = tmp_path / "bin"
    folder.mkdir()
    binary = folder / "flysim"
    binary.write_text(STAND_IN.format(python=SYSTEM_PYTHON))
    binary.chmod(0o755)
    (folder / "compatibility").write_text(COMPATIBILITY)
    live = tmp_path / "live"
    live.mkdir()
    (live / CKPT).write_text(COMPATIBILITY)
    (tmp_path / "flysim.env").write_text(f"FLY_STATE_DIR={live}\nFLY_LISTEN=127.0.0.1:1\nFLY_SEED=783\n")
    base = {
        "dir": str(tmp_path / "trial"),
        "manager": "supervisor",
        "binary": str(binary),
        "env_files": [str(tmp_path / "flysim.env")],
        "state_dir": str(live),
        "wait": 20,
    }

    def do(state="started", *, check=False, **more):
        args = {**base, "state": state, **more}
        if state != "started":
            args = {k: v for k, v in args.items() if k in ("dir", "manager", "state", "unit")}
        host = RealHost()
        return run_module(trial, args, OverlayHost(host) if check else host, diff=True)

    do.binary, do.live, do.dir, do.tmp = binary, live, tmp_path / "trial", tmp_path
    yield do
    do("absent")


def test_a_trial_lives_beside_and_ends_alone(stand):
    before = tree(stand.live)
    found = stand(env={"FLY_LIF_CUDA": 1})
    assert found["running"], found
    assert found["status"]["backend"] == "cuda"
    assert "cuda backend attached" in found["log"]
    assert found["checkpoint"] == CKPT
    assert (stand.dir / "state" / CKPT).read_text() == COMPATIBILITY
    assert tree(stand.live) == before
    assert os.getsid(found["pid"]) == found["pid"]
    assert "FLY_SEED=783" in (stand.dir / "trial.env").read_text()
    assert stand("read")["running"]
    again = stand(env={"FLY_LIF_CUDA": 0})  # a start begins anew: the first one ends
    assert not alive(found["pid"])
    assert again["status"]["backend"] == "cpu"
    assert stand("stopped")["changed"]
    assert not alive(again["pid"])
    assert not stand("stopped")["changed"]
    assert stand("absent")["changed"]
    assert not stand.dir.exists()
    assert not stand("absent")["changed"]


def test_check_mode_starts_nothing(stand):
    result = stand(check=True)
    assert result["changed"]
    assert not stand.dir.exists()


@pytest.mark.parametrize("code", [78, 75])
def test_a_trial_that_ends_tells_its_code_and_last_words(stand, code):
    failed = stand(env={"STAND_EXIT": code, "STAND_CUDA": 0})
    assert failed["failed"]
    assert (failed["exit_code"], failed["running"]) == (code, False)
    assert "last words" in failed["msg"]
    told = stand(env={"STAND_EXIT": code}, fail=False)
    assert (told["failed"], told["exit_code"]) == (False, code)
    assert "cuda feature compiled in" in told["log"]


def test_a_trial_that_does_not_answer_is_ended(stand):
    silent = stand.tmp / "silent"
    silent.write_text(f"#!{sys.executable}\nimport sys, time\nif len(sys.argv) > 2:\n    print('x/y')\nelse:\n    time.sleep(60)\n")
    silent.chmod(0o755)
    failed = stand(binary=str(silent), wait=0.5)
    assert "did not answer" in failed["msg"]
    assert not alive(failed["pid"])


def test_a_process_that_took_the_pid_is_not_ended(stand):
    found = stand()
    record = json.loads((stand.dir / "trial.json").read_text())
    (stand.dir / "trial.json").write_text(json.dumps({**record, "start": record["start"] - 1}))
    assert not stand("stopped")["changed"]
    assert alive(found["pid"])
    (stand.dir / "trial.json").write_text(json.dumps(record))


def test_its_time_is_limited(stand):
    found = stand(max_s=1)
    deadline = time.monotonic() + 15
    while alive(found["pid"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(found["pid"])


def test_a_trial_on_given_cpus(stand):
    cpus = sorted(os.sched_getaffinity(0))
    found = stand(cpus=str(cpus[-1]))
    seen = run_module(cpuset, {"state": "effective", "pid": found["pid"], "want": str(cpus[-1])}, RealHost())
    assert not seen["failed"], seen
    assert "the trial needs 2 cpus" in stand(cpus=str(cpus[0]), min_cpus=2)["msg"]


def test_a_setting_of_two_lines(stand):
    result = stand(env={"FLY_SEED": "1\nLD_PRELOAD=x"})
    assert "a setting is one line" in result["msg"]
    assert "exception" not in result


def test_no_checkpoint_and_a_damaged_one(stand):
    (stand.live / "ckpt-00000000000000000200.flyck").write_text("damaged")
    assert "does not validate" in stand()["msg"]
    for path in stand.live.iterdir():
        path.unlink()
    assert "there is no checkpoint" in stand()["msg"]
    assert stand(state_dir="")["running"]


@needs_root
def test_the_trial_runs_as_the_user_asked_for(stand):
    # Below pytest's own folder nobody but root gets in, and another session may close it again at any time.
    with tempfile.TemporaryDirectory() as name:
        open_to_all = Path(name)
        open_to_all.chmod(0o755)
        shutil.copytree(stand.binary.parent, open_to_all / "bin")
        where = {"dir": str(open_to_all / "trial"), "binary": str(open_to_all / "bin/flysim")}
        found = stand(user="nobody", **where)
        assert found.get("running"), found
        assert Path(f"/proc/{found['pid']}").stat().st_uid == 65534
        assert (open_to_all / "trial/state" / CKPT).stat().st_uid == 65534
        assert stand("absent", dir=where["dir"])["changed"]


def gate(stand, **more):
    args = {"binary": str(stand.binary), "connectome": "/c.fly", "state_dir": str(stand.live), **more}
    return run_module(checkpoint_gate, args, RealHost(), diff=True)


def test_gate_passes_refuses_and_archives(stand):
    assert gate(stand)["differs"] == []
    (stand.live / CKPT).write_text("k2/space/abc/none/state-0")
    (stand.live / "damaged").mkdir()
    (stand.live / "damaged/x").write_text("y")
    before = tree(stand.live)
    refused = gate(stand)
    assert refused["refused"]
    assert refused["open_segments"] == ["kernel", "state format"]
    assert COMPATIBILITY in refused["msg"]
    assert "k2/space/abc/none/state-0" in refused["msg"]
    assert "--archive-state" in refused["msg"]  # several segments go only with the whole state
    assert gate(stand, accept=["kernel"])["open_segments"] == ["state format"]
    accepted = gate(stand, accept=["kernel", "state-format"])
    assert (accepted["changed"], accepted["archive_needed"]) == (False, True)
    assert tree(stand.live) == before
    archived = gate(stand, accept=["kernel", "state-format"], archive=True)
    assert archived["changed"]
    assert (Path(archived["archive"]) / CKPT).read_text() == "k2/space/abc/none/state-0"
    assert (Path(archived["archive"]) / "damaged/x").read_text() == "y"
    assert gate(stand)["state_compatibility"] == "none"
    assert not gate(stand, accept=["kernel", "state-format"], archive=True)["changed"]


def test_gate_does_not_archive_what_is_in_use(stand):
    (stand.live / CKPT).write_text("k2/space/abc/none/state-1")
    copy = stand.tmp / "flysim-sleeper"
    copy.write_bytes(Path("/bin/sleep").read_bytes())
    copy.chmod(0o755)
    with subprocess.Popen([str(copy), "60"]) as child:
        (stand.live / "lock").write_text(f"{child.pid}\n")
        try:
            time.sleep(0.2)
            refused = gate(stand, accept=["kernel"], archive=True)
            assert f"pid {child.pid}" in refused["msg"]
        finally:
            child.kill()
    assert gate(stand, accept=["kernel"], archive=True)["changed"]


def test_gate_of_a_binary_that_cannot_say(stand):
    (stand.live / CKPT).write_text("damaged")
    result = gate(stand)
    assert result["failed"] and result["refused"]
    assert "no checkpoint is whole" in result["msg"]
    assert "expected kernel" in gate(stand, accept=["kernal"])["msg"]
    assert gate(stand, state_dir=str(stand.tmp / "nowhere"))["state_compatibility"] == "none"


def test_gate_of_a_release_that_is_only_thought_of(stand):
    args = {"binary": "/nowhere/flysim", "connectome": "/c.fly", "state_dir": str(stand.live)}
    assert run_module(checkpoint_gate, args, RealHost())["failed"]
    thought = run_module(checkpoint_gate, args, OverlayHost(RealHost()))
    assert (thought["failed"], thought["asked"], thought["archive_needed"]) == (False, False, False)


def check(name, **args):
    return run_module(flysim_check, {"check": name, **args}, RealHost(), diff=True)


def test_feature_and_health_of_a_trial(stand):
    found = stand(env={"FLY_LIF_CUDA": 1})
    assert check("feature", log=found["log"])["verdict"] == "passed"
    assert check("feature", url=found["url"])["verdict"] == "passed"
    assert check("feature", log_file=str(stand.dir / "log"))["verdict"] == "passed"
    assert check("feature", log_file=str(stand.dir / "log"), log_offset=10_000)["refused"]
    assert check("health", url=found["url"], gap=0.5)["verdict"] == "passed"
    assert check("health", url=found["url"], gap=0.5, backend="cpu")["refused"]
    stand("stopped")
    gone = check("health", url=found["url"], gap=0.1)
    assert gone["refused"]
    assert "did not answer" in gone["msg"]


def test_feature_of_a_cpu_build(stand):
    found = stand(env={"STAND_CUDA": 0})
    refused = check("feature", log=found["log"])
    assert refused["refused"]
    assert "FLY_CARGO_FEATURES=cuda" in refused["msg"]
    assert check("feature", log=found["log"], fail=False)["verdict"] == "failed"
    assert check("feature", backend="cpu")["verdict"] == "not_applicable"


def test_a_slow_brain_is_not_well(stand):
    found = stand(env={"STAND_FACTOR": 0.8})
    assert "realtime factor 0." in check("health", url=found["url"], gap=2, backend="cpu")["msg"]


def test_cost_of_two_real_processes(stand):
    burner = stand(env={"STAND_BURN": 0.5})
    window = check("window", url=burner["url"], warmup=0.2, window=3, interval=0.5)
    assert window["verdict"] == "passed"
    assert len(window["samples"]) == 7
    cores = window["window"]["cores"]
    assert 0.1 < cores < 1.0
    if window["pidstat"]:
        assert "flysim" in window["pidstat"] or "python" in window["pidstat"]
    quiet = stand(env={"FLY_LIF_CUDA": 1, "STAND_BURN": 0.05})
    passed = check("cost", url=quiet["url"], cpu_window=window["window"], warmup=0.2, window=2, interval=0.5)
    assert passed["verdict"] == "passed", passed
    assert 0 < passed["window"]["cores"] < cores / 2
    turned = check("cost", url=quiet["url"], cpu_window={**window["window"], "cores": 0.0001}, warmup=0.1, window=1, interval=0.5)
    assert "expected <= 0.5" in turned["msg"]
    alone = check("cost", url=quiet["url"], warmup=0.1, window=1, interval=0.5)
    assert "no window of the CPU kernel" in alone["msg"]


def test_bitexact_with_the_stand_in(stand):
    args = {"binary": str(stand.binary), "old_binary": str(stand.binary), "connectome": "/c.fly", "state_dir": str(stand.live)}
    passed = check("bitexact", **args)
    assert passed["verdict"] == "passed", passed
    assert passed["checkpoint"] == CKPT
    first = check("bitexact", **{**args, "old_binary": None})
    assert "the release before" in first["msg"]
    other = stand.tmp / "other"
    other.mkdir()
    changed = other / "flysim"
    changed.write_text(stand.binary.read_text().replace('"cafe"', '"beef"'))
    changed.chmod(0o755)
    (other / "compatibility").write_text(COMPATIBILITY)
    refused = check("bitexact", **{**args, "binary": str(changed)})
    assert "cafek before, beefk now" in refused["msg"]
    (other / "compatibility").write_text("k9/space/abc/none/state-1")
    assert "compatibility string changed" in check("bitexact", **{**args, "binary": str(changed)})["msg"]
    assert not [p for p in Path("/tmp").glob("flyops-replay-*") if p.stat().st_mtime > time.time() - 60]


def test_ptx_of_a_release(tmp_path):
    (tmp_path / "ptx").mkdir()
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed\n")
    for arch in (75, 90):
        (tmp_path / f"ptx/sm_{arch}.ptx").write_text(f".version 8.0\n.target sm_{arch}\n")
    args = {"ptx_dir": str(tmp_path / "ptx"), "proc_driver": str(tmp_path / "driver")}
    exact, jit = "cuda backend attached (Made Up, PTX sm_90 exact)", "cuda backend attached (Made Up, PTX sm_75 JIT)"
    assert check("ptx", cc="9.0", log=exact, **args)["verdict"] == "passed"
    assert check("ptx", cc="8.6", log=jit, **args)["refused"]
    allowed = check("ptx", cc="8.6", log=jit, allow_jit=True, **args)
    assert (allowed["verdict"], allowed["details"]["jit"]) == ("passed", True)
    assert check("ptx", cc="5.2", log=exact, **args)["refused"]
