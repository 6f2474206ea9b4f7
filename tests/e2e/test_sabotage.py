# SPDX-License-Identifier: Apache-2.0
"""The quick part of the sabotage suite: real deploys to one real guest, whose card is a double that computes (tests/beds/doublecard.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyops import places
from flyops.operations import build
from flyops.operations.release import Release
from tests.beds.lxc import free_name
from tests.sabotage.case import green_again, verdict
from tests.sabotage.guest import CASES

pytestmark = [pytest.mark.lxc, pytest.mark.root]


@pytest.fixture(scope="module")
def cuda_release() -> Release:
    """This checkout's flysim with the cuda feature, built once in the user's own cache."""
    return build.build(cuda=True)


def test_each_is_caught_by_who_names_it_and_green_when_undone(lxc_base: str, flysim_release: Release, cuda_release: Release, tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a real card: bench/h200.sh sabotage")
    releases = {"CPU_RELEASE": str(flysim_release.tar), "CUDA_RELEASE": str(cuda_release.tar), "ROOTFS": lxc_base}
    env = {**os.environ, **releases, "SABOTAGE_GUEST": free_name(), "WINDOW_S": "2", "XDG_STATE_HOME": str(tmp_path / "state")}
    words = [sys.executable, "-m", "tests.beds.doublecard", sys.executable, "-m", "tests.sabotage.run", "--quick", "--out", str(tmp_path / "raw")]
    done = subprocess.run(words, env=env, cwd=places.REPOSITORY, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr[-4000:])
    rows = [json.loads(path.read_text()) for path in sorted((tmp_path / "raw").glob("[0-9]*.json"))]
    assert {row["case"]: verdict(row) for row in rows} == {case.name: "caught" if case.caught_by else "passed" for case in CASES if case.quick}
    assert all(green_again(rows).values()), green_again(rows)
    assert not Path("/dev/nvidia0").exists()
