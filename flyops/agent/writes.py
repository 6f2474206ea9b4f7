# SPDX-License-Identifier: Apache-2.0
"""The write log: each change of the host is noted with its path before it happens, and refused where the run may not write."""

from __future__ import annotations

import functools
import os
import shlex
from typing import Any, Callable, List, Sequence, Tuple, TypeVar, cast

from flyops.domain import fence
from flyops.errors import Refused

COMMAND_CHARS = 300
Method = TypeVar("Method", bound=Callable[..., Any])


class WriteLog:
    """What one task did to its host, as (kind, path) in order; `run` has the command's words in place of a path."""

    def __init__(self) -> None:
        self._entries: List[Tuple[str, str]] = []
        self._places: Sequence[str] | None = None

    def begin(self, places: Sequence[str] | None) -> None:
        """A new task; `places` is where it may write, None: anywhere."""
        self._entries = []
        self._places = None if places is None else [_resolved(place) for place in places]

    def note(self, kind: str, path: str) -> None:
        """One change that is about to happen. A path outside the run's places is refused."""
        where = place_of(path)
        if self._places is not None and fence.outside(self._places, where, kind == "mkdir"):
            raise Refused(fence.refusal(kind, where, self._places), fix=fence.FIX, outside=where)
        self._entries.append((kind, where))

    def command(self, argv: Sequence[str]) -> None:
        """A command that may change something: what it writes is its own affair, so its words are kept."""
        self._entries.append(("run", shlex.join(argv)[:COMMAND_CHARS]))

    def into(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result with what was written for it, each once."""
        return {**result, "writes": [list(entry) for entry in dict.fromkeys(self._entries)]} if self._entries else result


def logged(kind: str, *places: int, follow: bool = False) -> Callable[[Method], Method]:
    """For a method of a host that changes something: its arguments at `places` are the paths. `follow`: it goes through a link at the path itself."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def noted(host: Any, *args: Any, **words: Any) -> Any:
            for place in places or (0,):
                host.write_log.note(kind, os.path.realpath(args[place]) if follow else args[place])
            return method(host, *args, **words)

        return cast("Method", noted)

    return wrap


def place_of(path: str) -> str:
    """A path with the links above its last name followed, so that no link and no `..` leads a write out of the run's places."""
    folder, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder or "."), name)


def _resolved(place: str) -> str:
    """A place with its links followed, its own, too; the name that holds a star stays as it is written."""
    fixed, star, rest = place.partition("*")
    if not star:
        return os.path.realpath(place)
    folder, _, begin = fixed.rpartition("/")
    return f"{os.path.realpath(folder or '/').rstrip('/')}/{begin}*{rest}"
