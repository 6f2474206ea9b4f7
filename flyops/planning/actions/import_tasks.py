# SPDX-License-Identifier: Apache-2.0
"""Put the tasks of a file here, before the run; the parser does it."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.variables import Scope
from flyops.planning.outcome import Outcome
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Put the tasks of a file here, before the run: tags, `when` and all else of this task hold for each of them.",
    args={"file": Arg("str", "The file, beside the one that imports it", required=True)},
    free_form="file",
    where="controller",
    examples="- import_tasks: tasks/lock.yml\n",
)


def act(args: dict[str, Any], scope: Scope) -> Outcome:
    """Never reached: the parser has put the tasks in its place."""
    raise PlanError("import_tasks was not resolved while loading")
