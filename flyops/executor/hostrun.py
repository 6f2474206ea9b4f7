# SPDX-License-Identifier: Apache-2.0
"""One host through a stretch of tasks: consecutive tasks that need nothing of each other travel in one frame."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flyops.errors import ConnectError, LoadError, PlanError
from flyops.executor.commit import Committer
from flyops.executor.scopes import load_vars_files, scope_for
from flyops.executor.sequencer import Sequencer
from flyops.executor.state import Context, HostState, PlayState, RunState
from flyops.loading.parser import INCLUDE_TASKS, find_tasks_file, included_inherit
from flyops.loading.playbook import Block, Node, Task, selected
from flyops.loading.templating import render
from flyops.loading.variables import PendingResult, Scope
from flyops.model.event import Event
from flyops.model.target import Target
from flyops.planning import registry, results, steps
from flyops.planning.outcome import Outcome
from flyops.planning.steps import Item, Step
from flyops.transport.session import Sent

SEGMENT_CALLS_MAX = 200
Entry = tuple[Node, Context]


@dataclass
class _Pending:
    """What tasks on their way will bring."""

    names: set[str] = field(default_factory=set)
    facts: bool = False
    files: bool = False
    target: Target | None = None
    calls: int = 0


class HostRun:
    """Runs entries for one host. `effects` carries out what only the play can do (meta, add_host, pause)."""

    def __init__(self, run: RunState, play: PlayState, host: HostState, sequencer: Sequencer, effects: Callable[[HostState, Outcome], None]) -> None:
        self.run = run
        self.play = play
        self.host = host
        self.out = Committer(run, play, host, sequencer)
        self._effects = effects

    # the stretch

    def entries(self, entries: Iterable[Entry]) -> bool:
        """False when the host stopped on the way."""
        queue = deque(entries)
        while queue and self.host.goes_on and not self.play.ended:
            node, context = queue[0]
            if isinstance(node, Block):
                queue.popleft()
                self._block(node, context)
            elif not self._wanted(node, context):
                queue.popleft()
            elif registry.find_action(node.module) is not None:
                queue.popleft()
                queue.extendleft(reversed(self.action(node, context)))
            else:
                self._segment(queue)
        return self.host.goes_on

    def _wanted(self, task: Task, context: Context) -> bool:
        run = self.run
        if not context.handler:
            if not selected(task.inherit.tags, run.only_tags, run.skip_tags):
                return False
            place = (self.play.number, (*context.order, *task.order, 0)[0])
            if run.start_at is not None and place < run.start_at and task.module != "setup":
                return False
        return run.confirm is None or run.confirm(f"{self.host.name}: {task.title}")

    def _block(self, block: Block, context: Context) -> None:
        host = self.host
        self.entries([(node, context) for node in block.body])
        if host.failure is not None and not host.unreachable and block.rescue:
            enter_rescue(host)
            self.entries([(node, context) for node in block.rescue])
        if block.always and not host.unreachable and not host.ended:
            failure, host.failure = host.failure, None
            self.entries([(node, context) for node in block.always])
            host.keep_failure(failure)

    # tasks of the controller

    def scope(self, task: Task, context: Context) -> Scope:
        """What the task sees."""
        return scope_for(self.run, self.play, self.host, task, context)

    def action(self, task: Task, context: Context) -> list[Entry]:
        """Run a controller module, item by item; the entries that an include brings."""
        order = context.order + task.order
        scope = self.scope(task, context)
        flags = steps.Flags()
        collected: list[tuple[Item, dict[str, Any]]] = []
        entries: list[Entry] = []
        looped = task.loop is not None
        step = Step(task, scope, flags, (), looped=looped, loop_var=str(task.loop_control.get("loop_var", "item")))
        try:
            wrong = None if looped else steps.false_condition(task, scope)
            if wrong is not None:
                self.out.commit(replace(step, flags=steps.flags_of_skipped(task, scope, self.run.run), skip=steps.skipped(wrong)), [], order, context)
                return []
            flags = steps.flags_of(task, scope, self.run.run)
            scopes = self._item_scopes(task, scope)
            if scopes is None:
                self.out.commit(replace(step, flags=flags, skip=steps.skipped(task.inherit.when[-1])), [], order, context)
                return []
            for inner, value, label, index in scopes:
                fresh = self.scope(task, replace(context, layers=(inner.layer(), *context.layers))) if looped else scope
                item = Item(fresh, value, label, index)
                result, more = self._act(task, fresh, context, (*order, index), inner.layer() if looped else {})
                collected.append((item, result))
                entries += more
        except PlanError as err:
            collected.append((Item(scope), failure(err)))
            step = replace(step, looped=False)
        if not self.out.commit(replace(step, flags=flags, items=tuple(item for item, _ in collected)), [r for _, r in collected], order, context):
            return []
        return entries

    def _item_scopes(self, task: Task, scope: Scope) -> list[tuple[Scope, Any, str, int]] | None:
        try:
            return steps.item_scopes(task, scope)
        except PlanError:
            if steps.false_condition(task, scope) is not None:
                return None
            raise

    def _act(
        self, task: Task, scope: Scope, context: Context, order: tuple[int, ...], loop_layer: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Entry]]:
        wrong = steps.false_condition(task, scope) if task.loop is not None else None
        if wrong is not None:
            return steps.skipped(wrong), []
        try:
            outcome: Outcome = registry.find_action(task.module).act(dict(task.args), scope)
            self.host.set_facts.update(outcome.facts)
            self.host.included.update(outcome.variables)
            entries = self._include(task, outcome, context, order, loop_layer) if outcome.include else []
            self._effects(self.host, outcome)
        except PlanError as err:
            return failure(err), []
        except LoadError as err:
            return {"failed": True, "changed": False, "msg": str(err)}, []
        result = dict(outcome.result)
        if outcome.hidden or outcome.meta:
            result["_hidden"] = True
        return result, entries

    def _include(self, task: Task, outcome: Outcome, context: Context, order: tuple[int, ...], loop_layer: Mapping[str, Any]) -> list[Entry]:
        assert outcome.include
        path = find_tasks_file(outcome.include.file, task.folder, self.play.play.folder)
        with self.run.lock:
            nodes = self.run.parser.load_tasks(path, included_inherit(task), context.handler)
        layers = (loop_layer, *context.layers) if loop_layer else context.layers
        inner = Context(order, layers, context.handler)
        return [(node, inner) for node in nodes]

    # tasks of the host

    def _segment(self, queue: deque[Entry]) -> None:
        """Take as many tasks as can travel together, send them, commit their results."""
        pending = _Pending()
        taken: list[tuple[Step, Context]] = []
        head = queue[0]  # `entries` has asked whether it is wanted
        while queue and pending.calls < SEGMENT_CALLS_MAX and not (taken and self.run.confirm):  # a question follows the result before it
            node, context = queue[0]
            if isinstance(node, Block) or registry.find_action(node.module) is not None:
                break
            if queue[0] is not head and not self._wanted(node, context):
                queue.popleft()
                continue
            step = self._plan(node, context, pending, bool(taken))
            if step is None:
                break
            queue.popleft()
            if step.is_known and not taken:
                if not self.out.commit(step, [item.known or {} for item in step.items], context.order + node.order, context):
                    return
                continue
            taken.append((step, context))
            _note_pending(pending, step)
            if step.ends_segment:
                break
        if taken:
            self._send(taken)

    def _plan(self, task: Task, context: Context, pending: _Pending, behind: bool) -> Step | None:
        """The step, or None when it must wait for what is on its way."""
        scope = self.scope(task, context)
        scope.pending = frozenset(pending.names)
        scope.pending_facts = pending.facts
        scope.pending_files = pending.files
        try:
            step = steps.plan_task(task, scope, self.run.run)
        except PendingResult:
            return None
        except PlanError as err:
            if behind:  # what is on its way may define what is missing
                return None
            flags = steps.flags_of_skipped(task, scope, self.run.run)
            return Step(task, scope, flags, (Item(scope, known=failure(err)),))
        if behind and step.target is not None and not step.is_known and pending.target not in (None, step.target):
            return None
        return step

    def _send(self, taken: Sequence[tuple[Step, Context]]) -> None:
        places: list[tuple[int, int]] = []
        calls: list[Sent] = []
        for number, (step, _) in enumerate(taken):
            for index, item in enumerate(step.items):
                if item.call is not None:
                    places.append((number, index))
                    calls.append(sent(step, item, number))
        got: list[list[dict[str, Any]]] = [[item.known or {} for item in step.items] for step, _ in taken]
        waiting = [sum(item.call is not None for item in step.items) for step, _ in taken]
        seconds = [0.0] * len(taken)
        done = 0
        target = next(step.target for step, _ in taken if not step.is_known)
        assert target is not None
        try:
            self._announce(taken[0])
            answers = iter(self._request(target, calls, lambda n: taken[places[n][0]]))
            for number, result, took in answers:
                which, index = places[number]
                got[which][index] = result
                waiting[which] -= 1
                seconds[which] += took
                while done < len(taken) and waiting[done] == 0 and not _repeats(taken[done][0]):
                    if not self._commit(taken[done], got[done], target, seconds[done]):
                        deque(answers, maxlen=0)  # the agent says that it stopped: nothing of this frame may meet the next one
                        return
                    done += 1
                    if done < len(taken):
                        self._announce(taken[done])
            if done == len(taken) - 1 and _repeats(taken[done][0]):  # the line is free again: it may ask once more
                self._commit(taken[done], got[done], target, seconds[done])
        except ConnectError as err:
            if done < len(taken):
                step, context = taken[done]
                if not self.out.unreachable(step, err, context.order + step.task.order, context) or not self.host.goes_on:
                    return
                self._again(taken[done + 1 :])

    def _again(self, taken: Sequence[tuple[Step, Context]]) -> None:
        """After an ignored loss, the tasks behind it get a frame of their own."""
        if taken:
            self.entries([(step.task, context) for step, context in taken])

    def _announce(self, taken: tuple[Step, Context]) -> None:
        step, context = taken
        self.run.emit(
            Event(
                "start",
                self.play.play.title,
                self.run.masker.text(self.out.title(step)),
                self.host.name,
                module=step.task.module,
                handler=context.handler,
            )
        )

    def _request(
        self, target: Target, calls: Sequence[Sent], place: Callable[[int], tuple[Step, Context]]
    ) -> Iterable[tuple[int, dict[str, Any], float]]:
        def note(number: int, text: str) -> None:
            step, context = place(number)
            self.run.emit(
                Event(
                    "note",
                    self.play.play.title,
                    self.run.masker.text(self.out.title(step)),
                    self.host.name,
                    text=self.run.masker.text(text),
                    handler=context.handler,
                )
            )

        session = self.run.pool.session(target)
        with session.lock:
            try:
                yield from session.request(calls, note)
            except ConnectError:
                self.run.pool.forget(target)
                raise

    def _commit(self, taken: tuple[Step, Context], raw: list[dict[str, Any]], target: Target, seconds: float) -> bool:
        step, context = taken
        order = context.order + step.task.order
        for scope in (step.scope, *(item.scope for item in step.items)):
            scope.arrived()
        if _repeats(step):
            raw = [self._until(taken, item, result, target, order) if item.call else result for item, result in zip(step.items, raw, strict=True)]
        ok = self.out.commit(step, raw, order, context, seconds)
        if step.task.module == "setup" and ok:
            try:
                load_vars_files(self.run, self.play, self.host, facts_known=True)
            except PlanError as err:
                return self.out.fail_host(step, failure(err), order, context)
        return ok

    def _until(self, taken: tuple[Step, Context], item: Item, raw: dict[str, Any], target: Target, order: tuple[int, ...]) -> dict[str, Any]:
        """Try again until it holds, at most `retries` times in all."""
        step, context = taken
        task = step.task
        try:
            retries = int(render(task.retries, step.scope)) if task.retries is not None else steps.DEFAULT_RETRIES
            delay_s = float(render(task.delay, step.scope)) if task.delay is not None else steps.DEFAULT_DELAY_S
            attempt = 1
            while True:
                result = {**results.judge(task, raw, item.scope), "attempts": attempt}
                if result.get("refused") or results.is_done(task, result, item.scope):
                    return {**raw, "attempts": attempt}
                if attempt >= retries:
                    return {**raw, "attempts": attempt, "failed": True, "msg": raw.get("msg") or f"`until` did not hold after {attempt} tries"}
                self.out.retry(step, attempt, retries, result, order, context)
                time.sleep(delay_s)
                attempt += 1
                raw = self._one(target, step, item, taken)
        except PlanError as err:
            return failure(err)

    def _one(self, target: Target, step: Step, item: Item, taken: tuple[Step, Context]) -> dict[str, Any]:
        return [result for _, result, _ in self._request(target, [sent(step, item, 0)], lambda _: taken)][-1]


def _repeats(step: Step) -> bool:
    return step.task.until is not None or step.task.retries is not None


def enter_rescue(host: HostState) -> None:
    """The failure is being dealt with: it counts as rescued, and the rescue can see it."""
    assert host.failure is not None
    host.set_facts["ansible_failed_task"] = host.failure.get("task", {})
    host.set_facts["ansible_failed_result"] = host.failure.get("result", {})
    host.failure = None
    host.failed -= 1
    host.rescued += 1


def failure(err: PlanError) -> dict[str, Any]:
    """A failed result of a task that could not be made ready."""
    text = f"{err.where}: {err.message}" if err.where else err.message
    return {"changed": False, "failed": True, "msg": f"{text}; to do: {err.fix}" if err.fix else text}


def sent(step: Step, item: Item, group: int) -> Sent:
    """A call as it travels."""
    call = item.call
    assert call is not None
    return Sent(call.module, call.args, group, call.check, call.diff, call.env or None, not step.survives, call.offers, call.paths)


def _note_pending(pending: _Pending, step: Step) -> None:
    if step.task.register:
        pending.names.add(step.task.register)
    if step.is_known:
        return
    pending.target = step.target
    pending.calls += sum(item.call is not None for item in step.items)
    pending.files = pending.files or (step.target is not None and step.target.is_local)
    spec = registry.find_spec(step.task.module)
    if step.task.module == "setup" or (spec is not None and spec.returns and "ansible_facts" in spec.returns):
        pending.facts = True


__all__ = ["INCLUDE_TASKS", "HostRun", "enter_rescue"]
