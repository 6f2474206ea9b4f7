# SPDX-License-Identifier: Apache-2.0
"""Fixtures: real LXC guests with systemd, made by the module under test from the cached base and removed afterwards.

tests/e2e/conftest.py hands them to all end-to-end tests; tests/conftest.py counts the tests marked `lxc` that really ran.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.modules import container
from flyops.operations import rootfs
from tests.beds import digest

LXC_PATH = "/var/lib/lxc"


def why_not() -> str:
    """Why real guests cannot run here; empty when they can."""
    if os.geteuid() != 0:
        return "LXC guests need root"
    lacking = [tool for tool in ("lxc-start", "lxc-attach", "ip", "tar") if not shutil.which(tool)]
    return f"not installed here: {', '.join(lacking)}" if lacking else ""


@dataclass(frozen=True)
class Guest:
    """A guest made by the container module."""

    name: str
    made: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Its folder on the host."""
        return Path(LXC_PATH, self.name)

    @property
    def config(self) -> str:
        """Its config's text."""
        return (self.folder / "config").read_text()

    def run(self, *argv: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command inside."""
        return digest.inside(self.name, *argv, stdin=stdin, check=check)

    def pid(self) -> str:
        """Pid of its init, as the host sees it; empty when it does not run."""
        return subprocess.run(["lxc-info", "-n", self.name, "-p", "-H"], capture_output=True, text=True, check=False).stdout.strip()


def converge(check: bool = False, **args: Any) -> dict[str, Any]:
    """The container module on this machine, as the agent runs it."""
    host = RealHost()
    result: dict[str, Any] = run_module(container, args, OverlayHost(host) if check else host, diff=True)
    return result


@pytest.fixture(scope="session")
def lxc_base() -> str:
    """The base folder of all guests; `FLYOPS_TEST_ROOTFS` names a tar where no Debian mirror can be reached."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return str(rootfs.ensure(os.environ.get("FLYOPS_TEST_ROOTFS", "")))


NUMBERS = itertools.count(1)


def free_name() -> str:
    """A name that no guest has."""
    return next(name for n in NUMBERS if not Path(LXC_PATH, name := f"flyt{os.getpid()}-{n}").exists())


@pytest.fixture
def lxc_make(lxc_base: str) -> Iterator[Any]:
    """A function that makes a booted guest (the module's arguments by name); all of them are removed afterwards."""
    names: list[str] = []

    def make(**args: Any) -> Guest:
        full = {"name": free_name(), "rootfs": lxc_base, "network": "none", "memory": "1G", **args}
        names.append(full["name"])
        made = converge(**full)
        assert not made["failed"], made["msg"]
        return Guest(full["name"], made)

    yield make
    for name in reversed(names):
        gone = converge(name=name, state="absent", stop_wait=20)
        assert not gone["failed"], gone["msg"]
        assert not Path(LXC_PATH, name).exists()


@pytest.fixture
def lxc_guest(lxc_make: Any) -> Guest:
    """One booted guest without a network."""
    guest: Guest = lxc_make()
    return guest
