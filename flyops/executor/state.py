# SPDX-License-Identifier: Apache-2.0
"""What is known of each host while a run goes on, and the run's settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyops.loading.inventory import Inventory
from flyops.loading.parser import Parser
from flyops.loading.playbook import Play
from flyops.loading.variables import Scope
from flyops.model.event import Event
from flyops.model.secrets import Masker
from flyops.planning.steps import Run
from flyops.transport.connect import Pool

COUNTERS = ("ok", "changed", "failed", "unreachable", "skipped", "rescued", "ignored", "refused", "unknown")


@dataclass
class HostState:
    """One host: its counters, what it learned, and whether it goes on."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    set_facts: dict[str, Any] = field(default_factory=dict)  # registered results, too
    included: dict[str, Any] = field(default_factory=dict)
    play_files: dict[str, Any] = field(default_factory=dict)
    notified: dict[str, None] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    writes: list[dict[str, str]] = field(default_factory=list)  # of the whole run: task, on (which host), kind, path
    failure: dict[str, Any] | None = None  # the result that stopped it
    unreachable: bool = False
    ended: bool = False  # meta: end_host
    ok: int = 0
    changed: int = 0
    failed: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0
    refused: int = 0
    unknown: int = 0
    unreachable_count: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether it runs the next task."""
        return self.failure is None and not self.unreachable and not self.ended

    def keep_failure(self, before: dict[str, Any] | None) -> None:
        """A failure from before an `always` or a forced handler, unless that failed itself."""
        if self.failure is None:
            self.failure = before

    def counters(self) -> dict[str, int]:
        """For the recap."""
        return {name: self.unreachable_count if name == "unreachable" else getattr(self, name) for name in COUNTERS}


@dataclass
class RunState:
    """Everything that threads of a run share."""

    inventory: Inventory
    parser: Parser
    run: Run
    emit: Callable[[Event], None]
    extra: Mapping[str, Any] = field(default_factory=dict)
    only_tags: frozenset[str] = frozenset({"all"})
    skip_tags: frozenset[str] = frozenset()
    start_at: tuple[int, int] | None = None  # play number, task number
    confirm: Callable[[str], bool] | None = None  # --step
    forks: int = 20
    verbosity: int = 0
    masker: Masker = field(default_factory=Masker)
    pool: Pool = field(default_factory=Pool)
    hosts: dict[str, HostState] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    limit: str = ""
    force_handlers: bool = False

    def host(self, name: str) -> HostState:
        """The state of a host, made at the first call."""
        with self.lock:
            return self.hosts.setdefault(name, HostState(name))


@dataclass(frozen=True)
class Context:
    """Where a task stands in the run: the order prefix and the variables that includes gave it."""

    order: tuple[int, ...] = ()
    layers: tuple[Mapping[str, Any], ...] = ()
    handler: bool = False


class HostVars(Mapping[str, Any]):
    """`hostvars`: each host's variables, looked up when asked for."""

    def __init__(self, names: Callable[[], list[str]], scope_of: Callable[[str], Scope]) -> None:
        self._names = names
        self._scope_of = scope_of

    def __getitem__(self, name: str) -> HostView:
        if name not in self._names() and name != "localhost":
            raise KeyError(name)
        return HostView(self._scope_of(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names() or name == "localhost"


class HostView(Mapping[str, Any]):
    """One host's variables."""

    def __init__(self, scope: Scope) -> None:
        self.host_scope = scope

    def __getitem__(self, name: str) -> Any:
        return self.host_scope[name]

    def __iter__(self) -> Iterator[str]:
        return self.host_scope.names()

    def __len__(self) -> int:
        return sum(1 for _ in self.host_scope.names())

    def __contains__(self, name: object) -> bool:
        return name in self.host_scope


@dataclass
class PlayState:
    """One play while it runs."""

    play: Play
    number: int
    hosts: list[str]  # all hosts of the play
    batch: list[str] = field(default_factory=list)
    aborted: bool = False
    ended: bool = False  # meta: end_play
