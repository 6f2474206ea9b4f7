# SPDX-License-Identifier: Apache-2.0
"""A disk limit: what may be asked, and what its scripts do to a real file system image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from flyops.domain import lxcdisk
from flyops.domain.lxcdisk import DiskError

G = 1 << 30


@pytest.mark.parametrize(
    ("asked", "has", "exists", "found"),
    [("", 0, False, 0), ("", 0, True, 0), ("", G, True, G), ("8G", 0, False, 8 * G), ("2G", G, True, 2 * G), ("1G", G, True, G), ("134217729", 0, False, 1 << 27)],
)  # fmt: skip
def test_sizes(asked: str, has: int, exists: bool, found: int) -> None:
    assert lxcdisk.size(asked, has, exists) == found


@pytest.mark.parametrize(
    ("asked", "has", "exists", "why"),
    [
        ("lots", 0, False, "expected a size such as 8G"),
        ("64M", 0, False, "at least 128M"),
        ("8G", 0, True, "was made without a limit"),
        ("1G", 2 * G, True, "an image only grows"),
    ],
)
def test_what_cannot_be(asked: str, has: int, exists: bool, why: str) -> None:
    with pytest.raises(DiskError, match=why):
        lxcdisk.size(asked, has, exists)


def dumped(image: Path) -> int:
    done = subprocess.run(
        ["dumpe2fs", "-h", str(image)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
    )
    return lxcdisk.read_size(done.stdout)


@pytest.mark.skipif(shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin") is None, reason="needs e2fsprogs")
def test_an_image_is_made_and_grows_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/usr/sbin:/sbin")
    image = tmp_path / "it's a disk.img"
    subprocess.run(lxcdisk.make_command(str(image), 128 << 20), check=True)
    assert dumped(image) == 128 << 20
    subprocess.run(lxcdisk.grow_still(str(image), str(tmp_path), 256 << 20), check=True, capture_output=True)
    assert dumped(image) == 256 << 20
    image.write_bytes(b"no file system")
    failed = subprocess.run(lxcdisk.grow_still(str(image), str(tmp_path), 512 << 20), check=False, capture_output=True)
    assert failed.returncode != 0
    assert image.read_bytes() == b"no file system"


def test_a_text_that_tells_no_size() -> None:
    assert lxcdisk.read_size("") == 0
    assert lxcdisk.read_size("Block count: many\nBlock size: 4096\n") == 0


def test_paths_are_words_of_the_hook() -> None:
    text = lxcdisk.hook("/srv/it's/disk.img", "/srv/it's/disk")
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    assert "'/srv/it'\\''s/disk.img'" in text
