# SPDX-License-Identifier: Apache-2.0
"""Putting content at a path: shared by copy, template and the editors of lines. Look, decide, write; each step once."""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import shlex
import time
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Optional

from flyops.domain import attributes, diff, modes, paths
from flyops.domain.attributes import Attributes
from flyops.errors import ModuleError
from flyops.model.change import Change, Diff
from flyops.model.host import Host, Stat


@dataclass(frozen=True)
class Place:
    """A destination as it was found. `data` is its content when that is short enough to show or was asked for."""

    path: str
    stat: Optional[Stat] = None
    sha256: str = ""
    data: Optional[bytes] = None
    attributes: Attributes = field(default_factory=Attributes)

    @property
    def is_file(self) -> bool:
        """Whether a regular file stands there."""
        return self.stat is not None and self.stat.kind == "file"


@dataclass(frozen=True)
class Payload:
    """Wanted content, known by digest; `data` is there when it is short enough to show or is at hand anyway."""

    sha256: str
    size: int
    data: Optional[bytes] = None
    blob: str = ""  # digest to fetch from the controller
    source: str = ""  # path on this host

    def fetch(self, host: Host) -> bytes:
        """The bytes, from wherever they are."""
        if self.data is not None:
            return self.data
        return host.read_bytes(host.blob(self.blob) if self.blob else self.source)


def with_text(host: Host, place: Place, wanted: Payload) -> Payload:
    """The same content, at hand when it differs and is short enough to show."""
    if wanted.data is not None or wanted.size > diff.SHOW_BYTES or (place.is_file and place.sha256 == wanted.sha256):
        return wanted
    return replace(wanted, data=wanted.fetch(host))


def payload_of(data: bytes) -> Payload:
    """Content that is at hand."""
    return Payload(hashlib.sha256(data).hexdigest(), len(data), data)


def look(host: Host, path: str, wanted: Attributes, *, follow: bool = False, whole: bool = False) -> Place:
    """What stands at `path`; a link is followed only when asked. `whole` reads content of any length."""
    path = paths.follow(host, paths.tidy(path)) if follow else paths.tidy(path)
    stat = host.stat(path)
    if stat is None or stat.kind != "file":
        return Place(path, stat, attributes=wanted)
    if whole or stat.size <= diff.SHOW_BYTES:
        data = host.read_bytes(path)
        return Place(path, stat, hashlib.sha256(data).hexdigest(), data, wanted)
    return Place(path, stat, host.sha256(path), None, wanted)


def need_parent(host: Host, path: str) -> None:
    """Fail when the folder of `path` is not there; an earlier checked task may have made it."""
    parent = posixpath.dirname(paths.tidy(path)) or "."
    stat = host.stat(parent, follow=True)
    if stat is None or stat.kind != "dir":
        found = "nothing" if stat is None else f"a {stat.kind}"
        raise ModuleError(f"Destination directory {parent} does not exist (found {found})", fix="make it first with file: state=directory")


def differences(place: Place, wanted: Payload) -> list[Diff]:
    """What would change at a place: content first, then mode, owner and group."""
    out = []
    if not place.is_file or place.sha256 != wanted.sha256:
        out.append(content_diff(place, wanted))
    if place.is_file and place.stat is not None:
        out += attributes.drift(place.path, place.stat, place.attributes)
    elif place.attributes.mode is not None:
        out.append(Diff(f"mode of {place.path}", "", modes.text(modes.resolve(place.attributes.mode, 0o644))))
    return out


def content_diff(place: Place, wanted: Payload) -> Diff:
    """Old and new content as people may read it; a replaced link shows where it led."""
    before = diff.readable(place.data)
    if place.stat is not None and place.stat.kind == "link":
        before = f"(link to {place.stat.target})\n"
    elif place.data is None and place.sha256 and place.stat is not None:
        before = diff.summary(place.stat.size, place.sha256)
    after = diff.summary(wanted.size, wanted.sha256) if wanted.data is None else diff.readable(wanted.data)
    return Diff(place.path, before, after)


def change_to(place: Place, wanted: Payload, **values: Any) -> Optional[Change]:
    """The change that brings `wanted` to the place, or None when it is there already."""
    found = differences(place, wanted)
    if not found:
        return None
    return Change(before=place, after=wanted, diff=tuple(found), values=values)


def at_hand(host: Host, place: Place, wanted: Payload) -> dict[str, str]:
    """`digests` of the wanted content, when it is at hand or in place already."""
    data = wanted.data
    if data is None and place.is_file and place.sha256 == wanted.sha256:
        data = place.data if place.data is not None else host.read_bytes(place.path)
    return {} if data is None else digests(data)


def digests(data: bytes) -> dict[str, str]:
    """Ansible's names: `checksum` is SHA-1."""
    return {"checksum": hashlib.sha1(data).hexdigest(), "md5sum": hashlib.md5(data).hexdigest()}  # noqa: S324


def put(host: Host, place: Place, wanted: Payload, args: Mapping[str, Any]) -> dict[str, Any]:
    """Write what differs. New content is checked by `validate` before the old one is touched."""
    if place.is_file and place.sha256 == wanted.sha256:
        attributes.set_on(host, place.path, place.attributes)
        return attributes.facts(host, place.path)
    data = wanted.fetch(host)
    values: dict[str, Any] = {**digests(data)}
    if args.get("validate"):
        validate(host, place.path, data, args["validate"])
    if args.get("backup") and place.is_file:
        values["backup_file"] = keep_old(host, place)
    present = place.stat if place.is_file else None
    host.write_bytes(
        place.path,
        data,
        mode=place.attributes.mode_for(present),
        uid=_first(place.attributes.uid, present.uid if present else None),
        gid=_first(place.attributes.gid, present.gid if present else None),
    )
    return {**attributes.facts(host, place.path), **values}


def _first(asked: Optional[int], present: Optional[int]) -> Optional[int]:
    return present if asked is None else asked


def validate(host: Host, path: str, data: bytes, command: str) -> None:
    """Run the command on a private copy of the new content. Check mode cannot: the copy would have to be real."""
    if "%s" not in command:
        raise ModuleError(f"validate must contain %s: {command}", fix="put %s where the file's name goes, as in 'visudo -cf %s'")
    if host.check:
        return
    folder, name = posixpath.split(path)
    trial = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}")
    host.write_bytes(trial, data, mode=0o600)
    try:
        done = host.run([word.replace("%s", trial) for word in shlex.split(command)])
    finally:
        host.remove(trial)
    if done.rc != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().replace(trial, path)
        raise ModuleError(f"failed to validate: rc:{done.rc} error:{said}", fix=f"{path} was left as it was", exit_status=done.rc, stderr=said)


def keep_old(host: Host, place: Place) -> str:
    """Copy the present file beside itself, same mode and owner, the time in its name."""
    assert place.stat is not None
    stamp = time.strftime("%Y-%m-%d@%H:%M:%S", time.localtime())
    backup = f"{place.path}.{secrets.token_hex(2)}.{stamp}~"
    data = host.read_bytes(place.path) if place.data is None else place.data
    host.write_bytes(backup, data, mode=place.stat.mode, uid=place.stat.uid, gid=place.stat.gid)
    return backup
