# SPDX-License-Identifier: Apache-2.0
"""The config of an LXC guest: parse, render, and converge its lines. Pure: texts and numbers in, values out.

Lines are converged, not bytes: a line that we own and want stands once, an owned line that we do not want goes, and what
someone else wrote stays where it is. Only the main section counts; a `[snapshot]` and what follows it is never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Iterable, Mapping, Sequence, Tuple

from flyops.domain import driver, lxcdisk, lxcids, nvidia

Pair = Tuple[str, str]
Owned = Callable[[str, str], bool]

COMMON = "/usr/share/lxc/config/common.conf"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
INTERFACE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
DEVICE_RULE = re.compile(r"([bc]) (\d+|\*):(\d+|\*) ([rwm]+)")
DYNAMIC_MAJORS = (range(234, 255), range(384, 512))  # what the kernel hands out to char devices that ask for any number
MEMORY = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
PAGE = 65536  # the largest page of a supported kernel: memory limits are rounded to pages
DRIVER = driver.FOLDER

# Keys of which one value counts, and which are ours in a guest of ours. The rest by rule (`owned`).
SINGLE = (
    "lxc.include",
    "lxc.uts.name",
    "lxc.rootfs.path",
    "lxc.apparmor.profile",
    "lxc.mount.auto",
    "lxc.start.auto",
    "lxc.log.file",
    "lxc.idmap",
)
CPUSET_KEYS = {"v1": "lxc.cgroup.cpuset.cpus", "v2": "lxc.cgroup2.cpuset.cpus"}
MEMORY_KEYS = {"v1": "lxc.cgroup.memory.limit_in_bytes", "v2": "lxc.cgroup2.memory.max"}
MEMS_KEYS = {"v1": "lxc.cgroup.cpuset.mems", "v2": "lxc.cgroup2.cpuset.mems"}
DEVICE_KEYS = {"v1": "lxc.cgroup.devices.allow", "v2": "lxc.cgroup2.devices.allow"}
EFFECTIVE_CPUS = {"v1": "cpuset.effective_cpus", "v2": "cpuset.cpus.effective"}
EFFECTIVE_MEMS = {"v1": "cpuset.effective_mems", "v2": "cpuset.mems.effective"}
NO_MKNOD = ("lxc.cap.drop", "mknod")  # a guest with some of the cards must not make the nodes of the others
LIMITS = (*CPUSET_KEYS.values(), *MEMS_KEYS.values(), *MEMORY_KEYS.values())
LIVE = (*LIMITS, "lxc.start.auto", "lxc.log.file")  # a change of these needs no restart


class LxcConfError(ValueError):
    """A value that cannot stand in a config; the text says what was found and what to do."""


@dataclass(frozen=True)
class Controllers:
    """Where cpuset, memory and devices are really mounted: `v1`, `v2`, or empty when nowhere."""

    cpuset: str = ""
    memory: str = ""
    devices: str = ""


@dataclass(frozen=True)
class Guest:
    """A guest as it should be. `gpu` holds the lines that give it the card; without `cpus` or `mems` there is no line of theirs."""

    name: str
    base: str
    upper: str
    cpus: str
    memory_bytes: int
    controllers: Controllers
    network: str = "none"  # bridge | none
    bridge: str = ""
    address: str = ""  # with its prefix length, 10.117.0.2/24
    autostart: bool = False
    log: str = ""
    gpu: Tuple[Pair, ...] = ()
    mems: str = ""
    ids: lxcids.Ids = field(default_factory=lxcids.Ids)
    hook: str = ""  # a script to run before each start


@dataclass(frozen=True)
class Device:
    """A device node of the host."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Converged:
    """A config after convergence, and which pairs came and went."""

    text: str
    added: Tuple[Pair, ...]
    removed: Tuple[Pair, ...]

    @property
    def changed(self) -> bool:
        """Is there anything to write?"""
        return bool(self.added or self.removed)

    @property
    def restart(self) -> bool:
        """Does a changed key take force only when the guest starts?"""
        return any(key not in LIVE for key, _ in self.added + self.removed)


def controllers(mounts: str, v2_controllers: str) -> Controllers:
    """From /proc/mounts and the `cgroup.controllers` of the v2 root. Devices have no v2 controller: a program attached to the cgroup does it."""
    found = {}
    v2_mounted = False
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[2] == "cgroup":
            found.update(dict.fromkeys(fields[3].split(","), "v1"))
        v2_mounted = v2_mounted or (len(fields) > 3 and fields[2] == "cgroup2")
    for name in v2_controllers.split():
        found.setdefault(name, "v2")
    devices = found.get("devices", "v2" if v2_mounted else "")
    return Controllers(found.get("cpuset", ""), found.get("memory", ""), devices)


def check_name(name: str) -> str:
    """Empty when `name` can be a guest's (it becomes a folder, a host name and a cgroup); else what is wrong."""
    if NAME.fullmatch(name):
        return ""
    return f"a container's name is 1 to 63 of a-z, 0-9 and '-', not at either end; found {name!r}"


