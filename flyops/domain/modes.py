# SPDX-License-Identifier: Apache-2.0
"""File modes, octal and symbolic, as pure functions over permission bits."""

from __future__ import annotations

import re
from typing import Union

Mode = Union[int, str]

ALL_BITS = 0o7777
WHO_MASK = {"u": 0o4700, "g": 0o2070, "o": 0o1007}
SHIFT = {"u": 6, "g": 3, "o": 0}
CLAUSE = re.compile(r"^([ugoa]*)((?:[-+=](?:[rwxXst]*|[ugo]))+)$")
ACTION = re.compile(r"([-+=])([rwxXst]+|[ugo]|)")


def resolve(mode: Mode, present: int, *, directory: bool = False, umask: int = 0o022) -> int:
    """The bits that `mode` asks for on a path that has `present`. A wrong symbolic text is a ValueError that names the clause."""
    if isinstance(mode, int):
        if not 0 <= mode <= ALL_BITS:
            raise ValueError(f"mode must be between 0 and 07777, found {mode:#o}")
        return mode
    bits = present & ALL_BITS
    for clause in mode.split(","):
        bits = _apply_clause(clause.strip(), bits, directory, umask)
    return bits


def check(mode: Mode) -> None:
    """Raise the ValueError that `resolve` would, before anything is written."""
    resolve(mode, 0)


def text(bits: int) -> str:
    """Octal with a leading zero, as Ansible's file modules print modes: `0644`, `01777`."""
    return f"0{bits & ALL_BITS:03o}"


def _apply_clause(clause: str, bits: int, directory: bool, umask: int) -> int:
    match = CLAUSE.match(clause)
    if not match:
        raise ValueError(f"mode must be in octal or symbolic form (such as '0644' or 'u=rw,g=r,o='), found the clause {clause!r}")
    who, actions = match.groups()
    classes = "ugo" if "a" in who or not who else who
    limit = ALL_BITS & ~umask if not who else ALL_BITS
    for operator, perms in ACTION.findall(actions):
        bits = _apply_action(operator, perms, classes, bits, directory, limit)
    return bits


def _apply_action(operator: str, perms: str, classes: str, bits: int, directory: bool, limit: int) -> int:
    wanted = 0
    for one in classes:
        wanted |= _permission_bits(perms, one, bits, directory)
    wanted &= limit
    if operator == "+":
        return bits | wanted
    if operator == "-":
        return bits & ~wanted
    for one in classes:
        bits &= ~WHO_MASK[one]
    return bits | wanted


def _permission_bits(perms: str, who: str, bits: int, directory: bool) -> int:
    if perms in ("u", "g", "o"):
        return ((bits >> SHIFT[perms]) & 7) << SHIFT[who]
    out = 0
    for perm in perms:
        if perm in "rwx":
            out |= {"r": 4, "w": 2, "x": 1}[perm] << SHIFT[who]
        elif perm == "X" and (directory or bits & 0o111):
            out |= 1 << SHIFT[who]
        elif perm == "s":
            out |= {"u": 0o4000, "g": 0o2000, "o": 0}[who]
        elif perm == "t":
            out |= 0o1000
    return out
