# SPDX-License-Identifier: Apache-2.0
"""The incus_guest module and the incus connection with a real daemon (LXD 5 of Debian; the client's name is a parameter).

No card can be here, so the declaration's device side is proven with a harmless node (/dev/null under another name), and what the daemon and
its NVIDIA hook say about a card that is missing is real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops import places
from flyops.domain import cpuset, incushost
from flyops.errors import UsageError
from flyops.loading.inventory import Inventory
from flyops.operations import guests, incus, pve
from flyops.operations.options import ProvisionOptions, RetireOptions
from tests.beds.lxd import Lxd
from tests.beds.play import LOCAL, Played, inventory, tasks

pytestmark = [pytest.mark.lxc, pytest.mark.root]
LONG = pytest.mark.skipif(not os.environ.get("FLY_TEST_LONG"), reason="no case of its own, and long: FLY_TEST_LONG=1 runs it")
NULL = {"null0": {"type": "unix-char", "source": "/dev/null", "path": "/dev/fly/null", "mode": "0666"}}
HOST_CPUS = sorted(os.sched_getaffinity(0))
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def guest(lxd: Lxd) -> str:
    """A running instance with nothing but its name."""
    made = lxd.converge(name="dev1")
    assert not made["failed"], made["msg"]
    return "dev1"


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that says it has one card; its daemon knows of none."""
    (tmp_path / "0000:0f:00.0").mkdir()
    (tmp_path / "0000:0f:00.0/information").write_text(f"GPU UUID: \t {UUID}\nDevice Minor: \t 0\n")
    monkeypatch.setattr(incushost, "GPUS", str(tmp_path))


def inside(lxd: Lxd, *argv: str) -> str:
    return lxd("exec", "dev1", "-T", "--", *argv)


def until(true: Callable[[], bool], limit_s: float = 60) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.3)
    return True


def test_limits_and_devices_come_go_and_leave_it_as_before(lxd: Lxd, guest: str) -> None:
    before, one = lxd.shape(guest), HOST_CPUS[0]
    pid = lxd.get(f"/1.0/instances/{guest}/state")["pid"]
    asked = {"name": guest, "cpus": str(one), "memory": "600M", "devices": NULL}
    told = lxd.converge(check=True, **asked)
    assert told["changed"]
    assert lxd.shape(guest) == before
    made = lxd.converge(**asked)
    assert not made["failed"], made["msg"]
    assert (made["changed"], made["cpus"], made["memory"], made["restarted"]) == (True, str(one), 600 << 20, False), made
    assert cpuset.allowed_list(inside(lxd, "cat", "/proc/self/status")) == (one,)
    assert inside(lxd, "stat", "-c", "%F %t:%T %a", "/dev/fly/null") == "character special file 1:3 666"
    assert [d["header"] for d in told["diff"]] == [d["header"] for d in made["diff"]] == [f"instance {guest}"]
    assert not lxd.converge(**asked)["changed"]
    gone = lxd.converge(name=guest)
    assert gone["changed"], gone
    assert lxd.shape(guest) == before
    assert cpuset.allowed_list(inside(lxd, "cat", "/proc/self/status")) == tuple(HOST_CPUS)
    assert lxd.get(f"/1.0/instances/{guest}/state")["pid"] == pid
    assert "No such file" in lxd("exec", guest, "-T", "--", "ls", "/dev/fly/null", check=False)
    assert not lxd.converge(name=guest)["changed"]


def test_case_60_the_daemon_drops_cpus_without_a_word_and_we_refuse_them(lxd: Lxd, guest: str) -> None:
    listed = f"{HOST_CPUS[0]},4000"
    before = lxd.shape(guest)
    refused = lxd.converge(name=guest, cpus=listed)
    assert refused["refused"]
    assert "4000 is offline or not there; the daemon would drop them without a word" in refused["msg"]
    assert lxd.shape(guest) == before
    for same in (listed, f"0{listed}"):  # twice: it may place cpus before it has stored them (see _place_again)
        lxd("config", "set", guest, f"limits.cpu={same}")
    assert until(lambda: cpuset.allowed_list(inside(lxd, "cat", "/proc/self/status")) == (HOST_CPUS[0],))
    lxd("config", "unset", guest, "limits.cpu")


def test_case_64_a_count_is_chosen_once_and_kept(lxd: Lxd, guest: str) -> None:
    first = lxd.converge(name=guest, cpu_count=1)
    assert first["changed"], first
    assert len(cpuset.parse(first["cpus"])) == 1
    limit = lxd.shape(guest)["config"]["limits.cpu"]
    assert limit == f"{first['cpus']}-{first['cpus']}"
    assert not lxd.converge(name=guest, cpu_count=1)["changed"]
    assert lxd.converge(name=guest, cpu_count=4001)["refused"]
    lxd.converge(name=guest)


