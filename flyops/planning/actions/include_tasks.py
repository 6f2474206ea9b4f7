# SPDX-License-Identifier: Apache-2.0
"""Run the tasks of a file here."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.templating import render
from flyops.loading.variables import Scope
from flyops.planning.outcome import Include, Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Run the tasks of a file here. Its name may depend on variables; its own tags and `when` decide only whether it is read.",
    args={
        "file": Arg("str", "The file, beside the one that includes it", required=True),
        "apply": Arg("dict", "Keywords for every task inside: tags, become, when, …"),
    },
    free_form="file",
    where="controller",
    examples="- include_tasks: cuda.yml\n  when: backend == 'cuda'\n",
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """Which file."""
    name = render(args["file"], scope)
    if not isinstance(name, str) or not name:
        raise PlanError(f"include_tasks: expected the name of a file, found {name!r}")
    return Outcome({"include": name}, include=Include(name))
