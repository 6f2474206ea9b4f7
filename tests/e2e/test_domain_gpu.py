# SPDX-License-Identifier: Apache-2.0
"""The five checks of the newest cuda build on this machine's card."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyops import places
from flyops.domain import report
from tests.beds.fivechecks import Run, five, nvcc

KERNEL = Path(__file__).parents[2] / "flysim/crates/cuda/kernels/flysim.cu"  # without nvcc the build has to hold PTX for the card
pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_all_five_pass_on_a_real_card(tmp_path: Path) -> None:
    tars = sorted(places.cache("builds").glob("*+cuda/flysim-*.tar.gz"), key=lambda p: p.stat().st_mtime)
    brains = sorted(places.cache("connectomes").glob("circuit668-*/*.fly"))
    if not tars or not brains:
        pytest.skip("no cuda build or no circuit668 in the cache: ./fly build --gpu and ./fly connectome make them")
    run = Run(tars[-1], brains[-1], tmp_path)
    try:
        entries = five(run, KERNEL if nvcc() else None)
    finally:
        run.trial("trial", state="absent")
        run.trial("live", state="absent")
    assert report.verdict(entries) == "passed", report.table(entries)