def check_words(bridge: str, folders: Iterable[str]) -> str:
    """Empty when the bridge's name is an interface's and every folder is an absolute path that stays below the guest's root; else what is wrong."""
    if not INTERFACE.fullmatch(bridge) or bridge in (".", ".."):
        return f"an interface's name is 1 to 15 of letters, digits, '.', '_' and '-'; found {bridge!r} for bridge"
    for folder in folders:
        if not folder.startswith("/") or folder.strip("/") == "" or ".." in folder.split("/"):
            return f"archive_state: expected an absolute path of the guest without '..', found {folder!r}"
    return ""


def memory_bytes(text: str) -> int:
    """`4G`, `512M`, `4GiB` or a number of bytes, as bytes."""
    found = MEMORY.fullmatch(text.strip())
    if not found:
        raise LxcConfError(f"expected a size such as 4G or 512M, found {text!r}")
    size = int(found.group(1)) * UNITS[found.group(2).upper()]
    if size < 64 << 20:
        raise LxcConfError(f"{text!r} is {size} bytes: a guest with systemd needs at least 64M")
    return size


def same_memory(asked: int, found: str) -> bool:
    """Is the limit that the kernel tells the one asked for, but for rounding to pages?"""
    return found.isdigit() and abs(int(found) - asked) < PAGE


def main_section(text: str) -> Tuple[str, str]:
    """The text above the first `[section]`, and the rest with it."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.lstrip().startswith("["):
            return "".join(lines[:number]), "".join(lines[number:])
    return text, ""


def _pair(line: str) -> Pair | None:
    body = line.strip()
    if not body or body.startswith("#"):
        return None
    cut = re.search(r"\s*[=:]\s*", body)
    return (body[: cut.start()], body[cut.end() :]) if cut else None


def parse(text: str) -> Tuple[Pair, ...]:
    """Keys and values of the main section, in order (`key = value`; Proxmox VE writes `key: value`)."""
    pairs = (_pair(line) for line in main_section(text)[0].splitlines())
    return tuple(pair for pair in pairs if pair)


def value(text: str, key: str, default: str = "") -> str:
    """The last value of a key in the main section."""
    return next((found for name, found in reversed(parse(text)) if name == key), default)


def _sane(pairs: Iterable[Pair]) -> None:
    for key, found in pairs:
        if any(ord(char) < 32 for char in key + found):
            raise LxcConfError(f"a control character in the value of {key}: {found!r}")


def converge(text: str, wanted: Sequence[Pair], owned: Owned, sep: str = " = ") -> Converged:
    """The text with each wanted line once and no other line that is ours; everything else as it was. `sep`: between key and value of a new line."""
    _sane(wanted)
    main, rest = main_section(text)
    missing = list(dict.fromkeys(wanted))
    kept, removed = [], []
    for line in main.splitlines():
        pair = _pair(line)
        if pair in missing:
            missing.remove(pair)
        elif pair and (pair in wanted or owned(*pair)):
            removed.append(pair)
            continue
        kept.append(line)
    blank: list[str] = []  # the gap above a section stays above it
    while rest and kept and not kept[-1].strip():
        blank.insert(0, kept.pop())
    body = "".join(f"{line}\n" for line in [*kept, *(f"{key}{sep}{found}" for key, found in missing), *blank])
    return Converged(body + rest, tuple(missing), tuple(removed))


def owned(majors: Mapping[str, int]) -> Owned:
    """Which lines of a guest of ours are ours. `majors`: name -> number of the host's character devices (/proc/devices)."""

    def is_owned(key: str, found: str) -> bool:
        if key in SINGLE or key.startswith("lxc.net.0.") or key in LIMITS or (key, found) == NO_MKNOD:
            return True
        if key == "lxc.hook.pre-start":
            return found.endswith(f"/{lxcdisk.HOOK}")
        if key == "lxc.mount.entry":
            return _is_gpu_mount(found)
        return key in DEVICE_KEYS.values() and owned_rule(found, majors)

    return is_owned


def _is_gpu_mount(entry: str) -> bool:
    fields = entry.split()
    target = fields[1].lstrip("/") if len(fields) > 1 else ""
    return target.startswith("dev/nvidia") or f"/{target}" == DRIVER or f"/{target}".startswith(DRIVER + "/")


def owned_rule(rule: str, majors: Mapping[str, int]) -> bool:
    """Is a `devices.allow` rule one that we write: a whole major of the driver's, or of nobody in the range where its majors come from?"""
    found = DEVICE_RULE.fullmatch(rule.strip())
    if not found or found.group(1) != "c" or found.group(2) == "*" or found.group(3) != "*":
        return False
    major = int(found.group(2))
    names = [name for name, number in majors.items() if number == major]
    if names:
        return any(name.startswith("nvidia") for name in names)
    return major == 195 or any(major in numbers for numbers in DYNAMIC_MAJORS)


