# SPDX-License-Identifier: Apache-2.0
"""A look at the driver's user part where it is, through the Host that is handed in. Judging it is driver.py's."""

from __future__ import annotations

import posixpath
from typing import Dict, Iterable, List, Sequence, Tuple

from flyops.domain import driver
from flyops.domain.driver import Cached, File, Seen
from flyops.model.host import Completed, Host

TOOL_DIRS = ("/usr/bin", "/usr/sbin", driver.TOOL_FOLDER, f"{driver.FOLDER}/bin")


def text(done: Completed) -> str:
    """What a command printed."""
    return done.stdout.decode("utf-8", "replace")


def real(path: str, host: Host) -> str:
    """Where a path ends on this host."""

    def link(path: str) -> str:
        seen = host.stat(path)
        return seen.target if seen and seen.kind == "link" else ""

    return driver.real(path, link)


def cached(host: Host) -> Tuple[Cached, ...] | None:
    """The linker's cache; None where there is no ldconfig."""
    if host.which("ldconfig") is None:
        return None
    return driver.cache(text(host.run(["ldconfig", "-p"], query=True, timeout=60)))


def file(path: str, host: Host) -> File | None:
    """One path; of a link also where it ends and how much is there."""
    seen = host.stat(path)
    if seen is None:
        return None
    if seen.kind != "link":
        return File(path, seen.kind, seen.size)
    final = real(path, host)
    there = host.stat(final) if final else None
    return File(path, "link", there.size if there and there.kind == "file" else 0, final)


def _folders(folders: Iterable[str], host: Host) -> List[str]:
    """Those that are there, each once under its real name (/lib may be /usr/lib)."""
    found = [real(folder, host) for folder in folders]
    return [path for path in dict.fromkeys(found) if path and (seen := host.stat(path)) and seen.kind == "dir"]


def look(host: Host, folders: Sequence[str] = ()) -> Seen:
    """Libraries in these folders (default: the usual ones and the linker's own, and what the linker takes of them), tools, mounts."""
    known = None if folders else cached(host)
    linker = [posixpath.dirname(entry.path) for entry in known or () if entry.wide and driver.capability(entry.name)]
    places = _folders(folders or [*driver.LIB_DIRS, *linker], host)
    files = [file(f"{place}/{name}", host) for place in places for name in host.listdir(place) if driver.parts(name)]
    tools = [file(f"{place}/{name}", host) for place in _folders(TOOL_DIRS, host) for name in driver.TOOLS]
    linked: Dict[str, str] = {}
    for entry in known or ():
        if entry.wide and driver.capability(entry.name):
            linked.setdefault(entry.name, real(entry.path, host) if host.stat(entry.path, follow=True) else "")
    return Seen(
        files=tuple(found for found in files if found),
        tools=tuple(found for found in tools if found),
        linked=None if known is None else linked,
        mountinfo=host.read_text("/proc/self/mountinfo", missing=""),
    )
