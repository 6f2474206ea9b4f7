# SPDX-License-Identifier: Apache-2.0
"""The module settings_receipt on a real host: real files, other people's changes, runs that are killed half way."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.modules import settings_receipt
from tests.beds.killed import run_and_kill, tree


@pytest.fixture
def etc(tmp_path):
    """Two files and one that is not there; `do` runs the module."""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "backend.env").write_text("FLY_LIF_CUDA=0\n")
    (folder / "backend.env").chmod(0o640)
    (folder / "old.conf").write_text("x\n")
    files = {
        str(folder / "backend.env"): {"content": "FLY_LIF_CUDA=1\n", "mode": "0640"},
        str(folder / "new.d/50-cpus.conf"): {"content": "[Service]\nAllowedCPUs=0\n"},
        str(folder / "old.conf"): None,
    }

    def do(state, *, check=False, **more):
        host = RealHost()
        args = {"dir": str(tmp_path / "receipts"), "name": "gpu", "state": state, **more}
        if state == "applied":
            args.setdefault("files", files)
        return run_module(settings_receipt, args, OverlayHost(host) if check else host, diff=True)

    do.folder, do.files, do.receipts = folder, files, tmp_path / "receipts"
    return do


def test_applied_and_restored(etc):
    start = tree(etc.folder)
    assert etc("applied", check=True)["changed"]
    assert tree(etc.folder) == start
    first = etc("applied")
    assert first["changed"]
    assert len(first["diff"]) == 3
    assert not etc("applied")["changed"]
    assert (etc.folder / "new.d/50-cpus.conf").read_text() == "[Service]\nAllowedCPUs=0\n"
    assert not (etc.folder / "old.conf").exists()
    assert stat.S_IMODE((etc.receipts / "gpu.json").stat().st_mode) == 0o600
    assert etc("read")["exists"]
    back = etc("restored")
    assert back["changed"]
    assert not back["exists"]
    assert tree(etc.folder) == start
    assert stat.S_IMODE((etc.folder / "backend.env").stat().st_mode) == 0o640
    assert not etc("restored")["changed"]
    assert sorted(p.name for p in etc.receipts.iterdir()) == ["gpu.json.done"]
    seen = etc("read")
    assert (seen["exists"], seen["restored_before"]) == (False, True)


def test_a_second_gpu_deploy_does_not_overwrite_the_way_back(etc):
    start = tree(etc.folder)
    etc("applied")
    more = {str(etc.folder / "backend.env"): {"content": "FLY_LIF_CUDA=1\nRAYON_NUM_THREADS=1\n"}}
    assert etc("applied", files=more)["changed"]
    etc("restored")
    assert tree(etc.folder) == start


def test_somebody_else_changed_it(etc):
    etc("applied")
    (etc.folder / "backend.env").write_text("FLY_LIF_CUDA=7\n")
    before = tree(etc.folder)
    for state in ("restored", "applied"):
        refused = etc(state)
        assert refused["refused"]
        assert "backend.env" in refused["msg"]
        assert "--force" in refused["msg"]
        assert tree(etc.folder) == before
    forced = etc("restored", force=True)
    assert (etc.folder / "backend.env").read_text() == "FLY_LIF_CUDA=0\n"
    assert [Path(p).read_text() for p in forced["kept"]] == ["FLY_LIF_CUDA=7\n"]


def test_a_damaged_receipt_is_refused_and_forgotten_only_when_told(etc):
    etc("applied")
    path = etc.receipts / "gpu.json"
    path.write_text(path.read_text().replace("CUDA=0", "CUDA=9"))
    for state in ("restored", "applied", "read"):
        refused = etc(state)
        assert refused["refused"]
        assert "damaged" in refused["msg"]
    assert etc("absent")["changed"]
    assert not etc("absent")["changed"]


def test_nothing_to_restore(etc):
    result = etc("restored")
    assert (result["changed"], result["failed"], result["exists"]) == (False, False, False)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"relative": None}, "absolute"),
        ({"/x": "text"}, "content"),
        ({"/x": {"content": "a", "colour": 1}}, "content"),
        ({"/x": {"content": "a", "mode": "0999"}}, "octal"),
        ({"/x": {"content": "a", "owner": "nobody-of-that-name"}}, "no user"),
    ],
)
def test_files_that_make_no_sense(etc, files, says):
    result = etc("applied", files=files)
    assert result["failed"]
    assert says in result["msg"]
    assert not etc.receipts.exists()


def test_a_folder_in_the_place_of_a_file(etc):
    assert "expected a file" in etc("applied", files={str(etc.folder): {"content": "x"}})["msg"]


def test_applied_and_restored_killed_anywhere_end_right_when_run_again(etc):
    start = tree(etc.folder)
    for state in ("applied", "restored"):
        args = {"dir": str(etc.receipts), "name": "gpu", "state": state, "files": etc.files if state == "applied" else None}
        kills = 0
        while not run_and_kill(kills, "settings_receipt", args):
            assert kills < 40
            kills += 1
        assert kills > 2
        if state == "applied":
            assert (etc.folder / "backend.env").read_text() == "FLY_LIF_CUDA=1\n"
    assert tree(etc.folder) == start


def test_killed_between_receipt_and_files_a_restore_still_gives_the_start_back(etc):
    start = tree(etc.folder)
    args = {"dir": str(etc.receipts), "name": "gpu", "state": "applied", "files": etc.files}
    for kills in range(1, 20):
        if run_and_kill(kills, "settings_receipt", args):
            break
        assert not etc("restored")["failed"]
        assert tree(etc.folder) == start
    else:
        pytest.fail("it never came to its end")
