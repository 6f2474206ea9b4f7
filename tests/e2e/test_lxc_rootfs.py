# SPDX-License-Identifier: Apache-2.0
"""The guests' base: kept by hash, whole or not there at all, made once however many ask."""

from __future__ import annotations

import gzip
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyops import places
from flyops.errors import UsageError
from flyops.operations import rootfs

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="a base belongs to root")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/flyops/rootfs"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A tar with just enough of a guest in it, one file of another owner, and a device node that must stay out."""
    tree = tmp_path / "tree"
    for path in rootfs.PROOF:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(path)
    (tree / "etc").mkdir()
    (tree / "etc/owned").write_bytes(os.urandom(1 << 20))
    os.chown(tree / "etc/owned", 77, 78)
    (tree / "dev").mkdir()
    os.mknod(tree / "dev/made", 0o020600, os.makedev(1, 3))
    subprocess.run(["tar", "-C", str(tree), "-cf", str(tmp_path / "guest.tar"), "."], check=True)
    return tmp_path / "guest.tar"


def packed(plain: Path, kind: str) -> Path:
    data = plain.read_bytes()
    out = plain.with_name(f"guest.tar.{kind}") if kind else plain
    out.write_bytes({"xz": lambda d: lzma.compress(d, preset=0), "gz": lambda d: gzip.compress(d, 1), "": lambda d: d}[kind](data))
    return out


@pytest.mark.parametrize("kind", ["xz", "gz", ""])
def test_a_tar_becomes_a_base_once(plain: Path, kind: str, cache: Path) -> None:
    tar = packed(plain, kind)
    base = rootfs.ensure(str(tar))
    assert base == rootfs.place(str(tar))
    assert base.parent == cache
    assert (base / "usr/bin/python3").read_text() == "usr/bin/python3"
    assert ((base / "etc/owned").stat().st_uid, (base / "etc/owned").stat().st_gid) == (77, 78)
    assert not (base / "dev/made").exists()
    assert base.stat().st_mode & 0o777 == 0o755
    (base / "mark").touch()
    assert (rootfs.ensure(str(tar)) / "mark").exists()


def test_a_cut_off_tar_leaves_nothing(plain: Path, cache: Path) -> None:
    for kind in ("xz", "gz", ""):
        tar = packed(plain, kind) if kind else plain
        tar.write_bytes(tar.read_bytes()[: tar.stat().st_size // 2])
        with pytest.raises(UsageError, match="cannot be unpacked"):
            rootfs.ensure(str(tar))
        assert [path.name for path in cache.iterdir()] == [".lock"]


def test_what_is_no_guest_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        rootfs.ensure(str(tmp_path / "text"))
    with pytest.raises(UsageError, match="No such file"):
        rootfs.ensure(str(tmp_path / "none"))
    subprocess.run(["tar", "-C", str(tmp_path), "-cf", str(tmp_path / "other.tar"), "text"], check=True)
    with pytest.raises(UsageError, match="has no usr/lib/systemd/systemd"):
        rootfs.ensure(str(tmp_path / "other.tar"))
    assert [path.name for path in cache.iterdir()] == [".lock"]
    with pytest.raises(UsageError, match="has no usr/lib/systemd/systemd"):
        rootfs.ensure(str(tmp_path))


def test_what_a_killed_run_left_goes(plain: Path, cache: Path) -> None:
    old = cache / ".part-killed"
    old.mkdir(parents=True)
    (old / "half").touch()
    rootfs.ensure(str(plain))
    assert not old.exists()


def test_two_at_once_make_one(plain: Path, cache: Path) -> None:
    code = "import sys; from flyops.operations import rootfs; print(rootfs.ensure(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": str(places.REPOSITORY)}
    argv = [sys.executable, "-c", code, str(packed(plain, "xz"))]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert sum("done in" in err for _, err in said) == 1
    assert sorted(path.name for path in cache.iterdir()) == sorted([".lock", Path(said[0][0].strip()).name])


def test_the_key_changes_with_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    key = rootfs.recipe_key()
    assert rootfs.recipe_key() == key
    monkeypatch.setattr(rootfs, "PACKAGES", (*rootfs.PACKAGES, "curl"))
    assert rootfs.recipe_key() != key


def test_trimming_takes_out_what_is_this_machines(tmp_path: Path) -> None:
    for name in ("etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/kept", "var/cache/apt/a/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("this machine")
    rootfs.trim(tmp_path)
    assert not (tmp_path / "etc/hostname").exists()
    assert (tmp_path / "etc/resolv.conf").read_text() == ""
    assert (tmp_path / "etc/machine-id").read_text() == ""
    assert (tmp_path / "etc/kept").read_text() == "this machine"
    assert list((tmp_path / "var/cache/apt").iterdir()) == []
