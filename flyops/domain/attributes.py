# SPDX-License-Identifier: Apache-2.0
"""Mode, owner and group of a path: what was asked for, what differs, and setting it. Names become numbers before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from flyops.domain import modes
from flyops.errors import ModuleError
from flyops.model.change import Diff
from flyops.model.host import Host, Stat
from flyops.spec.arguments import Arg, to_mode

UNKNOWN_ID = -1  # a user or group that an earlier checked task would make, without a number yet

ATTRIBUTE_ARGS: dict[str, Arg] = {
    "mode": Arg("mode", "Permission bits: an octal text such as '0644', or symbolic such as 'u=rw,g=r'"),
    "owner": Arg("str", "Name or number of the owner"),
    "group": Arg("str", "Name or number of the group"),
}
WRITE_ARGS: dict[str, Arg] = {
    **ATTRIBUTE_ARGS,
    "backup": Arg("bool", "Keep the old content beside the file, with a time stamp in its name", default=False),
    "validate": Arg("str", "Command that checks the new content before it is put in place; %s is the temporary file"),
    "unsafe_writes": Arg("bool", "Accepted for Ansible's sake; writes are always atomic here", default=False),
}


@dataclass(frozen=True)
class Attributes:
    """What was asked for; None leaves that part as it is."""

    mode: Optional[modes.Mode] = None
    uid: Optional[int] = None
    gid: Optional[int] = None

    def mode_for(self, stat: Optional[Stat], *, directory: bool = False, new: int = 0o644) -> Optional[int]:
        """The bits that the path should have: as asked, else as present, else None (the host's default for a new file)."""
        if self.mode is None:
            return stat.mode if stat else None
        return modes.resolve(self.mode, stat.mode if stat else new, directory=directory)


def wanted(args: Mapping[str, Any], host: Host) -> Attributes:
    """Checked attributes of a task; a wrong mode or an unknown name fails here, before any write."""
    mode = args.get("mode")
    if mode is not None:
        try:
            mode = to_mode(mode)
            modes.check(mode)
        except ValueError as err:
            raise ModuleError(str(err), fix="write the mode in quotes: '0644', or 'u=rw,g=r,o='") from None
    return Attributes(mode, _number(args.get("owner"), "owner", host), _number(args.get("group"), "group", host))


def _number(name: Optional[str], kind: str, host: Host) -> Optional[int]:
    if name is None or name == "":
        return None
    entry = host.user(name) if kind == "owner" else host.group(name)
    if entry is not None:
        number = entry.get("uid" if kind == "owner" else "gid")
        return UNKNOWN_ID if number is None else int(number)
    if name.isdigit():
        return int(name)
    what = "user" if kind == "owner" else "group"
    raise ModuleError(f"{kind} {name!r}: no such {what} on this host", fix=f"create it with the {what} module first, or give its number")


def drift(path: str, stat: Stat, attributes: Attributes) -> list[Diff]:
    """One diff for each attribute that differs from what was asked for."""
    out = []
    if attributes.mode is not None and stat.kind != "link":
        bits = modes.resolve(attributes.mode, stat.mode, directory=stat.kind == "dir")
        if bits != stat.mode:
            out.append(Diff(f"mode of {path}", modes.text(stat.mode), modes.text(bits)))
    for name, want, have in (("owner", attributes.uid, stat.uid), ("group", attributes.gid, stat.gid)):
        if want is not None and want != have:
            out.append(Diff(f"{name} of {path}", str(have), "(new)" if want == UNKNOWN_ID else str(want)))
    return out


def set_on(host: Host, path: str, attributes: Attributes) -> None:
    """Bring an existing path to the attributes asked for. Owner before mode: changing the owner clears set-id bits."""
    stat = host.stat(path)
    if stat is None:
        return
    uid = stat.uid if attributes.uid is None else attributes.uid
    gid = stat.gid if attributes.gid is None else attributes.gid
    owner_moves = (uid, gid) != (stat.uid, stat.gid)
    if owner_moves:
        host.chown(path, uid, gid)
    if attributes.mode is not None and stat.kind != "link":
        bits = modes.resolve(attributes.mode, stat.mode, directory=stat.kind == "dir")
        if owner_moves or bits != stat.mode:
            host.chmod(path, bits)


def name_of(host: Host, number: int, kind: str) -> str:
    """The name of a user or group number, or the number as text."""
    entry = host.user(str(number)) if kind == "user" else host.group(str(number))
    return str(entry["name"]) if entry and "name" in entry else str(number)


def facts(host: Host, path: str) -> dict[str, Any]:
    """What Ansible's file modules return about the path they left behind."""
    stat = host.stat(path)
    if stat is None:
        return {"path": path, "state": "absent"}
    state = {"dir": "directory", "link": "link"}.get(stat.kind, "hard" if stat.nlink > 1 else "file")
    return {
        "path": path,
        "state": state,
        "mode": modes.text(stat.mode),
        "uid": stat.uid,
        "gid": stat.gid,
        "owner": name_of(host, stat.uid, "user"),
        "group": name_of(host, stat.gid, "group"),
        "size": stat.size,
    }
