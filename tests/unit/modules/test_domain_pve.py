# SPDX-License-Identifier: Apache-2.0
"""The write of a Proxmox config on a real file system: under pct's own lock, through the inode, and only over what was seen."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from flyops.agent.host import RealHost
from flyops.domain import pveguest
from flyops.domain.pveguest import Place, Seen
from flyops.errors import ModuleError, Refused

BEFORE = "arch: amd64\nhostname: größe\n"
AFTER = BEFORE + "lxc.cgroup2.cpuset.cpus: 0\n"
RAW = (("lxc.cgroup2.cpuset.cpus", "0"),)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("conf", "lock"):
        (tmp_path / name).mkdir()
    made = Place("101", str(tmp_path / "conf"), str(tmp_path / "state dir"), str(tmp_path / "lock"))
    Path(made.conf).write_text(BEFORE)
    return made


def kept(place: Place, what: str) -> str:
    return Path(place.kept(what)).read_text()


def test_the_file_keeps_its_inode_and_the_text_before_is_kept(place: Place) -> None:
    Path(place.conf).chmod(0o640)
    inode = Path(place.conf).stat().st_ino
    pveguest.write(RealHost(), place, Seen(True, BEFORE, BEFORE, running=True, pid="42"), AFTER, RAW)
    stat = Path(place.conf).stat()
    assert (Path(place.conf).read_text(), stat.st_ino, stat.st_mode & 0o777) == (AFTER, inode, 0o640)
    assert kept(place, "before") == BEFORE
    assert not Path(place.kept("new")).exists()
    assert kept(place, "json") == '{"pid": "42", "raw": [["lxc.cgroup2.cpuset.cpus", "0"]]}\n'


def test_what_someone_else_wrote_meanwhile_stays(place: Place) -> None:
    Path(place.conf).write_text("theirs: 1\n")
    with pytest.raises(ModuleError, match="changed by someone else while this ran: nothing is written"):
        pveguest.write(RealHost(), place, Seen(True, BEFORE, BEFORE), AFTER, RAW)
    assert Path(place.conf).read_text() == "theirs: 1\n"


def test_pct_at_work_holds_the_write_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pveguest, "LOCK_WAIT_S", 0)
    with Path(place.lock).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModuleError, match="pct holds"):
            pveguest.write(RealHost(), place, Seen(True, BEFORE, BEFORE), AFTER, RAW)
        assert Path(place.conf).read_text() == BEFORE
    pveguest.write(RealHost(), place, Seen(True, BEFORE, BEFORE), AFTER, RAW)
    assert Path(place.conf).read_text() == AFTER


@pytest.mark.parametrize("cut", [0, 5, len(BEFORE) + 4, len(AFTER) - 1])
def test_a_write_that_was_cut_off_is_finished_by_the_next(place: Place, cut: int) -> None:
    """`cat` had written so many letters when the machine stopped."""
    pveguest.write(RealHost(), place, Seen(True, BEFORE, BEFORE), AFTER, RAW)
    Path(place.kept("new")).write_text(AFTER)
    Path(place.conf).write_text(AFTER[:cut])
    host = RealHost()
    host.which = lambda program: None if program == "pveversion" else program  # type: ignore[method-assign]
    host.run = lambda argv, **words: pveguest.Completed(tuple(argv), 0, b"status: stopped\n", b"")  # type: ignore[method-assign,assignment]
    seen = pveguest.look(host, place)
    assert (seen.text, seen.raw) == (AFTER, AFTER[:cut])
    pveguest.write(RealHost(), place, seen, AFTER, RAW)
    assert Path(place.conf).read_text() == AFTER
    assert kept(place, "before") == BEFORE  # not the torn one


@pytest.mark.parametrize("guest", ["100", "101", "999999999"])
def test_a_guests_number(guest: str) -> None:
    assert pveguest.check_id(guest) == ""


@pytest.mark.parametrize("guest", ["", "99", "0101", "1234567890", "101 ", "1x1", "../101", "-101"])
def test_what_is_no_number_of_a_guest(guest: str) -> None:
    assert "from 100 up" in pveguest.check_id(guest)


@pytest.mark.parametrize(("tags", "ours"), [("flyops", True), ("a;flyops;b", True), ("a, flyops", True), ("flyops2", False), ("", False)])
def test_whose_a_guest_is(tags: str, ours: bool) -> None:
    assert Seen(text=f"arch: amd64\ntags: {tags}\n").ours is ours


def test_a_tag_in_a_snapshot_is_none() -> None:
    assert not Seen(text="arch: amd64\n\n[snap]\ntags: flyops\n").ours


def test_a_lock_is_told_in_proxmox_words() -> None:
    with pytest.raises(Refused, match=r"locked by Proxmox \(backup\)"):
        pveguest.may_write("101", "lock: backup\n")
    pveguest.may_write("101", "arch: amd64\n\n[snap]\nlock: backup\n")
