# SPDX-License-Identifier: Apache-2.0
"""Set variables of a host for the rest of the run."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.templating import render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Set variables of this host for the rest of the run; values keep the types that their expressions have.",
    args={"cacheable": Arg("bool", "Accepted; facts are not kept between runs", default=False)},
    open=True,
    where="controller",
    examples="- set_fact:\n    backend: \"{{ 'cuda' if want_gpu else 'cpu' }}\"\n",
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """The values, rendered."""
    facts = {}
    for key, value in args.items():
        name = str(render(key, scope))
        if name == "cacheable":
            continue
        if not name.isidentifier():
            raise PlanError(f"set_fact: {name!r} is no variable name")
        facts[name] = render(value, scope)
    return Outcome({"ansible_facts": facts}, facts=facts)
