# SPDX-License-Identifier: Apache-2.0
"""lock, nvidia_nodes, cpuset, the card's check and the probes on a real host: real locks, nodes, threads; and all modules on Python 3.8."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.domain import probes
from flyops.modules import cpuset, flysim_check, lock, nvidia_nodes
from flyops.transport.bundle import bundle
from tests.beds.killed import ROOT, run_and_kill

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


# lock


HOLD = """
import sys, time
sys.path.insert(0, {root!r})
from flyops.agent.host import RealHost
host = RealHost()
assert host.hold_lock(sys.argv[1], "pid 1, root, since 12:00, invoke deploy", 0) is None
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_names_its_holder_and_goes_with_its_process(tmp_path):
    path = str(tmp_path / "run/lock")
    with subprocess.Popen([sys.executable, "-c", HOLD.format(root=str(ROOT)), path], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        refused = run_module(lock, {"path": path, "holder": "me"}, RealHost())
        assert refused["refused"]
        assert "since 12:00, invoke deploy" in refused["msg"]
        assert refused["holder"].startswith("pid 1, root")
        assert run_module(lock, {"path": path, "holder": "me"}, OverlayHost(RealHost()))["refused"]
        begun = time.monotonic()
        assert run_module(lock, {"path": path, "holder": "me", "wait": 0.5}, RealHost())["refused"]
        assert time.monotonic() - begun >= 0.5
        other.kill()
        other.wait()
    host = RealHost()
    assert run_module(lock, {"path": path, "holder": "me", "wait": 5}, host)["held"]
    assert run_module(lock, {"path": path, "holder": "me"}, host)["held"]  # a second time in the same run
    assert Path(path).read_text() == "me\n"


# nvidia_nodes

DEVICES = "Character devices:\n  1 mem\n195 nvidia\n236 nvidia-caps\n509 mei\n510 nvidia-uvm\n\nBlock devices:\n511 nvidia-uvm\n"


@pytest.fixture
def card(tmp_path):
    """A made-up driver; the nodes are real ones in a folder of ours."""
    dev, driver = tmp_path / "dev", tmp_path / "driver"
    dev.mkdir()
    (driver / "gpus/0000:01:00.0").mkdir(parents=True)
    (driver / "gpus/0000:01:00.0/information").write_text("Model: \t Made Up\nDevice Minor: \t 1\n")
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed\nGCC version:  x\n")
    (driver / "params").write_text("DeviceFileMode: 438\nDeviceFileUID: 0\nDeviceFileGID: 0\n")
    (tmp_path / "devices").write_text(DEVICES)
    base = {"dev": str(dev), "proc_devices": str(tmp_path / "devices"), "proc_driver": str(driver), "mig_minors": str(tmp_path / "none")}

    def do(state, *, check=False, **more):
        host = RealHost()
        return run_module(nvidia_nodes, {**base, "state": state, **more}, OverlayHost(host) if check else host, diff=True)

    do.dev, do.devices, do.args = dev, tmp_path / "devices", base
    return do


def numbers(path: Path) -> tuple[int, int, int]:
    seen = path.lstat()
    assert stat.S_ISCHR(seen.st_mode)
    return os.major(seen.st_rdev), os.minor(seen.st_rdev), stat.S_IMODE(seen.st_mode)


@needs_root
def test_nodes_are_made_and_follow_the_module(card):
    assert [n["state"] for n in card("read")["nodes"]] == ["missing"] * 4
    assert card("present", check=True)["changed"]
    assert list(card.dev.iterdir()) == []
    made = card("present", caps=True)
    assert made["changed"]
    assert made["all_right"]
    names = {"nvidiactl": (195, 255, 0o666), "nvidia1": (195, 1, 0o666), "nvidia-uvm": (510, 0, 0o666), "nvidia-uvm-tools": (510, 1, 0o666)}
    names.update({"nvidia-caps/nvidia-cap1": (236, 1, 0o400), "nvidia-caps/nvidia-cap2": (236, 2, 0o444)})
    for name, expected in names.items():
        assert numbers(card.dev / name) == expected
    assert not card("present", caps=True)["changed"]
    inode = (card.dev / "nvidiactl").lstat().st_ino
    card.devices.write_text(DEVICES.replace("510 nvidia-uvm", "507 nvidia-uvm"))
    moved = card("present", caps=True)
    assert sorted(Path(p).name for p in moved["made"]) == ["nvidia-uvm", "nvidia-uvm-tools"]
    assert numbers(card.dev / "nvidia-uvm") == (507, 0, 0o666)
    assert (card.dev / "nvidiactl").lstat().st_ino == inode  # a right one is kept


@needs_root
def test_broken_binds_modes_and_strays(card):
    (card.dev / "nvidia1").touch()
    (card.dev / "nvidia-nvswitch0").touch()
    card("read")
    os.mknod(card.dev / "nvidiactl", stat.S_IFCHR | 0o600, os.makedev(195, 255))
    os.chmod(card.dev / "nvidiactl", 0o600)
    seen = card("read")
    states = {Path(n["path"]).name: n["state"] for n in seen["nodes"]}
    assert (states["nvidia1"], states["nvidiactl"], states["nvidia-uvm"]) == ("regular", "mode", "missing")
    assert "source was missing at start" in next(n["text"] for n in seen["nodes"] if n["path"].endswith("nvidia1"))
    assert [Path(s["path"]).name for s in seen["strays"]] == ["nvidia-nvswitch0"]
    assert card("present")["changed"]
    assert numbers(card.dev / "nvidia1") == (195, 1, 0o666)
    assert numbers(card.dev / "nvidiactl") == (195, 255, 0o666)
    assert (card.dev / "nvidia-nvswitch0").is_file()  # not ours


def test_a_module_that_is_not_loaded(card):
    card.devices.write_text("Character devices:\n  1 mem\n")
    failed = card("present")
    assert failed["failed"]
    assert "modprobe nvidia" in failed["msg"]
    assert not card("read")["failed"]
    assert card("read")["all_right"] is False


@needs_root
def test_nodes_killed_anywhere_end_right_when_run_again(card):
    kills = 0
    while not run_and_kill(kills, "nvidia_nodes", {**card.args, "state": "present"}):
        kills += 1
        assert kills < 40
    assert card("read")["all_right"]
    assert sorted(p.name for p in card.dev.iterdir()) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia1", "nvidiactl"]


# cpuset


def test_planned_on_this_machine():
    allowed = sorted(os.sched_getaffinity(0))
    result = run_module(cpuset, {"sim": 1, "minimum": 2}, RealHost())
    assert not result["failed"], result
    assert result["count"] == len(allowed)
    outside = run_module(cpuset, {"cpus": "8000", "sim": 1}, RealHost())
    assert outside["refused"]


def test_effective_looks_at_every_thread():
    code = "import os, sys, threading, time\nos.sched_setaffinity(0, [int(sys.argv[1])])\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint(flush=True)\ntime.sleep(60)"
    cpus = sorted(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", code, str(cpus[0])], stdout=subprocess.PIPE) as child:
        try:
            child.stdout.readline()
            right = run_module(cpuset, {"state": "effective", "pid": child.pid, "want": str(cpus[0])}, RealHost())
            assert not right["failed"], right
            assert (right["threads"], right["found"]) == (2, str(cpus[0]))
            if len(cpus) > 1:
                tid = max(int(t) for t in os.listdir(f"/proc/{child.pid}/task"))
                os.sched_setaffinity(tid, cpus[:2])
                wrong = run_module(cpuset, {"state": "effective", "pid": child.pid, "want": str(cpus[0])}, RealHost())
                assert wrong["refused"]
                assert list(wrong["wrong_threads"]) == [str(tid)]
                assert "1 of 2 threads" in wrong["msg"]
        finally:
            child.kill()
    gone = run_module(cpuset, {"state": "effective", "pid": child.pid, "want": "0"}, RealHost())
    assert "no process" in gone["msg"]


# everything on the oldest Python that we promise

OLD = Path.home() / ".pyenv/versions/3.8.18/bin/python3"


@pytest.mark.skipif(not OLD.exists(), reason="no Python 3.8 here")
@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("release", {"home": "HERE"}),
        ("settings_receipt", {"dir": "HERE/r", "name": "gpu", "state": "applied", "files": {"HERE/a": {"content": "x"}}}),
        ("nvidia_nodes", {}),
        ("nvidia_driver", {"state": "verified", "fail": False}),
        ("nvidia_driver", {"state": "verified", "fail": False, "side": "host"}),
        ("cpuset", {"sim": 1}),
        ("lock", {"path": "HERE/lock", "holder": "me"}),
        ("trial", {"dir": "HERE/t", "state": "read"}),
        ("flysim_check", {"check": "feature", "log": "cuda feature compiled in (x)\ncuda backend attached (y)\n"}),
        ("flysim_check", {"check": "card", "fail": False}),
        ("flysim_check", {"check": "health", "url": "http://127.0.0.1:1/status", "fail": False, "gap": 0}),
        ("checkpoint_gate", {"binary": "/bin/echo", "connectome": "x", "state_dir": "HERE/none"}),
    ],
)
def test_on_python_3_8(module, args, tmp_path):
    (tmp_path / "agent.pyz").write_bytes(bundle()[1])
    text = json.dumps(args).replace("HERE", str(tmp_path))
    done = subprocess.run([OLD, tmp_path / "agent.pyz", "--module", module, "--args", "-"], input=text.encode(), capture_output=True, check=False)
    result = json.loads(done.stdout)
    assert not result["failed"], result
    assert done.returncode == 0


