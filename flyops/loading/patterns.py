# SPDX-License-Identifier: Apache-2.0
"""Host patterns as in Ansible: names, globs, `~regex`, `a:b`, `a,b`, `!x`, `&x`, `g[0]`, `g[0:1]`, `@file`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from flyops.errors import UsageError

_SUBSCRIPT = re.compile(r"^(?P<name>.+)\[(?:(?P<one>-?\d+)|(?P<first>-?\d*):(?P<last>-?\d*))\]$")


def split(pattern: str | Sequence[str]) -> list[str]:
    """The parts of a pattern. `:` inside brackets does not split."""
    if not isinstance(pattern, str):
        return [part for item in pattern for part in split(str(item))]
    if "," in pattern:
        return [part for item in pattern.split(",") for part in split(item.strip())]
    if pattern.startswith(("~", "@")):
        return [pattern]
    return [part for part in re.split(r":(?![^\[]*\])", pattern) if part]


def select(pattern: str | Sequence[str], groups: Mapping[str, Sequence[str]], hosts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hosts that a pattern names, in order, and the parts that named nothing."""
    parts = [part for item in split(pattern) for part in _from_file(item)]
    plain = [part for part in parts if part[0] not in "!&"] or (["all"] if parts else [])
    chosen: list[str] = []
    unmatched = []
    for part in plain:
        found = _one(part, groups, hosts)
        if not found:
            unmatched.append(part)
        chosen += [host for host in found if host not in chosen]
    for part in (p for p in parts if p[0] == "&"):
        keep = _one(part[1:], groups, hosts)
        chosen = [host for host in chosen if host in keep]
    for part in (p for p in parts if p[0] == "!"):
        drop = _one(part[1:], groups, hosts)
        chosen = [host for host in chosen if host not in drop]
    return chosen, unmatched


def _from_file(part: str) -> list[str]:
    if not part.startswith("@"):
        return [part] if part else []
    try:
        text = Path(part[1:]).read_text(encoding="utf-8")
    except OSError as err:
        raise UsageError(f"cannot read the hosts of {part!r}: {err.strerror}") from err
    return [word for line in text.splitlines() if line.strip() and not line.startswith("#") for word in split(line.strip())]


def _one(part: str, groups: Mapping[str, Sequence[str]], hosts: Sequence[str]) -> list[str]:
    if part in groups or part in hosts:
        return _named(part, groups, hosts)
    found = _SUBSCRIPT.match(part)
    if found and not part.startswith("~"):
        return _subscript(_named(found["name"], groups, hosts), found)
    return _named(part, groups, hosts)


def _named(part: str, groups: Mapping[str, Sequence[str]], hosts: Sequence[str]) -> list[str]:
    if part.startswith("~"):
        try:
            matches = re.compile(part[1:]).match
        except re.error as err:
            raise UsageError(f"host pattern {part!r} is not a regular expression: {err}") from err
    else:
        matches = re.compile(fnmatch.translate("*" if part == "all" else part)).match
    out: list[str] = []
    for name, members in groups.items():
        if matches(name):
            out += [host for host in members if host not in out]
    out += [host for host in hosts if host not in out and matches(host)]
    return out


def _subscript(found: list[str], part: re.Match[str]) -> list[str]:
    if part["one"] is not None:
        index = int(part["one"])
        return [found[index]] if -len(found) <= index < len(found) else []
    first = int(part["first"] or 0)
    last = int(part["last"]) if part["last"] else len(found) - 1
    last = last if last >= 0 else len(found) + last
    return found[first : last + 1]
