# SPDX-License-Identifier: Apache-2.0
"""Runs small playbooks with real local agents, and keeps what happened for a test to look at."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyops.executor.run import RunResult
from flyops.loading.inventory import Inventory
from flyops.model.event import Event
from flyops.operations.play import run_playbook

OLD_PYTHON = next(iter(sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))), None) or shutil.which("python3.8")
LOCAL = {"ansible_connection": "local"}


@dataclass
class Recorder:
    """A listener that keeps every event."""

    events: list[Event] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        return

    def of(self, kind: str) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if event.kind == kind]

    def order(self, host: str | None = None) -> list[str]:
        """`title:status` of each result, in the order that was shown."""
        return [f"{event.task}:{event.status}" for event in self.events if event.kind in ("result", "unreachable") and host in (None, event.host)]

    def result(self, task: str, host: str | None = None) -> dict[str, Any]:
        """The last result of a task."""
        return next(
            event.result
            for event in reversed(self.events)
            if event.kind in ("result", "unreachable") and event.task == task and host in (None, event.host)
        )


@dataclass
class Played:
    """A finished run and its events."""

    result: RunResult
    seen: Recorder

    def vars(self, host: str = "h1") -> dict[str, Any]:
        """Registered results and facts of a host."""
        return self.result.hosts[host].vars

    def stats(self, host: str = "h1") -> dict[str, int]:
        """The counters that are not zero."""
        return {name: number for name, number in self.result.hosts[host].counters().items() if number}


def inventory(hosts: str | dict[str, dict[str, Any]] = "h1", groups: dict[str, list[str]] | None = None) -> Inventory:
    """Local hosts by name (`h1 h2`), or with variables."""
    made = Inventory()
    members = dict.fromkeys(hosts.split(), LOCAL) if isinstance(hosts, str) else hosts
    for name, variables in members.items():
        made.add_host(name, [group for group, names in (groups or {}).items() if name in names], dict(variables))
    return made


def write(folder: Path, text: str, name: str = "play.yml") -> Path:
    """A file with the indentation of the test taken off."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def play(folder: Path, text: str, *, hosts: Any = "h1", groups: dict[str, list[str]] | None = None, **options: Any) -> Played:
    """Run a playbook of this text."""
    seen = Recorder()
    made = hosts if isinstance(hosts, Inventory) else inventory(hosts, groups)
    return Played(run_playbook(write(folder, text), inventory=made, display=[seen], **options), seen)


def tasks(folder: Path, text: str, **options: Any) -> Played:
    """Run tasks in one play over all hosts, without facts."""
    body = textwrap.indent(textwrap.dedent(text), "    ")
    return play(folder, f"- hosts: all\n  gather_facts: false\n  tasks:\n{body}", **options)
