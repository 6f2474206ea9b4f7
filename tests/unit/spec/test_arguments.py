# SPDX-License-Identifier: Apache-2.0
"""Declared arguments: conversions, relations, and what can be said before a run."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.spec import Arg, Spec, check_literals, validate

SPEC = Spec(
    doc="d",
    args={
        "path": Arg("path", "the place", required=True, aliases=("dest",)),
        "state": Arg("str", default="a", choices=("a", "b")),
        "mode": Arg("mode"),
        "count": Arg("int"),
        "tags": Arg("list", elements="int"),
        "x": Arg(),
        "y": Arg(),
    },
    exclusive=(("x", "y"),),
    required_if=(("state", "b", ("count",)),),
)


@pytest.mark.parametrize(
    ("typed", "wanted"), [("0644", 0o644), ("644", 0o644), ("0o644", 0o644), (0o644, 0o644), ("01777", 0o1777), ("u=rw,g=r,o=", "u=rw,g=r,o=")]
)
def test_modes(typed: Any, wanted: Any) -> None:
    assert validate(SPEC, {"path": "/", "mode": typed})[0]["mode"] == wanted


@pytest.mark.parametrize("typed", ["0888", "rw", True, 0o10000, -1, ""])
def test_wrong_modes(typed: Any) -> None:
    assert validate(SPEC, {"path": "/", "mode": typed})[1]


def test_values_and_errors() -> None:
    values, errors = validate(SPEC, {"dest": "/p", "tags": "1, 2", "count": " 7 "})
    assert not errors
    assert (values["path"], values["state"], values["tags"], values["count"]) == ("/p", "a", [1, 2], 7)
    errors = validate(SPEC, {"pth": "/p", "state": "c", "count": "x", "x": 1, "y": 2})[1]
    for part in (
        "unknown argument 'pth'; did you mean 'path'?",
        "missing argument 'path' (the place)",
        "expected one of a, b",
        "'count'",
        "x and y exclude",
    ):
        assert any(part in error for error in errors), (part, errors)
    assert validate(SPEC, {"path": "/", "state": "b"})[1] == ["count required when state is b"]


def test_what_can_be_said_before_a_run() -> None:
    def is_open(value: Any) -> bool:
        return "{{" in str(value)

    assert check_literals(SPEC, {"path": "{{ p }}", "state": "{{ s }}", "count": "{{ c }}"}, is_open) == []
    assert check_literals(SPEC, {"dest": "/", "state": "b", "count": "{{ c }}"}, is_open) == []
    assert [name for name, _ in check_literals(SPEC, {"pth": "/", "dest": "/", "count": "x"}, is_open)] == ["pth", "count"]
    assert check_literals(SPEC, {}, is_open) == [("", "missing argument 'path' (the place)")]
    assert check_literals(Spec(doc="d", args={}, open=True), {"anything": 1}, is_open) == []
    assert validate(Spec(doc="d", args={}, open=True), {"anything": 1}) == ({"anything": 1}, [])
