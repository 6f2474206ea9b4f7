# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import gate

BASE = ["shiu-0.1ms-f64", "flywire-783", "0123abcd", "none", "flystate-1"]
OURS = "/".join(BASE)


def changed(*numbers: int) -> str:
    return "/".join(f"{part}x" if number in numbers else part for number, part in enumerate(BASE))


def test_equal_strings_pass():
    verdict = gate.judge(OURS, OURS)
    assert verdict.passes
    assert not verdict.archive
    assert verdict.differs == ()


@pytest.mark.parametrize("text", ["none", "", "None\n"])
def test_no_state_passes(text):
    assert gate.judge(OURS, text).passes
    assert not gate.judge(OURS, text).archive


@pytest.mark.parametrize("number", range(5))
def test_each_segment_is_named(number):
    verdict = gate.judge(OURS, changed(number))
    assert verdict.differs == (gate.SEGMENTS[number],)
    assert not verdict.passes
    text = gate.refusal(verdict)
    assert gate.SEGMENTS[number] in text
    assert OURS in text
    assert changed(number) in text
    assert f"--accept {gate.SEGMENTS[number].replace(' ', '-')}" in gate.ways_out(verdict, "/s/archive-1")


def test_two_segments_and_one_accepted():
    verdict = gate.judge(OURS, changed(0, 4), ["kernel"])
    assert verdict.differs == ("kernel", "state format")
    assert verdict.open_segments == ("state format",)
    assert not verdict.passes


@pytest.mark.parametrize("word", ["state-format", "state_format", "State Format"])
def test_all_accepted_asks_for_the_archive(word):
    verdict = gate.judge(OURS, changed(0, 4), ["kernel", word])
    assert verdict.passes
    assert verdict.archive


def test_accepting_what_does_not_differ_archives_nothing():
    assert not gate.judge(OURS, OURS, ["kernel"]).archive


@pytest.mark.parametrize("state", ["a/b/c", OURS + "/more", "rubbish"])
def test_strings_that_do_not_lie_side_by_side(state):
    assert gate.judge(OURS, state).differs == ("number of segments",)
    assert not gate.judge(OURS, state, ["kernel"]).passes
    assert gate.judge(OURS, state, ["number-of-segments"]).archive


def test_unknown_segments():
    assert gate.unknown_segments(["kernel", "kernal", "index-space"]) == ["kernal"]


def test_first_line():
    assert gate.first_line("warning: x\n\na/b\n") == "a/b"
    assert gate.first_line("\n") == ""


def test_several_segments_need_the_whole_state_and_one_its_name():
    several = gate.judge(OURS, changed(0, 4))
    assert "(3) --archive-state" in gate.ways_out(several, "/s/archive-1") and "--accept" not in gate.ways_out(several, "/s/archive-1")
    assert "kernel, state format differ\n" in gate.refusal(several) and "kernel differs\n" in gate.refusal(gate.judge(OURS, changed(0)))


@pytest.mark.parametrize("state", [OURS, "rubbish", "damaged"])
def test_a_fresh_brain_takes_everything_and_archives_it(state):
    verdict = gate.judge(OURS, state, fresh=True)
    assert (verdict.passes, verdict.archive) == (True, True)
    assert not gate.judge(OURS, "none", fresh=True).archive
