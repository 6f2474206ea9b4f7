# SPDX-License-Identifier: Apache-2.0
"""What a raw result means for the play: changed_when, failed_when, until, and the result of a loop."""

from __future__ import annotations

from typing import Any

from flyops.errors import PlanError
from flyops.loading.playbook import Task
from flyops.loading.templating import condition
from flyops.loading.variables import Scope
from flyops.planning.steps import Item, Step

Result = dict[str, Any]


def judge(task: Task, raw: Result, scope: Scope) -> Result:
    """The result after changed_when and failed_when; they see it under the task's `register` name."""
    result = {"changed": False, "failed": False, **raw}
    if "stdout" in result and isinstance(result["stdout"], str):
        result.setdefault("stdout_lines", result["stdout"].splitlines())
    if "stderr" in result and isinstance(result["stderr"], str):
        result.setdefault("stderr_lines", result["stderr"].splitlines())
    if result.get("skipped") or result.get("unreachable") or result.get("refused"):
        return result
    inner = scope.child({task.register: result}) if task.register else scope
    try:
        if task.changed_when is not None:
            result["changed"] = all(condition(value, inner, task.pos) for value in task.changed_when)
        if task.failed_when is not None:
            result["failed_when_result"] = result["failed"] = all(condition(value, inner, task.pos) for value in task.failed_when)
            if result["failed"]:
                result.setdefault("msg", "failed_when is true")
    except PlanError as err:
        result.update(failed=True, msg=f"{err.where}: {err.message}" if err.where else err.message)
    return result


def is_done(task: Task, result: Result, scope: Scope) -> bool:
    """Whether `until` holds (without an `until`: the task did not fail)."""
    if task.until is None:
        return not result.get("failed")
    inner = scope.child({task.register: result}) if task.register else scope
    return all(condition(value, inner, task.pos) for value in task.until)


def item_result(step: Step, item: Item, result: Result) -> Result:
    """A loop item's own result."""
    out = {**result, "ansible_loop_var": step.loop_var, step.loop_var: item.value}
    index_var = step.task.loop_control.get("index_var")
    if index_var:
        out |= {"ansible_index_var": index_var, str(index_var): item.index}
    return out


def loop_result(results: list[Result]) -> Result:
    """The result of the whole loop."""
    if not results:
        return {"changed": False, "failed": False, "skipped": True, "skip_reason": "No items in the list", "results": []}
    out: Result = {
        "changed": any(result.get("changed") for result in results),
        "failed": any(result.get("failed") for result in results),
        "results": results,
    }
    if all(result.get("skipped") for result in results):
        return {**out, "skipped": True, "msg": "All items skipped"}
    out["msg"] = "One or more items failed" if out["failed"] else "All items completed"
    if any(result.get("refused") for result in results):
        out["refused"] = True
    if any(result.get("unknown") for result in results):
        out["unknown"] = True
    return out


def facts_of(result: Result) -> dict[str, Any]:
    """Facts that a result brings, those of loop items included."""
    facts: dict[str, Any] = {}
    for part in [*result.get("results", []), result]:
        if isinstance(part, dict) and isinstance(part.get("ansible_facts"), dict):
            facts.update(part["ansible_facts"])
    return facts