# probes


@pytest.mark.parametrize("name", sorted(probes.PROGRAMS))
def test_probes_compile_on_the_oldest_python(name):
    old = Path.home() / ".pyenv/versions/3.8.18/bin/python3"
    python = str(old) if old.exists() else sys.executable
    subprocess.run([python, "-I", "-c", "import sys; compile(sys.stdin.read(), 'probe', 'exec')"], input=probes.text(name), check=True)


def test_cuda_probe_without_a_card_says_why():
    host = RealHost()
    found = probes.answer(host.run(probes.argv("cuda", {}, host), query=True, stdin=probes.text("cuda"), timeout=60))
    assert found.get("opened") or found.get("error") or found.get("code"), found


def test_a_probe_that_dies_is_an_answer():
    host = RealHost()
    found = probes.answer(host.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], query=True))
    assert "signal 11" in found["error"]


def check(name, **args):
    return run_module(flysim_check, {"check": name, **args}, RealHost(), diff=True)


@needs_root
def test_card_with_real_nodes_and_no_driver(card, tmp_path):
    card("present")
    libs = tmp_path / "lib"
    libs.mkdir()
    for name in ("libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"):
        (libs / name).write_text("made up")
    (libs / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    args = {"dev": str(card.dev), "proc_devices": str(card.devices), "proc_driver": card.args["proc_driver"], "lib_dirs": [str(libs)], "fail": False}
    seen = check("card", **args)
    assert seen["verdict"] == "failed"  # no library that could be loaded here: only the context is missing
    assert seen["seen"].startswith("CUDA context")
    (card.dev / "nvidia-uvm").unlink()
    (card.dev / "nvidia-uvm").touch()
    assert "regular file, size 0" in check("card", **args)["seen"]
    (libs / "libcuda.so.535.54.03").touch()
    assert f"{libs}/libcuda.so.535.54.03 is an empty file" in check("card", **args)["seen"]
    (libs / "libcuda.so.535.54.03").write_text("made up")
    assert f"{libs}/libcuda.so.535.54.03 is left over from another version than 580.95.05" in check("card", **args)["seen"]
    (libs / "libcuda.so.1").unlink()
    (libs / "libcuda.so.1").symlink_to("libcuda.so.535.54.03")
    assert f"{libs}/libcuda.so.1 leads to {libs}/libcuda.so.535.54.03, expected version 580.95.05" in check("card", **args)["seen"]
