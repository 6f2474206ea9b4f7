# SPDX-License-Identifier: Apache-2.0
"""Runs of a module that are killed (-9) before a change of their choice, and a look at what a folder holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tree(folder: Path) -> dict[str, object]:
    out: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        out[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else path.lstat().st_mode
    return out


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
