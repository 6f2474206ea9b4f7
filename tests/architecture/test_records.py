# SPDX-License-Identifier: Apache-2.0
"""Every committed record agrees with its raw samples, and a record that does not is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flyops.operations import bench

RECORDS = sorted(bench.RECORDS.glob("*.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_agrees_with_its_raw_samples(record: Path) -> None:
    assert bench.check(record) == []


def test_there_are_records() -> None:
    assert RECORDS


def test_a_figure_typed_in_and_a_changed_sample_are_found(tmp_path: Path) -> None:
    source = RECORDS[0]
    shutil.copytree(source.parent / source.stem, tmp_path / source.stem)
    record = json.loads(source.read_text())
    name = next(iter(record["goals"]))
    typed = tmp_path / source.name
    typed.write_text(json.dumps({**record, "figures": {**record["figures"], name: "better"}}))
    assert any(name in problem for problem in bench.check(typed))

    typed.write_text(json.dumps(record))
    assert bench.check(typed) == []
    sample = tmp_path / source.stem / next(iter(record["raw"]))
    sample.write_text(sample.read_text() + "\n")
    assert any("sha256" in problem for problem in bench.check(typed))


def test_a_goal_whose_figure_is_missing_is_not_met() -> None:
    assert bench.judge({"a": 1}, {"a": ("==", 1), "b": ("<", 2)}) == {"a": True, "b": False}


def test_every_bench_says_its_goals() -> None:
    for name in bench.names():
        module = bench.load(name)
        assert module.GOALS and module.__doc__ and callable(module.measure) and callable(module.figures)
