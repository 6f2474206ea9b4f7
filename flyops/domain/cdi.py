# SPDX-License-Identifier: Apache-2.0
"""CDI documents (Container Device Interface): made from what is on a host, and judged against it. Pure.

Readers are strict: one unknown field, or a `cdiVersion` that they do not know, and the whole file is as if it were not there. So the version
written is the least that the used fields need, and every field is one of the table.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from flyops.domain import driver
from flyops.domain.nvidia import Node
from flyops.model.host import Stat

KIND = "nvidia.com/gpu"
BASE = "0.3.0"
KNOWN_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
OLDEST_PODMAN = "4.1.0"  # the first that knows --device VENDOR/CLASS=NAME

# what -> its fields, and the version that brought each
FIELDS: Mapping[str, Mapping[str, str]] = {
    "spec": {"cdiVersion": BASE, "kind": BASE, "annotations": "0.6.0", "devices": BASE, "containerEdits": BASE},
    "device": {"name": BASE, "annotations": "0.6.0", "containerEdits": BASE},
    "edits": {
        "env": BASE, "deviceNodes": BASE, "hooks": BASE, "mounts": BASE,
        "intelRdt": "0.7.0", "additionalGids": "0.7.0", "netDevices": "1.1.0",
    },
    "node": {"path": BASE, "hostPath": "0.5.0", "type": BASE, "major": BASE, "minor": BASE, "fileMode": BASE, "permissions": BASE, "uid": BASE, "gid": BASE},
    "mount": {"hostPath": BASE, "containerPath": BASE, "options": BASE, "type": "0.4.0"},
    "hook": {"hookName": BASE, "path": BASE, "args": BASE, "env": BASE, "timeout": BASE},
    "rdt": dict.fromkeys(("closID", "l3CacheSchema", "memBwSchema", "enableCMT", "enableMBM"), "0.7.0"),
    "net": {"hostInterfaceName": "1.1.0", "name": "1.1.0"},
}  # fmt: skip
PARTS: Mapping[Tuple[str, str], str] = {
    ("spec", "devices"): "device", ("spec", "containerEdits"): "edits", ("device", "containerEdits"): "edits", ("edits", "deviceNodes"): "node",
    ("edits", "mounts"): "mount", ("edits", "hooks"): "hook", ("edits", "intelRdt"): "rdt", ("edits", "netDevices"): "net",
}  # fmt: skip
ONE = ("containerEdits", "intelRdt")  # the others of PARTS are lists

LIBRARY_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
SOCKET_OPTIONS = ["nosuid", "nodev", "noexec", "rbind", "rprivate"]  # not ro: a socket is written to


@dataclass(frozen=True)
class Card:
    """A card, or a MIG instance of one: every name that it goes by, and its own nodes."""

    names: Tuple[str, ...]
    nodes: Tuple[Node, ...]


@dataclass(frozen=True)
class Parts:
    """What a host has for its containers. `dev` is where the nodes are here; a container always has them in /dev."""

    cards: Tuple[Card, ...]
    shared: Tuple[Node, ...]
    libraries: Tuple[str, ...]
    tools: Tuple[str, ...] = ()
    firmware: Tuple[str, ...] = ()
    sockets: Tuple[str, ...] = ()
    gids: Tuple[int, ...] = ()  # groups that closed nodes need
    hook: str = ""  # nvidia-cdi-hook, where it is installed
    dev: str = "/dev"


# made


def document(parts: Parts) -> Dict[str, Any]:
    """The whole document, at the least version that it needs."""
    named = [(name, card.nodes) for card in parts.cards for name in card.names]
    every = tuple(dict.fromkeys(node for card in parts.cards for node in card.nodes))
    devices = [{"name": name, "containerEdits": {"deviceNodes": [_node(n, parts.dev) for n in nodes]}} for name, nodes in [*named, ("all", every)]]
    made = {"cdiVersion": BASE, "kind": KIND, "devices": devices, "containerEdits": _shared(parts)}
    return {**made, "cdiVersion": least_version(made)}


def _node(node: Node, dev: str) -> Dict[str, Any]:
    path = "/dev" + node.path[len(dev) :]
    moved = {} if path == node.path else {"hostPath": node.path}
    return {"path": path, **moved, "type": "c", "major": node.major, "minor": node.minor, "permissions": "rw"}


def _shared(parts: Parts) -> Dict[str, Any]:
    mounts = [_mount(path, target, LIBRARY_OPTIONS) for path, target in _files(parts)]
    mounts += [_mount(path, path, SOCKET_OPTIONS) for path in parts.sockets]
    edits: Dict[str, Any] = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],  # the older hook in an image's runtime is to keep its hands off
        "deviceNodes": [_node(node, parts.dev) for node in parts.shared],
        "mounts": mounts,
    }
    if parts.hook:
        edits["hooks"] = _hooks(parts)
    if parts.gids:
        edits["additionalGids"] = list(parts.gids)
    return edits


def _files(parts: Parts) -> Iterator[Tuple[str, str]]:
    """(path here, path there). Without a hook that makes links, a library stands under its SONAME, too."""
    for path in parts.libraries:
        yield path, path
        if not parts.hook:
            yield path, f"{posixpath.dirname(path)}/{_soname(path)}"
    for path in (*parts.tools, *parts.firmware):
        yield path, path


def _soname(path: str) -> str:
    return f"{posixpath.basename(path).partition('.so.')[0]}.so.1"


def _mount(path: str, target: str, options: Sequence[str]) -> Dict[str, Any]:
    return {"hostPath": path, "containerPath": target, "options": list(options)}


def _hooks(parts: Parts) -> List[Dict[str, Any]]:
    name = posixpath.basename(parts.hook)
    first = [name, "hook"] if name == "nvidia-ctk" else [name]
    links = [f"libcuda.so.1::{posixpath.dirname(path)}/libcuda.so" for path in parts.libraries if _soname(path) == "libcuda.so.1"]
    folders = sorted({posixpath.dirname(path) for path in parts.libraries})
    words = [["create-symlinks", *(word for link in links for word in ("--link", link))]] if links else []
    words += [["update-ldcache", *(word for folder in folders for word in ("--folder", folder))], ["disable-device-node-modification"]]
    return [{"hookName": "createContainer", "path": parts.hook, "args": [*first, *more]} for more in words]


# read


def walk(value: Any, kind: str = "spec", where: str = "") -> Iterator[Tuple[str, str, str, Any]]:
    """(what, where, field, value) of every field of a document, known or not; a part of the wrong type has the field ''."""
    if not isinstance(value, Mapping):
        yield kind, where, "", value
        return
    for field, found in value.items():
        yield kind, where, str(field), found
        part = PARTS.get((kind, str(field)))
        if part and found is not None:
            inside = f"{where}.{field}".lstrip(".")
            many = [found] if field in ONE else found if isinstance(found, list) else [{"": None}]
            for number, one in enumerate(many):
                yield from walk(one, part, inside if field in ONE else f"{inside}[{number}]")


def least_version(spec: Mapping[str, Any]) -> str:
    """The least `cdiVersion` that the used fields and names need."""
    used = [FIELDS[kind].get(field, BASE) for kind, _, field, value in walk(spec) if field and value is not None]
    if any(name[:1].isdigit() for name in names(spec)):
        used.append("0.5.0")
    if "." in str(spec.get("kind", "")).rpartition("/")[2]:
        used.append("0.6.0")
    return max([BASE, *used], key=version)


def version(text: str) -> Tuple[int, ...]:
    """For comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def names(spec: Mapping[str, Any]) -> Tuple[str, ...]:
    """Names of its devices."""
    devices = spec.get("devices")
    return tuple(str(one.get("name", "")) for one in devices if isinstance(one, Mapping)) if isinstance(devices, list) else ()


