# SPDX-License-Identifier: Apache-2.0
"""Every sabotage that is a text is caught by who names it, and green when undone; healthy variants raise no alarm; names are the suite's own."""

from __future__ import annotations

import re

import pytest

from flyops.domain.checks import FAILED, PASSED
from tests.sabotage import case, guest, texts


@pytest.mark.parametrize("sabotage", texts.WRONG, ids=lambda t: t.name)
def test_caught_in_its_words_and_green_when_undone(sabotage: texts.Text) -> None:
    wrong, right = sabotage.wrong(), sabotage.right()
    assert wrong.verdict == FAILED and re.search(sabotage.words, f"{wrong.seen} {wrong.fix}", re.DOTALL), wrong
    assert right.verdict == PASSED, right


@pytest.mark.parametrize(("name", "judge"), texts.HEALTHY, ids=[name for name, _ in texts.HEALTHY])
def test_a_healthy_variant_raises_no_alarm(name: str, judge: object) -> None:
    assert judge().verdict == PASSED  # type: ignore[operator]


def test_the_suite_is_as_large_as_it_says() -> None:
    names = [c.name for c in guest.CASES] + [t.name for t in texts.WRONG]
    assert len(names) == len(set(names))
    sabotages = [c for c in guest.CASES if c.caught_by]
    assert len([c for c in sabotages if "card" in c.beds]) >= 25 <= len([c for c in sabotages if "double" in c.beds])
    assert len(sabotages) + len(texts.WRONG) >= 45
    assert len(texts.HEALTHY) + len([c for c in guest.CASES if not c.caught_by]) >= 20
    assert all(c.does and (c.words or not c.caught_by) for c in guest.CASES)


ROWS = {name: {"verdict": "passed", "said": ""} for name in case.FIVE}
RAW = {
    "checks": {**ROWS, "ptx": {"verdict": "failed", "said": "cut off"}},
    "caught_by": "ptx",
    "words": "cut off",
    "code": 3,
    "text": "",
    "live_kept": True,
}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "caught"),
        ({"code": 0}, "missed"),
        ({"words": "JIT"}, "other words"),
        ({"caught_by": "card"}, "expected check 2"),
        ({"live_kept": False}, "the live service changed"),
        ({"checks": {**RAW["checks"], "card": {"verdict": "failed", "said": ""}}}, "named by"),
        ({"caught_by": "receipt", "text": "cut off"}, "caught"),
        ({"caught_by": "receipt"}, "stopped with other words"),
        ({"caught_by": ""}, "false alarm"),
        ({"caught_by": "", "code": 0, "checks": ROWS}, "passed"),
    ],
)  # fmt: skip
def test_a_verdict_comes_out_of_the_sample_alone(change: dict[str, object], verdict: str) -> None:
    assert verdict in case.verdict({**RAW, **change})


def test_green_again_needs_a_later_run() -> None:
    good = {**RAW, "checks": ROWS, "caught_by": "", "code": 0}
    first = {**RAW, "case": "a"}
    assert case.green_again([first, {**good, "case": "b"}]) == {"a": True}
    assert case.green_again([{**good, "case": "b"}, first]) == {"a": False}
