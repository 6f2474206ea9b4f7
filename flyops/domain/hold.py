# SPDX-License-Identifier: Apache-2.0
"""Packages that unattended upgrades must not move: what protects them now, and the file of apt's that does. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Sequence, Tuple

KEY = "Unattended-Upgrade::Package-Blacklist"
ENTRY = re.compile(rf'^{KEY}:: "((?:[^"\\]|\\.)*)";$', re.MULTILINE)
PATTERN = re.compile(r"[A-Za-z0-9.*+?^$()|\[\]{}_:-]+")
HEAD = "// Written by flyops (package_hold): unattended upgrades leave these alone. Removed with state: free.\n"


@dataclass(frozen=True)
class Package:
    """An installed package and what dpkg is to do with it (`install`, `hold`)."""

    name: str
    version: str
    want: str


def parse_packages(text: str) -> Tuple[Package, ...]:
    """Lines of `dpkg-query -W -f='${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n'` that are installed."""
    fields = [line.split("\t") for line in text.splitlines()]
    return tuple(Package(f[0], f[1], f[2]) for f in fields if len(f) == 4 and f[3] == "installed")


def blacklist(dump: str) -> Tuple[str, ...]:
    """Patterns in what `apt-config dump` says."""
    return tuple(re.sub(r"\\(.)", r"\1", found) for found in ENTRY.findall(dump))


def wrong_pattern(patterns: Sequence[str]) -> str:
    """Empty when each is a regular expression that fits into apt's configuration; else what is wrong."""
    for pattern in patterns:
        if not PATTERN.fullmatch(pattern):
            return f"expected a regular expression over package names without quotes, blanks or backslashes, found {pattern!r}"
        try:
            re.compile(pattern)
        except re.error as err:
            return f"{pattern!r} is no regular expression: {err}"
    return ""


def matches(patterns: Sequence[str], name: str) -> bool:
    """As unattended-upgrades does it: each pattern from the beginning of the name."""
    return any(re.match(pattern, name) for pattern in patterns)


def exposed(packages: Sequence[Package], patterns: Sequence[str], listed: Sequence[str]) -> Tuple[str, ...]:
    """Installed packages of ours that an unattended upgrade may move: neither held nor in its list."""
    fitting = [pattern for pattern in listed if not wrong_pattern([pattern])]
    return tuple(p.name for p in packages if matches(patterns, p.name) and p.want != "hold" and not matches(fitting, p.name))


def render(patterns: Sequence[str]) -> str:
    """The file of apt's that adds the patterns to the list, whatever else is in it."""
    return HEAD + "".join(f'{KEY}:: "{pattern}";\n' for pattern in patterns)
