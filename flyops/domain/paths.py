# SPDX-License-Identifier: Apache-2.0
"""Paths of a host: tidying, following links, walking a tree and matching patterns, all through the Host that is handed in."""

from __future__ import annotations

import fnmatch
import posixpath
from typing import Iterator

from flyops.errors import ModuleError
from flyops.model.host import Host, Stat

MAX_LINKS = 40


def tidy(path: str) -> str:
    """The path without slashes at the end, so that it names a link and not what the link leads to. `~` is not known here.

    A text without a character is no path: it comes from an empty variable, and must never become `/`.
    """
    if not path.strip():
        raise ModuleError(f"expected a path, found {path!r}", fix="a variable of this task is empty: give it a value")
    return path.rstrip("/") or "/"


def expand_home(path: str, host: Host) -> str:
    """`~` and `~name` at the front become the home folder; anything else stays as it is."""
    if not path.startswith("~"):
        return path
    head, slash, rest = path.partition("/")
    if head == "~":
        home = host.getenv("HOME", "")
    else:
        home = str((host.user(head[1:]) or {}).get("home") or "")
    return (home.rstrip("/") or "/") + slash + rest if home else path


def follow(host: Host, path: str) -> str:
    """Where a chain of links ends; the end need not exist."""
    seen = path
    for _ in range(MAX_LINKS):
        stat = host.stat(seen)
        if stat is None or stat.kind != "link":
            return seen
        seen = posixpath.normpath(posixpath.join(posixpath.dirname(seen), stat.target))
    raise ModuleError(f"{path}: too many links in a row (more than {MAX_LINKS})", fix="remove the loop of links")


def resolve(host: Host, path: str) -> str:
    """An absolute path with every link on the way followed, and `..` taken from where it then stands. What is missing stays as written."""
    todo = path.split("/")
    here = "/"
    links = 0
    while todo:
        name = todo.pop(0)
        if name in ("", "."):
            continue
        there = posixpath.dirname(here) if name == ".." else posixpath.join(here, name)
        stat = host.stat(there)
        if name == ".." or stat is None or stat.kind != "link":
            here = there
            continue
        links += 1
        if links > MAX_LINKS:
            raise ModuleError(f"{path}: too many links in a row (more than {MAX_LINKS})", fix="remove the loop of links")
        here = "/" if stat.target.startswith("/") else here
        todo = stat.target.split("/") + todo
    return here


def walk(host: Host, top: str, *, follow_links: bool = False) -> Iterator[tuple[str, Stat]]:
    """Every path below `top`, parents first, names in order; a folder behind a link is entered only when asked."""
    for name in sorted(host.listdir(top)):
        path = posixpath.join(top, name)
        stat = host.stat(path, follow=follow_links) or host.stat(path)
        if stat is None:
            continue
        yield path, stat
        if stat.kind == "dir":
            yield from walk(host, path, follow_links=follow_links)


def glob(host: Host, pattern: str, folder: str = "/") -> list[str]:
    """Existing paths that fit a shell pattern, relative ones looked up in `folder`."""
    full = posixpath.normpath(posixpath.join(folder, pattern))
    found = ["/"] if full.startswith("/") else [""]
    for part in full.strip("/").split("/"):
        found = [hit for base in found for hit in _glob_part(host, base, part)]
    return found


def _glob_part(host: Host, base: str, part: str) -> list[str]:
    if not any(c in part for c in "*?["):
        path = posixpath.join(base, part)
        return [path] if host.stat(path) is not None else []
    stat = host.stat(base, follow=True)
    if stat is None or stat.kind != "dir":
        return []
    names = [n for n in sorted(host.listdir(base)) if fnmatch.fnmatchcase(n, part)]
    return [posixpath.join(base, n) for n in names if part.startswith(".") or not n.startswith(".")]
