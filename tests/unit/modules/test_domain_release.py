# SPDX-License-Identifier: Apache-2.0
"""The module release on a real host: real tars, damaged folders, runs that are killed half way."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.domain import manifest
from flyops.modules import release
from tests.beds.killed import run_and_kill, tree

V1, V2, V3 = "0.1.0-aaaaaaaaaa", "0.1.0-bbbbbbbbbb", "0.1.0-cccccccccc+cuda"


def make_tar(path: Path, version: str, files: dict[str, bytes] | None = None) -> dict[str, object]:
    files = dict(files or {"bin/flysim": b"#!/bin/sh\necho " + version.encode() + b"\n", "ptx/sm_75.ptx": b".version 8.0\n"})
    header = {"version": version, "git_commit": "none"}
    record = manifest.render_record(manifest.Manifest(header))
    files["RELEASE.json"] = record.encode()
    listed = manifest.Manifest(header, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    files["MANIFEST"] = manifest.render(listed).encode()
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{version}/{name}")
            info.size, info.mode = len(data), 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return blob(path)


def blob(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": str(path), "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


@pytest.fixture
def home(tmp_path):
    """A home with three tars beside it; `do` runs the module."""
    tars = {}
    for version in (V1, V2, V3):
        tars[version] = make_tar(tmp_path / f"{version}.tar.gz", version)
    paths = {str(t["sha256"]): str(t["path"]) for t in tars.values()}
    where = tmp_path / "fly"

    def do(state, version=None, *, check=False, src=None, **more):
        host = RealHost(lambda digest: paths[digest])
        args = {"home": str(where), "state": state, "version": version, **more}
        if state == "staged":
            args["src"] = src or tars[version]
            paths[str(args["src"]["sha256"])] = str(args["src"]["path"])
        return run_module(release, args, OverlayHost(host) if check else host, diff=True)

    do.home, do.tars, do.tmp = where, tars, tmp_path
    return do


def test_stage_switch_and_back(home):
    assert home("staged", V1)["changed"]
    assert not home("staged", V1)["changed"]
    first = home("current", V1)
    assert (first["changed"], first["current"], first["previous"]) == (True, V1, "")
    assert not home("current", V1)["changed"]
    home("staged", V2)
    second = home("current", V2)
    assert (second["current"], second["previous"]) == (V2, V1)
    assert os.readlink(home.home / "current") == f"releases/{V2}"
    assert os.readlink(home.home / "previous") == f"releases/{V1}"
    assert subprocess.check_output([home.home / "current/bin/flysim"]) == V2.encode() + b"\n"
    back = home("current", V1)
    assert (back["current"], back["previous"]) == (V1, V2)
    seen = home("read")
    assert [(r["version"], r["valid"]) for r in seen["releases"]] == [(V2, True), (V1, True)]


def test_check_mode_of_everything_leaves_no_trace(home):
    home("staged", V1)
    before = tree(home.home)
    assert home("staged", V2, check=True)["changed"]
    assert home("current", V1, check=True)["changed"]
    assert home("pruned", keep=0, check=True)["changed"]
    assert home("absent", V1, check=True)["changed"]
    assert tree(home.home) == before


def test_a_damaged_release_is_set_aside_and_made_again(home):
    home("staged", V1)
    binary = home.home / "releases" / V1 / "bin/flysim"
    binary.write_bytes(b"rotten")
    refused = home("current", V1)
    assert refused["refused"]
    assert "bin/flysim differs" in refused["msg"]
    assert not (home.home / "current").exists()
    again = home("staged", V1)
    assert again["changed"]
    assert again["set_aside"].endswith(f".{V1}.damaged-1")
    assert (Path(again["set_aside"]) / "bin/flysim").read_bytes() == b"rotten"
    assert home("current", V1)["changed"]
    assert home("read")["releases"] == [{"version": V1, "valid": True, "problems": []}]


@pytest.mark.parametrize("spoil", ["extra", "missing", "link", "manifest"])
def test_what_does_not_verify_never_becomes_current(home, spoil):
    home("staged", V1)
    folder = home.home / "releases" / V1
    if spoil == "extra":
        (folder / "bin/more").write_text("x")
    elif spoil == "missing":
        (folder / "ptx/sm_75.ptx").unlink()
    elif spoil == "link":
        (folder / "ptx/sm_75.ptx").unlink()
        (folder / "ptx/sm_75.ptx").symlink_to("/etc/passwd")
    else:
        (folder / "MANIFEST").unlink()
    assert home("current", V1)["refused"]
    assert not (home.home / "current").is_symlink()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_cut_tar_leaves_nothing_behind(home, share):
    whole = Path(str(home.tars[V2]["path"])).read_bytes()
    cut = home.tmp / "cut.tar.gz"
    cut.write_bytes(whole[: int(len(whole) * share)])
    home("staged", V1)
    before = tree(home.home)
    result = home("staged", V2, src=blob(cut))
    assert result["failed"]
    assert "nothing was left here" in result["msg"]
    assert tree(home.home) == before


def test_a_tar_that_lies_leaves_nothing_behind(home):
    lie = home.tmp / "lie.tar.gz"
    make_tar(lie, V2)
    with tarfile.open(lie) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar.getmembers()]
    with tarfile.open(lie, "w:gz") as tar:
        for member, data in members:
            changed = b"#!/bin/sh\nrm -rf /\n" if member.name.endswith("flysim") else data
            member.size = len(changed)
            tar.addfile(member, io.BytesIO(changed))
    result = home("staged", V2, src=blob(lie))
    assert "bin/flysim differs" in result["msg"]
    assert list((home.home / "releases").iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil", "/evil", "link"])
def test_a_tar_that_wants_out(home, name):
    bad = home.tmp / "bad.tar.gz"
    with tarfile.open(bad, "w:gz") as tar:
        info = tarfile.TarInfo(f"{V2}/{name}" if not name.startswith("/") else name)
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(info, io.BytesIO(b""))
    assert home("staged", V2, src=blob(bad))["failed"]
    assert not (home.tmp / "evil").exists()
    assert list((home.home / "releases").iterdir()) == []


def test_pruned_keeps_the_newest_and_what_is_pointed_at(home):
    for number, version in enumerate((V1, V2, V3)):
        home("staged", version)
        os.utime(home.home / "releases" / version, (1000 + number, 1000 + number))
    home("current", V1)
    result = home("pruned", keep=1)
    assert (result["changed"], result["pruned"]) == (True, [V2])
    assert not home("pruned", keep=1)["changed"]
    (home.home / "releases" / f".{V2}.incoming").mkdir()  # of a run that was cut off
    assert home("pruned", keep=1)["changed"]
    assert sorted(p.name for p in (home.home / "releases").iterdir()) == [V1, V3]


def test_absent(home):
    home("staged", V1)
    home("staged", V2)
    home("current", V1)
    assert home("absent", V1)["refused"]
    assert home("absent", V2)["changed"]
    assert not home("absent", V2)["changed"]


def test_a_file_where_current_should_be(home):
    home("staged", V1)
    (home.home / "current").write_text("x")
    assert "expected a link" in home("current", V1)["msg"]


def test_a_stage_and_a_switch_killed_anywhere_end_right_when_run_again(home):
    home("staged", V1)
    home("current", V1)
    paths = {str(home.tars[V2]["sha256"]): str(home.tars[V2]["path"])}
    for step in ({"state": "staged", "src": home.tars[V2]}, {"state": "current"}):
        kills = 0
        while not run_and_kill(kills, "release", {"home": str(home.home), "version": V2, **step}, paths):
            seen = home("read")
            assert seen["current"] in (V1, V2)
            assert all(r["valid"] for r in seen["releases"])
            assert kills < 60
            kills += 1
        assert kills > 2
    seen = home("read")
    assert (seen["current"], seen["previous"]) == (V2, V1)
    assert [p.name for p in (home.home / "releases").iterdir() if p.name.startswith(".")] == []