@LONG
def test_a_key_that_takes_force_only_at_a_start_restarts_once(lxd: Lxd, guest: str) -> None:
    before = lxd.shape(guest)
    made = lxd.converge(name=guest, mems="0")
    assert (made["changed"], made["restarted"]) == (True, True), made
    pid = lxd.get(f"/1.0/instances/{guest}/state")["pid"]
    seen = Path(f"/proc/{pid}/status").read_text()
    assert "Mems_allowed_list:\t0\n" in seen
    assert not lxd.converge(name=guest, mems="0")["changed"]
    stopped = lxd.converge(name=guest, state="stopped")
    assert (stopped["changed"], stopped["running"]) == (True, False)
    assert lxd.shape(guest) == before
    assert not lxd.converge(name=guest, state="stopped")["changed"]
    assert lxd.converge(name=guest)["running"]


@LONG
def test_a_root_disk_of_a_size(lxd: Lxd, guest: str) -> None:
    made = lxd.converge(name=guest, disk="400M")
    if lxd.pool == "dir":
        assert "keeps no size" in made["msg"]
        return
    assert made["changed"], made
    full = lxd("exec", guest, "-T", "--", "sh", "-c", "head -c 450000000 /dev/zero > /root/big; sync; rm /root/big", check=False)
    assert "Disk quota exceeded" in full or "No space left" in full
    assert not lxd.converge(name=guest, disk="400M")["changed"]
    lxd.converge(name=guest)


def test_an_instance_of_somebody_else_is_left_alone(lxd: Lxd) -> None:
    lxd("init", "fly", "theirs")
    before = lxd.shape("theirs")
    for state in ("started", "stopped", "absent"):
        refused = lxd.converge(name="theirs", state=state)
        assert refused["refused"]
        assert "not made by flyops" in refused["msg"]
    assert lxd.shape("theirs") == before
    lxd("delete", "theirs")


def test_case_38_a_card_by_the_runtime_without_its_tools_is_refused_before_anything(lxd: Lxd, guest: str, card: None) -> None:
    before = lxd.shape(guest)
    refused = lxd.converge(name=guest, gpu=[UUID])
    assert refused["refused"]
    assert "the tools of nvidia.runtime are missing on this host: nvidia-container-cli" in refused["msg"]
    assert lxd.shape(guest) == before


def test_a_card_that_the_daemon_does_not_find(lxd: Lxd, guest: str, card: None) -> None:
    before = lxd.shape(guest)
    failed = lxd.converge(name=guest, gpu=[UUID], runtime=False)
    assert failed["failed"]
    assert "no device found" in failed["msg"]
    assert lxd.shape(guest) == before


def test_case_35_a_privileged_instance_with_the_runtime_is_refused_at_plan_time(lxd: Lxd, guest: str, card: None) -> None:
    lxd("profile", "create", "open")
    lxd("profile", "set", "open", "security.privileged=true")
    before = lxd.shape(guest)
    refused = lxd.converge(name=guest, gpu=True, profiles=["default", "open"])
    assert refused["refused"]
    assert "unprivileged instances only" in refused["msg"]
    assert lxd.shape(guest) == before
    lxd("profile", "delete", "open")


