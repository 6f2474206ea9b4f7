# SPDX-License-Identifier: Apache-2.0
"""NVIDIA devices as the kernel describes them: majors, nodes, module version. Pure: texts in, values out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Mapping, Tuple

from flyops.model.host import Stat

FRONTEND = ("nvidia", "nvidia-frontend")  # the same thing: renamed with 545.29 and 550.40
CONTROL_MINOR = 255
MODESET_MINOR = 254
VERSION = re.compile(r"(?<![\w.])\d+\.\d+(?:\.\d+)?(?![\w.])")


class NvidiaError(ValueError):
    """A text of the driver that cannot be used; says which and what was expected."""


@dataclass(frozen=True)
class Node:
    """A device node as it should be; `owner` None: whoever's."""

    path: str
    major: int
    minor: int
    mode: int = 0o666
    owner: Tuple[int, int] | None = None


@dataclass(frozen=True)
class Verdict:
    """What a path is in place of the node it should be. `state`: right, missing, stale, regular, mode, folder, other."""

    node: Node
    state: str
    text: str

    @property
    def right(self) -> bool:
        """The node can be used as it is."""
        return self.state == "right"


def char_majors(proc_devices: str) -> dict[str, int]:
    """Name -> major of the character devices only (a block device may share a number). Lines that are no entry are passed over."""
    out: dict[str, int] = {}
    section = ""
    for line in proc_devices.splitlines():
        text = line.strip()
        if text.endswith("devices:"):
            section = text
            continue
        number, _, name = text.partition(" ")
        if section == "Character devices:" and number.isascii() and number.isdigit() and name:
            out.setdefault(name.strip(), int(number))
    return out


def live_majors(proc_devices: str) -> dict[str, int]:
    """Majors of the nvidia devices by today's names: nvidia, nvidia-uvm, nvidia-caps, …; `nvidia-frontend` counts as `nvidia`."""
    every = char_majors(proc_devices)
    out = {name: major for name, major in every.items() if name.startswith("nvidia") and name not in FRONTEND}
    for name in FRONTEND:
        if name in every:
            out.setdefault("nvidia", every[name])
    return out


def module_version(text: str) -> str:
    """The loaded module's version out of /proc/driver/nvidia/version; empty when the text is (module not loaded)."""
    for line in text.splitlines():
        if "Kernel Module" in line:
            found = VERSION.search(line.partition("Kernel Module")[2])
            if found:
                return found.group()
    return ""


def information(text: str) -> dict[str, str]:
    """/proc/driver/nvidia/gpus/BUS/information as a mapping (`Device Minor`, `GPU UUID`, `Model`)."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def device_minors(texts: Iterable[str]) -> Tuple[int, ...]:
    """Minors of the cards out of their `information` texts; an old driver that names none counts them from 0."""
    found = [information(text).get("Device Minor", "") for text in texts]
    return tuple(sorted({int(minor) if minor.isdigit() else number for number, minor in enumerate(found)}))


def mig_minors(text: str) -> dict[str, int]:
    """/proc/driver/nvidia-caps/mig-minors: `config` -> 1, `gpu0/gi1/access` -> 12."""
    out = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if name and number.isdigit():
            out[name] = int(number)
    return out


def params_mode(text: str) -> tuple[int, int, int]:
    """(mode, uid, gid) that the driver's own tools give nodes, from /proc/driver/nvidia/params (decimal there)."""
    values = information(text)

    def number(key: str, default: int) -> int:
        value = values.get(key, "")
        return int(value) if value.isdigit() else default

    return number("DeviceFileMode", 0o666) & 0o7777, number("DeviceFileUID", 0), number("DeviceFileGID", 0)


def modifies(params: str) -> bool:
    """May nodes be made at all? `ModifyDeviceFiles: 0` is an administrator's word that somebody else does it."""
    return information(params).get("ModifyDeviceFiles", "1") != "0"


@dataclass(frozen=True)
class Cap:
    """A capability of the driver: `config`, `monitor`, `gpu0/gi1/access`, `gpu0/gi1/ci0/access`; its node is nvidia-caps/nvidia-capMINOR."""

    name: str
    minor: int
    mode: int


INSTANCE = re.compile(r"gpu(\d+)/gi(\d+)/ci(\d+)")
CAP_MODES = {"config": 0o400}


def cap_file(name: str) -> str:
    """Where /proc/driver/nvidia/capabilities describes a capability."""
    gpu, _, rest = name.partition("/")
    return f"{gpu}/mig/{rest}" if rest else f"mig/{name}"


def cap(name: str, text: str, minors: Mapping[str, int]) -> Cap | None:
    """By its own file (the mode is decimal there), else by the table of minors; config and monitor are 1 and 2 where nothing says so."""
    found = information(text)
    minor, mode = found.get("DeviceFileMinor", ""), found.get("DeviceFileMode", "")
    if minor.isdigit():
        return Cap(name, int(minor), int(mode) & 0o7777 if mode.isdigit() else CAP_MODES.get(name, 0o444))
    number = minors.get(name, {"config": 1, "monitor": 2}.get(name))
    return None if number is None else Cap(name, number, CAP_MODES.get(name, 0o444))


