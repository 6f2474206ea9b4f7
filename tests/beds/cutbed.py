# SPDX-License-Identifier: Apache-2.0
"""A guest whose deploys are cut off on purpose, and a look at it that asks nothing of flyops: for `bench/soak.py`. Needs no pytest.

Everything that a deploy writes in the guest lies on one small tmpfs, so that one file fills the disk and its removal mends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyops import places
from flyops.domain import receipt
from tests.beds.flyguest import AGENTS, descendants

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SMALL = "/srv/small"
FOLDERS = ("/opt/fly", "/etc/fly", "/var/lib/flyops", "/var/lib/fly", "/etc/systemd/system")
SMALL_DISK = f"""
set -e
mkdir -p {SMALL}
mount -t tmpfs -o size=96m,mode=0755 tmpfs {SMALL}
for folder in {" ".join(FOLDERS)}; do
  mkdir -p $folder {SMALL}$folder
  cp -a $folder/. {SMALL}$folder/
  mount --bind {SMALL}$folder $folder
done
systemctl daemon-reload
"""

# Runs in the guest; one JSON object. Nothing of it is flyops' own code.
LOOK = r"""
import glob, json, os, subprocess, urllib.request
def show(unit, *names):
    done = subprocess.run(["systemctl", "show", unit, "-p", ",".join(names)], capture_output=True, text=True)
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())
def file_state(path):
    try:
        seen = os.lstat(path)
        with open(path, "rb") as stream:
            return {"content": stream.read().decode(), "mode": seen.st_mode & 0o7777, "uid": seen.st_uid, "gid": seen.st_gid}
    except FileNotFoundError:
        return None
def link(path):
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else ""
def process(unit):
    pid = show(unit, "MainPID").get("MainPID", "0")
    try:
        exe = os.readlink("/proc/%s/exe" % pid).split("/")[-3]
        words = dict(w.partition("=")[::2] for w in open("/proc/%s/environ" % pid).read().split("\0") if "=" in w)
        cpus = [l.split()[1] for l in open("/proc/%s/status" % pid) if l.startswith("Cpus_allowed_list")][0]
    except (OSError, IndexError):
        return {}
    return {"release": exe, "threads": words.get("RAYON_NUM_THREADS", ""), "cpus": cpus}
try:
    status = json.load(urllib.request.urlopen("http://127.0.0.1:8700/status", timeout=3))
except OSError:
    status = {}
receipts = {}
for path in sorted(glob.glob("/var/lib/flyops/receipts/*.json")):
    text = open(path).read()
    try:
        names = sorted(json.loads(text)["files"])
    except (ValueError, KeyError):
        names = []
    receipts[os.path.basename(path)] = {"text": text, "files": {name: file_state(name) for name in names}}
units = {unit: show(unit, "ActiveState", "NeedDaemonReload", "UnitFileState") for unit in ("flysim", "flypage")}
settings = {}
for pattern in ("/etc/fly/*", "/etc/systemd/system/fly*", "/etc/systemd/system/fly*/*", "/etc/systemd/system/*.wants/fly*"):
    for path in sorted(glob.glob(pattern)):
        if not os.path.isdir(path):
            settings[path] = os.readlink(path) if os.path.islink(path) else file_state(path)
left = [f for top in ("/opt/fly", "/etc/fly", "/etc/systemd/system", "/var/lib/flyops") for folder, dirs, files in os.walk(top)
        for f in [os.path.join(folder, n) for n in files + dirs] if os.path.basename(f).startswith(".") or f.endswith(".flyops-new")]
print(json.dumps({"settings": settings, "current": link("/opt/fly/current"), "previous": link("/opt/fly/previous"), "sim": process("flysim"),
                  "page": process("flypage"), "units": units, "receipts": receipts, "left": left,
                  "status": {k: status.get(k) for k in ("tick", "backend", "threads", "set_aside", "restored_tick")},
                  "saved": (status.get("checkpoint") or {}).get("tick"), "save_error": (status.get("checkpoint") or {}).get("last_error")}))
