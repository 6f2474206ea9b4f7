# SPDX-License-Identifier: Apache-2.0
"""What a PTX text says of itself, and who may load it."""

from __future__ import annotations

import pytest

from flyops.domain import ptx
from flyops.operations import card


def text(isa="8.0", target="sm_90", body="add.rn.f64 %fd1, %fd2, %fd3;"):
    return f"//\n.version {isa}\n.target {target}\n.address_size 64\n.visible .entry f() {{\n\t{body}\n}}\n"


@pytest.mark.parametrize(
    ("driver", "isa"),
    [
        ("525.60.13", (8, 0)),
        ("535.54.03", (8, 2)),
        ("560", (8, 5)),
        ("565.57", (8, 6)),
        ("570.1", (8, 7)),
        ("575", (8, 8)),
        ("580.82.07", (9, 0)),
        ("999", (9, 1)),
    ],
)
def test_a_driver_reads_up_to_its_isa(driver, isa):
    same, above = "{}.{}".format(*isa), f"{isa[0]}.{isa[1] + 1}"

    assert ptx.problems(text(same), "sm_90", driver) == []
    assert f"reads up to {same}, found {above}" in ptx.problems(text(above), "sm_90", driver)[0]


def test_a_driver_older_than_the_table_is_refused_and_no_driver_is_no_limit():
    assert "525 or newer" in ptx.problems(text(), "sm_90", "470.1")[0]
    assert ptx.problems(text("99.0"), "sm_90") == []


def test_the_target_must_be_the_arch():
    assert ptx.problems(text(target="sm_75"), "sm_90") == [".target: expected sm_90, found sm_75"]


@pytest.mark.parametrize(
    "body", ["fma.rn.f64 %a, %b, %c, %d;", "@%p1 fma.rn.f32 %a, %b, %c, %d;", "mad.rn.f64 %a, %b, %c, %d;", "@!%p2 fma.rz.ftz.f32 %a;"]
)
def test_fused_multiply_adds_are_refused(body):
    assert "fused" in ptx.problems(text(body=body), "sm_90")[0]


@pytest.mark.parametrize("body", ["mad.lo.s32 %r1, %r2, %r3, %r4;", "mul.rn.f64 %a, %b, %c;", "// fma.rn in a comment", "call format_fma.rn;"])
def test_integer_multiply_adds_and_words_are_not_fused_floats(body):
    assert ptx.problems(text(body=body), "sm_90") == []


def test_a_text_that_is_no_ptx_is_told_so():
    assert ptx.problems("hello", "sm_90") == ["not PTX: no .version and .target line"]


@pytest.mark.parametrize(
    ("target", "arch", "how"),
    [
        ("sm_90", "sm_90", "exact"),
        ("sm_75", "sm_90", "jit"),
        ("sm_90", "sm_75", "no"),
        ("sm_90a", "sm_100", "no"),
        ("sm_90a", "sm_90a", "exact"),
        ("sm_90", "sm_100", "jit"),
    ],
)
def test_how_a_card_takes_it(target, arch, how):
    assert ptx.loads(text(target=target), arch) == how


def test_arches_are_read_from_capabilities():
    assert [ptx.arch_of(c) for c in ("9.0", " 7.5 ", "12.0", "", "x", "[N/A]")] == ["sm_90", "sm_75", "sm_120", None, None, None]


def test_the_card_is_read_from_the_first_line():
    assert card.parse("NVIDIA H200, 9.0, 580.82.07\nother, 7.5, 1\n") == card.Card("NVIDIA H200", "sm_90", "580.82.07")
    assert card.parse("A card, with a comma, 8.6, 535.1") == card.Card("A card, with a comma", "sm_86", "535.1")
    assert card.parse("NVIDIA-SMI has failed\n") is None
    assert card.parse("") is None
