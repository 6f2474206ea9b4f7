# SPDX-License-Identifier: Apache-2.0
"""Ids of unprivileged guests: which range, whose ranges are in the way, and how a base is given to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyops.domain import lxcids
from flyops.domain.lxcids import Ids, IdsError

NONE = Ids()
HAS = Ids(100000, 65536)


@pytest.mark.parametrize(
    ("subuid", "subgid", "found"),
    [
        ("", "", Ids(100000, 65536, add=True)),
        ("root:200000:65536\n", "root:200000:65536\n", Ids(200000, 65536)),
        ("0:200000:70000\n", "root:200000:65536\n", Ids(200000, 65536)),
        ("root:200000:65536\n", "", Ids(100000, 65536, add=True)),  # only one of the two files has it
        ("root:200000:100\n", "root:200000:100\n", Ids(100000, 65536, add=True)),  # too few for a system
        ("ann:100000:65536\n", "ann:100000:65536\nbob:165536:10\n", Ids(165546, 65536, add=True)),
        ("# a word\nnonsense\n", "\n", Ids(100000, 65536, add=True)),
    ],
)
def test_auto_is_roots_own_range_else_the_first_free_one(subuid: str, subgid: str, found: Ids) -> None:
    assert lxcids.choose("auto", NONE, False, subuid, subgid) == found


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("lots", "expected none, auto or FIRST:COUNT"),
        ("1:2:3", "expected none, auto or FIRST:COUNT"),
        ("0:65536", "a first id from 65536 on"),
        ("100000:1000", "a count of at least 65536"),
        ("4294900000:70000", "a first id from 65536 on"),
        ("150000:65536", "meets ann's 100000:65536 in /etc/subuid"),
    ],
)
def test_ranges_that_cannot_be(asked: str, why: str) -> None:
    with pytest.raises(IdsError) as told:
        lxcids.choose(asked, NONE, False, "ann:100000:65536\n", "")
    assert why in str(told.value)


def test_a_range_that_is_roots_is_not_written_down_again() -> None:
    both = "root:100000:200000\n"
    assert lxcids.choose("165536:65536", NONE, False, both, both) == Ids(165536, 65536)
    assert lxcids.choose("400000:65536", NONE, False, both, both) == Ids(400000, 65536, add=True)


@pytest.mark.parametrize(("asked", "has", "fine"), [("", HAS, True), ("auto", HAS, True), ("100000:65536", HAS, True), ("none", NONE, True), ("", NONE, True), ("none", HAS, False), ("auto", NONE, False), ("200000:65536", HAS, False)])  # fmt: skip
def test_a_guest_keeps_its_ids(asked: str, has: Ids, fine: bool) -> None:
    if fine:
        assert lxcids.choose(asked, has, True, "", "") == has
    else:
        with pytest.raises(IdsError, match="retire it and provision it anew"):
            lxcids.choose(asked, has, True, "", "")


def test_roots_line_comes_once_and_goes() -> None:
    once = lxcids.with_root("ann:1:2", HAS)
    assert once == "ann:1:2\nroot:100000:65536\n"
    assert lxcids.with_root(once, HAS) == once
    assert lxcids.without_root(once, HAS) == "ann:1:2\n"


def test_ids_are_read_from_a_config() -> None:
    assert lxcids.in_config([("lxc.idmap", "g 0 7 65536"), ("lxc.idmap", "u 0 100000 65536")]) == HAS
    assert lxcids.in_config([("lxc.idmap", "u 1000 1000 1"), ("lxc.uts.name", "a")]) == NONE


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_copy_of_a_base_belongs_to_the_range_and_keeps_its_set_id_bits(tmp_path: Path) -> None:
    base, copy = tmp_path / "a base", tmp_path / "copy"
    (base / "usr/bin").mkdir(parents=True)
    sudo = base / "usr/bin/sudo"
    sudo.write_text("x")
    os.chown(sudo, 0, 7)
    sudo.chmod(0o6755)
    (base / "link").symlink_to("/etc/passwd")
    os.mkfifo(base / "fifo")
    capability = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw=ep, revision 2
    os.setxattr(base / "usr/bin/sudo", "security.capability", capability)
    before = os.lstat("/etc/passwd")
    subprocess.run(lxcids.shift_command(sys.executable, str(base), str(copy), 100000), check=True)
    seen = os.lstat(copy / "usr/bin/sudo")
    assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (100000, 100007, 0o6755)
    assert os.lstat(copy / "link").st_uid == 100000
    assert os.lstat(copy).st_uid == 100000
    assert os.lstat("/etc/passwd").st_uid == before.st_uid
    assert os.lstat(base / "usr/bin/sudo").st_uid == 0
    found = os.getxattr(copy / "usr/bin/sudo", "security.capability")
    assert found == b"\x01\x00\x00\x03" + capability[4:] + (100000).to_bytes(4, "little")  # revision 3 names the root that it is good under
