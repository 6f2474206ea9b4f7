# SPDX-License-Identifier: Apache-2.0
"""A job that an operator would do, as a bench does it: `invoke` from the environment that `./fly` made, every word in one transcript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flyops import places

STEP_S = float(os.environ.get("STEP_S", "400"))  # a step that takes longer is ended, so that the transcript shows where it stood
SETTINGS = (
    "/etc/fly/backend.env",
    "/etc/systemd/system/flysim.service.d/50-flyops-cpus.conf",
    "/etc/systemd/system/flypage.service.d/50-flyops-cpus.conf",
)
ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8700/status').read().decode())"


def release_words(name: str) -> list[str]:
    """`--release TAR` where the environment names one."""
    return ["--release", os.environ[name]] if os.environ.get(name) else []


class Job:
    """One transcript, one guest."""

    def __init__(self, raw: Path, guest: str, quiet: bool = False) -> None:
        self.raw, self.guest, self.quiet = raw, guest, quiet
        self.invoke = shutil.which("invoke") or str(places.REPOSITORY / ".venv/bin/invoke")
        self.transcript = (raw / "transcript.txt").open("a")
        self.code, self.seconds = 0, 0.0

    def clean(self, text: str) -> str:
        """Where this machine keeps things is nobody's business."""
        return (
            text.replace(str(self.raw), "RAW")
            .replace(str(places.REPOSITORY), ".")
            .replace(str(places.state()), "STATE")
            .replace(str(Path.home()), "~")
        )

    def say(self, text: str) -> None:
        """Into the transcript and onto the screen."""
        text = self.clean(text)
        self.transcript.write(text)
        self.transcript.flush()
        if not self.quiet:
            print(text, end="", flush=True)

    def run(self, *argv: str, code: int | None = 0, on_line: Callable[[str], None] | None = None, limit_s: float = STEP_S) -> str:
        """A command with its output in the transcript; `code` and `seconds` of the last one are kept."""
        began = time.monotonic()
        self.say(f"\n$ {' '.join(argv)}\n")
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}  # a line is here when it is said, not when a buffer is full
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        running = subprocess.Popen(argv, cwd=places.REPOSITORY, env=env, **pipes)
        limit = threading.Timer(limit_s, running.kill)
        limit.start()
        assert running.stdout
        lines = []
        for line in running.stdout:
            lines.append(line)
            self.say(line)
            if on_line:
                on_line(line)
        self.code = running.wait()
        limit.cancel()
        self.seconds = round(time.monotonic() - began, 1)
        self.say(f"[exit {self.code} after {self.seconds:.1f} s]\n")
        if code is not None and self.code != code:
            raise RuntimeError(f"{' '.join(argv)}: expected exit {code}, found {self.code}")
        return "".join(lines)

    def fly(self, *words: str, code: int | None = 0, **more: Any) -> str:
        """`invoke …` as an operator types it."""
        return self.run(self.invoke, *words, code=code, **more)

    def inside(self, *argv: str, code: int | None = 0, guest: str = "") -> str:
        """A command in the guest."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return self.run("lxc-attach", "-n", guest or self.guest, "--clear-env", "-v", path, "--", *argv, code=code)

    def status(self) -> dict[str, Any]:
        """flysim's own word."""
        found: dict[str, Any] = json.loads(self.inside("python3", "-c", ASK))
        return found

    def keep(self, name: str) -> dict[str, Any]:
        """Settings and state of the guest as they are now, as a raw sample."""
        rows = [line for line in self.fly("status", "--limit", self.guest, "--json").splitlines() if line.startswith("{")]
        files = {path: self.inside("sh", "-c", f"cat {path} 2>/dev/null || echo absent") for path in SETTINGS}
        found = {"row": json.loads(rows[-1]), "files": files, "status": self.status()}
        (self.raw / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return found


def load(path: Path) -> dict[str, Any]:
    """A raw sample; empty when it is not there or not whole."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found