def test_case_36_the_words_that_a_failed_hook_lost(lxd: Lxd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's NVIDIA hook runs a tool that fails as an old one does with a new driver; the daemon only says that starting failed."""
    tool = lxd.tools / "nvidia-container-cli"
    line = "E1201 01:02:03.456789 77 driver.c:405] could not start driver service: load library failed: libnvidia-ml.so.1"
    tool.write_text(f"#!/bin/sh\necho 'I1201 01:02:03.4 77 nvc.c:376] initializing' >&2\necho '{line}' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{lxd.tools}:{os.environ['PATH']}")
    lxd("profile", "create", "runtime")
    lxd("profile", "set", "runtime", "nvidia.runtime=true")
    failed = lxd.converge(name="hooked", profiles=["default", "runtime"])
    assert failed["failed"], failed
    assert f"nvidia-container-cli says: {line}" in failed["msg"]
    assert "Failed to run mount hooks" in failed["msg"] or "Script exited with status 1" in failed["msg"]
    tool.unlink()
    assert lxd.converge(name="hooked", state="absent")["changed"]
    assert not lxd.converge(name="hooked", state="absent")["changed"]
    lxd("profile", "delete", "runtime")


def play(folder: Path, text: str, name: str = "dev1", **options: Any) -> Played:
    here = {"ansible_connection": "incus", "ansible_incus_binary": "lxc", "ansible_incus_name": name}
    return tasks(folder, text, hosts=inventory({"guest": here, "h1": LOCAL}), **options)


def test_an_agent_in_an_instance(lxd: Lxd, guest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CONTROLLER", "x")
    text = """
- shell: id -un; env; head -c 3000000 /dev/zero | wc -c
  register: seen
- command: id -un
  become: true
  become_user: nobody
  register: who
- shell: head -c 3000000 /dev/zero | tr '\\0' a
  register: big
"""
    found = play(tmp_path, text, limit="guest")
    assert found.result.exit_code == 0, [event.result for event in found.seen.of("result")]
    seen = found.vars("guest")
    assert seen["seen"]["stdout"].splitlines()[0] == "root"
    assert "SECRET_OF_THE_CONTROLLER" not in seen["seen"]["stdout"]
    assert seen["who"]["stdout"] == "nobody"
    assert len(seen["big"]["stdout"]) == 3_000_000
    lost = play(tmp_path, "- command: 'true'\n", name="absent")
    assert lost.result.exit_code == 4
    assert (lost.stats("guest"), lost.stats("h1")) == ({"unreachable": 1}, {"ok": 1, "changed": 1})


def test_a_controller_that_is_killed_leaves_nothing_in_the_instance(lxd: Lxd, guest: str) -> None:
    code = (
        "from flyops.transport.connect import Pool\nfrom flyops.model.target import Target\nfrom flyops.transport.session import Sent\n"
        "target = Target('g', 'incus', guest='dev1', incus_binary='lxc')\n"
        "list(Pool().session(target).request([Sent('shell', {'cmd': 'touch /root/running; sleep 4243'}, 1)], print))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])

    def sleeps() -> bool:
        return "sleep 4243" in lxd("exec", "dev1", "-T", "--", "sh", "-c", "ps -eo args | grep '^[s]leep'", check=False)

    assert until(sleeps)
    process.kill()
    process.wait()
    assert until(lambda: not sleeps())


class Shelf:
    """An inventory of the test's own with the repository's variables; provision writes into it."""

    def __init__(self, hosts: Path) -> None:
        self.hosts = hosts

    def load(self) -> Inventory:
        made = Inventory()
        made.under(str(places.REPOSITORY / "inventory"))
        made.add_host("box1", [], {"ansible_connection": "local", "incus_binary": "lxc", "incus_image": "fly"})
        for path in sorted(self.hosts.glob("*.yml")):
            found = yaml.safe_load(path.read_text())["containers"]["hosts"]
            for name in found:
                made.add_host(name, ["containers"], found[name])
        return made

    def provision(self, **words: Any) -> int:
        options = ProvisionOptions(**{"name": "dev3", "manager": "incus", "on": "box1", **words})
        inventory = self.load()
        assert not pve.wanted(options, inventory)
        assert incus.wanted(options, inventory)
        return incus.provision(options, inventory, False)


def test_provision_and_retire(lxd: Lxd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(guests, "INVENTORY", tmp_path)
    shelf = Shelf(tmp_path / "hosts.d")
    assert shelf.provision(plan=True, cpus=str(HOST_CPUS[0])) == 0
    assert not shelf.hosts.exists()
    assert "this is a plan" in capsys.readouterr().out
    assert shelf.provision(cpus=str(HOST_CPUS[0]), memory="500M") == 0
    assert f"dev3: on box1, cpus {HOST_CPUS[0]}, memory 500M" in capsys.readouterr().out
    assert shelf.load().variables_of("dev3")["ansible_incus_binary"] == "lxc"
    assert shelf.provision(manager="") == 0
    assert "changed=0" in capsys.readouterr().out
    with pytest.raises(UsageError, match="is a guest of incus"):
        pve.wanted(ProvisionOptions(name="dev3", manager="pve"), shelf.load())
    with pytest.raises(UsageError, match="--rootfs, --id mean nothing"):
        shelf.provision(rootfs="x", id="101")
    found = tasks(tmp_path, "- command: hostname\n  register: who\n", hosts=shelf.load(), limit="dev3")
    assert found.vars("dev3")["who"]["stdout"] == "dev3"
    # Its end: a stopped one is started so that its own tar can read the state, which is written whole before anything goes.
    lxd("exec", "dev3", "-T", "--", "sh", "-c", "mkdir -p /var/lib/fly && echo kept > '/var/lib/fly/a b'")
    unit = "[Service]\nExecStart=/bin/sleep infinity\nExecStop=/bin/sh -c 'echo last > /var/lib/fly/last'\n[Install]\nWantedBy=multi-user.target\n"
    lxd("exec", "dev3", "-T", "--", "sh", "-c", f'echo "{unit}" > /etc/systemd/system/flysim.service; systemctl enable --now flysim')
    lxd("stop", "--force", "dev3")
    known, kept = guests.variables(shelf.load(), "dev3"), tmp_path / "kept/dev3.tar.gz"
    assert incus.is_incus(known)
    assert incus.retire(RetireOptions(name="dev3", plan=True), shelf.load(), known, str(kept)) == 0
    assert not kept.exists()
    assert incus.retire(RetireOptions(name="dev3"), shelf.load(), known, str(kept)) == 0
    assert f"dev3: gone; state in {kept} on box1" in capsys.readouterr().out
    with tarfile.open(kept) as archive:
        assert archive.extractfile("var/lib/fly/a b").read() == b"kept\n"  # type: ignore[union-attr]
        assert archive.extractfile("var/lib/fly/last").read() == b"last\n"  # type: ignore[union-attr]
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert not list(shelf.hosts.iterdir())
    assert "/1.0/instances/dev3" not in lxd.get("/1.0/instances")
