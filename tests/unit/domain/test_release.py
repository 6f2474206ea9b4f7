# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest

from flyops.domain import manifest, release

V = "0.1.0-0123456789"


def tarball(entries, *, top=V, gz=True) -> bytes:
    """entries: path -> bytes, or a TarInfo-changing function."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, what in entries.items():
            info = tarfile.TarInfo(f"{top}/{path}" if top else path)
            if callable(what):
                what(info)
                tar.addfile(info)
            else:
                info.size = len(what)
                info.mode = 0o755 if path.startswith("bin/") else 0o600
                tar.addfile(info, io.BytesIO(what))
    return gzip.compress(out.getvalue()) if gz else out.getvalue()


def whole(files=None):
    files = files or {"bin/flysim": b"#!/bin/sh\n", "ptx/sm_75.ptx": b".version 8.0\n"}
    listed = manifest.Manifest({"version": V}, {path: hashlib.sha256(data).hexdigest() for path, data in files.items()})
    return {**files, "MANIFEST": manifest.render(listed).encode()}


def test_unpack():
    members = {m.path: m for m in release.unpack(tarball(whole()), V)}
    assert set(members) == {"bin/flysim", "ptx/sm_75.ptx", "MANIFEST"}
    assert (members["bin/flysim"].mode, members["ptx/sm_75.ptx"].mode) == (0o755, 0o644)
    assert release.folders(members.values()) == ("bin", "ptx")


def test_a_plain_tar_and_dot_slash_names():
    assert release.unpack(tarball(whole(), gz=False), V)
    assert release.unpack(tarball(whole(), top=f"./{V}"), V)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("gz", [True, False])
def test_a_cut_tar_is_refused(share, gz):
    files = whole({"bin/flysim": bytes(range(256)) * 400, "x": b"y" * 5000})
    data = tarball(files, gz=gz)
    cut = data[: int(len(data) * share)]
    try:
        members = release.unpack(cut, V)
    except release.ReleaseError:
        return
    # A plain tar may be cut in its padding: then nothing of the content is missing.
    assert {m.path for m in members} == set(files)
    assert share == 0.99


def link(kind, target):
    def change(info):
        info.type, info.linkname = kind, target

    return change


def device(info):
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3


@pytest.mark.parametrize(
    ("entries", "top", "says"),
    [
        ({"../evil": b"x"}, V, "plain path"),
        ({"/etc/evil": b"x"}, "", "plain path"),
        ({"a//b": b"x"}, V, "plain path"),
        ({"a\\b": b"x"}, V, "plain path"),
        ({"a\nb": b"x"}, V, "plain path"),
        ({"bin/flysim": link(tarfile.SYMTYPE, "/etc/passwd")}, V, "found a link to /etc/passwd"),
        ({"bin/flysim": link(tarfile.LNKTYPE, "x")}, V, "found a link"),
        ({"null": device}, V, "special file"),
        ({"bin/flysim": b"x"}, "other", "top folder is 'other'"),
        ({V: b"x"}, "", "where the top folder should be"),
        ({"bin/flysim": b"x"}, V, "no MANIFEST"),
    ],
)
def test_a_tar_with_more_than_a_release_holds_is_refused(entries, top, says):
    with pytest.raises(release.ReleaseError, match=says):
        release.unpack(tarball(entries, top=top), V)


def test_twice_the_same_member():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for _ in range(2):
            info = tarfile.TarInfo(f"{V}/MANIFEST")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(release.ReleaseError, match="twice"):
        release.unpack(out.getvalue(), V)


FOUND = {path: hashlib.sha256(data).hexdigest() for path, data in whole().items()}
TEXT = whole()["MANIFEST"].decode()


def test_problems_none():
    assert release.problems(TEXT, V, FOUND) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bin/flysim": "0" * 64}, "bin/flysim differs"),
        ({"bin/flysim": None}, "bin/flysim is missing"),
        ({"bin/more": "0" * 64}, "bin/more is not in the MANIFEST"),
        ({"bin/flysim": "link"}, "bin/flysim is a link"),
    ],
)
def test_problems(change, says):
    found = {path: digest for path, digest in {**FOUND, **change}.items() if digest is not None}
    assert says in "; ".join(release.problems(TEXT, V, found))


def test_problems_of_the_manifest_itself():
    assert "expected version" in release.problems(TEXT, "9.9.9", FOUND)[0]
    assert "MANIFEST: line 1" in release.problems("rubbish\n", V, FOUND)[0]


@pytest.mark.parametrize(
    ("version", "good"),
    [
        (V, True),
        ("1", True),
        ("1.0+cuda", True),
        ("", False),
        (".x", False),
        ("a/b", False),
        ("..", False),
        ("a b", False),
        ("-x", False),
        ("a" * 129, False),
    ],
)
def test_versions(version, good):
    if good:
        release.check_version(version)
    else:
        with pytest.raises(release.ReleaseError):
            release.check_version(version)


@pytest.mark.parametrize(
    ("target", "version"), [(f"releases/{V}", V), (f"/opt/fly/releases/{V}/", V), ("/etc", ""), (V, ""), ("releases/..", ""), ("", "")]
)
def test_pointed(target, version):
    assert release.pointed(target) == version


@pytest.mark.parametrize(
    ("kept", "keep", "gone"),
    [((), 3, ("a",)), ((), 1, ("a", "b", "c")), (("a",), 1, ("b", "c")), (("a", "b"), 0, ("c", "d")), ((), 9, ()), ((), -1, ("a", "b", "c", "d"))],
)
def test_to_prune(kept, keep, gone):
    assert release.to_prune([("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)], kept, keep) == gone
