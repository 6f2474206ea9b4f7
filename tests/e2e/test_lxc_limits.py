# SPDX-License-Identifier: Apache-2.0
"""A guest with a disk limit and ids of its own on real LXC: the kernel enforces both, a reboot of the host keeps both, removal leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from flyops import places
from tests.beds.fakecard import overlay
from tests.beds.lxc import LXC_PATH, Guest, converge, free_name

pytestmark = [pytest.mark.lxc, pytest.mark.root]
FILL = "dd if=/dev/zero of=/var/big bs=1M count={} 2>&1; rm -f /var/big"


def loops() -> str:
    """The loop devices that hold an image of a guest of this test."""
    return "".join(
        line for line in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout.splitlines(True) if "flyt" in line
    )


def test_a_disk_limit_is_enforced_grows_and_survives_a_reboot(lxc_base: str) -> None:
    name = free_name()
    args: dict[str, Any] = {"name": name, "rootfs": lxc_base, "network": "none", "memory": "1G"}
    try:
        made = converge(**args, disk="160M")
        assert (made["failed"], made["disk"], made["systemd"]) == (False, 160 << 20, "running"), made
        guest = Guest(name, made)
        assert "No space left on device" in guest.run("sh", "-c", FILL.format(300)).stdout
        assert "No space left" not in guest.run("sh", "-c", FILL.format(60)).stdout
        assert converge(**args, disk="160M")["changed"] is False
        assert converge(**args)["changed"] is False  # what is not asked stays
        smaller = converge(**args, disk="128M")
        assert (smaller["refused"], "an image only grows" in smaller["msg"]) == (True, True)

        assert converge(name=name, state="stopped")["changed"] is True
        subprocess.run(["umount", f"{LXC_PATH}/{name}/disk"], check=True)  # what a reboot of the host does
        grown = converge(**args, disk="512M")
        assert (grown["failed"], grown["changed"], grown["disk"]) == (False, True, 512 << 20), grown
        assert "No space left" not in guest.run("sh", "-c", FILL.format(300)).stdout
        assert converge(**args, disk="512M")["changed"] is False
        guest.run("sh", "-c", "mkdir -p /var/lib/fly && echo state > /var/lib/fly/ck")
        assert converge(name=name, state="stopped")["changed"] is True
        subprocess.run(["umount", f"{LXC_PATH}/{name}/disk"], check=True)
    finally:
        with tempfile.TemporaryDirectory() as kept:
            gone = converge(name=name, state="absent", archive_state=["/var/lib/fly", "/var/lib/none"], archive_to=f"{kept}/s.tar.gz")
            with tarfile.open(f"{kept}/s.tar.gz") as tar:
                member = tar.extractfile("var/lib/fly/ck")
                assert member and member.read() == b"state\n"
    assert (gone["failed"], Path(LXC_PATH, name).exists(), loops()) == (False, False, "")


def test_a_guest_without_a_limit_does_not_get_one_later(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make(state="present")
    refused = converge(name=guest.name, rootfs=lxc_base, network="none", memory="1G", disk="1G", state="present")
    assert "was made without a limit" in refused["msg"]
    assert refused["refused"] is True
    mapped = converge(name=guest.name, rootfs=lxc_base, network="none", memory="1G", idmap="auto", state="present")
    assert "files belong to the host’s own ids" in mapped["msg"]


def mapped(base: str, name: str) -> dict[str, Any]:
    """Runs where /etc is a scratch layer: what was seen of an unprivileged guest."""
    args: dict[str, Any] = {"name": name, "rootfs": base, "network": "none", "memory": "1G", "idmap": "auto", "disk": "256M"}
    seen: dict[str, Any] = {"made": converge(**args), "subuid": Path("/etc/subuid").read_text()}
    guest = Guest(name, seen["made"])
    try:
        for what, command in {
            "map": "cat /proc/self/uid_map",
            "root": "id -u; stat -c %u / /etc/hostname",
            "sudo": "stat -c '%u %a' /usr/bin/sudo",
            "write": "mkdir -p /var/lib/fly && echo x > /var/lib/fly/ck && chown 77:78 /var/lib/fly/ck && stat -c %u /var/lib/fly/ck",
            "mknod": "mknod /opt/x b 7 0 2>&1; true",
            "systemd": "systemctl is-system-running",
        }.items():
            seen[what] = guest.run("sh", "-c", command, check=False).stdout.split("\n")
        stat = os.stat(f"{LXC_PATH}/{name}/disk/up/var/lib/fly/ck")
        seen["outside"] = [stat.st_uid, stat.st_gid]
        seen["again"] = converge(**args)
        seen["kept"] = converge(**{**args, "idmap": "", "disk": ""})
        seen["none"] = converge(**{**args, "idmap": "none"})
    finally:
        archive = f"{tempfile.gettempdir()}/{name}.tar.gz"
        seen["gone"] = converge(name=name, state="absent", archive_state=["/var/lib/fly"], archive_to=archive)
        with tarfile.open(archive) as tar:
            member = tar.getmember("var/lib/fly/ck")
            seen["archived"] = [member.uid, member.gid]
        os.unlink(archive)
    return {**seen, "left": Path("/etc/subuid").read_text(), "bases": os.path.exists(f"{LXC_PATH}/.flyops-bases")}


def test_an_unprivileged_guest_boots_has_ids_of_its_own_and_leaves_nothing(lxc_base: str) -> None:
    name = free_name()
    argv = ["unshare", "-m", "--propagation", "private", sys.executable, "-m", "tests.e2e.test_lxc_limits", lxc_base, name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=places.REPOSITORY)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["made"]["failed"], seen["made"]["idmap"]) == (False, "165536:65536"), seen["made"]  # 100000 is a user's, in this scratch /etc
    assert seen["subuid"] == "ann:100000:65536\nroot:165536:65536\n"
    assert seen["map"][0].split() == ["0", "165536", "65536"]
    assert seen["root"][:3] == ["0", "0", "0"]
    assert seen["sudo"][0] == "0 4755"
    assert (seen["write"][0], seen["outside"], seen["archived"]) == ("77", [165536 + 77, 165536 + 78], [77, 78])
    assert "Operation not permitted" in seen["mknod"][0]
    assert seen["systemd"][0] == "running"
    assert (seen["again"]["changed"], seen["kept"]["changed"]) == (False, False), (seen["again"], seen["kept"])
    assert "files belong to 165536:65536" in seen["none"]["msg"]
    assert seen["gone"]["failed"] is False, seen["gone"]
    assert (seen["left"], seen["bases"], Path(LXC_PATH, name).exists()) == ("ann:100000:65536\n", False, False)


if __name__ == "__main__":
    scratch = Path("/mnt")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(scratch)], check=True)
    overlay("/etc", scratch)
    for file in ("/etc/subuid", "/etc/subgid"):
        Path(file).write_text("ann:100000:65536\n")
    print(json.dumps(mapped(sys.argv[1], sys.argv[2])))
