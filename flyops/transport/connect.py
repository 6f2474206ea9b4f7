# SPDX-License-Identifier: Apache-2.0
"""A parent and a prefix: local starts a command here, ssh through Fabric; become and the guests' managers put words before their parent's command."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import threading
from collections.abc import Sequence

from flyops.errors import ConnectError
from flyops.model.target import GUESTS, Target
from flyops.transport.bundle import agent_argv
from flyops.transport.guests import attach
from flyops.transport.session import Count, Session
from flyops.transport.ssh import SshLink
from flyops.transport.streams import PipeStream, Stream


class Pool:
    """All agents and ssh connections of a run. Equal targets share one."""

    def __init__(self) -> None:
        self._sessions: dict[Target, Session] = {}
        self._links: dict[Target, SshLink] = {}
        self._opening: dict[Target, threading.Lock] = {}
        self._lock = threading.Lock()
        self._counts: dict[str, Count] = {}

    def session(self, target: Target) -> Session:
        """The agent of a target, started when there is none."""
        with self._lock:
            opening = self._opening.setdefault(target, threading.Lock())
        with opening:
            with self._lock:
                found = self._sessions.get(target)
            if found is not None and not found.broken:
                return found
            made = Session(self._open(target, command(target)), target.name, target.silence_s)
            with self._lock:
                self._sessions[target] = made
            return made

    def _open(self, target: Target, argv: Sequence[str]) -> Stream:
        if target.connection == "ssh":
            return self._link(target).open(argv)
        if target.via is not None:
            return self._open(target.via, [*prefix(target.via), *argv])
        try:
            return PipeStream(argv)
        except OSError as err:
            raise ConnectError(f"cannot start {argv[0]}: {err.strerror}", where=target.name, fix="is it installed here?") from err

    def _link(self, target: Target) -> SshLink:
        key = dataclasses.replace(target, name="", python="", become=False, become_user="root", silence_s=0.0)
        with self._lock:
            return self._links.setdefault(key, SshLink(dataclasses.replace(key, name=target.name)))

    def forget(self, target: Target) -> None:
        """Drop a lost agent; the next task of that target starts a new one."""
        with self._lock:
            found = self._sessions.pop(target, None)
            if found is not None:
                self._counts.setdefault(target.name, Count()).add(found.count)
        if found is not None:
            found.close()

    def counts(self) -> dict[str, Count]:
        """Bytes and round trips per host so far."""
        with self._lock:
            out = {name: dataclasses.replace(count) for name, count in self._counts.items()}
            for target, session in self._sessions.items():
                out.setdefault(target.name, Count()).add(session.count)
        return out

    def close(self) -> None:
        """All agents end, at the same time."""
        with self._lock:
            sessions, self._sessions = dict(self._sessions), {}
            links, self._links = list(self._links.values()), {}
        threads = [threading.Thread(target=session.close, daemon=True) for session in sessions.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5.0)
        for link in links:
            link.close()
        for target, session in sessions.items():
            self._counts.setdefault(target.name, Count()).add(session.count)


def is_root(target: Target) -> bool:
    """Whether the login itself is root's, as far as we can know."""
    if target.connection in GUESTS:
        return True
    return target.user == "root" if target.connection == "ssh" else os.geteuid() == 0


def become_prefix(target: Target) -> list[str]:
    """Words that change the user: none when it is that user already; root needs no sudo."""
    if not target.become or (target.become_user == "root" and is_root(target)):
        return []
    if is_root(target):
        return ["runuser", "-u", target.become_user, "--"]
    return ["sudo", "-n", "-H", "-u", target.become_user, "--"]


def prefix(target: Target) -> list[str]:
    """Words before a command on a target, as its parent must be given them."""
    return [*attach(target), *become_prefix(target)]


def python_of(target: Target) -> str:
    """The interpreter: the inventory's word, else this one here, else python3."""
    if target.python:
        return target.python
    if target.connection != "local":
        return "python3"
    if become_prefix(target) and os.path.exists("/usr/bin/python3"):
        return "/usr/bin/python3"  # ours may be out of the other user's reach
    return sys.executable or shutil.which("python3") or "python3"


def command(target: Target) -> list[str]:
    """The whole command that starts a target's agent, for its parent."""
    return [*prefix(target), *agent_argv(python_of(target))]