def form(spec: Any, reader: str = "") -> List[str]:
    """What a strict reader has against a document, whatever host it is for. `reader`: the newest cdiVersion that it knows."""
    if not isinstance(spec, Mapping):
        return ["it is no mapping"]
    out = [_unknown(kind, where, field, value) for kind, where, field, value in walk(spec) if field not in FIELDS[kind]]
    said, least = str(spec.get("cdiVersion", "")), least_version(spec)
    if not re.fullmatch(r"\d+\.\d+\.\d+", said):
        out.append(f"cdiVersion: expected three numbers, found {said!r}")
    elif version(said) < version(least):
        out.append(f"cdiVersion {said} is below what its fields need ({least})")
    elif reader and version(said) > version(reader):
        out.append(f"cdiVersion {said} is newer than the reader knows ({reader}); its fields need no more than {least}")
    if not re.fullmatch(r"[A-Za-z][\w.-]*\.[\w.-]+/[A-Za-z][\w.-]*", str(spec.get("kind", ""))):
        out.append(f"kind: expected VENDOR.DOMAIN/CLASS, found {spec.get('kind')!r}")
    twice = sorted({name for name in names(spec) if names(spec).count(name) > 1})
    out += [f"device {name!r} stands there twice" for name in twice]
    return out


def _unknown(kind: str, where: str, field: str, value: Any) -> str:
    place = where or "top level"
    return f"{place}: unknown field {field!r} ({kind})" if field else f"{place}: expected fields of a {kind}, found {value!r}"


