# SPDX-License-Identifier: Apache-2.0
"""The container module on real guests: made, unchanged the second time, limited, restarted only when needed, removed without a trace."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beds.lxc import LXC_PATH, Guest, converge, free_name

pytestmark = [pytest.mark.lxc, pytest.mark.root]
BRIDGE = "flybrt0"  # not the default one: a guest of the machine's owner may hang on it
SUBNET = {"bridge": BRIDGE, "bridge_address": "10.118.0.1/24"}


def links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    """Each test leaves the host's interfaces as they were."""
    before = links()
    yield
    assert links() == before


def asked(guest: Guest, base: str, **more: Any) -> dict[str, Any]:
    return {"name": guest.name, "rootfs": base, "network": "none", "memory": "1G", **more}


@pytest.fixture
def foreign() -> Iterator[Path]:
    """A container that flyops did not make."""
    folder = Path(LXC_PATH, free_name())
    folder.mkdir(parents=True)
    (folder / "config").write_text("lxc.uts.name = theirs\nlxc.net.0.type = veth\nlxc.net.0.ipv4.address = 10.118.0.2/24\n")
    yield folder
    shutil.rmtree(folder)


def whole(folder: Path) -> dict[str, tuple[int, str]]:
    return {str(p): (p.lstat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_guest_boots_systemd_and_the_second_run_changes_nothing(lxc_guest: Guest, lxc_base: str) -> None:
    assert lxc_guest.made["changed"] is True
    assert lxc_guest.run("systemctl", "is-system-running").stdout.strip() == "running"
    assert lxc_guest.run("hostname").stdout.strip() == lxc_guest.name
    assert lxc_guest.run("cat", "/etc/hostname").stdout.strip() == lxc_guest.name
    before = (lxc_guest.pid(), whole(lxc_guest.folder / "up/etc"), lxc_guest.config)
    again = converge(**asked(lxc_guest, lxc_base))
    assert (again["changed"], again["failed"]) == (False, False)
    assert (lxc_guest.pid(), whole(lxc_guest.folder / "up/etc"), lxc_guest.config) == before


def test_nothing_of_the_controllers_environment_is_in_the_guest(lxc_make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLY_SECRET", "leak-9e1")
    guest = lxc_make()
    assert b"leak-9e1" not in Path(f"/proc/{guest.pid()}/environ").read_bytes()


def test_limits_are_what_the_kernel_enforces(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make(cpus="1", memory="512M")
    assert guest.made["cpus"] == "1"
    assert guest.made["memory"] == 512 << 20
    assert "Cpus_allowed_list:\t1\n" in guest.run("cat", "/proc/self/status").stdout
    eater = "x = bytearray(700 << 20); print('had it all')"
    assert "had it all" not in guest.run("python3", "-c", eater, check=False).stdout
    assert "had it all" in guest.run("python3", "-c", eater.replace("700", "200")).stdout


def test_limits_change_without_a_restart(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make(cpus="1", memory="512M")
    pid = guest.pid()
    changed = converge(**asked(guest, lxc_base, cpus="0-1", memory="768M"))
    assert (changed["changed"], changed["restarted"], changed["cpus"], changed["memory"]) == (True, False, "0-1", 768 << 20)
    assert guest.pid() == pid
    assert converge(**asked(guest, lxc_base, cpus="0-1", memory="768M"))["changed"] is False
    with_node = converge(**asked(guest, lxc_base, cpus="1", mems="0", memory="768M"))
    assert (with_node["changed"], with_node["cpus"], with_node["mems"]) == (True, "1", "0")
    assert "cpuset.mems = 0" in guest.config
    free = converge(**asked(guest, lxc_base, memory="768M"))  # limits taken away take their lines away, and the guest has it all again
    assert (free["changed"], free["restarted"], free["cpus"]) == (True, False, f"0-{(os.cpu_count() or 1) - 1}")
    assert "cpuset" not in guest.config
    assert converge(**asked(guest, lxc_base, memory="768M"))["changed"] is False
    assert guest.pid() == pid


def test_a_limit_that_someone_moved_is_put_back(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make(cpus="1")
    subprocess.run(["lxc-cgroup", "-n", guest.name, "cpuset.cpus", "0"], check=True)
    back = converge(**asked(guest, lxc_base, cpus="1"))
    assert (back["changed"], back["cpus"]) == (True, "1")
    assert converge(**asked(guest, lxc_base, cpus="1"))["changed"] is False


def test_a_cpu_that_this_host_lacks_is_refused_and_nothing_is_made(lxc_base: str) -> None:
    name = free_name()
    beyond = os.cpu_count() or 1
    refused = converge(name=name, rootfs=lxc_base, network="none", cpus=f"0,{beyond}")
    assert refused["refused"] is True
    assert f"cpus {beyond} are not among this host's" in refused["msg"]
    assert not Path(LXC_PATH, name).exists()


def test_a_network_change_restarts_our_guest_and_only_then(lxc_make: Any, lxc_base: str) -> None:
    guest, other = lxc_make(), lxc_make()
    pid, other_pid = guest.pid(), other.pid()
    args = asked(guest, lxc_base, network="bridge", **SUBNET)
    moved = converge(**args)
    assert (moved["changed"], moved["restarted"], moved["address"]) == (True, True, "10.118.0.2")
    assert guest.pid() not in {"", pid}
    assert other.pid() == other_pid
    assert converge(**args)["changed"] is False
    assert converge(**{**args, "autostart": True})["restarted"] is False
    back = converge(**{**asked(guest, lxc_base), "state": "present"})
    assert (back["changed"], back["restarted"], bool(guest.pid()), BRIDGE in links()) == (True, True, True, False)


def test_a_restart_that_was_cut_off_is_finished_by_the_next_run(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make()
    pid = guest.pid()
    # What a run leaves that was killed between writing the config and the restart: new lines, the old digest.
    marker = guest.folder / "flyops.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "started": "of another config"}))
    finished = converge(**asked(guest, lxc_base))
    assert (finished["changed"], finished["restarted"]) == (True, True)
    assert guest.pid() != pid
    assert converge(**asked(guest, lxc_base))["changed"] is False


def test_guests_on_the_bridge_reach_the_host_and_nothing_remains(lxc_base: str) -> None:
    before, names = links(), [free_name(), free_name()]
    try:
        first, second = (converge(name=name, rootfs=lxc_base, memory="1G", **SUBNET) for name in names)
        assert (first["address"], second["address"]) == ("10.118.0.2", "10.118.0.3")
        probe = f"import socket; socket.create_connection(('{first['address']}', 7), 2)"
        refused = Guest(names[1], second).run("python3", "-c", probe, check=False).stderr
        assert "Connection refused" in refused  # an answer: the packet came and went; silence would be a timeout
        assert converge(name=names[0], state="absent", bridge=BRIDGE)["failed"] is False
        assert BRIDGE in links()
    finally:
        for name in names:
            converge(name=name, state="absent", bridge=BRIDGE)
    assert links() == before
    assert not any(Path(LXC_PATH, name).exists() for name in names)
    assert converge(name=names[0], state="absent", bridge=BRIDGE)["changed"] is False


def test_a_guest_without_a_network_has_only_a_loopback_of_its_own(lxc_guest: Guest) -> None:
    interfaces = lxc_guest.run("ip", "-br", "link").stdout.split("\n")
    assert [line.split()[0] for line in interfaces if line] == ["lo"]
    assert os.readlink(f"/proc/{lxc_guest.pid()}/ns/net") != os.readlink("/proc/self/ns/net")


def test_a_foreign_container_is_left_alone(foreign: Path, lxc_base: str, lxc_make: Any) -> None:
    before = whole(foreign)
    for state in ("started", "absent"):
        refused = converge(name=foreign.name, rootfs=lxc_base, state=state, network="none")
        assert refused["refused"] is True
        assert "was not made by flyops" in refused["msg"]
    ours = lxc_make(network="bridge", **SUBNET)
    assert ours.made["address"] == "10.118.0.3"  # .2 is the foreign one's
    clash = converge(name=free_name(), rootfs=lxc_base, address="10.118.0.2/24", **SUBNET)
    assert clash["refused"] is True
    assert f"belongs to container {foreign.name!r}" in clash["msg"]
    assert whole(foreign) == before


def test_a_bridge_that_is_not_ours_is_used_and_never_removed(lxc_base: str) -> None:
    name = free_name()
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    try:
        bare = converge(name=name, rootfs=lxc_base, **SUBNET)
        assert bare["refused"] is True
        assert "without an IPv4 address" in bare["msg"]
        subprocess.run(["ip", "addr", "add", "10.118.0.1/24", "dev", BRIDGE], check=True)
        unknown = converge(name=name, rootfs=lxc_base, **SUBNET)
        assert "is not ours, so a free address cannot be known" in unknown["msg"]
        assert converge(name=name, rootfs=lxc_base, address="10.118.0.7/24", memory="1G", **SUBNET)["address"] == "10.118.0.7"
        converge(name=name, state="absent", bridge=BRIDGE)
        assert BRIDGE in links()
        assert not Path(LXC_PATH, name).exists()
    finally:
        subprocess.run(["ip", "link", "del", BRIDGE], check=True)


def test_a_network_that_the_host_uses_is_refused(lxc_base: str) -> None:
    name, before = free_name(), links()
    refused = converge(name=name, rootfs=lxc_base, bridge=BRIDGE, bridge_address="127.1.0.1/16")
    assert refused.get("refused") is True
    assert "lo 127.0.0.1/8" in refused["msg"]
    assert links() == before


def test_removal_archives_the_state_first_and_leaves_nothing_else(lxc_base: str, tmp_path: Path) -> None:
    name, archive = free_name(), tmp_path / "kept" / "state.tar.gz"
    guest = Guest(name, converge(name=name, rootfs=lxc_base, network="none", memory="1G"))
    guest.run("sh", "-c", "mkdir -p '/var/lib/fly/a b' && head -c 3000000 /dev/urandom > '/var/lib/fly/a b/ck' && chown 77:78 '/var/lib/fly/a b/ck'")
    digest = guest.run("sha256sum", "/var/lib/fly/a b/ck").stdout.split()[0]
    args = {"name": name, "state": "absent", "archive_state": ["/var/lib/fly", "/var/lib/none"], "archive_to": str(archive)}
    predicted = converge(check=True, **args)
    assert predicted["changed"] is True
    assert guest.pid()
    gone = converge(**args)
    assert gone["archive"]["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        member = tar.getmember("var/lib/fly/a b/ck")
        assert (member.uid, member.gid) == (77, 78)
        assert hashlib.sha256(tar.extractfile(member).read()).hexdigest() == digest
    assert archive.stat().st_mode & 0o777 == 0o600
    assert os.listdir(archive.parent) == ["state.tar.gz"]
    assert not Path(LXC_PATH, name).exists()
    again = converge(**args)
    assert (again["changed"], again["archive"]) == (False, None)
    assert archive.exists()


def test_nothing_is_removed_when_the_archive_cannot_be_written(lxc_make: Any, tmp_path: Path) -> None:
    guest = lxc_make()
    guest.run("sh", "-c", "mkdir -p /var/lib/fly && echo state > /var/lib/fly/ck")
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(full)], check=True)
    try:
        (full / "filler").write_bytes(b"x" * 4096)
        failed = converge(name=guest.name, state="absent", archive_state=["/var/lib/fly"], archive_to=str(full / "s.tar.gz"))
        assert failed["failed"] is True
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert (guest.folder / "up/var/lib/fly/ck").read_text() == "state\n"


def test_check_mode_makes_nothing(lxc_base: str) -> None:
    name, before = free_name(), links()
    would = converge(check=True, name=name, rootfs=lxc_base, **SUBNET)
    assert (would["changed"], would["failed"], would["address"]) == (True, False, "10.118.0.2")
    assert any("lxc.net.0.link = flybrt0" in piece["after"] for piece in would["diff"])
    assert not Path(LXC_PATH, name).exists()
    assert links() == before


def test_no_card_here_is_refused_by_name(lxc_base: str) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a card")
    name = free_name()
    refused = converge(name=name, rootfs=lxc_base, network="none", gpu=True)
    assert refused["refused"] is True
    assert "missing nvidia0 (or another card), nvidiactl, nvidia-uvm" in refused["msg"]
    assert not Path(LXC_PATH, name).exists()


def test_a_start_that_fails_says_what_lxc_said(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make(state="present")
    assert guest.pid() == ""
    config = guest.folder / "config"
    config.write_text(config.read_text() + "lxc.mount.entry = /nowhere-at-all nowhere none bind 0 0\n")
    failed = converge(**asked(guest, lxc_base))
    assert failed["failed"] is True
    assert "did not start" in failed["msg"]
    assert "/nowhere-at-all" in failed["msg"]
    assert "/nowhere-at-all" in config.read_text()  # a line that is not ours stays
    config.write_text("".join(line for line in config.read_text().splitlines(keepends=True) if "/nowhere" not in line))
    assert converge(**asked(guest, lxc_base))["failed"] is False
    assert guest.pid()


def test_stopped_and_started_again(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make()
    assert converge(name=guest.name, state="stopped")["changed"] is True
    assert guest.pid() == ""
    assert converge(name=guest.name, state="stopped")["changed"] is False
    assert converge(**asked(guest, lxc_base))["changed"] is True
    assert guest.run("systemctl", "is-system-running").stdout.strip() == "running"