"""


@dataclass
class Running:
    """One `invoke …` with its events as they come."""

    process: subprocess.Popen[str]
    began: float

    def events(self) -> Any:
        """Each event of the run, as a mapping."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                yield json.loads(line)


class CutBed:
    """The guest and the commands that are run against it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.frozen: list[int] = []
        self.invoke = str(places.REPOSITORY / ".venv/bin/invoke")
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config"), "NO_COLOR": "1"}

    def start(self, *words: str) -> Running:
        """A command that is going on."""
        process = subprocess.Popen(
            [self.invoke, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=places.REPOSITORY,
        )  # fmt: skip
        return Running(process, time.monotonic())

    def finish(self, *words: str) -> tuple[int, str]:
        """A command to its end: exit code and output."""
        done = subprocess.run(
            [self.invoke, *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=places.REPOSITORY
        )
        return done.returncode, done.stdout + done.stderr

    def inside(self, script: str, check: bool = True) -> str:
        """A shell script in the guest."""
        words = ["lxc-attach", "-n", self.name, "--clear-env", "-v", PATH, "--", "sh", "-c", script]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"in {self.name}: exit {done.returncode}: {done.stderr[-800:]}")
        return done.stdout.strip()

    def look(self) -> dict[str, Any]:
        """Settings, links, processes, units and receipts as they are."""
        words = ["lxc-attach", "-n", self.name, "--clear-env", "-v", PATH, "--", "python3", "-I", "-c", LOOK]
        found: dict[str, Any] = json.loads(subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout)
        return found

    def until(self, ready: Callable[[dict[str, Any]], Any], limit_s: float = 30.0) -> dict[str, Any]:
        """A look for which `ready` holds, or the last one within the limit."""
        end = time.monotonic() + limit_s
        while not ready(found := self.look()) and time.monotonic() < end:
            time.sleep(0.3)
        return found

    # faults

    def strike(self, fault: str, running: Running) -> None:
        """Kill the controller or the agent; let the line between them fall silent while both live; or fill the disk."""
        if fault == "disk":
            self.inside(f"head -c 200m /dev/zero >{SMALL}/filler 2>/dev/null || true")
            return
        below = descendants(running.process.pid)
        names = {pid: _cmdline(pid) for pid in below}
        attach = [pid for pid, words in names.items() if words.startswith("lxc-attach")]
        agents = [pid for pid, words in names.items() if "FLYOPS" in words and not words.startswith("lxc-attach") and pid not in attach]
        self.frozen = agents if fault == "connection" else []
        _signal(self.frozen, signal.SIGSTOP)
        _signal({"controller": [running.process.pid], "agent": agents, "connection": attach}[fault], signal.SIGKILL)

    def settle(self, running: Running, limit_s: float = 240.0) -> int:
        """The command has ended, by itself or by the fault, no agent is left, and the disk has room again: its exit code."""
        try:
            running.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.communicate()
        _signal(self.frozen, signal.SIGCONT)  # the agent lives again, and finds that nobody listens
        self.frozen = []
        end = time.monotonic() + 60
        while self.inside(AGENTS) != "0" and time.monotonic() < end:
            time.sleep(0.2)
        self.inside(f"rm -f {SMALL}/filler")
        return running.process.returncode


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def lies(found: dict[str, Any]) -> list[str]:
    """What an open receipt says and the files do not bear out: damage, or a state that it neither found nor made."""
    out = []
    for name, open_one in found["receipts"].items():
        try:
            read = receipt.load(open_one["text"])
        except receipt.ReceiptError as err:
            out.append(f"{name}: {err}")
            continue
        for path, entry in read.entries.items():
            now = open_one["files"].get(path)
            if now not in (entry.before, entry.after) and receipt.digest(now) not in entry.between:
                out.append(f"{name}: {path} is neither its before nor anything that flyops wrote")
    return out


def identity(found: dict[str, Any]) -> dict[str, Any]:
    """What makes two looks the same state: settings, units, both links to releases, and what really runs."""
    return {key: found[key] for key in ("settings", "current", "previous", "sim", "page", "units")}
