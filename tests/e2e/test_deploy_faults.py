# SPDX-License-Identifier: Apache-2.0
"""Faults of a deploy to a guest under systemd: cut off anywhere, killed, damaged, full, broken, two at once, someone else's hand, a lost card."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from flyops.operations import build
from flyops.operations.release import Release
from tests.beds.fly import another, changed
from tests.beds.flyguest import STATE, FlyGuest, descendants, make
from tests.beds.lxc import Guest

pytestmark = [pytest.mark.lxc, pytest.mark.root, pytest.mark.slow]
CUTS = int(os.environ.get("FLY_TEST_CUTS", "10"))
KILLS = int(os.environ.get("FLY_TEST_KILLS", "5"))


@pytest.fixture
def box(lxc_guest: Guest, tmp_path: Path) -> FlyGuest:
    """A bare guest."""
    return make(lxc_guest, tmp_path)


@pytest.fixture
def live(box: FlyGuest, flysim_release: Release) -> FlyGuest:
    """A guest with a deploy and at least two checkpoints."""
    box("deploy", "--release", str(flysim_release.tar))
    box.until(lambda seen: seen["checkpoint"]["count"] >= 2)
    return box


DIES = b'#!/bin/sh\ncase "$1" in run|page) echo it is broken >&2; exit 1;; esac\nexec "$(dirname "$0")/real" "$@"\n'


def broken(base: Release, folder: Path, version: str = "0.1.0-eeeeeeeeee") -> Release:
    """A release that answers the gate, and then ends at once."""
    return another(base, folder, version, {"bin/flysim": DIES, "bin/real": base.binary.read_bytes()})


def play(box: FlyGuest, text: str) -> str:
    """A small playbook over the guest."""
    file = box.fly.folder / "small.yml"
    file.write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{text}")
    return box("play", str(file), "--inventory", box.fly.extra[1])


def wait_until_gone(pids: list[int], timeout_s: float = 30.0) -> None:
    """Nothing that a killed controller had started is left. An agent ends by itself when its stdin does, which takes it a moment."""
    end = time.monotonic() + timeout_s
    while left := {pid: words for pid in pids if (words := command_line(pid))}:
        assert time.monotonic() < end, left
        time.sleep(0.1)


def command_line(pid: int) -> bytes:
    """Empty for a process that is gone, or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_deploy_killed_anywhere_is_finished_by_the_next(live: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    """kill -9 of the controller, spread over a whole deploy; new settings every other time, so that a flip alone must be known, too."""
    began = time.monotonic()
    live("deploy", "--release", str(another(flysim_release, tmp_path, "0.1.0-dddddddd00").tar), "-e", "fly_seed=800")
    whole_s, seed = time.monotonic() - began, 800
    for cut in range(CUTS):
        seed += cut % 2
        following = another(flysim_release, tmp_path, f"0.1.0-dddddddd{cut + 1:02d}")
        words = ("deploy", "--release", str(following.tar), "-e", f"fly_seed={seed}")
        saved = live.until(lambda seen: seen["checkpoint"]["count"] >= 1)["checkpoint"]["tick"]
        running = live.fly.start(*words)
        time.sleep(whole_s * (cut + 0.5) / CUTS)
        below = descendants(running.pid)
        running.kill()
        running.wait()
        live.agents_end()
        wait_until_gone(below)
        live(*words, "--wait", "30")
        found = live.status()
        assert (found["seed"], live.release(), live.link("current")) == (seed, following.version, following.version), cut
        assert found["tick"] >= found["restored_tick"] >= saved > 0, (cut, found)
        assert (found["restores"], found["set_aside"], live.receipts()) == (1, 0, []), cut
        assert changed(live(*words), "box") == 0, cut


def test_a_broken_release_cut_off_and_run_again_goes_back_to_what_ran(live: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    """The run after a cut finds the broken release current already: the way back leads to what ran before both."""
    bad = broken(flysim_release, tmp_path)
    cut_after_flip(live, bad, "-e", "fly_seed=9")
    said = live("deploy", "--release", str(bad.tar), "-e", "fly_seed=9", code=1)
    assert f"Release {flysim_release.version} and its settings are back" in said
    found = live.until(lambda seen: True)
    assert (found["seed"], live.release(), live.receipts()) == (783, flysim_release.version, [])
    assert changed(live("deploy", "--release", str(flysim_release.tar)), "box") == 0


def cut_after_flip(box: FlyGuest, release: Release, *words: str) -> None:
    """A deploy whose controller is killed as soon as its release is current."""
    running = box.fly.start("deploy", "--release", str(release.tar), *words)
    end = time.monotonic() + 30
    while box.link("current") != release.version and time.monotonic() < end:
        time.sleep(0.02)
    running.kill()
    running.wait()
    box.agents_end()
    assert box.link("current") == release.version and box.receipts() == ["deploy.json"]


def test_a_flip_alone_is_known_to_the_next_run(live: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    """No setting differs; the next run must restart what it finds, and so it does."""
    following = another(flysim_release, tmp_path, "0.1.0-bbbbbbbbbb")
    cut_after_flip(live, following)
    pid = live.until(lambda seen: True)["pid"]
    live("deploy", "--release", str(following.tar))
    assert (live.release(), live.receipts()) == (following.version, []) and live.status()["pid"] != pid


@pytest.mark.parametrize("words", [(), ("-e", "fly_seed=9")])
def test_rollback_after_a_cut_goes_to_what_ran_with_its_settings(
    live: FlyGuest, flysim_release: Release, tmp_path: Path, words: tuple[str, ...]
) -> None:
    cut_after_flip(live, another(flysim_release, tmp_path, "0.1.0-cccccccccc"), *words)
    live.sh("ln -sfn releases/$(basename $(readlink /opt/fly/current)) /opt/fly/previous")  # as a cut between the two links leaves it
    live("rollback")
    assert (live.status()["seed"], live.release(), live.receipts()) == (783, flysim_release.version, [])
    assert live.link("previous") == "", "there was none before"
    assert changed(live("deploy", "--release", str(flysim_release.tar)), "box") == 0


def test_flysim_killed_comes_back_from_its_newest_checkpoint(live: FlyGuest) -> None:
    choose = random.Random(7)
    for kill in range(KILLS):
        before = live.until(lambda seen: seen["checkpoint"]["count"] >= 1)
        time.sleep(choose.random() * 1.5)
        newest = int(re.findall(r"(\d+)\.flyck", live.checkpoints()[0])[0])
        live.run("kill", "-KILL", str(before["pid"]))
        after = live.until(lambda seen, old=before["pid"]: seen["pid"] != old)  # type: ignore[misc]
        assert after["restored_tick"] >= newest >= before["checkpoint"]["tick"] > 0, kill
        assert (after["restores"], after["set_aside"]) == (1, 0)
        live.run("systemctl", "reset-failed", "flysim")  # five in 120 s are given up on purpose: the next test


def test_a_crash_loop_is_given_up_and_started_again_by_hand(live: FlyGuest) -> None:
    end = time.monotonic() + 60
    while live.unit("flysim") != "failed" and time.monotonic() < end:
        pid = live.unit("flysim", "MainPID")
        if pid != "0":
            live.run("kill", "-KILL", pid, check=False)
        time.sleep(0.1)
    assert live.unit("flysim") == "failed"
    assert live.guest.run("systemctl", "start", "flysim", check=False).returncode != 0
    live("start")
    assert live.status()["restores"] == 1


def test_deploys_in_a_row_are_no_crash_loop(live: FlyGuest, flysim_release: Release) -> None:
    while live.guest.run("systemctl", "restart", "flysim", check=False).returncode == 0:
        pass
    live("start")
    for _ in range(4):
        live.run("systemctl", "restart", "flysim")
    live("deploy", "--release", str(flysim_release.tar), "-e", "fly_seed=9")
    assert live.status()["seed"] == 9


def test_a_truncated_checkpoint_is_set_aside_and_the_one_before_is_used(live: FlyGuest) -> None:
    live("stop")
    newest, before = live.checkpoints()[:2]
    size = int(live.run("stat", "-c", "%s", newest))
    live.run("truncate", "-s", str(size // 2), newest)
    live("start")
    found = live.until(lambda seen: True)
    assert found["set_aside"] == 1
    assert found["restored_tick"] == int(re.findall(r"(\d+)\.flyck", before)[0])
    name = Path(newest).stem
    assert int(live.run("stat", "-c", "%s", f"{STATE}/damaged/{name}.flyck")) == size // 2
    reason = live.run("cat", f"{STATE}/damaged/{name}.reason")
    assert reason and reason in live("logs"), reason


def test_all_checkpoints_damaged_is_never_a_fresh_start(live: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    live("stop")
    files = live.checkpoints()
    for path in files:
        live.run("truncate", "-s", "-100", path)
    sums = sorted(line.split()[0] for line in live.sh(f"sha256sum {' '.join(files)}").splitlines())

    def untouched() -> None:
        kept = live.sh(f"find {STATE} -name '*.flyck' -exec sha256sum {{}} +")
        assert sorted(line.split()[0] for line in kept.splitlines()) == sums
        assert live.status() == {} and live.unit("flysim") != "active"

    said = live("deploy", "--release", str(flysim_release.tar), code=3)
    assert "no checkpoint is whole" in said and "to do" in said.lower(), said
    untouched()
    for start in range(2):  # the second finds only what the first set aside
        live("start", code=1)
        assert "are damaged and were set aside" in live("logs"), start
        untouched()
    following = another(flysim_release, tmp_path, "0.1.0-bbbbbbbbbb")
    for words in (("--release", str(flysim_release.tar)), ("--release", str(following.tar), "-e", "fly_seed=9")):
        said = live("deploy", *words, code=3)
        assert "damaged" in said and "to do" in said.lower(), said
        untouched()
        assert (live.link("current"), live.receipts()) == (flysim_release.version, [])
        assert "FLY_SEED=783" in live.run("cat", "/etc/fly/flysim.env")


@pytest.mark.parametrize("size", ["64k", "2m"])
def test_a_full_disk_for_releases_is_told_and_mended(box: FlyGuest, flysim_release: Release, tmp_path: Path, size: str) -> None:
    box.sh(f"mkdir -p /opt/fly && mount -t tmpfs -o size={size} tmpfs /opt/fly")
    said = box("deploy", "--release", str(flysim_release.tar), code=1)
    assert "No space left on device" in said and "/opt/fly" in said
    assert box.link("current") == "" and box.unit("flysim") == "inactive"
    assert box.sh("ls -A /opt/fly/releases | grep -v '^0' || true") == ""
    one = sum((flysim_release.folder / path).stat().st_size for path in flysim_release.manifest.files)
    box.run("mount", "-o", f"remount,size={one * 8 // 5}", "/opt/fly")
    box("deploy", "--release", str(flysim_release.tar))
    pid = box.status()["pid"]
    following = another(flysim_release, tmp_path, "0.1.0-aaaaaaaaaa")
    assert "No space left on device" in box("deploy", "--release", str(following.tar), code=1)
    assert (box.status()["pid"], box.link("current"), box.receipts()) == (pid, flysim_release.version, [])
    assert box.sh("ls -A /opt/fly/releases") == flysim_release.version
    box.run("mount", "-o", "remount,size=100m", "/opt/fly")
    box("deploy", "--release", str(following.tar))
    assert box.release() == following.version


def test_a_full_disk_for_the_state_stops_a_deploy_before_it_costs_ticks(box: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    box.sh(f"mkdir -p {STATE} && mount -t tmpfs -o size=1m tmpfs {STATE}")
    box("deploy", "--release", str(flysim_release.tar))
    before = box.until(lambda seen: seen["checkpoint"]["count"] >= 2)
    box.sh(f"head -c 2m /dev/zero >{STATE}/filler", check=False)
    box.until(lambda seen: seen["checkpoint"]["failures"] >= 1)
    following = another(flysim_release, tmp_path, "0.1.0-aaaaaaaaaa")
    words = ("deploy", "--release", str(following.tar), "-e", "fly_seed=9")
    said = box(*words, code=1)
    assert "No space left" in said and STATE in said, said
    seen = box.status()
    assert (seen["pid"], seen["seed"], box.link("current"), box.receipts()) == (before["pid"], 783, flysim_release.version, [])
    box.run("rm", f"{STATE}/filler")
    tick = box.until(lambda seen: seen["checkpoint"]["last_error"] is None)["tick"]
    box(*words)
    found = box.status()
    assert (found["seed"], box.release(), found["restores"]) == (9, following.version, 1)
    assert found["tick"] > tick


def test_a_first_deploy_into_a_full_state_folder(box: FlyGuest, flysim_release: Release) -> None:
    """No room for a file of a few bytes: flysim cannot start, and nothing is left running, enabled or current."""
    box.sh(f"mkdir -p {STATE} && mount -t tmpfs -o size=4k tmpfs {STATE} && head -c 1m /dev/zero >{STATE}/filler", check=False)
    said = box("deploy", "--release", str(flysim_release.tar), code=1)
    assert re.search(r"it said: .*No space left.*\. Nothing ran here before, so nothing runs now", said), said
    nothing_runs(box)
    box.run("mount", "-o", "remount,size=10m", STATE)
    box("deploy", "--release", str(flysim_release.tar))
    assert box.status()["backend"] == "cpu"


def nothing_runs(box: FlyGuest) -> None:
    """As before the first deploy, but for the staged release."""
    for unit in ("flysim", "flypage"):
        assert box.unit(unit) in ("inactive", "failed") and box.unit(unit, "MainPID") == "0"
        assert box.unit(unit, "LoadState") == "not-found"
    assert box.sh("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants | grep fly || true") == ""
    assert box.sh("ls -A /etc/fly 2>/dev/null || true") == ""
    assert (box.link("current"), box.link("previous"), box.receipts()) == ("", "", [])


def test_a_first_deploy_of_a_broken_release_leaves_nothing_running(box: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    bad = broken(flysim_release, tmp_path)
    for _ in range(2):
        said = box("deploy", "--release", str(bad.tar), code=1)
        assert "it said: it is broken. Nothing ran here before, so nothing runs now" in said
        nothing_runs(box)
    box("deploy", "--release", str(flysim_release.tar))
    assert box.status()["backend"] == "cpu" and box.link("previous") == ""


def test_a_broken_release_goes_back_by_itself(live: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    """More often than StartLimitBurst allows; `previous` stays what it was, so that a rollback never leads to the broken one."""
    second = another(flysim_release, tmp_path, "0.1.0-9999999999")
    live("deploy", "--release", str(second.tar))
    settings = live.sh("cat /etc/fly/*.env /etc/systemd/system/fly*.service")
    for number in range(2):
        saved = live.until(lambda seen: seen["checkpoint"]["count"] >= 1)["checkpoint"]["tick"]
        bad = broken(flysim_release, tmp_path, f"0.1.0-eeeeeeeee{number}")
        said = live("deploy", "--release", str(bad.tar), "-e", "fly_seed=7", code=1)
        assert f"Release {second.version} and its settings are back" in said and "flysim runs" in said
        assert live.sh("cat /etc/fly/*.env /etc/systemd/system/fly*.service") == settings
        found = live.until(lambda seen: True)
        assert (found["seed"], live.release(), live.receipts()) == (783, second.version, [])
        assert (live.link("current"), live.link("previous")) == (second.version, flysim_release.version)
        assert found["restored_tick"] >= saved
    assert changed(live("deploy", "--release", str(second.tar)), "box") == 0
    live("rollback")
    assert live.release() == flysim_release.version


def test_two_deploys_at_once(live: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    second, third = (another(flysim_release, tmp_path, f"0.1.0-888888888{number}") for number in (2, 3))
    first = live.fly.start("deploy", "--release", str(second.tar))
    end = time.monotonic() + 30
    while f"pid {first.pid}," not in live.sh("cat /run/lock/flyops 2>/dev/null || true"):
        assert time.monotonic() < end and first.poll() is None
        time.sleep(0.05)
    waiting = live.fly.start("deploy", "--release", str(third.tar), "--wait", "120")
    said = live("deploy", "--release", str(third.tar), code=3)
    assert f"pid {first.pid}," in said and "deploy --release" in said and "--wait" in said
    assert "changed=0" in said
    assert first.wait() == 0
    assert waiting.wait() == 0, waiting.communicate()[0]
    assert (live.release(), live.link("previous")) == (third.version, second.version)


GPU_RECEIPT = """\
    - &gpu
      settings_receipt:
        dir: /var/lib/flyops/receipts
        name: gpu
        state: planned
        files:
          /etc/fly/backend.env: {content: "FLY_LIF_CUDA=1\\nRAYON_NUM_THREADS=2\\n", mode: '0644'}
          /etc/systemd/system/flysim.service.d/50-flyops-cpus.conf: {content: "[Service]\\nCPUAffinity=0\\n", mode: '0644'}
          /etc/systemd/system/flypage.service.d/50-flyops-cpus.conf: {content: "[Service]\\nCPUAffinity=0\\n", mode: '0644'}
    - settings_receipt:
        dir: /var/lib/flyops/receipts
        name: gpu
        state: applied
        files:
          /etc/fly/backend.env: {content: "FLY_LIF_CUDA=1\\nRAYON_NUM_THREADS=2\\n", mode: '0644'}
          /etc/systemd/system/flysim.service.d/50-flyops-cpus.conf: {content: "[Service]\\nCPUAffinity=0\\n", mode: '0644'}
          /etc/systemd/system/flypage.service.d/50-flyops-cpus.conf: {content: "[Service]\\nCPUAffinity=0\\n", mode: '0644'}
    - systemd_service: {daemon_reload: true}
""".replace("    - &gpu\n      settings_receipt:", "    - settings_receipt:")


def test_a_foreign_change_is_not_overwritten_without_force(live: FlyGuest) -> None:
    first = live.run("cat", "/etc/fly/backend.env")
    play(live, GPU_RECEIPT)
    live.sh("echo MALLOC_ARENA_MAX=2 >>/etc/fly/backend.env")
    foreign, pid = live.run("cat", "/etc/fly/backend.env"), live.status()["pid"]
    said = live("rollback-cpu", code=3)
    assert "/etc/fly/backend.env" in said and "someone else changed it" in said and "--force" in said
    assert (live.run("cat", "/etc/fly/backend.env"), live.status()["pid"], live.receipts()) == (foreign, pid, ["gpu.json"])
    live("rollback-cpu", "--force")
    assert (live.run("cat", "/etc/fly/backend.env"), live.receipts(), live.status()["backend"]) == (first, [], "cpu")
    assert live.run("cat", "/var/lib/flyops/receipts/gpu.foreign-1-backend.env") == foreign
    assert live.sh("ls /etc/systemd/system/*.d/50-flyops-cpus.conf 2>/dev/null || true") == ""


def test_a_lost_card_brings_the_cpu_back_without_a_controller(box: FlyGuest) -> None:
    """flysim with the CUDA feature and FLY_LIF_CUDA=1 ends with 75 in a guest without a card, as it does when a card goes."""
    box("deploy", "--release", str(build.build(cuda=True).tar))
    box.until(lambda seen: seen["checkpoint"]["count"] >= 2)
    first = box.run("cat", "/etc/fly/backend.env")
    play(box, GPU_RECEIPT)
    assert "FLY_LIF_CUDA=1" in box.run("cat", "/etc/fly/backend.env")
    before = box.status()
    box.run("systemctl", "restart", "flysim", check=False)
    found = box.until(lambda seen: seen["pid"] != before["pid"], timeout_s=60)
    log = box.run("journalctl", "--no-pager", "-o", "cat", "-u", "flysim")
    assert "status=75" in log
    assert (found["backend"], found["threads"], found["restores"], found["set_aside"]) == ("cpu", before["threads"], 1, 0)
    assert found["restored_tick"] >= before["tick"], "SIGTERM writes a checkpoint"
    assert box.run("cat", "/etc/fly/backend.env") == first and "FLY_LIF_CUDA=0" in first
    assert box.sh("ls /etc/systemd/system/*.d/50-flyops-cpus.conf 2>/dev/null || true") == ""
    assert (box.receipts(), box.sh("ls /var/lib/flyops/receipts/gpu.json.done")) == ([], "/var/lib/flyops/receipts/gpu.json.done")
    assert (box.unit("flyops-restore", "Result"), box.unit("flypage"), box.unit("flysim", "NeedDaemonReload")) == ("success", "active", "no")
    assert box.sh(f"ls {STATE}/damaged 2>/dev/null || true") == ""


def test_exit_75_without_a_receipt_is_not_hidden(box: FlyGuest) -> None:
    """The other side: nothing to put back, so the failure stands, and nothing tries again."""
    box("deploy", "--release", str(build.build(cuda=True).tar))
    box.sh("sed -i s/FLY_LIF_CUDA=0/FLY_LIF_CUDA=1/ /etc/fly/backend.env")
    box.run("systemctl", "restart", "flysim", check=False)
    time.sleep(5)
    assert (box.unit("flysim"), box.unit("flysim", "ExecMainStatus"), box.unit("flysim", "NRestarts")) == ("failed", "75", "0")
    assert box.unit("flyops-restore", "ConditionResult") == "no"
    assert "FLY_LIF_CUDA=1" in box.run("cat", "/etc/fly/backend.env")
