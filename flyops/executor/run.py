# SPDX-License-Identifier: Apache-2.0
"""A whole run: plays in order over the hosts that are left; the result, with the exit code that scripts rely on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from flyops.errors import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_UNREACHABLE
from flyops.executor.playrun import PlayRun
from flyops.executor.scopes import scope_for
from flyops.executor.state import COUNTERS, HostState, RunState
from flyops.loading.inventory import limit_hosts
from flyops.loading.playbook import Play, Playbook
from flyops.loading.templating import render, render_variable
from flyops.loading.variables import Scope
from flyops.model.event import Event, Listener
from flyops.transport.session import Count


@dataclass(frozen=True)
class HostResult:
    """What became of one host."""

    name: str
    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0
    refused: int = 0
    unknown: int = 0
    lost: tuple[str, ...] = ()
    writes: tuple[dict[str, str], ...] = ()  # task, on, kind, path of everything that was written for this host
    vars: dict[str, Any] = field(default_factory=dict)  # registered results, set facts, facts
    count: Count = field(default_factory=Count)
    message: str = ""  # of the failure that stopped it

    def counters(self) -> dict[str, int]:
        """For the recap."""
        return {name: getattr(self, name) for name in COUNTERS}


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    hosts: dict[str, HostResult]
    seconds: float = 0.0
    aborted: bool = False

    @property
    def exit_code(self) -> int:
        """0 fine, 4 a host was unreachable, 3 a gate refused, 1 a host failed."""
        found = self.hosts.values()
        if any(host.unreachable for host in found):
            return EXIT_UNREACHABLE
        if any(host.refused and host.failed for host in found):
            return EXIT_REFUSED
        return EXIT_FAILED if self.aborted or any(host.failed for host in found) else EXIT_OK

    def stats_line(self) -> str:
        """Round trips, bytes and seconds of all hosts."""
        total = Count()
        for host in self.hosts.values():
            total.add(host.count)
        return (
            f"hosts {len(self.hosts)}, round trips {total.turns}, up {total.up_bytes} B, down {total.down_bytes} B, "
            f"bundles sent {total.bundles}, {self.seconds:.2f} s"
        )


def hosts_of(run: RunState, play: Play) -> list[str]:
    """The hosts a play names, within the limit."""
    scope = Scope((run.extra, *play.inherit.vars), render_variable)
    pattern = render(play.hosts, scope)
    found, unmatched = run.inventory.select([str(part) for part in pattern] if isinstance(pattern, list) else str(pattern))
    for part in unmatched:
        run.emit(Event("warning", play.title, text=f"host pattern {part!r} matches nothing"))
    limit = limit_hosts(run.inventory, run.limit)
    return [name for name in found if limit is None or name in limit]


def run_plays(run: RunState, playbook: Playbook, listeners: Sequence[Listener]) -> RunResult:
    """Run it; agents end with it, whatever happens."""
    started = time.monotonic()
    aborted = False
    executor = ThreadPoolExecutor(max_workers=max(1, run.forks), thread_name_prefix="host")
    try:
        for play in playbook.plays:
            names = [name for name in hosts_of(run, play) if run.host(name).failure is None and not run.host(name).unreachable]
            if not names:
                run.emit(Event("play", play.title, text=""))
                run.emit(Event("warning", play.title, text="no hosts matched, or none is left"))
                continue
            if not PlayRun(run, play, names, executor).execute():
                aborted = True
                break
    finally:
        run.pool.close()
        executor.shutdown(wait=False, cancel_futures=True)
    result = RunResult(_results(run), time.monotonic() - started, aborted)
    run.emit(Event("stats", result={name: host.counters() for name, host in result.hosts.items()}, seconds=result.seconds, text=result.stats_line()))
    for listener in listeners:
        listener.close()
    return result


def _results(run: RunState) -> dict[str, HostResult]:
    counts = run.pool.counts()
    return {
        name: HostResult(
            name,
            **state.counters(),
            lost=tuple(state.lost),
            writes=tuple(state.writes),
            vars=_vars(run, state),
            count=counts.get(name, Count()),
            message=_message(run, state),
        )
        for name, state in run.hosts.items()
        if any(state.counters().values()) or name in run.inventory.hosts
    }


def _vars(run: RunState, state: HostState) -> dict[str, Any]:
    out = {**state.facts, **state.included, **state.set_facts}
    if state.facts:
        out["ansible_facts"] = {key.removeprefix("ansible_"): value for key, value in state.facts.items()}
    return out


def _message(run: RunState, state: HostState) -> str:
    if state.failure is None:
        return ""
    return run.masker.text(str(state.failure.get("result", {}).get("msg", "")))


class Fan:
    """Gives every event to every listener, one at a time."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._lock = threading.RLock()

    def emit(self, event: Event) -> None:
        """To all; a display that breaks does not stop the run."""
        with self._lock:
            for listener in self._listeners:
                with contextlib.suppress(BrokenPipeError, ValueError):
                    listener.handle(event)


__all__ = ["Fan", "HostResult", "RunResult", "hosts_of", "run_plays", "scope_for"]
