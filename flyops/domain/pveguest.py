# SPDX-License-Identifier: Apache-2.0
"""A Proxmox VE guest through the Host that is handed in: its config and state, and the write that does not lose a race.

`/etc/pve` is a cluster's file system: a file there is written through, not renamed over, under the lock that `pct` takes itself, and only
if it still is what the decision was made on. What a cut inside such a write leaves is known by the copy beside it, and finished.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from flyops.domain import pveconf
from flyops.errors import ModuleError, Refused
from flyops.model.host import Completed, Host

GUEST_ID = re.compile(r"[1-9][0-9]{2,8}")
TAG = "flyops"  # the tag of a guest that is ours, so that it goes with the guest to another node
LOCK_WAIT_S = 10
BUSY, MOVED = 8, 9  # exit codes of the write below
SWAP = f'test "$(sha256sum < "$1")" = "$3  -" || exit {MOVED}; cat -- "$2" > "$1"'


@dataclass(frozen=True)
class Place:
    """Where a guest's config, our copies of it and Proxmox's lock are."""

    guest: str
    conf_dir: str = "/etc/pve/lxc"
    state_dir: str = "/var/lib/flyops/pve"
    lock_dir: str = "/run/lock/lxc"

    @property
    def conf(self) -> str:
        """The config."""
        return posixpath.join(self.conf_dir, f"{self.guest}.conf")

    @property
    def lock(self) -> str:
        """The lock that `pct` takes for every write."""
        return posixpath.join(self.lock_dir, f"pve-config-{self.guest}.lock")

    def kept(self, what: str) -> str:
        """`before` (the config before our last write), `new` (there only while it is written), `json` (what we remember)."""
        return posixpath.join(self.state_dir, f"{self.guest}.{what}")


@dataclass(frozen=True)
class Seen:
    """What there is. `text` is the config that counts: that of a write that was cut off, as it would be finished; `raw` the file's own."""

    exists: bool = False
    text: str = ""
    raw: str = ""
    running: bool = False
    pid: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Does the guest carry our tag?"""
        return TAG in re.split(r"[;, ]+", pveconf.value(self.text, "tags"))

    @property
    def restart_waits(self) -> bool:
        """Does the guest still run as before our last write?"""
        return self.running and bool(self.pid) and self.memory.get("pid") == self.pid

    @property
    def written(self) -> Tuple[Tuple[str, str], ...]:
        """The raw lines of ours that our last write left."""
        return tuple((str(key), str(value)) for key, value in self.memory.get("raw", []))


def check_id(guest: str) -> str:
    """Empty when it can be a guest's number; else what is wrong."""
    return "" if GUEST_ID.fullmatch(guest) else f"a Proxmox guest is named by its number, from 100 up; found {guest!r}"


def need_tools(host: Host) -> None:
    """This must be a Proxmox VE host."""
    missing = [tool for tool in ("pct", "flock") if host.which(tool) is None]
    if missing:
        raise ModuleError(f"{', '.join(missing)} not found here: this is no Proxmox VE host", fix="run it on the host of the guest (delegate_to)")


