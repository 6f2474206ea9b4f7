# SPDX-License-Identifier: Apache-2.0
"""A digest of a whole guest: every file, every unit, the host's config of it. Two digests compare to sentences about what differs.

Left out: /proc, /sys, /run, logs, and what the caller names (the service's state folder); the agent's cache always.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

SKIPPED = ("/proc", "/sys", "/run", "/dev/pts", "/dev/shm", "/var/log", "/var/cache/flyops", "/root/.cache/flyops")
UNIT_KEYS = ("Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "NRestarts")
GUEST_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Runs in the guest: one line of JSON per path.
WALK = """
import hashlib, json, os, stat, sys
skipped = set(json.loads(sys.argv[1]))
def tell(path):
    seen = os.lstat(path)
    out = [stat.S_IFMT(seen.st_mode), oct(stat.S_IMODE(seen.st_mode)), seen.st_uid, seen.st_gid]
    if stat.S_ISREG(seen.st_mode):
        digest = hashlib.sha256()
        with open(path, 'rb') as stream:
            for piece in iter(lambda: stream.read(1 << 20), b''):
                digest.update(piece)
        out += [seen.st_size, digest.hexdigest()]
    elif stat.S_ISLNK(seen.st_mode):
        out.append(os.readlink(path))
    elif stat.S_ISCHR(seen.st_mode) or stat.S_ISBLK(seen.st_mode):
        out.append([os.major(seen.st_rdev), os.minor(seen.st_rdev)])
    print(json.dumps([path, out]))
for folder, dirs, files in os.walk('/'):
    dirs[:] = sorted(d for d in dirs if os.path.join(folder, d) not in skipped)
    for name in dirs + files:
        path = os.path.join(folder, name)
        if path not in skipped:
            try:
                tell(path)
            except FileNotFoundError:
                pass
"""


def inside(name: str, *argv: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command in a guest, with nothing of our environment."""
    full = ["lxc-attach", "-n", name, "--clear-env", "-v", GUEST_PATH, "--", *argv]
    return subprocess.run(full, input=stdin, capture_output=True, text=True, check=check)


def units(name: str) -> dict[str, list[str]]:
    """State, pid and restart count of every unit in the guest."""
    done = inside(name, "systemctl", "show", "*", "--all", f"--property={','.join(UNIT_KEYS)}")
    out = {}
    for block in done.stdout.split("\n\n"):
        found = dict(line.partition("=")[::2] for line in block.splitlines())
        # Device and scope units come and go with sessions (an attach makes one); they are no one's setting.
        if found.get("Id") and not found["Id"].endswith((".scope", ".device")):
            out[found["Id"]] = [f"{key}={found.get(key, '')}" for key in UNIT_KEYS[1:]]
    return out


def files(name: str, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Type, mode, owner, size and sha256 of every path in the guest."""
    done = inside(name, "python3", "-I", "-B", "-c", WALK, json.dumps([*SKIPPED, *skip]))
    return dict(json.loads(line) for line in done.stdout.splitlines())


def host_side(name: str, lxc_path: str = "/var/lib/lxc") -> dict[str, str]:
    """The host's config of the guest, byte for byte, and the pid of its init."""
    folder = Path(lxc_path, name)
    out = {
        f"host: {path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "config", folder / "flyops.json") if path.exists()
    }
    pid = subprocess.run(["lxc-info", "-P", lxc_path, "-n", name, "-p", "-H"], capture_output=True, text=True, check=False).stdout.strip()
    return {**out, "host: init pid": pid}


def digest(name: str, skip: tuple[str, ...] = (), lxc_path: str = "/var/lib/lxc") -> dict[str, Any]:
    """Everything about a guest that an operation which changes nothing must leave as it was."""
    return {**files(name, skip), **{f"unit: {unit}": state for unit, state in units(name).items()}, **host_side(name, lxc_path)}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One sentence for each path, unit or setting that came, went or changed."""
    out = [f"{key} went" for key in sorted(before.keys() - after.keys())]
    out += [f"{key} came" for key in sorted(after.keys() - before.keys())]
    return out + [f"{key}: {before[key]} -> {after[key]}" for key in sorted(before.keys() & after.keys()) if before[key] != after[key]]
