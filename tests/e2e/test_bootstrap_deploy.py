# SPDX-License-Identifier: Apache-2.0
"""`./fly deploy` by an ordinary user without a network: environment and data from a folder of wheels, the release from the cache, no compiler."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from flyops.operations import embedded
from tests.beds.ordinary import UID, as_ordinary_user

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def wheels(open_folder):
    """What the run lock and the data lock name."""
    folder = open_folder / "wheels"
    folder.mkdir()
    base = getattr(sys, "_base_executable", sys.executable)
    for lock in ("run", "data"):
        options = ["--no-deps"] if lock == "data" else []
        command = [base, "-m", "pip", "download", "-q", *options, "--require-hashes", "-r", str(ROOT / f"requirements/{lock}.txt"), "-d", str(folder)]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def home(open_folder, flysim_release):
    """A home with this checkout's release in its cache, and a copy of the checkout beside it."""
    folder = open_folder / "home"
    shutil.copytree(flysim_release.folder.parent, folder / ".cache/flyops/builds" / flysim_release.version)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, UID, UID)
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in [name for name in names if (ROOT / name).is_file()]:
        target = open_folder / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    yield folder
    embedded.shutdown(folder / ".local/state/flyops/run/supervisor.sock")


def status(port: int) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
        return json.load(answer)


def test_an_ordinary_user_deploys_and_a_second_run_changes_nothing(home, wheels, free_port):
    python = Path(getattr(sys, "_base_executable", sys.executable)).parent
    page_port = free_port + 1 if free_port < 65_000 else free_port - 1
    words = [str(home.parent / "checkout/fly"), "--offline", str(wheels), "deploy", "-e", f"fly_port={free_port}", "-e", f"fly_page_port={page_port}"]
    command = as_ordinary_user(words, home, {"PATH": f"{python}:/usr/bin:/bin", "USER": "fly", "PIP_INDEX_URL": "http://127.0.0.1:9/"})

    first = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    one, clock = status(free_port), time.monotonic()
    started = time.monotonic()
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    print(f"second deploy {time.monotonic() - started:.1f} s")
    time.sleep(max(0.0, 10 - (time.monotonic() - clock)))
    two, seconds = status(free_port), time.monotonic() - clock

    assert (one["backend"], one["neurons"]) == ("cpu", 668)
    assert 0.99 <= (two["tick"] - one["tick"]) * 1e-4 / seconds <= 1.01
    assert two["pid"] == one["pid"]
    assert Path(f"/proc/{two['pid']}").stat().st_uid == UID
    assert second.returncode == 0
    assert re.search(r"changed=0\b", second.stdout), second.stdout[-3000:]
    assert f"http://127.0.0.1:{page_port}" in first.stdout
    assert "cpu backend attached" in (home / ".local/state/flyops/log/flysim.log").read_text()
