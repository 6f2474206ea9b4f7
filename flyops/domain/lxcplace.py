# SPDX-License-Identifier: Apache-2.0
"""Where an LXC guest lives, how LXC's tools are told of it, and what they answered."""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from typing import List

from flyops.model.host import Completed, Host

GUEST_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

BASES = ".flyops-bases"  # beside the guests, because an unprivileged guest's root has to reach it


@dataclass(frozen=True)
class Place:
    """Where a guest lives."""

    name: str
    lxc_path: str

    @property
    def folder(self) -> str:
        """The guest's own folder."""
        return posixpath.join(self.lxc_path, self.name)

    def path(self, *parts: str) -> str:
        """A path below the guest's folder."""
        return posixpath.join(self.folder, *parts)

    def upper(self, limited: bool) -> str:
        """The guest's own layer: in its folder, or in the image that limits it."""
        return self.path("disk", "up") if limited else self.path("up")

    def shifted(self, rootfs: str, first: int) -> str:
        """A copy of a base whose files belong to the ids from `first` on, for all guests that have those."""
        name = f"{posixpath.basename(rootfs)}-{hashlib.sha256(rootfs.encode()).hexdigest()[:8]}-{first}"
        return posixpath.join(self.bases, name)

    @property
    def bases(self) -> str:
        """Where those copies are."""
        return posixpath.join(self.lxc_path, BASES)

    def lxc(self, tool: str, *words: str) -> List[str]:
        """An LXC command about this guest."""
        return [tool, "-P", self.lxc_path, "-n", self.name, *words]

    def inside(self, *argv: str) -> List[str]:
        """A command in the guest. Nothing of our environment goes along."""
        return [*self.lxc("lxc-attach", "--clear-env", "-v", GUEST_PATH), "--", *argv]


def text(done: Completed) -> str:
    """What a command printed, without the line's end."""
    return done.stdout.decode("utf-8", "replace").strip()


def words(done: Completed) -> str:
    """What a command said when it failed: stderr, else stdout, without LXC's source positions."""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    lines = [line.rsplit(": ", 1)[-1] if "../src/" in line else line for line in said.splitlines()]
    return "; ".join(lines[-3:])


def make_folders(host: Host, path: str, mode: int) -> None:
    """A folder with this mode, and those above it that are missing."""
    if host.stat(path) is None:
        make_folders(host, posixpath.dirname(path), 0o755)
        host.mkdir(path, mode=mode)


def mounted_below(host: Host, folder: str) -> List[str]:
    """What is mounted somewhere below a folder: a removal would go through it."""
    mounts = [line.split()[1] for line in host.read_text("/proc/mounts", missing="").splitlines() if line.count(" ") > 1]
    return [path for path in mounts if path.startswith(folder + "/")]
