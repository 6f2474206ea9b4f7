# SPDX-License-Identifier: Apache-2.0
"""Fail with a text."""

from __future__ import annotations

from typing import Any

from flyops.loading.templating import render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Fail with a text.",
    args={"msg": Arg("raw", "What to say", default="Failed as requested from task")},
    where="controller",
    examples='- fail: {msg: "no card here"}\n  when: cards == []\n',
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """A failure."""
    return Outcome({"failed": True, "msg": render(args.get("msg", SPEC.args["msg"].default), scope)})