def said(done: Completed) -> str:
    """What a command said when it failed, on one line."""
    return "; ".join((done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()[-4:])


def must(host: Host, argv: Sequence[str], what: str, fix: str = "") -> Completed:
    """A command that has to succeed."""
    done = host.run(list(argv))
    if done.rc != 0:
        raise ModuleError(f"{what}: {' '.join(argv[:2])} ended with {done.rc}: {said(done)}", fix=fix, cmd=list(argv))
    return done


def look(host: Host, place: Place) -> Seen:
    """One look at the guest."""
    raw = host.read_text(place.conf, missing="")
    exists = host.stat(place.conf, follow=True) is not None
    new = host.read_text(place.kept("new"), missing="")
    cut = bool(new) and pveconf.torn(raw, host.read_text(place.kept("before"), missing=""), new)
    status = _status(host, place.guest) if exists else {}
    return Seen(
        exists=exists,
        text=new if cut else raw,
        raw=raw,
        running=status.get("status") == "running",
        pid=status.get("pid", ""),
        memory=read_memory(host, place),
    )


def installed(host: Host) -> Tuple[int, ...]:
    """The version of pve-container; empty when it cannot be known. Asked only where it decides: it takes Proxmox a second."""
    done = host.run(["pveversion", "-v"], query=True) if host.which("pveversion") else None
    return pveconf.version(done.stdout.decode("utf-8", "replace")) if done and done.rc == 0 else ()


def _status(host: Host, guest: str) -> Dict[str, str]:
    done = host.run(["pct", "status", guest, "--verbose"], query=True)
    if done.rc != 0:
        raise ModuleError(f"guest {guest}: pct status ended with {done.rc}: {said(done)}", fix="is the guest on this node (pct list)?")
    found = (line.partition(":") for line in done.stdout.decode("utf-8", "replace").splitlines())
    return {key.strip(): value.strip() for key, _, value in found}


def read_memory(host: Host, place: Place) -> Mapping[str, Any]:
    """What we remember of our last write."""
    try:
        found = json.loads(host.read_text(place.kept("json"), missing="{}"))
    except ValueError:
        return {}  # only a hint of ours, for the wording and for the restart that waits
    return found if isinstance(found, dict) else {}


def may_write(guest: str, text: str) -> None:
    """Proxmox writes `lock:` into the config while it works on the guest."""
    lock = pveconf.value(text, "lock")
    if lock:
        raise Refused(
            f"guest {guest} is locked by Proxmox ({lock}): its config is not written now",
            fix=f"run again when the {lock} is done; if none runs any more: pct unlock {guest}",
        )


def write(host: Host, place: Place, seen: Seen, text: str, raw: Sequence[Tuple[str, str]]) -> None:
    """The config in place of what was seen. The copies first: whatever is cut off later, the next run can finish it."""
    if host.check:
        host.write_through(place.conf, text)  # in memory, so that later tasks of a check see it
        return
    host.mkdir(place.state_dir, mode=0o700)
    if seen.raw == seen.text:  # a cut-off write keeps the `before` that it had
        host.write_text(place.kept("before"), seen.raw, mode=0o600)
    remembered = {"pid": seen.pid if seen.running else "", "raw": [list(line) for line in raw]}
    host.write_text(place.kept("json"), json.dumps(remembered, sort_keys=True) + "\n", mode=0o600)
    host.write_text(place.kept("new"), text, mode=0o600)
    if host.stat(place.lock_dir) is None:
        host.mkdir(place.lock_dir, mode=0o755)
    digest = hashlib.sha256(seen.raw.encode("utf-8", "surrogateescape")).hexdigest()
    words = ["sh", "-c", SWAP, "sh", place.conf, place.kept("new"), digest]  # the config first: the write log keeps a command's beginning
    done = host.run(["flock", "-w", str(LOCK_WAIT_S), "-E", str(BUSY), place.lock, *words])
    if done.rc == BUSY:
        raise ModuleError(f"guest {place.guest}: pct holds {place.lock} for more than {LOCK_WAIT_S} s", fix="see what works on the guest, run again")
    if done.rc == MOVED:
        raise ModuleError(f"{place.conf} was changed by someone else while this ran: nothing is written", fix="run again")
    if done.rc != 0 or host.read_text(place.conf, missing="") != text:
        raise ModuleError(
            f"{place.conf} is not as it was written (exit {done.rc}): {said(done) or 'its text differs'}",
            fix=f"is the cluster in quorum (pvecm status)? The text before is in {place.kept('before')}; run again",
        )
    host.remove(place.kept("new"))


def restart(host: Host, guest: str, wait_s: int) -> None:
    """Shut down and start. Never the hard `pct stop`: a guest that does not go down is told, and left as it is."""
    shut_down(host, guest, wait_s)
    start(host, guest)


def shut_down(host: Host, guest: str, wait_s: int) -> None:
    """Ask the guest to go down."""
    done = host.run(["pct", "shutdown", guest, "--timeout", str(wait_s)])
    if done.rc != 0:
        raise ModuleError(
            f"guest {guest} did not shut down within {wait_s} s: {said(done)}; it was not killed",
            fix=f"look inside (pct enter {guest}); `pct stop {guest}` ends it the hard way",
        )


def start(host: Host, guest: str) -> None:
    """Start the guest, with Proxmox's own words when it cannot."""
    must(
        host,
        ["pct", "start", guest],
        f"guest {guest} did not start",
        "pct start ID --debug tells more; a devN: entry whose node is missing stops a start",
    )


def inside(guest: str, *argv: str) -> List[str]:
    """A command in a guest."""
    return ["pct", "exec", guest, "--", *argv]
