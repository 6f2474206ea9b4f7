# SPDX-License-Identifier: Apache-2.0
"""Ids of an unprivileged LXC guest: which range of the host's ids it gets, whose ranges are taken, and a base whose files belong to it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Sequence, Tuple

COUNT = 65536  # a whole system's ids: nobody is 65534
FIRST = 100000  # where useradd begins, too
FILES = ("/etc/subuid", "/etc/subgid")
RANGE = re.compile(r"(\d{1,10}):(\d{1,10})")
USERNS = "/usr/share/lxc/config/userns.conf"
# Units that an unprivileged guest can only fail at: they mount what belongs to the host's kernel.
MASKED = ("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount")


class IdsError(ValueError):
    """A range of ids that cannot be used; the text says what was found and what to do."""


@dataclass(frozen=True)
class Ids:
    """The guest's ids 0… are the host's `first`…; `add`: nobody has given the range to root yet, so it has to be written down."""

    first: int = 0
    count: int = 0
    add: bool = False

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def text(self) -> str:
        """As it is typed: FIRST:COUNT; empty for a privileged guest."""
        return f"{self.first}:{self.count}" if self.count else ""


@dataclass(frozen=True)
class Grant:
    """A line of /etc/subuid or /etc/subgid."""

    owner: str
    first: int
    count: int

    def holds(self, first: int, count: int) -> bool:
        """Is the whole range within this one?"""
        return self.first <= first and first + count <= self.first + self.count

    def meets(self, first: int, count: int) -> bool:
        """Do the two have an id in common?"""
        return self.first < first + count and first < self.first + self.count


def grants(text: str) -> Tuple[Grant, ...]:
    """The lines of /etc/subuid or /etc/subgid; what is none is passed over."""
    found = (line.strip().split(":") for line in text.splitlines())
    return tuple(Grant(f[0], int(f[1]), int(f[2])) for f in found if len(f) == 3 and f[1].isdigit() and f[2].isdigit())


def in_config(pairs: Sequence[Tuple[str, str]]) -> Ids:
    """The ids that a guest's config maps; none for a privileged guest."""
    for key, found in pairs:
        words = found.split()
        if key == "lxc.idmap" and len(words) == 4 and words[0] in ("u", "b") and words[1] == "0":
            return Ids(int(words[2]), int(words[3]))
    return Ids()


def choose(asked: str, has: Ids, exists: bool, subuid: str, subgid: str) -> Ids:
    """The range for `asked`: empty keeps what there is, `none`, `auto`, or FIRST:COUNT.

    A guest that exists keeps its ids, because all of its files belong to them.
    """
    word = asked.strip().lower()
    wanted = RANGE.fullmatch(word)
    if word not in ("", "none", "auto") and not wanted:
        raise IdsError(f"idmap: expected none, auto or FIRST:COUNT (100000:65536), found {asked!r}")
    if exists:
        differs = (word == "none" and has) or (word == "auto" and not has) or (wanted and (int(wanted[1]), int(wanted[2])) != (has.first, has.count))
        if differs:
            raise IdsError(f"idmap: the guest's files belong to {has.text or 'the host’s own ids'}, asked {asked}: retire it and provision it anew")
        return has
    if word in ("", "none"):
        return Ids()
    both = (grants(subuid), grants(subgid))
    return _given(int(wanted[1]), int(wanted[2]), both) if wanted else _automatic(both)


def _given(first: int, count: int, both: Sequence[Sequence[Grant]]) -> Ids:
    if first < COUNT or count < COUNT or first + count > 1 << 32:
        raise IdsError(f"idmap: expected a first id from {COUNT} on and a count of at least {COUNT}, found {first}:{count}")
    for file, there in zip(FILES, both):
        others = [grant for grant in there if grant.owner not in ("root", "0") and grant.meets(first, count)]
        if others:
            raise IdsError(f"idmap: {first}:{count} meets {others[0].owner}'s {others[0].first}:{others[0].count} in {file}; choose another, or auto")
    return Ids(first, count, add=not _roots(first, count, both))


def _roots(first: int, count: int, both: Sequence[Sequence[Grant]]) -> bool:
    return all(any(grant.owner in ("root", "0") and grant.holds(first, count) for grant in there) for there in both)


def _automatic(both: Sequence[Sequence[Grant]]) -> Ids:
    for grant in both[0]:
        if grant.owner in ("root", "0") and grant.count >= COUNT and grant.first >= COUNT and _roots(grant.first, COUNT, both):
            return Ids(grant.first, COUNT)
    first = FIRST
    taken = [grant for there in both for grant in there]
    while any(grant.meets(first, COUNT) for grant in taken):
        first = max(grant.first + grant.count for grant in taken if grant.meets(first, COUNT))
    return Ids(first, COUNT, add=True)


def with_root(text: str, ids: Ids) -> str:
    """/etc/subuid or /etc/subgid with root's line for the range, once."""
    line = f"root:{ids.text}"
    lines = text.splitlines()
    return text if line in lines else "".join(f"{each}\n" for each in [*lines, line])


def without_root(text: str, ids: Ids) -> str:
    """The same without it."""
    return "".join(f"{each}\n" for each in text.splitlines() if each != f"root:{ids.text}")


# Gives a copy of the base to the range. Links have no set-id bits; chown takes those of files away, and their capabilities, which name their root.
SHIFT = """
import os, stat, struct, sys
top, first = sys.argv[1], int(sys.argv[2])
def shift(path):
    seen = os.lstat(path)
    try:
        capability = os.getxattr(path, 'security.capability', follow_symlinks=False)
    except OSError:
        capability = b''
    os.lchown(path, seen.st_uid + first, seen.st_gid + first)
    if stat.S_ISREG(seen.st_mode) and seen.st_mode & 0o6000:
        os.chmod(path, stat.S_IMODE(seen.st_mode))
    if len(capability) == 20:
        flags = struct.unpack('<I', capability[:4])[0] & 0xffffff
        os.setxattr(path, 'security.capability', struct.pack('<I', 0x03000000 | flags) + capability[4:] + struct.pack('<I', first))
shift(top)
for folder, folders, files in os.walk(top):
    for name in folders + files:
        shift(os.path.join(folder, name))
"""


def shift_command(python: str, base: str, part: str, first: int) -> List[str]:
    """Copies the base beside its final place and gives the copy to the range."""
    script = 'rm -rf "$2" && mkdir -p "$2" && cp -a --reflink=auto "$1/." "$2/" && exec "$3" -I -c "$4" "$2" "$5"'
    return ["sh", "-c", script, "sh", base, part, python, SHIFT, str(first)]
