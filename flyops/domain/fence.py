# SPDX-License-Identifier: Apache-2.0
"""Where a run may write: places as paths (with everything below) or patterns. Pure; paths come with their links followed."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Sequence

# Whose a path is, for the text of a refusal: LXC's, Proxmox's and Incus' folders of guests.
_GUESTS = (
    re.compile(r"/lxc/(?P<name>[^/]+)/(?:config|rootfs|fstab|hooks?)(?:/|$)"),
    re.compile(r"/etc/pve/(?:nodes/[^/]+/)?lxc/(?P<name>\d+)\.conf"),
    re.compile(r"/(?:incus|lxd)/(?:containers|devices|storage-pools/[^/]+/containers)/(?P<name>[^/]+)"),
)


def guest_of(path: str) -> str:
    """Name or id of the guest that a path of a container host belongs to; empty for none."""
    return next((found.group("name") for pattern in _GUESTS if (found := pattern.search(path))), "")


def covers(place: str, path: str, making: bool = False) -> bool:
    """Whether a place covers a path: itself, what is below, what the pattern names; while `making` folders also those above it."""
    place = place.rstrip("/")
    if "*" not in place:
        return f"{path}/".startswith(f"{place}/") or (making and place.startswith(f"{path.rstrip('/')}/"))
    depth = place.count("/")
    head = "/".join(path.split("/")[: depth + 1])  # a star stays within one name
    return head.count("/") == depth and fnmatchcase(head, place) and all(map(fnmatchcase, head.split("/"), place.split("/")))


def outside(places: Sequence[str], path: str, making: bool = False) -> bool:
    """Whether no place covers the path."""
    return not any(covers(place, path, making) for place in places)


def refusal(kind: str, path: str, places: Sequence[str]) -> str:
    """Who, where, expected, found."""
    guest = guest_of(path)
    whose = f", which belongs to the guest {guest}" if guest else ""
    return f"refused to {kind} {path}{whose}: this run may write to {', '.join(places) or 'nothing'} only"


FIX = "nothing was written there; if this path is the run's own, name it in flyops_paths of the play"
