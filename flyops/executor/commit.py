# SPDX-License-Identifier: Apache-2.0
"""Takes a task's results into a host's state: registers, facts, notifications, counters; and tells them as events."""

from __future__ import annotations

from typing import Any

from flyops.errors import ConnectError, PlanError
from flyops.executor.sequencer import Order, Sequencer
from flyops.executor.state import Context, HostState, PlayState, RunState
from flyops.loading.positions import Text
from flyops.loading.templating import has_template, render
from flyops.model.event import Event
from flyops.model.secrets import CENSORED
from flyops.planning import results
from flyops.planning.steps import Item, Step

Result = dict[str, Any]
HIDDEN_KEYS = ("_hidden",)


class Committer:
    """For one host in one stretch."""

    def __init__(self, run: RunState, play: PlayState, host: HostState, sequencer: Sequencer) -> None:
        self._run = run
        self._play = play
        self._host = host
        self._sequencer = sequencer

    # results

    def commit(self, step: Step, raw: list[Result], order: Order, context: Context, seconds: float = 0.0) -> bool:
        """Whether the host goes on."""
        self._log_writes(step, raw)
        if step.skip is not None:
            result = dict(step.skip)
        elif step.looped:
            parts = [self._item(step, item, part, order, context) for item, part in zip(step.items, raw, strict=True)]
            result = results.loop_result(parts)
        else:
            result = results.judge(step.task, raw[0], step.scope)
        hidden = any(part.pop("_hidden", False) for part in [result, *result.get("results", [])])
        if step.flags.no_log:
            self._learn_secrets(result)
        self._remember(step, result)
        status = self._count(step, result)
        if status in ("ok", "changed", "unknown") and result.get("changed"):
            self._notify(step)
        if not hidden:
            self._tell("result", step, order, context, status, result, seconds=seconds)
        if status in ("failed", "refused"):
            self._host.failure = {"task": self._task_facts(step), "result": result, "refused": status == "refused"}
            return False
        return True

    def _item(self, step: Step, item: Item, raw: Result, order: Order, context: Context) -> Result:
        result = results.item_result(step, item, results.judge(step.task, raw, item.scope))
        hidden = result.get("_hidden", False)
        if not hidden:
            self._tell("item", step, order, context, _status(result), result, label=item.label)
        return result

    def _log_writes(self, step: Step, raw: list[Result]) -> None:
        """Into the run's record; a command's words may be what `no_log` hides, so only its program is told."""
        for kind, path in [entry for part in raw for entry in part.get("writes", ())]:
            shown = path.split(" ")[0] if kind == "run" and step.flags.no_log else self._run.masker.text(path)
            on = step.target.name if step.target else self._host.name
            self._host.writes.append({"task": self.title(step), "on": on, "kind": kind, "path": shown})

    def _learn_secrets(self, result: Result) -> None:
        for part in [result, *result.get("results", [])]:
            self._run.masker.add([part[key] for key in ("stdout", "stderr", "content") if isinstance(part.get(key), str)])

    def _remember(self, step: Step, result: Result) -> None:
        host = self._host
        if step.task.register:
            host.set_facts[step.task.register] = result
        if step.task.module in ("set_fact", "include_vars") or result.get("failed"):
            return
        facts = results.facts_of(result)
        if step.task.module == "setup":
            host.facts = {_long(key): value for key, value in facts.items()}
        elif facts:
            host.facts.update({key: value for key, value in facts.items() if key.startswith("ansible_")})
            host.set_facts.update({key: value for key, value in facts.items() if not key.startswith("ansible_")})

    def _count(self, step: Step, result: Result) -> str:
        host = self._host
        status = _status(result)
        if status in ("failed", "refused"):
            if step.flags.ignore_errors:
                host.ignored += 1
                host.ok += 1
                return "ignored"
            host.failed += 1
            host.refused += status == "refused"
        elif status == "skipped":
            host.skipped += 1
        elif step.task.module != "meta":
            host.ok += 1
            host.changed += bool(result.get("changed"))
            host.unknown += status == "unknown"
        return status

    def _notify(self, step: Step) -> None:
        for raw in step.task.notify:
            try:
                names = render(raw, step.scope)
            except PlanError as err:
                self._warn(f"notify: {err.message}")
                continue
            for name in names if isinstance(names, list) else [names]:
                self._host.notified[str(name)] = None

    def _warn(self, text: str) -> None:
        self._run.emit(Event("warning", self._play.play.title, host=self._host.name, text=self._run.masker.text(text)))

    # failures that are no results

    def fail_host(self, step: Step, result: Result, order: Order, context: Context) -> bool:
        """A failure after the result was taken."""
        self._host.failed += 1
        self._host.failure = {"task": self._task_facts(step), "result": result}
        self._tell("result", step, order, context, "failed", result)
        return False

    def unreachable(self, step: Step, err: ConnectError, order: Order, context: Context) -> bool:
        """The host is gone; whether it goes on all the same (ignore_unreachable)."""
        host = self._host
        result = {"changed": False, "unreachable": True, "msg": str(err)}
        if step.task.register:
            host.set_facts[step.task.register] = result
        if step.flags.ignore_unreachable:
            host.skipped += 1
            host.ignored += 1
        else:
            host.unreachable = True
            host.unreachable_count += 1
        self._tell("unreachable", step, order, context, "unreachable", result)
        return step.flags.ignore_unreachable

    def retry(self, step: Step, attempt: int, retries: int, result: Result, order: Order, context: Context) -> None:
        """A try that was not the last."""
        self._tell(
            "retry", step, order, context, "retry", {"attempts": attempt, "msg": result.get("msg", "")}, label=f"{retries - attempt} tries left"
        )

    # events

    def title(self, step: Step) -> str:
        """The task's name, rendered as far as it can be."""
        name = step.task.name
        if not has_template(Text(name) if not isinstance(name, Text) else name):
            return step.task.title
        try:
            return str(render(name, step.scope))
        except PlanError:
            return name

    def _task_facts(self, step: Step) -> Result:
        return {"name": self.title(step), "action": step.task.module, "args": {key: str(value) for key, value in step.task.args.items()}}

    def _tell(
        self, kind: str, step: Step, order: Order, context: Context, status: str, result: Result, *, label: str = "", seconds: float = 0.0
    ) -> None:
        mask = self._run.masker
        if step.flags.no_log:
            shown: Result = {"censored": CENSORED, "changed": bool(result.get("changed")), "failed": bool(result.get("failed"))}
            label = "(censored due to no_log)" if label else ""
        else:
            shown = {key: value for key, value in result.items() if not (key == "ansible_facts" and step.task.module == "setup")}
            if step.looped and kind == "result":
                shown.pop("results", None)
        event = Event(
            kind,
            self._play.play.title,
            mask.text(self.title(step)),
            self._host.name,
            status,
            mask.mask(_plain(shown)),
            mask.text(label),
            seconds,
            context.handler,
            step.task.module,
            str(step.task.pos),
            text="looped" if step.looped and kind == "result" else "",
        )
        self._sequencer.add(order, event)


def _status(result: Result) -> str:
    if result.get("refused") and result.get("failed"):
        return "refused"
    if result.get("failed"):
        return "failed"
    if result.get("skipped"):
        return "skipped"
    if result.get("unknown"):
        return "unknown"
    return "changed" if result.get("changed") else "ok"


def _long(key: str) -> str:
    return key if key.startswith("ansible_") else f"ansible_{key}"


def _plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
