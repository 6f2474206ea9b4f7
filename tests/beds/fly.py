# SPDX-License-Identifier: Apache-2.0
"""`./fly` as a person types it, with state and configuration of its own, and the embedded service that it leaves behind ended afterwards."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flyops import places
from flyops.operations import embedded
from flyops.operations import release as releases


def free_port() -> int:
    """A TCP port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Fly:
    """The command line in one folder; the cache is everyone's, so that nothing is built twice."""

    folder: Path
    port: int = field(default_factory=free_port)
    page_port: int = field(default_factory=free_port)
    extra: Sequence[str] = ()

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "s"), "XDG_CONFIG_HOME": str(self.folder / "c"), "NO_COLOR": "1"}

    @property
    def state(self) -> Path:
        """flyops' own folder."""
        return self.folder / "s" / "flyops"

    def argv(self, *words: str) -> list[str]:
        ports = ["-e", f"fly_port={self.port}", "-e", f"fly_page_port={self.page_port}", *self.extra]
        takes = words[0] in {"deploy", "rollback", "rollback-cpu", "verify", "start", "stop", "status", "logs", "watch", "cost", "driver"}
        return [str(places.REPOSITORY / "fly"), *words, *(ports if takes else [])]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The command, running."""
        return subprocess.Popen(
            self.argv(*words), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )

    def __call__(self, *words: str, code: int = 0) -> str:
        """Its output; the exit code is asserted."""
        done = subprocess.run(self.argv(*words), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == code, f"expected exit {code}, found {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        """flysim's own word."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def wait(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """/status as soon as it answers."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                return self.status()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """End the embedded service, if there is one."""
        embedded.shutdown(self.state / "run" / "supervisor.sock")


def changed(output: str, host: str = "localhost") -> int:
    """`changed=N` of a host's recap line."""
    found = re.findall(rf"^{re.escape(host)} +: .*?changed=(\d+)", output, re.MULTILINE)
    assert found, output
    if found[-1] != "0":
        print(f"changed={found[-1]}:", *re.findall(r"TASK \[(.*)\] \**\nchanged: .*", output), sep="\n  ")
    return int(found[-1])


def another(base: releases.Release, folder: Path, version: str, files: Mapping[str, bytes] | None = None) -> releases.Release:
    """The same build under another version: what a deploy of the next release looks like to a target."""
    header = {**base.manifest.header, "version": version}
    kept: dict[str, Path | bytes] = {path: base.folder / path for path in base.manifest.files if path != "RELEASE.json"}
    return replace(releases.assemble(folder / version, {**kept, **(files or {})}, header), fresh=False)
