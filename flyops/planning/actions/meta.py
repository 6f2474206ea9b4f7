# SPDX-License-Identifier: Apache-2.0
"""Steer the run itself."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.templating import render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

WORDS = ("flush_handlers", "end_host", "end_play", "noop")

SPEC = Spec(
    doc="Steer the run: run notified handlers now, end this host's part, end the play.",
    args={"action": Arg("str", "What to do", required=True, choices=WORDS)},
    free_form="action",
    where="controller",
    examples="- meta: flush_handlers\n",
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """One of the words."""
    word = str(render(args["action"], scope))
    if word not in WORDS:
        raise PlanError(f"meta: expected one of {', '.join(WORDS)}, found {word!r}")
    return Outcome({"msg": word}, meta=word)
