# SPDX-License-Identifier: Apache-2.0
"""What stands beside a deploy, in one real guest: its write log, the neighbours' configs, an archived state, a card that is lost while it runs."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops.operations import build, release
from flyops.operations.release import Release
from tests.beds import lxc
from tests.beds.fly import another, changed
from tests.beds.flyguest import STATE, FlyGuest, make

pytestmark = [pytest.mark.lxc, pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def box(lxc_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlyGuest]:
    """One guest for all tests of this file."""
    name = lxc.free_name()
    made = lxc.converge(name=name, rootfs=lxc_base, network="none", memory="1G")
    assert not made["failed"], made["msg"]
    try:
        yield make(lxc.Guest(name, made), tmp_path_factory.mktemp("switch"))
    finally:
        assert not lxc.converge(name=name, state="absent", stop_wait=20)["failed"]


@pytest.fixture
def neighbour() -> Iterator[Path]:
    """A guest's folder that is not ours to touch (it never runs)."""
    folder = Path(lxc.LXC_PATH, lxc.free_name())
    folder.mkdir()
    (folder / "config").write_text("lxc.uts.name = neighbour\n")
    yield folder / "config"
    shutil.rmtree(folder)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(max(folder.glob("*.json")).read_text())
    return found


def test_a_deploy_records_its_writes_and_its_neighbours(box: FlyGuest, flysim_release: Release, tmp_path: Path, neighbour: Path) -> None:
    before = neighbour.read_bytes()
    box("deploy", "--release", str(flysim_release.tar), "--record", str(tmp_path))
    found = record(tmp_path)
    paths = {entry["path"] for entry in found["writes"] if entry["kind"] != "run"}
    assert {"/etc/fly/flysim.env", "/etc/systemd/system/flysim.service", "/opt/fly/current", "/var/lib/flyops/receipts/deploy.json"} <= paths
    assert all(
        re.match(r"/(opt/fly|etc/fly|var/lib/fly(ops)?|run/lock/flyops|etc/systemd/system/(fly|[a-z]+\.(slice|scope)\.d))", path) for path in paths
    )
    assert any(entry["kind"] == "run" and "systemctl" in entry["path"] for entry in found["writes"])
    assert {entry["on"] for entry in found["writes"]} == {"box"}
    assert str(neighbour) in found["neighbours"]["looked_at"] and found["neighbours"]["by_us"] == []
    assert f"{lxc.LXC_PATH}/{box.guest.name}/config" not in found["neighbours"]["looked_at"]
    assert neighbour.read_bytes() == before
    assert changed(box("deploy", "--release", str(flysim_release.tar)), "box") == 0


def test_a_deploy_cannot_write_outside_its_own_places(box: FlyGuest) -> None:
    said = box(
        "deploy", "-e", "fly_etc=/etc/other", "-e", '{"flyops_owned": ["/opt/fly", "/var/lib/flyops", "/var/lib/fly", "/run/lock/flyops"]}', code=3
    )
    assert "refused to mkdir /etc/other: this run may write to" in said
    assert box.sh("ls -d /etc/other || true") == ""


def test_a_neighbour_that_somebody_else_moved_is_reported(box: FlyGuest, flysim_release: Release, tmp_path: Path, neighbour: Path) -> None:
    running = box.fly.start("deploy", "--release", str(flysim_release.tar), "-e", "fly_seed=9", "--json", "--record", str(tmp_path))
    assert running.stdout
    for line in running.stdout:
        if '"kind": "start"' in line and "flysim runs" in line:
            neighbour.write_text("lxc.uts.name = moved\n")
    assert running.wait() == 0
    found = record(tmp_path)["neighbours"]
    assert found["moved"][str(neighbour)] == "changed" and found["by_us"] == []
    assert any(f"{neighbour} changed during this run, by someone else" in text for text in found["said"])


