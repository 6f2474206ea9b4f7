# SPDX-License-Identifier: Apache-2.0
"""What all tests share: private XDG folders, free ports, and the count of tests that really ran, by marker."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyops.operations import build
from flyops.operations.release import Release

COUNTED = ("lxc", "root", "slow", "gpu", "network")
ran: Counter[str] = Counter()


def missing(marker: str) -> str:
    """Why a test with this marker cannot run on this machine; empty when it can."""
    if marker in {"lxc", "root"} and os.geteuid() != 0:
        return "needs root"
    if marker == "lxc" and shutil.which("lxc-start") is None:
        return "needs lxc"
    if marker == "gpu" and not Path("/dev/nvidiactl").exists():
        return "needs an NVIDIA card"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in COUNTED:
        reason = missing(marker) if item.get_closest_marker(marker) else ""
        if reason:
            pytest.skip(reason)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:  # a fixture may fail or skip, too
        ran.update([report.outcome])
    if report.when == "call" and not report.skipped:
        ran.update(marker for marker in COUNTED if marker in report.keywords)


def pytest_sessionfinish() -> None:
    target = os.environ.get("FLY_TEST_COUNTS")
    if target:
        Path(target).write_text(json.dumps(ran))


@pytest.fixture(scope="session")
def flysim_release() -> Release:
    """This checkout's flysim for the CPU, built once in the user's own cache (minutes the first time, then nothing)."""
    return build.build()


@pytest.fixture
def xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Private folders for cache, state and configuration; the returned folder holds them. HOME stays, for cargo."""
    for name in ("CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach. pytest's own are closed to them, and closed again by each pytest that starts."""
    with tempfile.TemporaryDirectory(prefix="fly-test-", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