def instance_caps(instance: str) -> Tuple[int, Tuple[str, str]]:
    """Minor of the parent card and the two capabilities that a MIG instance (`gpu0/gi1/ci0`) needs: the GPU instance's and the compute instance's."""
    found = INSTANCE.fullmatch(instance)
    if not found:
        raise NvidiaError(f"a MIG instance is written gpu0/gi1/ci0, found {instance!r}")
    gpu, gi, _ = found.groups()
    return int(gpu), (f"gpu{gpu}/gi{gi}/access", f"{instance}/access")


def wanted_nodes(
    majors: Mapping[str, int],
    gpu_minors: Iterable[int],
    *,
    caps: Iterable[Cap] = (),
    modeset: bool = False,
    mode: int = 0o666,
    owner: Tuple[int, int] | None = None,
    dev: str = "/dev",
) -> tuple[Node, ...]:
    """Every node that a compute guest needs. A missing major of `nvidia` or `nvidia-uvm` is an error that names the module to load."""
    for name, module in (("nvidia", "nvidia"), ("nvidia-uvm", "nvidia-uvm")):
        if name not in majors:
            raise NvidiaError(
                f"/proc/devices has no character device {name!r}: module {module} is not loaded; load it (modprobe {module}) and run again"
            )
    uvm = majors["nvidia-uvm"]
    numbers = [("nvidiactl", majors["nvidia"], CONTROL_MINOR), *((f"nvidia{minor}", majors["nvidia"], minor) for minor in sorted(set(gpu_minors)))]
    if modeset:
        numbers.append(("nvidia-modeset", majors.get("nvidia-modeset", majors["nvidia"]), MODESET_MINOR))
    numbers += [("nvidia-uvm", uvm, 0), ("nvidia-uvm-tools", uvm, 1)]
    out = [Node(f"{dev}/{name}", major, minor, mode, owner) for name, major, minor in numbers]
    every = sorted(set(caps), key=lambda one: one.minor)
    if every and "nvidia-caps" not in majors:
        raise NvidiaError(f"nodes of {', '.join(c.name for c in every)} were asked for, and /proc/devices has no character device 'nvidia-caps'")
    return tuple(out + [Node(f"{dev}/nvidia-caps/nvidia-cap{one.minor}", majors["nvidia-caps"], one.minor, one.mode) for one in every])


def expected_device(name: str, majors: Mapping[str, int]) -> Tuple[int, int] | None:
    """(major, minor) that a name below /dev should have by the live majors; None for a name that we do not know (minor -1: any)."""
    rules: Tuple[Tuple[str, str, int], ...] = (
        (r"nvidiactl", "nvidia", CONTROL_MINOR),
        (r"nvidia-modeset", "nvidia-modeset" if "nvidia-modeset" in majors else "nvidia", MODESET_MINOR),
        (r"nvidia-uvm", "nvidia-uvm", 0),
        (r"nvidia-uvm-tools", "nvidia-uvm", 1),
        (r"nvidia(\d+)", "nvidia", -1),
        (r"nvidia-caps/nvidia-cap(\d+)", "nvidia-caps", -1),
    )
    for pattern, key, minor in rules:
        found = re.fullmatch(pattern, name)
        if found and key in majors:
            return majors[key], int(found.group(1)) if found.groups() else minor
    return None


def judge_node(node: Node, seen: Stat | None, *, check_mode: bool = True) -> Verdict:
    """What is at the node's path against what should be."""
    if seen is None:
        return Verdict(node, "missing", f"{node.path} is missing")
    if seen.kind == "file":
        empty = ", size 0: the bind's source was missing at start" if seen.size == 0 else f", size {seen.size}"
        return Verdict(node, "regular", f"{node.path} is a regular file{empty}")
    if seen.kind != "char":
        return Verdict(node, "folder" if seen.kind == "dir" else "other", f"{node.path} is a {seen.kind}, expected a character device")
    if seen.rdev != (node.major, node.minor):
        found = f"{seen.rdev[0]}:{seen.rdev[1]}"
        return Verdict(node, "stale", f"{node.path} is {found}, the loaded module's number is {node.major}:{node.minor}")
    if check_mode and seen.mode != node.mode:
        return Verdict(node, "mode", f"{node.path} has mode {seen.mode:04o}, expected {node.mode:04o}")
    if check_mode and node.owner is not None and node.owner != (seen.uid, seen.gid):
        return Verdict(node, "mode", f"{node.path} has owner {seen.uid}:{seen.gid}, expected {node.owner[0]}:{node.owner[1]}")
    return Verdict(node, "right", f"{node.path} {node.major}:{node.minor}")
