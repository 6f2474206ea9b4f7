# SPDX-License-Identifier: Apache-2.0
"""What CDI needs to know of a host, seen through the Host that is handed in: the spec files of its folders, and the parts of a new one."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

from flyops.domain import cdi, driver, gpuask, nvidia, plainyaml
from flyops.model.host import Host

SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
FIRMWARE = "/lib/firmware/nvidia"
HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")  # the second is the older home of the same commands


class CdiError(ValueError):
    """Something of which a spec is made is not there; says what and what to do."""


@dataclass(frozen=True)
class Places:
    """Where things are; all of it can be elsewhere in a test."""

    dev: str = "/dev"
    proc_devices: str = "/proc/devices"
    proc_driver: str = "/proc/driver/nvidia"
    mig_minors: str = "/proc/driver/nvidia-caps/mig-minors"


def files(host: Host, folder: str) -> Tuple[cdi.File, ...]:
    """The spec files of a folder, in the order of their names."""
    seen = host.stat(folder, follow=True)
    found = host.listdir(folder) if seen and seen.kind == "dir" else []
    return tuple(file(host, f"{folder}/{name}") for name in sorted(found) if name.endswith((".json", ".yaml")))


def file(host: Host, path: str) -> cdi.File:
    """One spec file. Its mode is that of the file behind a link."""
    seen = host.stat(path, follow=True)
    mode = seen.mode if seen else 0
    if seen is None or seen.kind != "file":
        return cdi.File(path, mode, problem="it is no file")
    try:
        return cdi.File(path, mode, plainyaml.load(host.read_text(path)))
    except (plainyaml.YamlError, UnicodeDecodeError) as error:
        return cdi.File(path, mode, problem=f"it cannot be read: {error}")


def module(host: Host, places: Places) -> str:
    """Version of the loaded module."""
    return nvidia.module_version(host.read_text(f"{places.proc_driver}/version", missing=""))


def world(host: Host, places: Places, specs: Sequence[Any]) -> cdi.World:
    """The host as these documents are judged against it."""
    paths = {path for spec in specs for path in cdi.host_paths(spec)}
    majors = nvidia.live_majors(host.read_text(places.proc_devices, missing=""))
    return cdi.World(module(host, places), majors, {path: host.stat(path, follow=True) for path in paths})


def parts(host: Host, places: Places, capabilities: Sequence[str], folders: Sequence[str] = ()) -> cdi.Parts:
    """What a document of this host is made of; CdiError where a part that it cannot be without is missing."""
    version = module(host, places)
    if not version:
        raise CdiError(f"{places.proc_driver}/version is missing or names no version: load the nvidia module (invoke host)")
    majors = nvidia.live_majors(host.read_text(places.proc_devices, missing=""))
    instances = tuple(_instances(host, places))
    names = [name for one in instances for name in nvidia.instance_caps(one)[1]]
    numbered = _cards(host, places)
    if not numbered:
        raise CdiError(f"{places.proc_driver}/gpus names no card")
    try:
        caps = [_cap(host, places, name) for name in names]
        nodes = nvidia.wanted_nodes(majors, [minor for minor, _ in numbered], caps=caps, dev=places.dev)
    except nvidia.NvidiaError as error:
        raise CdiError(str(error)) from None
    by_path = {node.path: node for node in nodes}
    _need_right(host, nodes)
    minors = {one.name: one.minor for one in caps}
    cards = _with_instances(numbered, instances, minors, by_path, places.dev)
    own = {node for card in cards for node in card.nodes}
    libraries = _libraries(host, version, capabilities, folders)
    return cdi.Parts(
        cards=cards,
        shared=tuple(node for node in nodes if node not in own),
        libraries=libraries,
        tools=tuple(path for tool in driver.TOOLS for path in [host.which(tool)] if path),
        firmware=_firmware(host, version),
        sockets=tuple(path for path in SOCKETS for seen in [host.stat(path)] if seen and seen.kind == "socket"),
        gids=_gids(host, nodes),
        hook=next((path for name in HOOKS for path in [host.which(name)] if path), ""),
        dev=places.dev,
    )


def _names(host: Host, folder: str) -> List[str]:
    seen = host.stat(folder, follow=True)
    return sorted(host.listdir(folder)) if seen and seen.kind == "dir" else []


def _cards(host: Host, places: Places) -> List[Tuple[int, str]]:
    """(Device Minor, UUID) in nvidia-smi's order, which is that of the bus ids."""
    folder = f"{places.proc_driver}/gpus"
    found = gpuask.cards({bus: host.read_text(f"{folder}/{bus}/information", missing="") for bus in _names(host, folder)})
    return [(card.minor if card.minor >= 0 else number, "" if "?" in card.uuid else card.uuid) for number, card in enumerate(found)]