# judged


@dataclass(frozen=True)
class File:
    """A spec file of a folder as it was read. `problem`: why it could not be."""

    path: str
    mode: int
    spec: Any = None
    problem: str = ""

    @property
    def ours(self) -> bool:
        """Is it of our kind?"""
        return isinstance(self.spec, Mapping) and self.spec.get("kind") == KIND


@dataclass(frozen=True)
class World:
    """The host that a document is judged against."""

    module: str  # version of the loaded module; empty: not loaded
    majors: Mapping[str, int]
    stats: Mapping[str, Stat | None]  # of every host path of the documents


def host_paths(spec: Any) -> Tuple[str, ...]:
    """Every path of the host that a document names."""
    found = [value for kind, _, field, value in walk(spec) if (kind, field) in (("mount", "hostPath"), ("hook", "path"))]
    found += [str(node.get("hostPath") or node.get("path")) for node in _nodes(spec)]
    return tuple(dict.fromkeys(path for path in found if isinstance(path, str) and path.startswith("/")))


def _nodes(spec: Any) -> Iterator[Mapping[str, Any]]:
    for kind, _, field, value in walk(spec):
        if (kind, field) == ("edits", "deviceNodes") and isinstance(value, list):
            yield from (node for node in value if isinstance(node, Mapping))


def winners(folders: Sequence[Sequence[File]]) -> Tuple[Dict[str, str], Dict[str, Tuple[str, ...]]]:
    """(name -> file that a reader takes, name -> files that contradict each other). The later folder wins; two in one folder are a conflict."""
    taken: Dict[str, str] = {}
    conflicts: Dict[str, Tuple[str, ...]] = {}
    for files in folders:
        here: Dict[str, List[str]] = {}
        for file in files:
            for name in dict.fromkeys(names(file.spec)) if file.ours else ():
                here.setdefault(name, []).append(file.path)
        for name, paths in here.items():
            conflicts.pop(name, None)
            taken.pop(name, None)
            if len(paths) > 1:
                conflicts[name] = tuple(paths)
            else:
                taken[name] = paths[0]
    return taken, conflicts


def faults(file: File, world: World, reader: str = "") -> List[str]:
    """Everything that is wrong with one file on this host."""
    out = [] if file.mode & 0o004 else [f"mode {file.mode:04o}: an engine of another user cannot read it, expected 0644"]
    if file.problem:
        return [*out, file.problem]
    out += form(file.spec, reader)
    out += [text for path in host_paths(file.spec) for text in _path_faults(path, world)]
    return out + [text for node in _nodes(file.spec) for text in _node_faults(node, world)]


def _path_faults(path: str, world: World) -> Iterator[str]:
    found = driver.file_version(path)
    if world.stats.get(path) is None:
        yield f"{path} is not on this host"
    elif found and world.module and found != world.module:
        yield f"{path} is of {found}, the loaded module is {world.module}"


def _node_faults(node: Mapping[str, Any], world: World) -> Iterator[str]:
    path = str(node.get("hostPath") or node.get("path"))
    seen = world.stats.get(path)
    if seen is None:
        return  # told as a missing path
    if seen.kind not in ("char", "block", "fifo"):
        yield f"{path} is a {seen.kind}, expected a device node"
        return
    live = _live_major(posixpath.basename(str(node.get("path"))), world.majors)
    for name, number in (("written here", node.get("major")), ("the node's own", seen.rdev[0])):
        if live and number and number != live:
            yield f"{path}: major {number} ({name}), the loaded module's is {live}"
    minor = node.get("minor")
    if node.get("major") and minor is not None and minor != seen.rdev[1]:
        yield f"{path}: minor {minor} (written here), the node's own is {seen.rdev[1]}"


def _live_major(name: str, majors: Mapping[str, int]) -> int:
    for pattern, key in ((r"nvidia-uvm(-tools)?", "nvidia-uvm"), (r"nvidia-cap\d+", "nvidia-caps"), (r"nvidia\d+|nvidiactl", "nvidia")):
        if re.fullmatch(pattern, name):
            return majors.get(key, 0)
    return 0


def engine_fault(podman: str) -> str:
    """Of `podman --version`; empty when it is new enough, or not there."""
    found = re.search(r"\d+\.\d+(?:\.\d+)?", podman)
    if found and version(found.group()) < version(OLDEST_PODMAN):
        return f"podman {found.group()} does not know CDI devices, expected {OLDEST_PODMAN} or newer"
    return ""
