# SPDX-License-Identifier: Apache-2.0
"""`./fly deploy` to a real sshd in a real guest with systemd: as root, as a user who becomes root, and what a wrong host key stops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.beds import digest, sshguest
from tests.beds.fly import Fly, changed
from tests.beds.lxc import Guest, converge, free_name
from tests.beds.ssh import make_key
from tests.beds.sshguest import SshGuest

pytestmark = [pytest.mark.lxc, pytest.mark.root]
LOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - uri: {url: 'http://127.0.0.1:8700/status'}
      register: seen
    - debug: {msg: "tick={{ seen.json.tick }} spikes={{ seen.json.spikes }} neurons={{ seen.json.neurons }} backend={{ seen.json.backend }}"}
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, lxc_base: str) -> Iterator[SshGuest]:
    """One guest for all tests of this file; the first that deploys finds it bare."""
    name = free_name()
    made = converge(name=name, rootfs=lxc_base, network="bridge", memory="1G", **sshguest.BRIDGE)
    try:
        assert not made["failed"], made["msg"]
        yield sshguest.start(Guest(name, made), tmp_path_factory.mktemp("ssh"))
    finally:
        gone = converge(name=name, state="absent", stop_wait=20, bridge=sshguest.BRIDGE["bridge"])
        assert not gone["failed"], gone["msg"]


@pytest.fixture
def fly(box: SshGuest, tmp_path: Path) -> Fly:
    """flyops with the guest's inventory file, and nothing else, as a person would write it."""
    return Fly(tmp_path, port=8700, page_port=8701, extra=("--inventory", str(box.inventory()), "--limit", "box"))


def words(fly: Fly, inventory: Path) -> Fly:
    """The same command line with another inventory."""
    return replace(fly, extra=("--inventory", str(inventory), "--limit", "box"))


def whole(box: SshGuest) -> dict[str, object]:
    """Everything in the guest but what sshd and logins touch by themselves."""
    found = digest.digest(box.guest.name, ("/var/lib/fly", "/home/ops/.cache"))
    return {key: value for key, value in found.items() if not re.match(r"unit: (session|user|run-user|getty|sysstat|systemd-tmpfiles|apt|dpkg)", key)}


def logins(box: SshGuest) -> int:
    """How often sshd let someone in."""
    return box.guest.run("journalctl", "-u", "ssh", "--no-pager", "-o", "cat").stdout.count("Accepted publickey")


def test_a_bad_host_key_stops_it_before_anything(fly: Fly, box: SshGuest) -> None:
    """On the bare guest: neither an unknown nor a changed key lets a single command through."""
    before = whole(box)
    assert logins(box) == 0
    empty = box.folder / "empty"
    empty.write_text("")
    said = words(fly, box.inventory("unknown.yml", ansible_ssh_known_hosts_file=str(empty)))("deploy", code=4)
    for part in (f"the host key of root@{box.address}:22 is unknown", str(empty), "SHA256:", f"ssh-keyscan -p 22 {box.address} >> {empty}"):
        assert part in said, said
    make_key(box.folder / "other")
    wrong = box.know(box.folder / "other.pub", "wrong_hosts")
    said = words(fly, box.inventory("changed.yml", ansible_ssh_known_hosts_file=str(wrong)))("deploy", code=4)
    for part in (f"the host key of root@{box.address}:22 has CHANGED", str(wrong), f"ssh-keygen -f {wrong} -R {box.address}"):
        assert part in said, said
    assert logins(box) == 0
    assert digest.differences(before, whole(box)) == []
    assert box.guest.run("test", "-e", "/opt/fly", check=False).returncode != 0


def test_deploy_and_everything_after_it(fly: Fly, box: SshGuest, tmp_path: Path) -> None:
    said = fly("deploy")
    assert re.search(r"^box: cpu backend, .*668 neurons", said, re.MULTILINE) and changed(said, "box") > 5
    assert logins(box) > 0
    look = tmp_path / "look.yml"
    look.write_text(LOOK)
    ticks = []
    for _ in range(2):
        seen = fly("play", str(look), "--inventory", str(box.inventory()))
        found = re.search(r"tick=(\d+) spikes=(\d+) neurons=668 backend=cpu", seen)
        assert found, seen
        ticks.append((int(found[1]), int(found[2])))
    assert ticks[1] > ticks[0] > (0, 0) and ticks[1][1] > ticks[0][1]
    row = json.loads(fly("status", "--json"))
    assert (row["host"], row["backend"], row["neurons"]) == ("box", "cpu", 668)
    assert box.guest.run("systemctl", "show", "-p", "MainPID", "--value", "flysim").stdout.strip() == str(row["pid"])
    assert changed(fly("deploy"), "box") == 0
    assert json.loads(fly("status", "--json"))["pid"] == row["pid"]
    verified = fly("verify", "-e", "check_window_s=5")
    assert "The service is well" in verified and "FAILED" not in verified and changed(verified, "box") == 0
    assert "cpu backend attached" in fly("logs")


def test_stop_and_start(fly: Fly, box: SshGuest) -> None:
    fly("deploy")
    pid = json.loads(fly("status", "--json"))["pid"]
    assert changed(fly("stop"), "box") == 2
    assert json.loads(fly("status", "--json"))["backend"] is None
    assert box.guest.run("systemctl", "is-active", "flysim", check=False).stdout.strip() == "inactive"
    assert changed(fly("stop"), "box") == 0
    assert changed(fly("start"), "box") == 2
    row = json.loads(fly("status", "--json"))
    assert row["backend"] == "cpu" and row["pid"] != pid
    assert "restored" in fly("logs")


def test_a_user_who_becomes_root(fly: Fly, box: SshGuest) -> None:
    """The same target by another way in: nothing differs, so nothing changes; then a setting is changed that way."""
    fly("deploy")
    ops = words(fly, box.inventory("ops.yml", ansible_user="ops", ansible_become=True))
    assert changed(ops("deploy"), "box") == 0
    assert changed(ops("deploy", "-e", "fly_seed=7"), "box") > 0
    assert "FLY_SEED=7" in box.guest.run("cat", "/etc/fly/flysim.env").stdout
    assert box.guest.run("stat", "-c", "%U", "/etc/fly/flysim.env").stdout.strip() == "root"
    assert json.loads(ops("status", "--json"))["backend"] == "cpu"
    assert changed(ops("deploy", "-e", "fly_seed=7"), "box") == 0


def test_a_user_who_does_not_become_root_is_told(fly: Fly, box: SshGuest) -> None:
    fly("deploy")
    before = whole(box)
    plain = words(fly, box.inventory("plain.yml", ansible_user="ops"))
    said = plain("deploy", "-e", "fly_seed=8", code=1)
    assert "Permission denied" in said or "not permitted" in said, said
    assert digest.differences(before, whole(box)) == []


def test_no_agent_stays(fly: Fly, box: SshGuest) -> None:
    fly("status")
    assert box.guest.run("sh", "-c", "ps -eo args | grep -c '[F]LYOPS' || true").stdout.strip() == "0"
