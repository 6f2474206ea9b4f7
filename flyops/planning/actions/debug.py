# SPDX-License-Identifier: Apache-2.0
"""Print a text or a variable."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.positions import NOWHERE, Text
from flyops.loading.templating import render, render_text
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Print a text or the value of a variable; changes nothing.",
    args={
        "msg": Arg("raw", "Text to print"),
        "var": Arg("raw", "Name of a variable, or an expression; one that is not defined is told, not an error"),
        "verbosity": Arg("int", "Only print from this verbosity on", default=0),
    },
    exclusive=(("msg", "var"),),
    where="controller",
    examples='- debug: {msg: "{{ inventory_hostname }}"}\n- debug: {var: release_now}\n',
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """The text or the value."""
    hidden = int(render(args.get("verbosity", 0), scope)) > int(scope.get("ansible_verbosity", 0))
    if "var" not in args:
        return Outcome({"msg": render(args.get("msg", "Hello world!"), scope)}, hidden=hidden)
    name = render(args["var"], scope) if isinstance(args["var"], str) and "{{" in args["var"] else args["var"]
    if not isinstance(name, str):
        return Outcome({"msg": name}, hidden=hidden)
    try:
        value = render_text(Text("{{ " + name + " }}", getattr(args["var"], "pos", NOWHERE)), scope)
    except PlanError as err:
        if "undefined" not in err.message and "has no" not in err.message:
            raise
        value = "VARIABLE IS NOT DEFINED!"
    return Outcome({str(name): value}, hidden=hidden)