def test_an_archived_state_and_the_way_back_when_the_release_does_not_hold(box: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    saved = box.until(lambda seen: (seen["checkpoint"] or {})["count"] >= 2)["checkpoint"]["tick"]
    dies = b'#!/bin/sh\ncase "$1" in run|page) exit 1;; esac\nexec "$(dirname "$0")/real" "$@"\n'
    bad = another(flysim_release, tmp_path, "0.1.0-eeeeeeeeee", {"bin/flysim": dies, "bin/real": flysim_release.binary.read_bytes()})
    box("deploy", "--release", str(bad.tar), "--archive-state", code=1)
    found = box.until(lambda seen: True)
    assert (found["restores"], found["set_aside"], box.release()) == (1, 0, flysim_release.version) and found["tick"] > saved
    assert [name for name in box.sh(f"ls {STATE}").split() if name.startswith("archive-") and not name.endswith("-undone")] == []
    next_one = another(flysim_release, tmp_path, "0.1.0-bbbbbbbbbb")
    tick = box.status()["tick"]
    box("deploy", "--release", str(next_one.tar), "--archive-state")
    fresh = box.until(lambda seen: seen["checkpoint"]["count"] >= 1)
    assert (fresh["restores"], box.release()) == (0, next_one.version) and fresh["tick"] < tick
    archive = next(name for name in box.sh(f"ls {STATE}").split() if re.fullmatch(r"archive-\d+T\d+Z", name))
    assert ".flyck" in box.sh(f"ls {STATE}/{archive}")
    # Nothing is deleted: by hand, as the text says, the old brain comes back.
    box("stop")
    box.sh(f"rm {STATE}/*.flyck && mv {STATE}/{archive}/* {STATE}/")
    box("start")
    assert box.until(lambda seen: True)["restored_tick"] >= saved
    box("deploy", "--release", str(next_one.tar), "--accept", "kernal", code=2)
    box("deploy", "--release", str(next_one.tar), "--accept", "kernel,connectome", code=2)


FAULTY_GPU = """\
    - settings_receipt:
        dir: /var/lib/flyops/receipts
        name: gpu
        state: applied
        files:
          /etc/fly/backend.env: {{content: "FLY_LIF_CUDA=0\\nRAYON_NUM_THREADS=1\\nFLY_FAULT=gpu-lost@{tick}\\n", mode: '0644'}}
"""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Release:
    """A release whose flysim can be told to lose its card; it takes a build of its own, so CI does not make one."""
    monkeypatch.setenv(build.FEATURES, "fault")
    version = str(build.current_version(["fault"]))
    found = release.load(build.places.cache("builds", version), version)
    if found is None and not os.environ.get("FLY_TEST_FAULT"):
        pytest.skip("no build with the feature fault here: FLY_TEST_FAULT=1 makes one")
    return found or build.build()


def test_a_card_that_is_lost_while_it_runs_brings_the_saved_threads_back(box: FlyGuest, faulty: Release) -> None:
    """What the card computes is the CPU's stand-in here; that it goes, exit 75, receipt and restore unit are the real ones."""
    box("deploy", "--release", str(faulty.tar), "--archive-state", "-e", "rayon_threads=2")
    settings = box.run("cat", "/etc/fly/backend.env")
    assert "RAYON_NUM_THREADS=2" in settings
    lost_at = box.until(lambda seen: seen["checkpoint"]["count"] >= 2)["tick"] + 300_000  # half a minute for what follows, on a machine under load
    file = box.fly.folder / "fault.yml"
    file.write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{FAULTY_GPU.format(tick=lost_at)}")
    box("play", str(file), "--inventory", box.fly.extra[1])
    box.run("systemctl", "restart", "flysim")
    before = box.until(lambda seen: seen["threads"] == 1 and seen["checkpoint"]["count"] >= 1)
    after = box.until(lambda seen: seen["pid"] != before["pid"], timeout_s=60)
    log = box.run("journalctl", "--no-pager", "-o", "cat", "-u", "flysim")
    assert "injected by FLY_FAULT" in log and "status=75" in log
    assert (after["backend"], after["threads"], after["restores"], after["set_aside"]) == ("cpu", 2, 1, 0)
    assert after["restored_tick"] >= before["checkpoint"]["tick"] > 0
    assert box.run("cat", "/etc/fly/backend.env") == settings and box.receipts() == []
    assert box.until(lambda seen: seen["realtime_factor"] >= 0.99)["pid"] == after["pid"]
    assert box.until(lambda seen: seen["tick"] > lost_at)["pid"] == after["pid"], "past the tick of the fault: the way back is free of it"
    said = box("rollback-cpu")
    assert "nothing to put back" in said and changed(said, "box") == 0
    assert "the card was lost at" in box("status")
    assert "FLY_FAULT" not in box.run("cat", f"/proc/{after['pid']}/environ")
