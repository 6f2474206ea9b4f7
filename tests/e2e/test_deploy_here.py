# SPDX-License-Identifier: Apache-2.0
"""`./fly deploy` on this machine: from nothing, again, over faults, cut off, and back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyops.operations.release import Release
from tests.beds.fly import Fly, another, changed

CUTS = int(os.environ.get("FLY_TEST_CUTS", "5"))  # the ten of CI are in a guest, test_deploy_faults.py


@pytest.fixture
def fly(open_folder: Path) -> Iterator[Fly]:
    here = Fly(open_folder)  # a short path: supervisor's socket has to fit
    yield here
    here.close()


@pytest.fixture
def deployed(fly: Fly, flysim_release: Release) -> Fly:
    fly("deploy", "--release", str(flysim_release.tar))
    return fly


def test_from_nothing_and_again(fly: Fly) -> None:
    said = fly("deploy")
    assert f"page    http://127.0.0.1:{fly.page_port}" in said
    first, began = fly.status(), time.monotonic()
    assert (first["backend"], first["neurons"]) == ("cpu", 668)
    assert "cpu backend attached" in fly("logs")
    time.sleep(12)
    second, ended = fly.status(), time.monotonic()
    assert 0.99 <= (second["tick"] - first["tick"]) / 10_000 / (ended - began) <= 1.01
    assert second["spikes"] > first["spikes"]
    with urllib.request.urlopen(f"http://127.0.0.1:{fly.page_port}/", timeout=10) as page:
        assert b"<canvas" in page.read()
    again = fly("deploy")
    assert changed(again) == 0
    assert fly.status()["pid"] == first["pid"]


def test_check_mode_on_a_clean_machine_touches_nothing(fly: Fly, flysim_release: Release) -> None:
    said = fly("deploy", "--check", "--release", str(flysim_release.tar))
    assert "failed=0" in said and changed(said) > 0
    assert not fly.state.exists()


def test_status_is_one_json_line_with_the_promised_keys(deployed: Fly) -> None:
    import json

    row = json.loads(deployed("status", "--json"))
    keys = "host backend pid url page_url release neurons realtime_factor threads cpus checkpoint_age_s card_lost".split()
    assert list(row) == keys
    assert row["backend"] == "cpu" and row["neurons"] == 668 and row["pid"] == deployed.status()["pid"]
    deployed("stop")
    assert json.loads(deployed("status", "--json"))["backend"] is None
    deployed("start")
    assert deployed.wait()["restores"] == 1


def test_killed_flysim_comes_back_from_its_checkpoint(deployed: Fly) -> None:
    deployed("stop")  # writes a checkpoint
    deployed("start")
    before = deployed.wait()
    os.kill(before["pid"], signal.SIGKILL)
    time.sleep(0.5)
    after = deployed.wait()
    assert after["pid"] != before["pid"] and after["restores"] == 1
    assert after["restored_tick"] == before["restored_tick"] > 0


def test_a_new_release_and_the_one_before(deployed: Fly, flysim_release: Release, tmp_path: Path) -> None:
    following = another(flysim_release, tmp_path, "0.1.0-ffffffffff")
    said = deployed("deploy", "--release", str(following.tar))
    assert "release 0.1.0-ffffffffff" in said
    tick = deployed.status()["tick"]
    assert f"release {flysim_release.version}" in deployed("rollback")
    assert deployed.status()["tick"] > tick
    assert (deployed.state / "fly/current").resolve().name == flysim_release.version


def test_a_release_that_does_not_run_goes_back_by_itself(deployed: Fly, flysim_release: Release, tmp_path: Path) -> None:
    """It answers the gate, and then ends at once: the old one and its settings must be back."""
    binary = flysim_release.binary
    script = f'#!/bin/sh\ncase "$1" in run|page) echo broken >&2; exit 1;; esac\nexec {binary} "$@"\n'
    broken = another(flysim_release, tmp_path, "0.1.0-eeeeeeeeee", {"bin/flysim": script.encode()})
    before = (deployed.folder / "c/flyops/flysim.env").read_bytes()
    said = deployed("deploy", "--release", str(broken.tar), "-e", "fly_seed=7", code=1)
    assert f"Release {flysim_release.version} and its settings are back" in said
    assert (deployed.folder / "c/flyops/flysim.env").read_bytes() == before
    assert deployed.wait()["seed"] == 783
    assert changed(deployed("deploy", "--release", str(flysim_release.tar))) == 0


def test_two_at_once_the_second_is_told_who_is_first(deployed: Fly, flysim_release: Release) -> None:
    lock = deployed.state / "run/lock"
    holder = subprocess.Popen(["flock", "-o", str(lock), "sleep", "60"])
    try:
        lock_text = lock.read_text()
        time.sleep(0.3)
        said = deployed("deploy", "--release", str(flysim_release.tar), code=3)
        assert "pid" in said and lock_text.split(",")[0] in said
        assert "--wait" in said
    finally:
        holder.terminate()
        holder.wait()
    assert changed(deployed("deploy", "--release", str(flysim_release.tar), "--wait", "10")) == 0


def test_a_truncated_release_is_refused_before_anything_is_sent(fly: Fly, flysim_release: Release, tmp_path: Path) -> None:
    whole = flysim_release.tar.read_bytes()
    for size in (0, 1000, len(whole) // 2, len(whole) * 9 // 10):
        short = tmp_path / flysim_release.tar.name
        short.write_bytes(whole[:size])
        said = fly("deploy", "--release", str(short), code=2)
        assert str(short) in said and "to do:" in said
    assert not (fly.state / "fly").exists()


def test_a_first_deploy_of_a_broken_release_leaves_nothing_running(fly: Fly, flysim_release: Release, tmp_path: Path) -> None:
    dies = b'#!/bin/sh\ncase "$1" in run|page) exit 1;; esac\nexec "$(dirname "$0")/real" "$@"\n'
    broken = another(flysim_release, tmp_path, "0.1.0-eeeeeeeeee", {"bin/flysim": dies, "bin/real": flysim_release.binary.read_bytes()})
    for _ in range(2):
        assert "Nothing ran here before, so nothing runs now" in fly("deploy", "--release", str(broken.tar), code=1)
        assert not (fly.state / "fly/current").is_symlink() and not (fly.folder / "c/flyops/flysim.env").exists()
        assert not list((fly.state / "receipts").glob("*.json"))
    fly("deploy", "--release", str(flysim_release.tar))
    assert fly.status()["backend"] == "cpu"


@pytest.mark.root
def test_a_full_disk_is_told_and_mended(fly: Fly, flysim_release: Release) -> None:
    small = fly.folder / "s"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        said = fly("deploy", "--release", str(flysim_release.tar), code=1)
        assert "No space left on device" in said
        subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=True)
        fly("deploy", "--release", str(flysim_release.tar))
        assert fly.status()["backend"] == "cpu"
        assert not [name for name in os.listdir(fly.state / "fly/releases") if name.startswith(".")]
    finally:
        fly.close()
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.slow
def test_a_deploy_killed_anywhere_is_finished_by_the_next(deployed: Fly, flysim_release: Release, tmp_path: Path) -> None:
    """kill -9 of the controller at moments spread over a whole deploy of a new release with new settings."""
    began = time.monotonic()
    following = another(flysim_release, tmp_path, "0.1.0-dddddddd00")
    deployed("deploy", "--release", str(following.tar), "-e", "fly_seed=800")
    whole_s = time.monotonic() - began
    for cut in range(CUTS):
        following = another(flysim_release, tmp_path, f"0.1.0-dddddddd{cut + 1:02d}")
        words = ("deploy", "--release", str(following.tar), "-e", f"fly_seed={801 + cut}")
        tick = deployed.wait()["tick"]
        running = deployed.start(*words)
        time.sleep(whole_s * (cut + 0.5) / CUTS)
        running.kill()
        running.wait()
        deployed(*words, "--wait", "30")
        found = deployed.status()
        assert found["seed"] == 801 + cut
        assert (deployed.state / "fly/current").resolve().name == following.version
        assert found["tick"] >= tick and found["restores"] == 1, (cut, found)
        assert not list((deployed.state / "receipts").glob("deploy.json"))
        assert changed(deployed(*words)) == 0
