# SPDX-License-Identifier: Apache-2.0
"""The fake host, the real one and check mode's overlay answer alike: each behaviour is one test, run on all three."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.model.host import Host, Stat
from flyops.testing.fakehost import FakeHost


def _fake(folder: str) -> Host:
    fake = FakeHost()
    fake.add_dir(folder)
    return cast(Host, fake)


def _overlay_of_fake(folder: str) -> Host:
    return cast(Host, OverlayHost(cast(RealHost, _fake(folder))))


MAKERS: dict[str, Callable[[str], Host]] = {
    "real": lambda _: RealHost(),
    "overlay": lambda _: OverlayHost(RealHost()),
    "fake": _fake,
    "overlay-of-fake": _overlay_of_fake,
}


@pytest.fixture(params=MAKERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Host, str]:
    """A host and an empty folder of it."""
    return MAKERS[request.param](str(tmp_path)), str(tmp_path)


def stat(host: Host, path: str, *, follow: bool = False) -> Stat:
    """The status of a path that must be there."""
    found = host.stat(path, follow=follow)
    assert found is not None
    return found


def test_write_through_keeps_inode_mode_and_owner(place: tuple[Host, str]) -> None:
    """What /etc/pve demands; a shorter text leaves no end of the old one, and a file that is not there is not made."""
    host, top = place
    host.write_text(f"{top}/a", "a long text\n", mode=0o640)
    before = stat(host, f"{top}/a")

    host.write_through(f"{top}/a", "short\n")

    after = stat(host, f"{top}/a")
    assert host.read_text(f"{top}/a") == "short\n"
    assert (after.inode, after.mode, after.uid, after.size) == (before.inode, 0o640, before.uid, 6)
    with pytest.raises(FileNotFoundError):
        host.write_through(f"{top}/none", "x")
    assert host.stat(f"{top}/none") is None


def test_write_and_read(place: tuple[Host, str]) -> None:
    """Mode as given, else kept, else by the umask."""
    host, top = place

    host.write_bytes(f"{top}/a", b"1", mode=0o640)
    host.write_bytes(f"{top}/a", b"22")
    host.write_text(f"{top}/b", "x")

    assert (host.read_bytes(f"{top}/a"), stat(host, f"{top}/a").mode, stat(host, f"{top}/a").size) == (b"22", 0o640, 2)
    assert stat(host, f"{top}/b").mode == 0o644
    assert host.listdir(top) == ["a", "b"]
    assert host.sha256(f"{top}/b") == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_missing(place: tuple[Host, str]) -> None:
    """None, the given value, or FileNotFoundError."""
    host, top = place

    assert host.stat(f"{top}/no") is None
    assert host.read_bytes(f"{top}/no", missing=b"m") == b"m"
    assert host.read_text(f"{top}/no/deeper", missing="m") == "m"
    for call in (lambda: host.read_bytes(f"{top}/no"), lambda: host.listdir(f"{top}/no"), lambda: host.write_bytes(f"{top}/no/a", b"")):
        with pytest.raises(FileNotFoundError):
            call()
    host.remove(f"{top}/no")


def test_links(place: tuple[Host, str]) -> None:
    """A link is replaced by a write, followed by a read, and has no mode of its own; one to nothing is None when followed."""
    host, top = place
    host.write_text(f"{top}/a", "x", mode=0o600)
    host.symlink("a", f"{top}/l")
    host.symlink("nowhere", f"{top}/dangling")

    assert (stat(host, f"{top}/l").kind, stat(host, f"{top}/l").target) == ("link", "a")
    assert (stat(host, f"{top}/l", follow=True).kind, host.read_text(f"{top}/l")) == ("file", "x")
    assert host.stat(f"{top}/dangling", follow=True) is None
    assert stat(host, f"{top}/dangling").kind == "link"
    host.chmod(f"{top}/l", 0o777)
    assert stat(host, f"{top}/a").mode == 0o600
    host.write_text(f"{top}/l", "new")
    assert (stat(host, f"{top}/l").kind, host.read_text(f"{top}/a")) == ("file", "x")
    host.symlink("b", f"{top}/a")
    assert stat(host, f"{top}/a").target == "b"


def test_folders(place: tuple[Host, str]) -> None:
    """Parents are made, one that is there is fine, the mode is for the last; a folder behind a link is entered."""
    host, top = place

    host.mkdir(f"{top}/x/y", mode=0o700)
    host.mkdir(f"{top}/x/y")
    host.symlink("x", f"{top}/l")
    host.write_text(f"{top}/l/y/f", "1")

    assert (stat(host, f"{top}/x").mode, stat(host, f"{top}/x/y").mode) == (0o755, 0o700)
    assert host.read_text(f"{top}/x/y/f") == "1"
    with pytest.raises(IsADirectoryError):
        host.write_text(f"{top}/x", "")


def test_remove_takes_trees_and_not_what_a_link_leads_to(place: tuple[Host, str]) -> None:
    """A whole folder goes; behind a link nothing does."""
    host, top = place
    host.mkdir(f"{top}/x")
    host.write_text(f"{top}/x/f", "1")
    host.write_text(f"{top}/xy", "2")
    host.symlink("x", f"{top}/l")

    host.remove(f"{top}/l")
    assert host.read_text(f"{top}/x/f") == "1"
    host.remove(f"{top}/x")
    assert host.listdir(top) == ["xy"]


def test_rename_moves_what_is_below(place: tuple[Host, str]) -> None:
    """A folder with its content; a file over another one."""
    host, top = place
    host.mkdir(f"{top}/x")
    host.write_text(f"{top}/x/f", "1")
    host.write_text(f"{top}/a", "a")
    host.write_text(f"{top}/b", "b")

    host.rename(f"{top}/x", f"{top}/z")
    host.rename(f"{top}/a", f"{top}/b")

    assert (host.read_text(f"{top}/z/f"), host.read_text(f"{top}/b"), host.listdir(top)) == ("1", "a", ["b", "z"])


def test_hard_links(place: tuple[Host, str]) -> None:
    """Two names, one content."""
    host, top = place
    host.write_text(f"{top}/a", "a")

    host.link(f"{top}/a", f"{top}/b")

    assert host.read_text(f"{top}/b") == "a"
    assert stat(host, f"{top}/a").inode == stat(host, f"{top}/b").inode


def test_users_and_groups(place: tuple[Host, str]) -> None:
    """By name and by number."""
    host, _ = place
    root = host.user("root") or {}

    assert (root["uid"], root["gid"], (host.user("0") or {})["name"]) == (0, 0, "root")
    assert {"name", "uid", "gid", "gecos", "home", "shell", "groups"} <= set(root)
    assert host.user("no-such-user") is None
    assert ((host.group("root") or {})["gid"], (host.group("0") or {})["name"], host.group("no-such-group")) == (0, "root", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.root
def test_owner(place: tuple[Host, str]) -> None:
    """-1 leaves one alone; a write keeps the owner; a link has its own."""
    host, top = place
    host.write_text(f"{top}/a", "a", uid=5, gid=6)
    host.symlink("a", f"{top}/l")

    host.chown(f"{top}/a", -1, 7)
    host.write_text(f"{top}/a", "b")
    host.chown(f"{top}/l", 8, 8)

    assert (stat(host, f"{top}/a").uid, stat(host, f"{top}/a").gid) == (5, 7)
    assert stat(host, f"{top}/l").uid == 8


def test_programs(place: tuple[Host, str]) -> None:
    """One that is nowhere is None."""
    host, _ = place

    assert host.which("no-such-program") is None


def test_a_command_that_the_table_lacks_is_an_error() -> None:
    """A fixture tells all that a module runs."""
    fake: Any = FakeHost()
    fake.programs["prog"] = "/usr/bin/prog"

    with pytest.raises(AssertionError, match="not in the fixture's commands"):
        fake.run(["prog", "x"])
    with pytest.raises(FileNotFoundError):
        fake.run(["other"])
