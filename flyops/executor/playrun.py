# SPDX-License-Identifier: Apache-2.0
"""One play over its hosts: batches, sections, meetings, handlers, and when to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flyops.errors import LoadError, PlanError
from flyops.executor.hostrun import Entry, HostRun, enter_rescue
from flyops.executor.scopes import load_vars_files, scope_for
from flyops.executor.sequencer import Sequencer
from flyops.executor.state import Context, HostState, PlayState, RunState
from flyops.loading.parser import INCLUDE_TASKS, find_tasks_file, include_file, included_inherit
from flyops.loading.playbook import Block, Inherit, Node, Play, Task, selected, walk
from flyops.loading.positions import Map
from flyops.loading.templating import has_template, render
from flyops.model.event import Event
from flyops.planning import registry
from flyops.planning.outcome import Outcome
from flyops.planning.steps import is_meeting
from flyops.spec.arguments import to_bool

SETUP = "setup"


class PlayRun:
    """Runs one play."""

    def __init__(self, run: RunState, play: Play, hosts: list[str], executor: ThreadPoolExecutor) -> None:
        self.run = run
        self.state = PlayState(play, play.number, hosts)
        self._threads = executor

    @property
    def play(self) -> Play:
        """The play itself."""
        return self.state.play

    def execute(self) -> bool:
        """False when the run must not go on to the next play."""
        self.run.emit(Event("play", self.play.title, text=", ".join(self.state.hosts)))
        for batch in batches(self.play, len(self.state.hosts), self.state.hosts):
            self.state.batch = batch
            self._batch([self.run.host(name) for name in batch])
            failed = [name for name in batch if self.run.host(name).failure or self.run.host(name).unreachable]
            if self.state.ended or self.state.aborted or (self.play.serial and len(failed) == len(batch)):
                break
        for name in self.state.hosts:
            self.run.host(name).ended = False
        return not self.state.aborted

    def _batch(self, hosts: list[HostState]) -> None:
        for host in hosts:
            self._vars_files(host)
        gathers = self._gather_task()
        first: list[Node] = [gathers] if gathers else []
        sections = [section for section in (self.play.pre_tasks, self.play.tasks, self.play.post_tasks) if section]
        for section in sections or [()]:  # the facts travel with the first tasks that there are
            if self.state.aborted or self.state.ended:
                break
            self.nodes([(node, Context()) for node in [*first, *section]], hosts)
            first = []
            self.flush(hosts)
        self._check_limits(None)
        self._report_lost(hosts)

    def _vars_files(self, host: HostState) -> None:
        try:
            load_vars_files(self.run, self.state, host, facts_known=not self._gathers())
        except (PlanError, LoadError) as err:
            host.failed += 1
            host.failure = {"task": {}, "result": {"msg": str(err)}}
            self.run.emit(Event("warning", self.play.title, host=host.name, text=self.run.masker.text(str(err))))

    def _gathers(self) -> bool:
        return has_template(self.play.gather_facts) or (to_bool(self.play.gather_facts) and registry.find_spec(SETUP) is not None)

    def _gather_task(self) -> Task | None:
        if not self._gathers():
            return None
        args = Map(self.play.pos)
        if self.play.gather_subset is not None:
            args["gather_subset"] = self.play.gather_subset
        inherit = Inherit(options=self.play.inherit.options, tags=("always",), vars=self.play.inherit.vars, environment=self.play.inherit.environment)
        when = (self.play.gather_facts,) if has_template(self.play.gather_facts) else ()
        inherit = Inherit(inherit.options, when, inherit.tags, inherit.vars, inherit.environment)
        return Task(SETUP, args, self.play.pos, name="Gathering Facts", order=(0,), inherit=inherit, outer=inherit, folder=self.play.folder)

    # hosts together

    def nodes(self, entries: Sequence[Entry], hosts: Sequence[HostState]) -> None:
        """Stretches in parallel; at a meeting all hosts have come this far."""
        stretch: list[Entry] = []
        for entry in entries:
            if len(hosts) > 1 and self._meets(entry[0]):
                self._stretch(stretch, hosts)
                stretch = []
                self._meeting(entry, hosts)
            else:
                stretch.append(entry)
        self._stretch(stretch, hosts)

    def _stops(self) -> bool:
        return self.state.aborted or self.state.ended

    def _stretch(self, entries: Sequence[Entry], hosts: Sequence[HostState]) -> None:
        live = [host for host in hosts if host.goes_on]
        if entries and live and not self._stops():
            self._parallel({host.name: entries for host in live}, live)

    def _parallel(self, work: dict[str, Sequence[Entry]], hosts: Sequence[HostState]) -> None:
        sequencer = Sequencer(self.run.emit, [host.name for host in hosts])

        def one(host: HostState) -> None:
            try:
                HostRun(self.run, self.state, host, sequencer, self.effects).entries(work[host.name])
            finally:
                sequencer.done(host.name)

        if len(hosts) == 1:
            one(hosts[0])
            return
        for future in [self._threads.submit(one, host) for host in hosts]:
            future.result()

    def _meets(self, node: Node) -> bool:
        if self.play.max_fail_percentage is not None:
            return True
        if isinstance(node, Block):
            return any(self._meets(task) for task in walk((node,)))
        if is_meeting(node):
            return True
        if node.module != INCLUDE_TASKS:
            return False
        name = include_file(node)
        if not name or has_template(name):
            return False
        try:
            path = find_tasks_file(str(name), node.folder, self.play.folder)
            return any(self._meets(inner) for inner in self.run.parser.load_tasks(path, included_inherit(node)))
        except LoadError:
            return False  # the task itself will say so

    def _meeting(self, entry: Entry, hosts: Sequence[HostState]) -> None:
        node, context = entry
        live = [host for host in hosts if host.goes_on]
        if not live or self._stops():
            return
        if isinstance(node, Block):
            self._block(node, context, live)
        elif self._once(node, live):
            self._run_once(entry, live)
        elif node.module == INCLUDE_TASKS and not is_meeting(node) and node.loop is None:
            self._include_together(node, context, live)
        elif node.module == "meta" and str(node.args.get("action")) == "flush_handlers":
            if selected(node.inherit.tags, self.run.only_tags, self.run.skip_tags):
                self.flush(live)
        else:
            self._parallel({host.name: [entry] for host in live}, live)
        self._check_limits(node)

    def _once(self, task: Task, live: Sequence[HostState]) -> bool:
        if task.module in ("add_host", "pause"):
            return True
        value = task.option("run_once")
        if value is None:
            return False
        return to_bool(render(value, scope_for(self.run, self.state, live[0], task)))

    def _run_once(self, entry: Entry, live: Sequence[HostState]) -> None:
        """The first live host runs it; all see what came of it."""
        first, task = live[0], entry[0]
        before = dict(first.set_facts)
        self._parallel({first.name: [entry]}, [first])
        learned = {key: value for key, value in first.set_facts.items() if key not in before or before[key] is not value}
        for host in live[1:]:
            host.set_facts.update(learned)
            if first.failure is not None and isinstance(task, Task) and task.module not in ("add_host", "pause"):
                host.failure = first.failure
                host.failed += 1

    def _include_together(self, task: Task, context: Context, live: Sequence[HostState]) -> None:
        """An include with a meeting inside: each host decides whether it takes part, then they go on together."""
        sequencer = Sequencer(self.run.emit, [host.name for host in live])
        taking: list[HostState] = []
        entries: list[Entry] = []
        for host in live:
            found = HostRun(self.run, self.state, host, sequencer, self.effects).action(task, context) if self._chosen(task) else []
            sequencer.done(host.name)
            if found:
                taking.append(host)
                entries = found
        if taking:
            self.nodes(entries, taking)

    def _chosen(self, task: Task) -> bool:
        return selected(task.inherit.tags, self.run.only_tags, self.run.skip_tags)

    def _block(self, block: Block, context: Context, live: Sequence[HostState]) -> None:
        self.nodes([(node, context) for node in block.body], live)
        rescued = [host for host in live if host.failure is not None and not host.unreachable]
        if block.rescue and not self._stops():
            for host in rescued:
                enter_rescue(host)
            self.nodes([(node, context) for node in block.rescue], rescued)
        ending = [host for host in live if not host.unreachable and not host.ended]
        if block.always and ending:
            failures = {host.name: host.failure for host in ending}
            for host in ending:
                host.failure = None
            self.nodes([(node, context) for node in block.always], ending)
            for host in ending:
                host.keep_failure(failures[host.name])

    def _check_limits(self, node: Node | None) -> None:
        """any_errors_fatal and max_fail_percentage; an unreachable host counts as failed in both."""
        batch = [self.run.host(name) for name in self.state.batch]
        down = [host for host in batch if host.failure is not None or host.unreachable]
        if not down:
            return
        options = node.inherit.options if isinstance(node, Task) else self.play.inherit.options
        fatal = options.get("any_errors_fatal", False)
        if fatal is not False and to_bool(render(fatal, scope_for(self.run, self.state, down[0]))):
            self._abort("any_errors_fatal")
        limit = self.play.max_fail_percentage
        if limit is not None:
            percentage = float(render(limit, scope_for(self.run, self.state, batch[0])))
            if 100.0 * len(down) / len(batch) > percentage:
                self._abort(f"max_fail_percentage {percentage:g}")

    def _abort(self, why: str) -> None:
        if not self.state.aborted:
            self.run.emit(Event("warning", self.play.title, text=f"{why}: the play ends for all hosts"))
        self.state.aborted = True

    # handlers

    def flush(self, hosts: Sequence[HostState]) -> None:
        """Run notified handlers in the order of their definition, until none is notified."""
        force = self.run.force_handlers or self.play.force_handlers
        failures = {}
        for host in hosts:
            if force and host.failure is not None and host.notified and not host.unreachable:
                failures[host.name], host.failure = host.failure, None
        while not self._stops() or force:
            work: dict[str, Sequence[Entry]] = {host.name: self._notified(host) for host in hosts if host.goes_on and host.notified}
            work = {name: entries for name, entries in work.items() if entries}
            if not work:
                break
            self._run_handlers(work)
        for name, failure in failures.items():
            self.run.host(name).keep_failure(failure)

    def _run_handlers(self, work: dict[str, Sequence[Entry]]) -> None:
        live = [self.run.host(name) for name in work]
        if len(live) == 1 or not any(self._meets(node) for entries in work.values() for node, _ in entries):
            self._parallel(work, live)
            return
        for node in self.play.handlers:
            group = [host for host in live if any(entry[0] is node for entry in work[host.name])]
            self.nodes([(node, Context(handler=True))], group)

    def _notified(self, host: HostState) -> list[Entry]:
        wanted, host.notified = host.notified, {}
        out: dict[str, Entry] = {}
        known = set()
        for node in self.play.handlers:
            for task in walk((node,)):
                names = {self._handler_name(task, host), *task.listen}
                known |= names
                if names & set(wanted):
                    key = task.name or str(id(node))
                    out.pop(key, None)  # of two handlers of one name the last one counts
                    out[key] = (node, Context(handler=True))
        for name in wanted:
            if name not in known:
                self.run.emit(Event("warning", self.play.title, host=host.name, text=f"notify: no handler {name!r} in this play"))
        return list(out.values())

    def _handler_name(self, task: Task, host: HostState) -> str:
        if not has_template(task.name):
            return task.name
        try:
            return str(render(task.name, scope_for(self.run, self.state, host, task)))
        except PlanError:
            return ""

    def _report_lost(self, hosts: Sequence[HostState]) -> None:
        """Handlers that were notified and will not run: a second run would not notify them again."""
        for host in hosts:
            if host.notified:
                names = ", ".join(host.notified)
                host.lost += list(host.notified)
                host.notified = {}
                self.run.emit(Event("lost", self.play.title, host=host.name, text=f"notified but not run: {names}"))

    # what only the play can do

    def effects(self, host: HostState, outcome: Outcome) -> None:
        """meta, add_host, pause."""
        if outcome.meta == "flush_handlers":
            self.flush([host])
        elif outcome.meta == "end_host":
            host.ended = True
        elif outcome.meta == "end_play":
            self.state.ended = True
        if outcome.new_host is not None:
            name, groups, variables = outcome.new_host
            with self.run.lock:
                outcome.result["changed"] = self.run.inventory.add_host(name, groups, dict(variables))
        if outcome.pause_s is not None:
            time.sleep(outcome.pause_s)
        elif outcome.prompt:
            outcome.result["user_input"] = _ask(outcome.prompt)


def _ask(prompt: str) -> str:
    if not sys.stdin or not sys.stdin.isatty():
        return ""
    return input(f"{prompt}\n").strip()


def batches(play: Play, count: int, hosts: Sequence[str]) -> list[list[str]]:
    """`serial`: numbers or percentages, the last one again and again."""
    left = list(hosts)
    out: list[list[str]] = []
    sizes = [_size(value, count) for value in play.serial] or [count]
    while left:
        size = sizes[min(len(out), len(sizes) - 1)]
        out.append(left[:size])
        left = left[size:]
    return out


def _size(value: Any, count: int) -> int:
    text = str(value).strip()
    try:
        size = int(float(text[:-1]) / 100.0 * count) if text.endswith("%") else int(text)
    except ValueError as err:
        raise LoadError(f"serial: expected a number or a percentage, found {value!r}") from err
    return max(1, size) if size or text.endswith("%") else count
