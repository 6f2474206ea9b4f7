# SPDX-License-Identifier: Apache-2.0
"""What the soak would not see, it would not find: its plan cuts every step, its looks tell a lie from a truth, its figures count what went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyops.domain import receipt
from flyops.operations import bench
from tests.beds import cutbed

SOAK = bench.load("soak")
SWITCHES = bench.load("switches")
STEPS = {"deploy": [f"d{n}" for n in range(50)], "rollback": [f"r{n}" for n in range(38)]}
OLD = {"content": "a\n", "mode": 0o644, "uid": 0, "gid": 0}
NEW = {**OLD, "content": "b\n"}


def test_every_step_of_both_commands_is_cut_once_and_every_fault_comes() -> None:
    plan = SOAK.plan(STEPS, 200)
    cut = [(row["kind"], row["step"]) for row in plan if row["step"]]
    assert sorted(cut) == sorted((kind, step) for kind, steps in STEPS.items() for step in steps)
    assert {row["fault"] for row in plan if row["step"]} == {row["fault"] for row in plan if not row["step"]} == set(SOAK.FAULTS)
    assert [row["kind"] for row in plan[:4]] == ["deploy", "rollback", "deploy", "rollback"]
    assert plan == SOAK.plan(STEPS, 200), "a soak that goes on must go on with the same rounds"
    assert any(row["back"] for row in plan) and any(row["second"] for row in plan)


def found(text: str, now: Any) -> dict[str, Any]:
    return {"receipts": {"deploy.json": {"text": text, "files": {"/etc/x": now}}}}


def test_an_open_receipt_that_lies_is_told_from_one_that_does_not() -> None:
    first = receipt.applied(None, "deploy", {"/etc/x": OLD}, {"/etc/x": NEW}, "now")
    text = receipt.dump(first)
    for now in (OLD, NEW):
        assert cutbed.lies(found(text, now)) == []
    for other in (None, {**OLD, "mode": 0o600}, {**OLD, "content": "c\n"}):
        assert cutbed.lies(found(text, other)) == ["deploy.json: /etc/x is neither its before nor anything that flyops wrote"]
    assert "checksum" in cutbed.lies(found(text.replace("b\\n", "c\\n"), OLD))[0]
    later = receipt.dump(receipt.applied(first, "deploy", {"/etc/x": NEW}, {"/etc/x": {**OLD, "content": "d\n"}}, "later"))
    assert cutbed.lies(found(later, NEW)) == []


GOOD = {
    "kind": "deploy", "fault": "agent", "step": "d", "struck": "d", "exit": 4, "old": ["a", "wide"], "new": ["b", "narrow"], "after_cut": "between", "receipts": ["deploy.json"],
    "lies": [], "tries": 1, "end": ["b", "narrow"], "wanted": ["b", "narrow"], "open_after": [], "saved": 5, "tick": 9, "set_aside": 0, "left": [], "seconds": 8.0,
    "second": [0, "0"],
}  # fmt: skip


def figures(folder: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    (folder / "steps.json").write_text(json.dumps({"deploy": ["d"]}))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made: dict[str, Any] = SOAK.figures(folder)
    return made


def test_a_good_round_meets_every_goal_but_their_number(tmp_path: Path) -> None:
    met = bench.judge(figures(tmp_path, GOOD), SOAK.GOALS)
    assert [name for name, well in met.items() if not well] == ["cut"]


@pytest.mark.parametrize(
    ("wrong", "goal"),
    [
        ({"end": []}, "ends_in_one_of_two_states"),
        ({"end": ["a", "narrow"]}, "ends_in_one_of_two_states"),
        ({"end": ["a", "wide"]}, "healed"),
        ({"open_after": ["deploy.json"]}, "healed"),
        ({"lies": ["x"]}, "receipts_that_lied"),
        ({"receipts": []}, "between_without_a_receipt"),
        ({"struck": ""}, "steps_not_cut"),
        ({"tick": 4}, "ticks_lost_behind_a_checkpoint"),
        ({"set_aside": 1}, "ticks_lost_behind_a_checkpoint"),
        ({"second": [0, "2"]}, "second_runs_that_changed"),
    ],
)
def test_each_way_to_go_wrong_misses_its_goal(tmp_path: Path, wrong: dict[str, Any], goal: str) -> None:
    assert not bench.judge(figures(tmp_path, {**GOOD, **wrong}), SOAK.GOALS)[goal]


def test_a_round_in_which_nothing_struck_is_not_counted(tmp_path: Path) -> None:
    random = {**GOOD, "step": ""}
    rows = [random, {**random, "struck": "", "exit": -9}, {**random, "struck": "", "exit": 0}]
    assert (figures(tmp_path, *rows)["rounds"], figures(tmp_path, *rows)["cut"]) == (3, 2)


def side(backend: str, tick: int, receipts: list[str], state: str) -> dict[str, Any]:
    return {"backend": backend, "tick": tick, "receipts": receipts, "state": state, "lies": []}


def test_switches_are_judged_by_what_each_ended_in(tmp_path: Path) -> None:
    row = {"five": ["passed"] * 5, "gpu": side("cuda", 5, ["gpu.json"], "g"), "cpu": side("cpu", 9, [], "c"), "tries": 1, "gpu_s": 1.0}
    for wrong, goal in (
        ({}, ""),
        ({"five": ["passed"] * 4 + ["failed"]}, "five_checks_passed"),
        ({"cpu": side("cpu", 9, [], "other")}, "cpu_states"),
        ({"cpu": side("cpu", 4, [], "c")}, "ticks_never_went_back"),
        ({"cpu": side("cpu", 9, ["gpu.json"], "c")}, "receipts_as_wanted"),
        ({"gpu": side("cpu", 5, ["gpu.json"], "g")}, "backends_as_wanted"),
    ):
        (tmp_path / "switches.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (row, {**row, **wrong})))
        met = bench.judge(SWITCHES.figures(tmp_path), SWITCHES.GOALS)
        assert [name for name, well in met.items() if not well] == ["switches", *([goal] if goal else [])], wrong
