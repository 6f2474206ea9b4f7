# SPDX-License-Identifier: Apache-2.0
"""Read variables of a file of the controller."""

from __future__ import annotations

from typing import Any

from flyops.errors import LoadError, PlanError
from flyops.loading.inventory import load_vars
from flyops.loading.lookups import find_file
from flyops.loading.templating import render
from flyops.loading.variables import PendingResult, Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Read variables of a YAML or JSON file of the controller, for this host and the rest of the run.",
    args={"file": Arg("str", "The file, in vars/ or beside the task file", required=True), "name": Arg("str", "Put them all below this name")},
    free_form="file",
    where="controller",
    examples='- include_vars: "{{ ansible_facts.distribution | lower }}.yml"\n',
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """The variables; their templates stay lazy."""
    if scope.pending_files:
        raise PendingResult("include_vars")
    try:
        path = find_file(str(render(args["file"], scope)), scope.folders, "vars")
        values = dict(load_vars(path))
    except LoadError as err:
        raise PlanError(err.message, where=err.where, fix=err.fix) from err
    name = render(args.get("name"), scope)
    return Outcome({"ansible_included_var_files": [path], "ansible_facts": {}}, variables={name: values} if name else values)
