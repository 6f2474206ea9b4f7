# SPDX-License-Identifier: Apache-2.0
"""Wait, or ask."""

from __future__ import annotations

from typing import Any

from flyops.loading.templating import render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Wait some time, or until someone presses Enter; without a terminal a question is not asked.",
    args={
        "seconds": Arg("float", "How long"),
        "minutes": Arg("float", "How long"),
        "prompt": Arg("str", "What to ask"),
        "echo": Arg("bool", "Show what is typed", default=True),
    },
    exclusive=(("seconds", "minutes"),),
    where="controller",
    examples="- pause: {seconds: 5}\n",
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """How long, and the question."""
    values = {key: render(value, scope) for key, value in args.items()}
    given = "seconds" in values or "minutes" in values
    wait_s = float(values.get("seconds") or 0) + 60 * float(values.get("minutes") or 0)
    return Outcome(
        {"delta": wait_s, "user_input": ""},
        pause_s=wait_s if given else None,
        prompt=str(values.get("prompt") or ("" if given else "Press enter to continue")),
    )
