# SPDX-License-Identifier: Apache-2.0
"""Proxmox guests from end to end, on the double of pct (tests/beds/pct: not a real Proxmox VE), which writes configs again by its own rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops.agent.host import RealHost
from flyops.agent.run import run_module
from flyops.modules import container_gpu
from tests.beds.pct import bed as pct_bed
from tests.beds.pct.bed import UUIDS, PveBed
from tests.beds.pct.reemit import reemit
from tests.beds.play import LOCAL, Played, inventory, tasks

pytestmark = pytest.mark.root

TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
RULES = ["c 195:0 rw", "c 195:1 rw", "c 195:255 rw", "c 511:0 rw", "c 511:1 rw"]  # of the five nodes that a computing guest needs here


@pytest.fixture
def pve(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PveBed]:
    """A host with the card and one unprivileged guest, made as an operator makes it."""
    made = pct_bed.make(open_folder / "pve")
    monkeypatch.setenv("PATH", made.environment["PATH"])
    made.pct("create", "101", TEMPLATE, "--hostname", "dev1", "--cores", "2", "--unprivileged", "1", "--memory", "2048")
    yield made
    made.close()


def play(pve: PveBed, folder: Path, *, check: bool = False, **args: Any) -> dict[str, Any]:
    """container_gpu through a whole play with an agent."""
    text = yaml.safe_dump([{"name": "card", "container_gpu": {"guest": "101", **pve.args, **args}}], default_flow_style=False)
    found = tasks(folder, text, hosts="h1", check=check, diff=True)
    assert found.result.exit_code == 0, found.seen.of("result")[-1].result
    return found.seen.result("card")


def converge(pve: PveBed, *, fails: bool = False, **args: Any) -> dict[str, Any]:
    """The module alone, as an agent runs it; a play for each step would be most of the time."""
    found: dict[str, Any] = run_module(container_gpu, {"guest": "101", **pve.args, **args}, RealHost(), diff=True)
    assert found["failed"] is fails, found
    return found


@pytest.mark.parametrize("style", ["dev", "raw"])
def test_the_card_through_a_guests_life(pve: PveBed, tmp_path: Path, style: str) -> None:
    """On, written again by Proxmox, unchanged, snapshot, a boot that moves the majors, rollback, changed, off: the config as before."""
    before = pve.conf()
    asked = {"gpu": True, "cpus": "0-1", "mems": "0", "nodes": style}
    predicted = play(pve, tmp_path, check=True, **asked)
    assert (predicted["changed"], pve.conf()) == (True, before)
    first = play(pve, tmp_path, **asked)
    assert (first["changed"], first["restart_needed"], first["diff"]) == (True, False, predicted["diff"])
    given = pve.conf()
    assert reemit(given) == given  # Proxmox would write the same bytes
    assert converge(pve, **asked)["changed"] is False
    pve.reemit()
    assert pve.conf() == given

    pve.pct("start", "101")
    started = pve.started()
    assert (started["cpus"], started["pinned"]) == ("0-1", True)
    assert started["allow"] == ["a"]  # unprivileged: no conclusion from the rules
    assert sorted(started["rules"]) == (RULES if style == "dev" else ["c 195:* rwm", "c 236:* rwm", "c 511:* rwm"])

    pve.pct("snapshot", "101", "snap1")
    assert converge(pve, **asked)["changed"] is False
    section = pve.conf().split("[snap1]")[1]

    pve.pct("shutdown", "101", "--timeout", "10")
    pve.settle(uvm=507)
    moved = converge(pve, **asked)
    pve.pct("start", "101")
    if style == "dev":
        assert moved["changed"] is False  # Proxmox looks the numbers up by itself
        assert pve.started()["nodes"]["/dev/nvidia-uvm"]["major"] == 507
    else:
        assert moved["removed"] == ["lxc.cgroup2.devices.allow: c 511:* rwm"]
        assert moved["added"] == ["lxc.cgroup2.devices.allow: c 507:* rwm"]
    assert pve.conf().split("[snap1]")[1] == section  # the snapshot's own lines are not ours

    pve.pct("rollback", "101", "snap1")
    back = converge(pve, **asked)
    assert back["changed"] is (style == "raw")
    if style == "raw":
        assert "a rollback to snap1 brought its lines back" in back["why"]
        assert "lxc.cgroup2.devices.allow: c 507:* rwm" in pve.conf().split("[snap1]")[0]
    assert converge(pve, **asked)["changed"] is False

    off = converge(pve, gpu=False, cpus="", mems="")
    assert off["changed"] is True
    assert "Proxmox picks the guest's cpus again" in " ".join(off["notes"])
    assert pve.conf().split("[snap1]")[1] == section
    pve.pct("delsnapshot", "101", "snap1")
    assert pve.conf() == before
    assert converge(pve, gpu=False, cpus="", mems="")["changed"] is False


def test_a_guest_that_runs_is_restarted_only_when_asked_and_ours(pve: PveBed) -> None:
    pve.pct("start", "101")
    found = converge(pve, gpu=[UUIDS[1]])
    assert (found["changed"], found["restart_needed"], found["restarted"], found["ours"]) == (True, True, False, False)
    assert "/dev/nvidia1" not in pve.started()["nodes"]
    again = converge(pve, gpu=[UUIDS[1]])
    assert (again["changed"], again["restart_needed"]) == (False, True)  # it still runs as it was
    refused = converge(pve, gpu=[UUIDS[1]], restart=True, fails=True)
    assert refused["refused"] is True
    assert "not declared ours" in refused["msg"]
    done = converge(pve, gpu=[UUIDS[1]], restart=True, ours=True)
    assert (done["changed"], done["restarted"], done["restart_needed"]) == (True, True, False)
    assert set(pve.started()["nodes"]) == {"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    assert pve.started()["nodes"]["/dev/nvidia1"]["mode"] == "0666"
    assert not [call for call in pve.calls() if call.startswith("pct stop")]
    assert converge(pve, gpu=[UUIDS[1]], restart=True, ours=True)["changed"] is False


def test_a_guest_that_will_not_go_down_keeps_running(pve: PveBed) -> None:
    (pve.folder / "run" / "101" / "stubborn").touch()
    pve.pct("start", "101")
    found = converge(pve, cpus="0", restart=True, ours=True, stop_wait=1, fails=True)
    assert "did not shut down within 1 s" in found["msg"]
    assert "was not killed" in found["msg"]
    assert "status: running" in pve.pct("status", "101").stdout
    assert converge(pve, cpus="0")["restart_needed"] is True


def test_a_privileged_guest_has_a_real_list(pve: PveBed) -> None:
    pve.pct("create", "102", TEMPLATE, "--hostname", "dev2", "--unprivileged", "0")
    found = converge(pve, guest="102", gpu=True, nodes="dev")
    assert found["privileged"] is True
    pve.pct("start", "102")
    assert sorted(pve.started("102")["allow"]) == RULES


def test_a_missing_node_stops_a_start_and_is_refused_before(pve: PveBed) -> None:
    """What the refusal is for: the double, as Proxmox, does not start a guest whose devN: node is missing."""
    converge(pve, gpu=True)
    (pve.folder / "dev" / "nvidia-uvm").unlink()
    assert "Device /dev/nvidia-uvm does not exist" in pve.pct("start", "101", check=False).stderr
    found = converge(pve, gpu=True, fails=True)
    assert "/nvidia-uvm is missing" in found["msg"]
    assert "invoke host" in found["msg"]


def test_case_73_a_restore_that_lost_the_raw_keys(pve: PveBed) -> None:
    given = converge(pve, gpu=True, nodes="raw") and pve.conf()
    pve.write("".join(line + "\n" for line in given.splitlines() if not line.startswith("lxc.")))  # as a restore by another user leaves it
    found = converge(pve, gpu=True, nodes="raw")
    assert found["why"].startswith("restore lost raw keys: 9 lines")
    assert pve.conf() == given


def test_case_71_a_comment_of_an_operator_survives_both(pve: PveBed) -> None:
    pve.write("# BEGIN ours: größe\n" + pve.conf() + "foo bar\n")
    found = converge(pve, gpu=True)
    assert found["dropped"] == ["foo bar"]
    pve.reemit()
    assert pve.conf().startswith("# BEGIN ours%3A gr%C3%B6%C3%9Fe\n")
    assert "foo bar" not in pve.conf()
    assert converge(pve, gpu=True)["changed"] is False


def test_pending_changes_wait_and_stay(pve: PveBed) -> None:
    pve.pct("start", "101")
    pve.pct("set", "101", "--hostname", "dev9")
    pending = pve.conf().split("[pve:pending]")[1]
    found = converge(pve, gpu=True)
    assert pve.conf().split("[pve:pending]")[1] == pending
    assert any("hostname: dev9" in note for note in found["notes"])


def guest(folder: Path, text: str, number: int = 101, **more: str) -> Played:
    own = {"ansible_connection": "pct", "ansible_pct_id": number, "ansible_python_interpreter": "/usr/bin/python3", **more}
    hosts = inventory({"guest": own, "h1": LOCAL})
    return tasks(folder, text, hosts=hosts)


@pytest.mark.parametrize("more", [{}, {"ansible_via": "localhost"}], ids=["here", "via the node"])
def test_an_agent_in_a_guest(pve: PveBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CONTROLLER", "x")
    pve.pct("start", "101")
    text = "- command: hostname\n  register: name\n- command: env\n  register: env\n- copy: {content: 'é', dest: \"/root/it's here\"}\n"
    found = guest(tmp_path, text, **more)
    assert found.result.exit_code == 0, found.seen.of("result")[-1].result
    assert found.vars("guest")["name"]["stdout"] == "dev1"
    assert "SECRET_OF_THE_CONTROLLER" not in found.vars("guest")["env"]["stdout"]
    assert pve.pct("exec", "101", "--", "cat", "/root/it's here").stdout == "é"


@pytest.mark.parametrize(("number", "wanted"), [(101, "pct start ID"), (105, "ansible_pct_id")])
def test_a_guest_that_cannot_be_reached(pve: PveBed, tmp_path: Path, number: int, wanted: str) -> None:
    found = guest(tmp_path, "- command: 'true'\n", number)
    assert found.result.exit_code == 4
    assert found.stats("guest") == {"unreachable": 1}
    assert found.stats("h1") == {"ok": 1, "changed": 1}
    assert wanted in str(found.seen.of("unreachable")[0].result)


def test_section_0_the_double_knows_what_devn_costs(pve: PveBed) -> None:
    """0.1 and 0.2: numbers of the moment, guest's ids through its map, one node each, no directories, an open filter without a privilege."""
    for value, wanted in (("/dev/nvidia9", "does not exist"), ("/dev", "invalid format"), ("/dev/../x", "invalid format")):
        assert wanted in pve.pct("set", "101", "--dev0", value, check=False).stderr
    (pve.folder / "dev" / "nvidia-caps").mkdir()
    assert "is not a device" in pve.pct("set", "101", "--dev0", "/dev/nvidia-caps", check=False).stderr
    pve.pct("set", "101", "--dev0", "/dev/nvidia0,gid=44,uid=7,deny-write=1")
    pve.pct("start", "101")
    found = pve.started()
    assert found["nodes"]["/dev/nvidia0"] == {"major": 195, "minor": 0, "mode": "0660", "uid": 100007, "gid": 100044}
    assert (found["allow"], found["rules"]) == (["a"], ["c 195:0 r"])


