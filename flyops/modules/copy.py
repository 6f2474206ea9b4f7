# SPDX-License-Identifier: Apache-2.0
"""Copy a file, a folder or a text to the host."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

from flyops.domain import attributes, modes, paths, placing
from flyops.domain.attributes import WRITE_ARGS, Attributes
from flyops.domain.placing import Payload, Place
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host, Stat
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Copy a file, a folder or a text to the host. The old content is replaced in one step; a link is replaced unless `follow` is set.",
    args={
        "src": Arg("blob", "File or folder on the controller; with remote_src a path on the host. A slash at the end copies a folder's content"),
        "content": Arg("raw", "Text to write in place of a file; a mapping or list is written as JSON"),
        "dest": Arg("path", "Path on the host; a slash at the end or an existing folder keeps the source's name", required=True),
        **WRITE_ARGS,
        "mode": Arg("raw", "Permission bits, octal text or symbolic; `preserve` takes the source's"),
        "directory_mode": Arg("mode", "Permission bits of folders that the copy makes"),
        "force": Arg("bool", "Replace content that differs; when false only a missing file is written", default=True, aliases=("thirsty",)),
        "follow": Arg("bool", "Write to where a link at dest leads, in place of replacing the link", default=False),
        "local_follow": Arg("bool", "Follow links inside the source folder", default=True),
        "remote_src": Arg("bool", "The source is on the host already", default=False),
        "checksum": Arg("str", "SHA-1 (or SHA-256) that the source must have"),
        "decrypt": Arg("bool", "Decrypt a vaulted source on the controller", default=True),
    },
    exclusive=(("src", "content"),),
    required_one_of=(("src", "content"),),
    examples="""
- copy: {src: flysim.env, dest: /etc/fly/flysim.env, mode: '0640', owner: root, group: fly}
- copy: {content: "hello\\n", dest: /etc/motd}
- copy: {src: etc/, dest: /etc/fly/, directory_mode: '0755'}
""",
    returns={
        "dest": "where it went",
        "checksum": "SHA-1 of the content",
        "md5sum": "MD5 of it",
        "backup_file": "the old content, when backup is set",
    },
)
SHA1_DIGITS = 40


@dataclass(frozen=True)
class Item:
    """One file to bring to its place."""

    place: Place
    payload: Payload


@dataclass(frozen=True)
class State:
    """What stands at each destination, and what should."""

    dest: str
    items: tuple[Item, ...] = ()
    folders: tuple[tuple[str, Optional[Stat], Attributes], ...] = ()
    links: tuple[tuple[str, Optional[Stat], str], ...] = ()
    single: bool = True
    digests: Mapping[str, str] = field(default_factory=dict)


def read(args: dict[str, Any], host: Host) -> State:
    """Look at source and destination; a folder as source is looked at file by file."""
    mode = args["mode"]
    preserve = mode == "preserve"
    wanted = attributes.wanted({**args, "mode": None if preserve else mode}, host)
    dest = paths.expand_home(args["dest"], host)
    if args["content"] is not None:
        return _read_content(args, host, dest, wanted)
    source = _source(args, host)
    if "tree" in source:
        return _read_tree(args, host, source, dest, wanted, preserve)
    payload = _payload(source)
    _check_digest(args, host, source, payload)
    if preserve:
        wanted = Attributes(source.get("mode"), wanted.uid, wanted.gid)
    return _one(args, host, dest, posixpath.basename(source["path"]), payload, wanted)


def _check_digest(args: dict[str, Any], host: Host, source: dict[str, Any], payload: Payload) -> None:
    wanted = args["checksum"]
    if not wanted:
        return
    found = placing.digests(payload.fetch(host))["checksum"] if len(wanted) == SHA1_DIGITS else payload.sha256
    if wanted != found:
        raise ModuleError(
            f"Copied file does not match the expected checksum: {source['path']} has {found}, expected {wanted}", fix="copy the right file"
        )


def _read_content(args: dict[str, Any], host: Host, dest: str, wanted: Attributes) -> State:
    text = args["content"]
    if isinstance(text, (dict, list)):
        text = json.dumps(text)
    at = host.stat(dest, follow=True)
    if dest.endswith("/") or (at is not None and at.kind == "dir"):
        raise ModuleError(f"can not use content with a dir as dest: {dest}", fix="give the file's whole path as dest")
    return _one(args, host, dest, "", placing.payload_of(str(text).encode("utf-8", "surrogateescape")), wanted)


def _one(args: dict[str, Any], host: Host, dest: str, name: str, payload: Payload, wanted: Attributes) -> State:
    folders: tuple[tuple[str, Optional[Stat], Attributes], ...] = ()
    at = host.stat(dest, follow=True)
    if at is not None and at.kind == "dir":
        dest = posixpath.join(dest, name)
    elif dest.endswith("/"):
        folders = ((paths.tidy(dest), None, Attributes(args["directory_mode"])),)
        dest = posixpath.join(dest, name)
    if not folders:
        placing.need_parent(host, dest)
    place = placing.look(host, dest, wanted, follow=args["follow"])
    if place.stat is not None and place.stat.kind == "dir":
        raise ModuleError(f"{dest} is a directory, expected a file or nothing there", fix="remove it or choose another dest")
    payload = placing.with_text(host, place, payload)
    return State(place.path, (Item(place, payload),), folders, digests=placing.at_hand(host, place, payload))


def _source(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The source as the engine describes a blob, made here when it is on the host already."""
    src = args["src"]
    if not args["remote_src"]:
        if not isinstance(src, dict):
            raise ModuleError(f"src {src!r}: expected a file that the controller offers", fix="set remote_src: true for a path on the host")
        return src
    path = paths.expand_home(str(src), host)
    stat = host.stat(path, follow=True)
    if stat is None:
        raise ModuleError(f"Source {path} not found on the host", fix="remote_src: true means a path on the host itself")
    if stat.kind == "dir":
        return {"path": path, "tree": _tree(host, path, args["local_follow"])}
    return {"path": path, "host": path, "sha256": host.sha256(path), "size": stat.size, "mode": stat.mode}


