# SPDX-License-Identifier: Apache-2.0
"""The domain modules on a real host: real tars, real nodes, real locks, real processes, and runs that are killed half way."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import textwrap
import time
from pathlib import Path

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.domain import manifest, probes
from flyops.modules import checkpoint_gate, cpuset, flysim_check, lock, nvidia_nodes, release, settings_receipt, trial
from flyops.transport.bundle import bundle

ROOT = Path(__file__).resolve().parents[3]
V1, V2, V3 = "0.1.0-aaaaaaaaaa", "0.1.0-bbbbbbbbbb", "0.1.0-cccccccccc+cuda"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def tree(folder: Path) -> dict[str, object]:
    out: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        out[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else path.lstat().st_mode
    return out


# release


def make_tar(path: Path, version: str, files: dict[str, bytes] | None = None) -> dict[str, object]:
    files = dict(files or {"bin/flysim": b"#!/bin/sh\necho " + version.encode() + b"\n", "ptx/sm_75.ptx": b".version 8.0\n"})
    header = {"version": version, "git_commit": "none"}
    record = manifest.render_record(manifest.Manifest(header))
    files["RELEASE.json"] = record.encode()
    listed = manifest.Manifest(header, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    files["MANIFEST"] = manifest.render(listed).encode()
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{version}/{name}")
            info.size, info.mode = len(data), 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return blob(path)


def blob(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": str(path), "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


@pytest.fixture
def home(tmp_path):
    """A home with three tars beside it; `do` runs the module."""
    tars = {}
    for version in (V1, V2, V3):
        tars[version] = make_tar(tmp_path / f"{version}.tar.gz", version)
    paths = {str(t["sha256"]): str(t["path"]) for t in tars.values()}
    where = tmp_path / "fly"

    def do(state, version=None, *, check=False, src=None, **more):
        host = RealHost(lambda digest: paths[digest])
        args = {"home": str(where), "state": state, "version": version, **more}
        if state == "staged":
            args["src"] = src or tars[version]
            paths[str(args["src"]["sha256"])] = str(args["src"]["path"])
        return run_module(release, args, OverlayHost(host) if check else host, diff=True)

    do.home, do.tars, do.tmp = where, tars, tmp_path
    return do


def test_stage_switch_and_back(home):
    assert home("staged", V1)["changed"]
    assert not home("staged", V1)["changed"]
    first = home("current", V1)
    assert (first["changed"], first["current"], first["previous"]) == (True, V1, "")
    assert not home("current", V1)["changed"]
    home("staged", V2)
    second = home("current", V2)
    assert (second["current"], second["previous"]) == (V2, V1)
    assert os.readlink(home.home / "current") == f"releases/{V2}"
    assert os.readlink(home.home / "previous") == f"releases/{V1}"
    assert subprocess.check_output([home.home / "current/bin/flysim"]) == V2.encode() + b"\n"
    back = home("current", V1)
    assert (back["current"], back["previous"]) == (V1, V2)
    seen = home("read")
    assert [(r["version"], r["valid"]) for r in seen["releases"]] == [(V2, True), (V1, True)]


def test_check_mode_of_everything_leaves_no_trace(home):
    home("staged", V1)
    before = tree(home.home)
    assert home("staged", V2, check=True)["changed"]
    assert home("current", V1, check=True)["changed"]
    assert home("pruned", keep=0, check=True)["changed"]
    assert home("absent", V1, check=True)["changed"]
    assert tree(home.home) == before


def test_a_damaged_release_is_set_aside_and_made_again(home):
    home("staged", V1)
    binary = home.home / "releases" / V1 / "bin/flysim"
    binary.write_bytes(b"rotten")
    refused = home("current", V1)
    assert refused["refused"]
    assert "bin/flysim differs" in refused["msg"]
    assert not (home.home / "current").exists()
    again = home("staged", V1)
    assert again["changed"]
    assert again["set_aside"].endswith(f".{V1}.damaged-1")
    assert (Path(again["set_aside"]) / "bin/flysim").read_bytes() == b"rotten"
    assert home("current", V1)["changed"]
    assert home("read")["releases"] == [{"version": V1, "valid": True, "problems": []}]


@pytest.mark.parametrize("spoil", ["extra", "missing", "link", "manifest"])
def test_what_does_not_verify_never_becomes_current(home, spoil):
    home("staged", V1)
    folder = home.home / "releases" / V1
    if spoil == "extra":
        (folder / "bin/more").write_text("x")
    elif spoil == "missing":
        (folder / "ptx/sm_75.ptx").unlink()
    elif spoil == "link":
        (folder / "ptx/sm_75.ptx").unlink()
        (folder / "ptx/sm_75.ptx").symlink_to("/etc/passwd")
    else:
        (folder / "MANIFEST").unlink()
    assert home("current", V1)["refused"]
    assert not (home.home / "current").is_symlink()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_cut_tar_leaves_nothing_behind(home, share):
    whole = Path(str(home.tars[V2]["path"])).read_bytes()
    cut = home.tmp / "cut.tar.gz"
    cut.write_bytes(whole[: int(len(whole) * share)])
    home("staged", V1)
    before = tree(home.home)
    result = home("staged", V2, src=blob(cut))
    assert result["failed"]
    assert "nothing was left here" in result["msg"]
    assert tree(home.home) == before


def test_a_tar_that_lies_leaves_nothing_behind(home):
    lie = home.tmp / "lie.tar.gz"
    make_tar(lie, V2)
    with tarfile.open(lie) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar.getmembers()]
    with tarfile.open(lie, "w:gz") as tar:
        for member, data in members:
            changed = b"#!/bin/sh\nrm -rf /\n" if member.name.endswith("flysim") else data
            member.size = len(changed)
            tar.addfile(member, io.BytesIO(changed))
    result = home("staged", V2, src=blob(lie))
    assert "bin/flysim differs" in result["msg"]
    assert list((home.home / "releases").iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil", "/evil", "link"])
def test_a_tar_that_wants_out(home, name):
    bad = home.tmp / "bad.tar.gz"
    with tarfile.open(bad, "w:gz") as tar:
        info = tarfile.TarInfo(f"{V2}/{name}" if not name.startswith("/") else name)
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(info, io.BytesIO(b""))
    assert home("staged", V2, src=blob(bad))["failed"]
    assert not (home.tmp / "evil").exists()
    assert list((home.home / "releases").iterdir()) == []


def test_pruned_keeps_the_newest_and_what_is_pointed_at(home):
    for number, version in enumerate((V1, V2, V3)):
        home("staged", version)
        os.utime(home.home / "releases" / version, (1000 + number, 1000 + number))
    home("current", V1)
    result = home("pruned", keep=1)
    assert (result["changed"], result["pruned"]) == (True, [V2])
    assert not home("pruned", keep=1)["changed"]
    (home.home / "releases" / f".{V2}.incoming").mkdir()  # of a run that was cut off
    assert home("pruned", keep=1)["changed"]
    assert sorted(p.name for p in (home.home / "releases").iterdir()) == [V1, V3]


def test_absent(home):
    home("staged", V1)
    home("staged", V2)
    home("current", V1)
    assert home("absent", V1)["refused"]
    assert home("absent", V2)["changed"]
    assert not home("absent", V2)["changed"]


def test_a_file_where_current_should_be(home):
    home("staged", V1)
    (home.home / "current").write_text("x")
    assert "expected a link" in home("current", V1)["msg"]


KILLER = """
import json, os, signal, sys
sys.path.insert(0, {root!r})
from flyops.agent.host import RealHost
from flyops.agent.run import run_module
from flyops.agent import registry
left = int(sys.argv[1])
def counted(name):
    real = getattr(RealHost, name)
    def method(self, *args, **words):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(self, *args, **words)
    return method
