# SPDX-License-Identifier: Apache-2.0
"""May a device node be opened: by the rules that a cgroup has now, and by those that a unit's own config brings back. Pure.

The difference is the fault that shows late: a rule that something injected works until systemd writes the unit's rules again (daemon-reload).
"""

from __future__ import annotations

import fnmatch
from typing import Iterable, Tuple


def rule_allows(devices_list: str, major: int, minor: int, access: str = "rw") -> bool:
    """Does cgroup v1's `devices.list` let a character device be opened? `c 195:* m` only lets it be made. On v2 only opening it tells."""
    for line in devices_list.splitlines():
        kind, _, rest = line.strip().partition(" ")
        number, _, letters = rest.partition(" ")
        first, _, second = number.partition(":")
        if kind in ("a", "c") and first in ("*", str(major)) and second in ("*", str(minor)) and set(access) <= set(letters):
            return True
    return False


def config(show: str) -> Tuple[str, Tuple[str, ...]]:
    """(DevicePolicy, DeviceAllow entries) of what `systemctl show -p DevicePolicy -p DeviceAllow UNIT` printed."""
    pairs = [line.partition("=") for line in show.splitlines()]
    policy = next((value for key, _, value in pairs if key == "DevicePolicy"), "")
    return policy, tuple(value for key, _, value in pairs if key == "DeviceAllow" and value)


def config_allows(show: str, path: str, names: Iterable[str], access: str = "rw") -> bool:
    """Does a unit's own config let a node be opened? `names`: what the kernel calls its major (`nvidia`, `nvidia-uvm`)."""
    policy, entries = config(show)
    if policy in ("", "auto") and not entries:
        return True
    wanted = [f"char-{name}" for name in names]
    for entry in entries:
        what, _, letters = entry.partition(" ")
        fits = what == path or any(fnmatch.fnmatchcase(name, what) for name in wanted)
        if fits and set(access) <= set(letters or "rwm"):
            return True
    return False


def devices_path(proc_cgroup: str) -> str:
    """Path of a process in cgroup v1's devices hierarchy, from /proc/PID/cgroup; empty where there is none."""
    for line in proc_cgroup.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "devices" in controllers.split(","):
            return path
    return ""