def _instances(host: Host, places: Places) -> Iterator[str]:
    """MIG instances that exist (`gpu0/gi1/ci0`): the driver has a folder for each, while its table of minors lists what could be."""
    top = f"{places.proc_driver}/capabilities"
    for gpu in _names(host, top):
        for gi in _names(host, f"{top}/{gpu}/mig"):
            yield from (f"{gpu}/{gi}/{ci}" for ci in _names(host, f"{top}/{gpu}/mig/{gi}") if nvidia.INSTANCE.fullmatch(f"{gpu}/{gi}/{ci}"))


def _cap(host: Host, places: Places, name: str) -> nvidia.Cap:
    text = host.read_text(f"{places.proc_driver}/capabilities/{nvidia.cap_file(name)}", missing="")
    found = nvidia.cap(name, text, nvidia.mig_minors(host.read_text(places.mig_minors, missing="")))
    if found is None:
        raise nvidia.NvidiaError(f"the driver tells no minor of the capability {name}")
    return found


def _with_instances(
    numbered: Sequence[Tuple[int, str]], instances: Sequence[str], caps: Mapping[str, int], nodes: Mapping[str, nvidia.Node], dev: str
) -> Tuple[cdi.Card, ...]:
    """Cards by index, gpuN and UUID; the instances of each behind it, as INDEX:K and migINDEX:K."""
    out = []
    for number, (minor, uuid) in enumerate(numbered):
        parent = nodes[f"{dev}/nvidia{minor}"]
        out.append(cdi.Card((str(number), f"gpu{number}", *([uuid] if uuid else [])), (parent,)))
        own = sorted((one for one in instances if nvidia.instance_caps(one)[0] == minor), key=cdi.version)
        for place, one in enumerate(own):
            needed = tuple(nodes[f"{dev}/nvidia-caps/nvidia-cap{caps[name]}"] for name in nvidia.instance_caps(one)[1])
            out.append(cdi.Card((f"{number}:{place}", f"mig{number}:{place}"), (parent, *needed)))
    return tuple(out)


def _need_right(host: Host, nodes: Sequence[nvidia.Node]) -> None:
    wrong = [verdict.text for node in nodes for verdict in [nvidia.judge_node(node, host.stat(node.path), check_mode=False)] if not verdict.right]
    if wrong:
        raise CdiError(f"{'; '.join(wrong)}: make the nodes first (nvidia_nodes, or invoke host)")


def _gids(host: Host, nodes: Sequence[nvidia.Node]) -> Tuple[int, ...]:
    """Groups without which a node is closed: only where others may neither read nor write it."""
    seen = [host.stat(node.path) for node in nodes]
    return tuple(sorted({stat.gid for stat in seen if stat and stat.gid and not stat.mode & 0o006}))


def _libraries(host: Host, version: str, capabilities: Sequence[str], folders: Sequence[str]) -> Tuple[str, ...]:
    if not folders:
        folders = driver.library_folders(host.run(["ldconfig", "-p"], query=True).stdout.decode("utf-8", "replace"))
    found = tuple(f"{folder}/{name}" for folder in folders for name in driver.driver_files(_names(host, folder), version, capabilities))
    if not any(posixpath.basename(path) == f"libcuda.so.{version}" for path in found):
        raise CdiError(
            f"the loaded module is {version}; expected libcuda.so.{version} in {', '.join(folders) or 'a folder that ldconfig knows'}, found none: "
            "install the driver's libraries of that version, or name their folder (libraries)"
        )
    return found


def _firmware(host: Host, version: str) -> Tuple[str, ...]:
    folder = f"{FIRMWARE}/{version}"
    return tuple(f"{folder}/{name}" for name in _names(host, folder) if name.startswith("gsp") and name.endswith(".bin"))