def _tree(host: Host, top: str, follow: bool) -> list[dict[str, Any]]:
    base = paths.tidy(top)
    out = []
    for path, stat in paths.walk(host, base, follow_links=follow):
        entry: dict[str, Any] = {"path": path[len(base) + 1 :], "kind": stat.kind, "mode": stat.mode, "target": stat.target, "size": stat.size}
        if stat.kind == "file":
            entry.update(host=path, sha256=host.sha256(path))
        out.append(entry)
    return out


def _payload(entry: dict[str, Any]) -> Payload:
    """Content by digest; the bytes are fetched later, and only when they differ."""
    if "host" in entry:
        return Payload(entry["sha256"], entry["size"], source=entry["host"])
    return Payload(entry["sha256"], entry["size"], blob=entry["sha256"])


def _read_tree(args: dict[str, Any], host: Host, source: dict[str, Any], dest: str, wanted: Attributes, preserve: bool) -> State:
    base = paths.tidy(dest)
    if not source["path"].endswith("/"):
        base = posixpath.join(base, posixpath.basename(source["path"]))
    at = host.stat(base, follow=True)
    if at is not None and at.kind != "dir":
        raise ModuleError(f"{base} is a {at.kind}, expected a folder or nothing: the source is a folder", fix="remove it or choose another dest")
    of_folder = Attributes(args["directory_mode"], wanted.uid, wanted.gid)
    folders = [(base, at, of_folder if at is None else Attributes())]
    items: list[Item] = []
    links: list[tuple[str, Optional[Stat], str]] = []
    for entry in source["tree"]:
        path = posixpath.join(base, entry["path"])
        if entry["kind"] == "dir":
            folders.append((path, host.stat(path, follow=True), of_folder))
        elif entry["kind"] == "link":
            links.append((path, host.stat(path), entry["target"]))
        else:
            own = Attributes(entry.get("mode"), wanted.uid, wanted.gid) if preserve else wanted
            place = placing.look(host, path, own, follow=args["follow"])
            items.append(Item(place, placing.with_text(host, place, _payload(entry))))
    return State(base, tuple(items), tuple(folders), tuple(links), single=False)


@dataclass(frozen=True)
class Work:
    """What apply does, in order."""

    folders: tuple[tuple[str, Optional[Stat], Attributes], ...]
    items: tuple[Item, ...]
    links: tuple[tuple[str, Optional[Stat], str], ...]


def plan(args: dict[str, Any], state: State) -> Decision:
    """The folders, files and links that differ."""
    values = _values(state)
    if not args["force"]:
        present = [item for item in state.items if item.place.stat is not None]
        if state.single and present:
            return Same({**values, "msg": "file already exists"})
        state = State(state.dest, tuple(i for i in state.items if i not in present), state.folders, state.links, state.single)
    items = tuple(item for item in state.items if placing.differences(item.place, item.payload))
    folders = tuple(f for f in state.folders if f[1] is None or attributes.drift(f[0], f[1], f[2]))
    links = tuple(one for one in state.links if one[1] is None or one[1].kind != "link" or one[1].target != one[2])
    if not (items or folders or links):
        return Same(values)
    return Change(before=state, after=Work(folders, items, links), diff=_diffs(folders, items, links), values=values)


def _values(state: State) -> dict[str, Any]:
    values: dict[str, Any] = {"dest": state.dest}
    if state.single:
        place = state.items[0].place
        values.update(state.digests)
        if place.stat is not None:
            values.update(size=state.items[0].payload.size, mode=modes.text(place.stat.mode), uid=place.stat.uid, gid=place.stat.gid)
    return values


def _diffs(folders: Any, items: Any, links: Any) -> tuple[Diff, ...]:
    out: list[Diff] = []
    for path, stat, wanted in folders:
        out += [Diff(path, "", "(folder)\n")] if stat is None else attributes.drift(path, stat, wanted)
    for item in items:
        out += placing.differences(item.place, item.payload)
    for path, stat, target in links:
        out.append(Diff(path, "" if stat is None else f"({stat.kind} {stat.target})\n", f"(link to {target})\n"))
    return tuple(out)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Folders first, then files, then links."""
    work: Work = change.after
    for path, stat, wanted in work.folders:
        if stat is None:
            host.mkdir(path)
        attributes.set_on(host, path, wanted)
    values: dict[str, Any] = {}
    for item in work.items:
        values = placing.put(host, item.place, item.payload, args)
    for path, _, target in work.links:
        host.symlink(target, path)
    if change.before.single:
        return {**values, "dest": change.before.dest, "src": _typed(args["src"])}
    return {**attributes.facts(host, change.before.dest), "dest": change.before.dest, "src": _typed(args["src"])}


def _typed(src: Union[str, dict[str, Any], None]) -> Optional[str]:
    return src["path"] if isinstance(src, dict) else src
