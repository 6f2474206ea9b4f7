# SPDX-License-Identifier: Apache-2.0
"""A guest with systemd and the command line that deploys to it; what is true inside is read by lxc-attach, not by flyops."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.beds.fly import Fly

if TYPE_CHECKING:  # benches use this file where there is no pytest
    from tests.beds.lxc import Guest

STATE = "/var/lib/fly"
ASK = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen('http://127.0.0.1:8700/status', timeout=5).read().decode())"
AGENTS = "ps -eo args | grep -c '[F]LYOPS' || true"


@dataclass
class FlyGuest:
    """`fly(...)` runs ./fly against the guest; the rest looks inside."""

    guest: Guest
    fly: Fly

    def __call__(self, *words: str, code: int = 0) -> str:
        return self.fly(*words, code=code)

    def run(self, *argv: str, check: bool = True) -> str:
        """A command in the guest: its output."""
        return self.guest.run(*argv, check=check).stdout.strip()

    def sh(self, script: str, check: bool = True) -> str:
        """A shell script in the guest: its output."""
        return self.run("sh", "-c", script, check=check)

    def status(self) -> dict[str, Any]:
        """flysim's own word; empty when it does not answer."""
        done = self.guest.run("python3", "-I", "-c", ASK, check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def until(self, ready: Callable[[dict[str, Any]], Any], timeout_s: float = 40.0) -> dict[str, Any]:
        """/status as soon as `ready` holds for it."""
        end = time.monotonic() + timeout_s
        while not ((found := self.status()) and ready(found)):
            assert time.monotonic() < end, (found, self.run("journalctl", "--no-pager", "-n", "30", "-u", "flysim", "-u", "flyops-restore"))
            time.sleep(0.2)
        return found

    def unit(self, name: str, what: str = "ActiveState") -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", "-p", what, "--value", name)

    def release(self) -> str:
        """Version that the running flysim was started from: not what `current` says, what the process is."""
        return Path(self.run("readlink", f"/proc/{self.unit('flysim', 'MainPID')}/exe")).parts[-3]

    def link(self, name: str) -> str:
        """Version that current or previous points to; empty without one."""
        return Path(self.run("readlink", f"/opt/fly/{name}", check=False)).name

    def checkpoints(self) -> list[str]:
        """Paths, newest first."""
        return self.sh(f"ls -r {STATE}/*.flyck 2>/dev/null || true").split()

    def receipts(self) -> list[str]:
        """Open receipts."""
        return self.sh("cd /var/lib/flyops/receipts 2>/dev/null && ls *.json 2>/dev/null || true").split()

    def agents_end(self, timeout_s: float = 30.0) -> None:
        """No agent of ours is left in the guest."""
        end = time.monotonic() + timeout_s
        while self.sh(AGENTS) != "0":
            assert time.monotonic() < end, self.run("ps", "-efH")
            time.sleep(0.2)


def make(guest: Guest, folder: Path) -> FlyGuest:
    """The guest as the host `box` of an inventory file of its own."""
    hosts = folder / "hosts.yml"
    variables = {
        "ansible_connection": "lxc",
        "ansible_lxc_name": guest.name,
        "ansible_python_interpreter": "/usr/bin/python3",
        "fly_checkpoint_s": 1,
    }
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"box": variables}}}))
    return FlyGuest(guest, Fly(folder, port=8700, page_port=8701, extra=("--inventory", str(hosts), "--limit", "box")))


def descendants(pid: int) -> list[int]:
    """Processes below one, as they are now."""
    found = [pid]
    for one in found:
        for listed in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(word) for word in listed.read_text().split()]
            except OSError:
                continue
    return found[1:]