for name in ("write_bytes", "rename", "remove", "symlink", "mkdir", "chmod", "chown", "mknod"):
    setattr(RealHost, name, counted(name))
paths = json.loads(sys.argv[4])
host = RealHost(lambda digest: paths[digest])
print(json.dumps(run_module(registry.find(sys.argv[2]), json.loads(sys.argv[3]), host)))
"""


def run_and_kill(after: int, module: str, args: dict, paths: dict | None = None) -> bool:
    """Kill -9 before the change number `after`; True when it came to its end."""
    words = [sys.executable, "-c", KILLER.format(root=str(ROOT)), str(after), module, json.dumps(args), json.dumps(paths or {})]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == 0


def test_a_stage_and_a_switch_killed_anywhere_end_right_when_run_again(home):
    home("staged", V1)
    home("current", V1)
    paths = {str(home.tars[V2]["sha256"]): str(home.tars[V2]["path"])}
    for step in ({"state": "staged", "src": home.tars[V2]}, {"state": "current"}):
        kills = 0
        while not run_and_kill(kills, "release", {"home": str(home.home), "version": V2, **step}, paths):
            seen = home("read")
            assert seen["current"] in (V1, V2)
            assert all(r["valid"] for r in seen["releases"])
            assert kills < 60
            kills += 1
        assert kills > 2
    seen = home("read")
    assert (seen["current"], seen["previous"]) == (V2, V1)
    assert [p.name for p in (home.home / "releases").iterdir() if p.name.startswith(".")] == []


# settings_receipt


@pytest.fixture
def etc(tmp_path):
    """Two files and one that is not there; `do` runs the module."""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "backend.env").write_text("FLY_LIF_CUDA=0\n")
    (folder / "backend.env").chmod(0o640)
    (folder / "old.conf").write_text("x\n")
    files = {
        str(folder / "backend.env"): {"content": "FLY_LIF_CUDA=1\n", "mode": "0640"},
        str(folder / "new.d/50-cpus.conf"): {"content": "[Service]\nAllowedCPUs=0\n"},
        str(folder / "old.conf"): None,
    }

    def do(state, *, check=False, **more):
        host = RealHost()
        args = {"dir": str(tmp_path / "receipts"), "name": "gpu", "state": state, **more}
        if state == "applied":
            args.setdefault("files", files)
        return run_module(settings_receipt, args, OverlayHost(host) if check else host, diff=True)

    do.folder, do.files, do.receipts = folder, files, tmp_path / "receipts"
    return do


def test_applied_and_restored(etc):
    start = tree(etc.folder)
    assert etc("applied", check=True)["changed"]
    assert tree(etc.folder) == start
    first = etc("applied")
    assert first["changed"]
    assert len(first["diff"]) == 3
    assert not etc("applied")["changed"]
    assert (etc.folder / "new.d/50-cpus.conf").read_text() == "[Service]\nAllowedCPUs=0\n"
    assert not (etc.folder / "old.conf").exists()
    assert stat.S_IMODE((etc.receipts / "gpu.json").stat().st_mode) == 0o600
    assert etc("read")["exists"]
    back = etc("restored")
    assert back["changed"]
    assert not back["exists"]
    assert tree(etc.folder) == start
    assert stat.S_IMODE((etc.folder / "backend.env").stat().st_mode) == 0o640
    assert not etc("restored")["changed"]
    assert sorted(p.name for p in etc.receipts.iterdir()) == ["gpu.json.done"]
    seen = etc("read")
    assert (seen["exists"], seen["restored_before"]) == (False, True)


def test_a_second_gpu_deploy_does_not_overwrite_the_way_back(etc):
    start = tree(etc.folder)
    etc("applied")
    more = {str(etc.folder / "backend.env"): {"content": "FLY_LIF_CUDA=1\nRAYON_NUM_THREADS=1\n"}}
    assert etc("applied", files=more)["changed"]
    etc("restored")
    assert tree(etc.folder) == start


def test_somebody_else_changed_it(etc):
    etc("applied")
    (etc.folder / "backend.env").write_text("FLY_LIF_CUDA=7\n")
    before = tree(etc.folder)
    for state in ("restored", "applied"):
        refused = etc(state)
        assert refused["refused"]
        assert "backend.env" in refused["msg"]
        assert "--force" in refused["msg"]
        assert tree(etc.folder) == before
    forced = etc("restored", force=True)
    assert (etc.folder / "backend.env").read_text() == "FLY_LIF_CUDA=0\n"
    assert [Path(p).read_text() for p in forced["kept"]] == ["FLY_LIF_CUDA=7\n"]


def test_a_damaged_receipt_is_refused_and_forgotten_only_when_told(etc):
    etc("applied")
    path = etc.receipts / "gpu.json"
    path.write_text(path.read_text().replace("CUDA=0", "CUDA=9"))
    for state in ("restored", "applied", "read"):
        refused = etc(state)
        assert refused["refused"]
        assert "damaged" in refused["msg"]
    assert etc("absent")["changed"]
    assert not etc("absent")["changed"]


def test_nothing_to_restore(etc):
    result = etc("restored")
    assert (result["changed"], result["failed"], result["exists"]) == (False, False, False)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"relative": None}, "absolute"),
        ({"/x": "text"}, "content"),
        ({"/x": {"content": "a", "colour": 1}}, "content"),
        ({"/x": {"content": "a", "mode": "0999"}}, "octal"),
        ({"/x": {"content": "a", "owner": "nobody-of-that-name"}}, "no user"),
    ],
)
def test_files_that_make_no_sense(etc, files, says):
    result = etc("applied", files=files)
    assert result["failed"]
    assert says in result["msg"]
    assert not etc.receipts.exists()


def test_a_folder_in_the_place_of_a_file(etc):
    assert "expected a file" in etc("applied", files={str(etc.folder): {"content": "x"}})["msg"]


def test_applied_and_restored_killed_anywhere_end_right_when_run_again(etc):
    start = tree(etc.folder)
    for state in ("applied", "restored"):
        args = {"dir": str(etc.receipts), "name": "gpu", "state": state, "files": etc.files if state == "applied" else None}
        kills = 0
        while not run_and_kill(kills, "settings_receipt", args):
            assert kills < 40
            kills += 1
        assert kills > 2
        if state == "applied":
            assert (etc.folder / "backend.env").read_text() == "FLY_LIF_CUDA=1\n"
    assert tree(etc.folder) == start


def test_killed_between_receipt_and_files_a_restore_still_gives_the_start_back(etc):
    start = tree(etc.folder)
    args = {"dir": str(etc.receipts), "name": "gpu", "state": "applied", "files": etc.files}
    for kills in range(1, 20):
        if run_and_kill(kills, "settings_receipt", args):
            break
        assert not etc("restored")["failed"]
        assert tree(etc.folder) == start
    else:
        pytest.fail("it never came to its end")


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


# trial, gate, cost and health with a stand-in that speaks flysim's words

STAND_IN = textwrap.dedent(
    """\
    #!{python}
    import http.server, json, os, re, signal, sys, threading, time
    words = sys.argv[1:]
    def newest(folder):
        names = sorted(n for n in os.listdir(folder) if n.endswith(".flyck")) if os.path.isdir(folder) else []
        return os.path.join(folder, names[-1]) if names else None
    if "--print-state-compatibility" in words:
        path = newest(words[words.index("--print-state-compatibility") + 1])
        text = open(path).read().strip() if path else "none"
        if text == "damaged":
            sys.exit("no checkpoint is whole")
        print(text)
    elif "--print-compatibility" in words:
        print(open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "compatibility")).read().strip())
    elif "--print-kernel-version" in words:
        print("k1")
    elif words[0] == "replay":
        print(json.dumps({{"hash": "cafe" + open(newest(words[1])).read().strip()[:1], "ticks": int(words[words.index("--ticks") + 1])}}))
    elif words[0] == "thirds":
        spike = int(os.environ.get("STAND_SPIKES", "9"))
        print(json.dumps({{"ok": True, "hash": "aa", "unbroken_hash": "aa", "spikes": 3 * spike, "unbroken_spikes": 3 * spike,
                           "parts": [{{"backend": b, "spikes": spike}} for b in ("cpu", "cuda", "cpu")]}}))
    else:
        say = lambda text: print(text, file=sys.stderr, flush=True)
        if os.environ.get("STAND_CUDA", "1") == "1":
            say("cuda feature compiled in (PTX sm_75)")
        if os.environ.get("STAND_EXIT"):
            say("last words")
            sys.exit(int(os.environ["STAND_EXIT"]))
        gpu = os.environ.get("FLY_LIF_CUDA") == "1"
        say("cuda backend attached (Made Up, PTX sm_75 exact)" if gpu else "cpu backend attached (threads 1, cpus 0)")
        began, factor = time.monotonic(), float(os.environ.get("STAND_FACTOR", "1"))
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                s = (time.monotonic() - began) * factor
                body = json.dumps({{"tick": int(s * 10000), "spikes": int(s * 668 * 3), "neurons": 668, "pid": os.getpid(), "threads": 1, "speed": 1.0,
                                   "backend": "cuda" if gpu else "cpu", "features": ["cuda"], "gpu": {{"attached": "Made Up, exact"}} if gpu else None}}).encode()
                self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
            def log_message(self, *a): pass
        def burn():
            while True:
                until = time.process_time() + float(os.environ["STAND_BURN"]) / 10
                while time.process_time() < until: pass
                time.sleep(0.1)
        if os.environ.get("STAND_BURN"):
            threading.Thread(target=burn, daemon=True).start()
        host, port = os.environ["FLY_LISTEN"].rsplit(":", 1)
        time.sleep(0.3)
        http.server.ThreadingHTTPServer((host, int(port)), Answer).serve_forever()
    """
)
# Readable to every user, unlike an interpreter below root's home.
SYSTEM_PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
COMPATIBILITY = "k1/space/abc/none/state-1"
CKPT = "ckpt-00000000000000000100.flyck"


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


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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
    for folder in [stand.tmp, *stand.tmp.parents][:3]:
        folder.chmod(folder.stat().st_mode | 0o011)
    found = stand(user="nobody")
    assert Path(f"/proc/{found['pid']}").stat().st_uid == 65534
    assert (stand.dir / "state" / CKPT).stat().st_uid == 65534


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
    assert "--accept kernel --accept state-format" in refused["msg"]
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
    assert result["failed"]
    assert not result.get("refused")
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


@needs_root
def test_card_with_real_nodes_and_no_driver(card, tmp_path):
    card("present")
    libs = tmp_path / "lib"
    libs.mkdir()
    for name in ("libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05", "libcuda.so.1"):
        (libs / name).touch()
    args = {"dev": str(card.dev), "proc_devices": str(card.devices), "proc_driver": card.args["proc_driver"], "lib_dirs": [str(libs)], "fail": False}
    seen = check("card", **args)
    assert seen["verdict"] == "failed"  # no library that could be loaded here: only the context is missing
    assert seen["seen"].startswith("CUDA context")
    (card.dev / "nvidia-uvm").unlink()
    (card.dev / "nvidia-uvm").touch()
    assert "regular file, size 0" in check("card", **args)["seen"]
    (libs / "libcuda.so.535.54.03").touch()
    assert "found 535.54.03, 580.95.05" in check("card", **args)["seen"]
