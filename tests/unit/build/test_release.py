# SPDX-License-Identifier: Apache-2.0
"""Releases as files: the same bytes for the same inputs, and nothing damaged is opened."""

from __future__ import annotations

import io
import tarfile

import pytest

from flyops.errors import UsageError
from flyops.operations import release

VERSION = "0.1.0-3f9c1a2b4d"
HEADER = {"version": VERSION, "features": "none", "ptx": "none"}


@pytest.fixture
def made(xdg):
    return release.assemble(xdg / "builds" / VERSION, {"bin/flysim": b"\x7fELF\n", "doc/x": b"1"}, HEADER)


def test_two_builds_of_the_same_files_are_the_same_tar(xdg, made):
    again = release.assemble(xdg / "elsewhere" / VERSION, {"doc/x": b"1", "bin/flysim": b"\x7fELF\n"}, dict(reversed(HEADER.items())))

    assert again.tar.read_bytes() == made.tar.read_bytes()


def test_a_laid_release_is_found_and_a_damaged_one_is_not(made):
    assert release.load(made.tar.parent, VERSION).manifest == made.manifest

    made.binary.write_bytes(b"other")

    assert release.load(made.tar.parent, VERSION) is None


def test_an_opened_tar_is_the_release(made):
    opened = release.open_tar(made.tar)

    assert (opened.version, opened.manifest) == (VERSION, made.manifest)
    assert opened.binary.read_bytes() == b"\x7fELF\n"
    assert opened.binary.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_tar_that_was_cut_off_is_refused(made, kept):
    data = made.tar.read_bytes()
    made.tar.write_bytes(data[: int(len(data) * kept)])

    with pytest.raises(UsageError, match=r"cannot be unpacked|not a release"):
        release.open_tar(made.tar)


def repack(tar, change):
    """The tar with its members changed: `change(name, data)` gives the new data, or None to leave the file out."""
    out = io.BytesIO()
    with tarfile.open(tar) as source, tarfile.open(fileobj=out, mode="w:gz") as target:
        for member in source.getmembers():
            data = source.extractfile(member).read() if member.isfile() else None
            data = change(member.name, data) if data is not None else None
            if member.isdir() or data is not None:
                member.size = len(data or b"")
                target.addfile(member, io.BytesIO(data) if data is not None else None)
    tar.write_bytes(out.getvalue())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, data: b"evil" if name.endswith("flysim") else data, "bin/flysim differs"),
        (lambda name, data: None if name.endswith("doc/x") else data, "doc/x is missing"),
        (lambda name, data: None if name.endswith("MANIFEST") else data, "MANIFEST"),
        (lambda name, data: data.replace(b"0.1.0", b"0.2.0") if name.endswith("MANIFEST") else data, "differ"),
    ],
    ids=["changed", "missing", "no-manifest", "other-version"],
)
def test_a_tar_that_is_not_its_manifest_is_refused(made, change, said):
    repack(made.tar, change)

    with pytest.raises(UsageError, match=said):
        release.open_tar(made.tar)


@pytest.mark.parametrize("name", ["../evil", "/evil", f"{VERSION}/../../evil"])
def test_a_tar_that_reaches_outside_is_refused(xdg, name):
    tar = xdg / "evil.tar.gz"
    with tarfile.open(tar, "w:gz") as target:
        target.addfile(tarfile.TarInfo(name), io.BytesIO())

    with pytest.raises(UsageError, match="not a release"):
        release.open_tar(tar)


def test_a_link_in_a_tar_is_refused(xdg):
    tar = xdg / "evil.tar.gz"
    with tarfile.open(tar, "w:gz") as target:
        link = tarfile.TarInfo(f"{VERSION}/bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        target.addfile(link)

    with pytest.raises(UsageError, match="not a release"):
        release.open_tar(tar)


def test_ptx_goes_into_a_release_once(made):
    with_it = release.with_ptx(made, {"sm_90": "text"})

    assert with_it.ptx("sm_90") == "text"
    assert with_it.manifest.ptx == ("sm_90",)
    assert with_it.binary.read_bytes() == made.binary.read_bytes()
    assert release.with_ptx(with_it, {"sm_90": "text"}) is with_it
    assert release.open_tar(with_it.tar).manifest == with_it.manifest
    assert made.ptx("sm_90") is None
    more = release.with_ptx(with_it, {"sm_75": "b"})
    assert more.manifest.ptx == ("sm_75", "sm_90")
    assert (made.version, with_it.version, more.version) == (VERSION, f"{VERSION}.sm_90", f"{VERSION}.sm_75.sm_90")
    assert more.manifest.header["built_as"] == VERSION
