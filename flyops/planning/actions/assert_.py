# SPDX-License-Identifier: Apache-2.0
"""Fail unless conditions hold."""

from __future__ import annotations

from typing import Any

from flyops.loading.templating import condition, render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec
from flyops.spec.arguments import to_bool

SPEC = Spec(
    doc="Fail unless every condition holds.",
    args={
        "that": Arg("raw", "A condition or a list of them, written as in `when`", required=True),
        "fail_msg": Arg("raw", "What to say when one does not hold", aliases=("msg",)),
        "success_msg": Arg("raw", "What to say when all hold"),
        "quiet": Arg("bool", "Do not show the conditions that held", default=False),
    },
    where="controller",
    examples='- assert: {that: ["cpus | int >= 2"], fail_msg: "needs two CPUs, has {{ cpus }}"}\n',
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """The first condition that does not hold ends it."""
    that = args["that"]
    quiet = to_bool(render(args.get("quiet", False), scope))
    for item in that if isinstance(that, (list, tuple)) else [that]:
        if not condition(item, scope):
            said = render(args.get("fail_msg", args.get("msg")), scope)
            return Outcome({"failed": True, "assertion": str(item), "evaluated_to": False, "msg": said or f"Assertion failed: {item}"})
    return Outcome({} if quiet else {"msg": render(args.get("success_msg"), scope) or "All assertions passed"})
