# SPDX-License-Identifier: Apache-2.0
"""The main job in a real guest: provision, deploy, verify, refuse the GPU without a card, nothing to roll back, retire."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops import places
from tests.beds import digest
from tests.beds.fly import changed
from tests.beds.lxc import LXC_PATH, converge, free_name

pytestmark = [pytest.mark.lxc, pytest.mark.root]


class Guest:
    """One guest that all tests of this file share, deployed once."""

    def __init__(self, folder: Path, base: str) -> None:
        self.name = free_name()
        self.base = base
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder), "NO_COLOR": "1"}

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(places.REPOSITORY / "fly"), *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == code, f"expected exit {code}, found {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def inside(self, *argv: str) -> str:
        return digest.inside(self.name, *argv).stdout


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory, lxc_base: str) -> Iterator[Guest]:
    made = Guest(tmp_path_factory.mktemp("state"), lxc_base)
    made("provision", made.name, "--rootfs", lxc_base, "--network", "none", "--memory", "2G")
    try:
        made("deploy", "--limit", made.name)
        yield made
    finally:
        if Path(LXC_PATH, made.name).exists():
            made("retire", made.name)
        converge(name=made.name, state="absent", stop_wait=20)


def status(guest: Guest) -> Any:
    import json

    return json.loads(guest("status", "--limit", guest.name, "--json"))


def test_it_runs_as_a_hardened_unit_with_its_page(guest: Guest) -> None:
    row = status(guest)
    assert (row["backend"], row["neurons"]) == ("cpu", 668)
    shown = guest.inside("systemctl", "show", "flysim", "-p", "Type,User,NoNewPrivileges,ProtectSystem,WatchdogUSec,ActiveState,DevicePolicy")
    for line in ("Type=notify", "User=fly", "NoNewPrivileges=yes", "ProtectSystem=strict", "ActiveState=active", "DevicePolicy=closed"):
        assert line in shown, shown
    assert "WatchdogUSec=0" not in shown and "WatchdogUSec=" in shown
    assert "active" in guest.inside("systemctl", "is-active", "flypage")
    assert "cpu backend attached" in guest("logs", "--limit", guest.name)


def test_second_runs_change_nothing(guest: Guest) -> None:
    pid = status(guest)["pid"]
    assert changed(guest("provision", guest.name, "--rootfs", guest.base, "--network", "none", "--memory", "2G")) == 0
    assert changed(guest("deploy", "--limit", guest.name), guest.name) == 0
    assert changed(guest("verify", "--limit", guest.name), guest.name) == 0
    assert status(guest)["pid"] == pid


def test_verify_says_what_does_not_apply(guest: Guest) -> None:
    said = guest("verify", "--limit", guest.name, "-e", "check_window_s=5")
    for title in ("1 The feature is in the binary", "2 The container sees the card", "3 The PTX fits the card"):
        assert f"{title}" in said
    assert said.count("n/a") >= 3 and "FAILED" not in said and "not reached" not in said
    assert "The service is well" in said and "passed" in said


def test_rollback_cpu_has_nothing_to_put_back(guest: Guest) -> None:
    said = guest("rollback-cpu", "--limit", guest.name)
    assert "nothing to put back" in said
    assert changed(said, guest.name) == 0


def test_without_a_card_the_gpu_is_refused_and_nothing_changes(guest: Guest, tmp_path: Path) -> None:
    before, tick = digest.digest(guest.name, ("/var/lib/fly",)), status(guest)
    said = guest("deploy", "--gpu", "--limit", guest.name, "--record", str(tmp_path), code=3)
    after = digest.digest(guest.name, ("/var/lib/fly",))
    assert "2 The container sees the card    FAILED" in said
    assert "/dev/nvidiactl" in said and "provision NAME --gpu" in said
    assert said.count("not reached") >= 3
    assert digest.differences(before, after) == []
    now = status(guest)
    assert now["pid"] == tick["pid"]
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".json", ".md"]


def test_a_simulator_that_stands_still_is_restarted(guest: Guest) -> None:
    """The watchdog is fed by the progress of ticks: the whole process stays alive, only its sim thread stops."""
    pid = status(guest)["pid"]
    threads = guest.inside("sh", "-c", f"for t in /proc/{pid}/task/*; do echo $(cat $t/comm) ${{t##*/}}; done")
    assert "flysim-sim" in threads
    guest.inside("kill", "-STOP", str(pid))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            row = status(guest)
        except AssertionError:
            row = {}
        if row.get("pid") not in (None, pid):
            break
        time.sleep(1)
    assert row["pid"] != pid and row["backend"] == "cpu"


def test_retire_leaves_only_the_archive(guest: Guest) -> None:
    guest("retire", guest.name)
    assert not Path(LXC_PATH, guest.name).exists()
    assert not (places.REPOSITORY / "inventory/hosts.d" / f"{guest.name}.yml").exists()
    archives = list(Path(guest.env["XDG_STATE_HOME"]).rglob(f"{guest.name}-*.tar.gz"))
    assert len(archives) == 1