def strays(text: str, majors: Mapping[str, int]) -> Tuple[str, ...]:
    """Lines that look like the driver's but open another device (its number was reused). Reported, never deleted."""
    by_number = {number: name for name, number in majors.items()}
    out = []
    for key, found in parse(text):
        rule = DEVICE_RULE.fullmatch(found) if key in DEVICE_KEYS.values() else None
        major = int(rule.group(2)) if rule and rule.group(2).isdigit() else -1
        if any(major in numbers for numbers in DYNAMIC_MAJORS) and not owned_rule(found, majors):
            out.append(f"{key} = {found} opens {by_number.get(major, 'an unknown device')}")
    return tuple(out)


def dead(text: str, mounts: str) -> Tuple[str, ...]:
    """Limits written for the cgroup version where their controller is not mounted: LXC passes over them. Reported, never obeyed.

    Devices are not among them on v2: a program attached to the guest's cgroup does those, whatever is mounted on v1.
    """
    v1 = {name for line in mounts.splitlines() for f in [line.split()] if len(f) > 3 and f[2] == "cgroup" for name in f[3].split(",")}
    out = []
    for key, found in parse(text):
        words = key.split(".")
        other = words[:2] == ["lxc", "cgroup2"] and len(words) > 2 and words[2] in v1 and words[2] != "devices"
        if other or (words[:2] == ["lxc", "cgroup"] and len(words) > 3 and words[2] not in v1):
            out.append(f"{key} = {found} is dead: {words[2]} is on cgroup {'v1' if other else 'v2'} here")
    return tuple(out)


def wanted(guest: Guest) -> Tuple[Pair, ...]:
    """Every line that the guest's config should have, in a readable order."""
    pairs = [
        ("lxc.include", COMMON),
        ("lxc.uts.name", guest.name),
        ("lxc.rootfs.path", f"overlay:{guest.base}:{guest.upper}"),
        ("lxc.apparmor.profile", "unconfined"),
        ("lxc.mount.auto", "cgroup:mixed proc:mixed sys:mixed"),
        ("lxc.start.auto", "1" if guest.autostart else "0"),
    ]
    if guest.log:
        pairs.append(("lxc.log.file", guest.log))
    if guest.ids:
        pairs.insert(1, ("lxc.include", lxcids.USERNS))
        pairs += [("lxc.idmap", f"{kind} 0 {guest.ids.first} {guest.ids.count}") for kind in "ug"]
    if guest.hook:
        pairs.append(("lxc.hook.pre-start", guest.hook))
    pairs += _network(guest)
    for keys, found in ((CPUSET_KEYS, guest.cpus), (MEMS_KEYS, guest.mems)):
        if guest.controllers.cpuset and found:
            pairs.append((keys[guest.controllers.cpuset], found))
    if guest.controllers.memory:
        pairs.append((MEMORY_KEYS[guest.controllers.memory], str(guest.memory_bytes)))
    pairs += guest.gpu
    _sane(pairs)
    return tuple(pairs)


def _network(guest: Guest) -> list[Pair]:
    if guest.network == "none":
        # LXC's own `none` would share the host's ports; `empty` gives the guest its own loopback.
        return [("lxc.net.0.type", "empty")]
    return [
        ("lxc.net.0.type", "veth"),
        ("lxc.net.0.link", guest.bridge),
        ("lxc.net.0.name", "eth0"),
        ("lxc.net.0.flags", "up"),
        ("lxc.net.0.ipv4.address", guest.address),
    ]


def escape(path: str) -> str:
    """A path as a field of a mount entry (fstab's octal escapes)."""
    return "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in path)


def gpu_lines(devices: Sequence[Device], driver: Sequence[Tuple[str, str, str]], version: str, some: bool = False) -> Tuple[Pair, ...]:
    """What gives a guest the card, or with `some` these nodes and no others. `driver`: (path on the host, path in the guest, `dir` or `file`); `version`: where the devices controller is.

    The nodes are optional: after a reboot without the card the guest still starts, and its service falls back to the CPU.
    """
    rules = [(DEVICE_KEYS[version or "v2"], f"c {major}:* rwm") for major in sorted({d.major for d in devices})]
    nodes = []
    for device in sorted(devices, key=lambda d: d.path):
        folder, _, _ = device.path.rpartition("/")
        source, kind = (device.path, "file") if some or folder == "/dev" else (folder, "dir")
        nodes.append(("lxc.mount.entry", f"{source} {source.lstrip('/')} none bind,optional,create={kind}"))
    binds = [("lxc.mount.entry", f"{escape(source)} {escape(target.lstrip('/'))} none bind,ro,create={kind}") for source, target, kind in driver]
    return tuple(dict.fromkeys([*rules, *([NO_MKNOD] if some else []), *nodes, *binds]))


def registered(proc_devices: str) -> Mapping[str, int]:
    """Name -> number of the character devices that the kernel knows."""
    return nvidia.char_majors(proc_devices)
