# SPDX-License-Identifier: Apache-2.0
"""Add a host to the inventory of this run."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.templating import render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec
from flyops.spec.arguments import to_list

SPEC = Spec(
    doc="Add a host to the inventory of this run, for later plays; other arguments become its variables.",
    args={
        "name": Arg("str", "Its name", required=True, aliases=("hostname", "host")),
        "groups": Arg("list", "Groups that it joins", aliases=("group", "groupname")),
    },
    open=True,
    where="controller",
    examples="- add_host: {name: dev1, groups: containers, ansible_connection: lxc}\n",
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """Name, groups, variables."""
    values = {str(key): render(value, scope) for key, value in args.items()}
    name = next((values.pop(key) for key in ("name", "hostname", "host") if values.get(key)), "")
    if not name:
        raise PlanError("add_host: expected a name")
    groups = [str(g) for key in ("groups", "group", "groupname") for g in to_list(values.pop(key, None) or [])]
    return Outcome(
        {"changed": True, "add_host": {"host_name": name, "groups": groups, "host_vars": values}}, new_host=(str(name), tuple(groups), values)
    )
