# SPDX-License-Identifier: Apache-2.0
"""A real podman in a mount namespace of its own: its storage, its /run and its /run/cdi are folders of the test; nothing of this machine's changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# crun refuses a machine whose cgroups are half v1 and half v2; in here it sees the v1 half only.
ENTER = """
umount /sys/fs/cgroup/unified 2>/dev/null
mount -t tmpfs none /run && mkdir /run/cdi /run/lock && mount --bind "$0" /run/cdi && echo ready && exec sleep infinity
"""
WRAPPER = """#!/bin/sh
exec nsenter --mount --target {pid} -- {podman} --root {folder}/store --runroot {folder}/run --storage-driver vfs --cgroup-manager cgroupfs \
--events-backend none "$@"
"""


def why_not() -> str:
    """Why podman cannot run here; empty when it can."""
    if os.geteuid() != 0:
        return "podman's private mount namespace needs root"
    lacking = [tool for tool in ("podman", "unshare", "nsenter") if not shutil.which(tool)]
    return f"not installed here: {', '.join(lacking)}" if lacking else ""


@dataclass(frozen=True)
class Podman:
    """The client's folder goes on the PATH of those who call `podman`; `cdi` is its /run/cdi."""

    bin: Path
    cdi: Path
    base: str

    def __call__(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A call of the client."""
        return subprocess.run([self.bin / "podman", *argv], capture_output=True, text=True, check=False, timeout=120)

    def start(self, *options: str, command: tuple[str, ...], name: str = "") -> subprocess.CompletedProcess[str]:
        """`podman run` over the guests' base; with a name in the background."""
        # Without its own limits it would ask for more than this machine's root may give.
        words = ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", *options]
        words += ["--detach", "--name", name] if name else ["--rm"]
        return self("run", *words, "--rootfs", f"{self.base}:O", *command)


@pytest.fixture(scope="module")
def podman(lxc_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A podman with nothing in it; its containers end with it."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("podman")
    for name in ("bin", "cdi"):
        (folder / name).mkdir()
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, folder / "cdi"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "ready\n"
        client = folder / "bin/podman"
        client.write_text(WRAPPER.format(pid=holder.pid, podman=shutil.which("podman"), folder=folder))
        client.chmod(0o755)
        made = Podman(folder / "bin", folder / "cdi", lxc_base)
        yield made
        made("rm", "--all", "--force", "--time", "0")
    finally:
        holder.kill()
        holder.wait()
        _no_cgroups_left()


def _no_cgroups_left() -> None:
    """podman's parents of cgroups outlive it; its monitors may still be ending. One that another podman uses stays."""
    deadline = time.monotonic() + 10
    while (left := sorted(Path("/sys/fs/cgroup").glob("*/libpod_parent/**/"), reverse=True)) and time.monotonic() < deadline:
        for folder in left:
            with contextlib.suppress(OSError):
                folder.rmdir()
        time.sleep(0.1)