def test_section_0_comments_hold_no_state_and_snapshots_have_raw_keys(pve: PveBed) -> None:
    """0.3 and 0.4: a snapshot of a guest with raw keys carries them; what cannot be read is gone with the next write by Proxmox."""
    converge(pve, gpu=True, nodes="raw")
    pve.write(pve.conf() + "checksum 12ab\n")
    pve.pct("snapshot", "101", "s1")
    main, _, snapshot = pve.conf().partition("[s1]")
    assert (main.count("lxc."), snapshot.count("lxc."), pve.conf().count("checksum")) == (9, 9, 0)


def test_raw_nodes_are_bound_into_the_guest(pve: PveBed) -> None:
    converge(pve, gpu=[UUIDS[0]], nodes="raw")
    pve.pct("start", "101")
    assert pve.pct("exec", "101", "--", "stat", "-c", "%F %t:%T", "/dev/nvidia0").stdout == "character special file c3:0\n"
    assert pve.pct("exec", "101", "--", "ls", "/dev").stdout.count("nvidia1") == 0


def test_a_write_is_in_the_write_log_and_nothing_of_a_neighbour(pve: PveBed, tmp_path: Path) -> None:
    pve.pct("create", "102", TEMPLATE, "--hostname", "neighbour")
    theirs = pve.conf("102")
    found = play(pve, tmp_path, gpu=True, cpus="0")
    assert [path for kind, path in found["writes"] if kind == "run" and str(pve.folder / "conf" / "101.conf") in path]
    assert "102" not in str(found["writes"])
    assert pve.conf("102") == theirs
