# SPDX-License-Identifier: Apache-2.0
"""Device rules of guests that have the card, kept at the majors of the loaded driver. Pure: a config's text in, a text and a verdict out.

A guest's rules follow the nodes that it binds: each kind of node has one major, and a rule stands for it once. A guest that was named
and binds nothing yet gets the whole card. Who binds by Proxmox' `devN:` needs no rule of ours: its numbers are taken at each start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, Mapping, Sequence, Tuple

from flyops.domain import lxcconf, pveguest
from flyops.domain.lxcconf import Pair

# Node below /dev -> its name in /proc/devices. The first three make a guest that can compute; another node has its own name, but for its number.
KINDS = (
    (re.compile(r"nvidia(?:\d+|ctl|-modeset)"), "nvidia"),
    (re.compile(r"nvidia-uvm(?:-tools)?"), "nvidia-uvm"),
    (re.compile(r"nvidia-caps(?:/.*)?"), "nvidia-caps"),
    (re.compile(r"nvidia-caps-imex-channels(?:/.*)?"), "nvidia-caps-imex-channels"),
    (re.compile(r"nvidia-nvswitch(?:\d+|ctl)"), "nvidia-nvswitch"),
)
OTHER = re.compile(r"(nvidia-[a-z][a-z-]*[a-z])-?\d*")  # nvidia-nvlink, nvidia-fs3
REQUIRED = ("nvidia", "nvidia-uvm", "nvidia-caps")
COMPILED_IN = 195  # the driver's own number since ever; another one is worth a word
ID = re.compile(r"[1-9][0-9]{2,8}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
DEV = re.compile(r"dev\d+")
GIVEN = re.compile(r"/dev/(\S+) dev/\1 none bind,optional,create=(?:file|dir)")


class MajorsError(ValueError):
    """What stops every write; the text names all that is wrong, and what to do."""


@dataclass(frozen=True)
class Machine:
    """The host: every character device by name, the driver's majors, where the devices controller is (v1, v2), minors of the cards."""

    registered: Mapping[str, int]
    live: Mapping[str, int]
    devices: str
    gpus: Tuple[int, ...] = (0,)

    @property
    def key(self) -> str:
        """The key of a device rule that counts here."""
        return lxcconf.DEVICE_KEYS[self.devices]


@dataclass(frozen=True)
class Conf:
    """A guest's config. `named`: somebody asked for this guest; `text` None: there is none."""

    name: str
    path: str
    text: str | None
    pve: bool = False
    named: bool = True

    @property
    def mounts(self) -> Tuple[Pair, ...]:
        """Lines that bind a node of the driver."""
        return tuple(pair for pair in lxcconf.parse(self.text or "") if pair[0] == "lxc.mount.entry" and kind(_target(pair[1])))

    @property
    def by_dev(self) -> bool:
        """Does Proxmox hand out the nodes by itself?"""
        pairs = lxcconf.parse(self.text or "") if self.pve else ()
        return any(DEV.fullmatch(key) and kind(found.split(",")[0].rpartition("=")[2].lstrip("/")) for key, found in pairs)

    @property
    def given(self) -> bool:
        """Is it for us to give it the whole card?"""
        return self.text is not None and self.named and not self.mounts and not self.by_dev

    @property
    def locked(self) -> str:
        """Proxmox' word for what it is doing with the guest now; empty when nothing."""
        return lxcconf.value(self.text or "", "lock") if self.pve else ""


@dataclass(frozen=True)
class Planned:
    """What becomes of a config: changed, unchanged, missing or locked; strays open another device, dead rules open nothing."""

    conf: Conf
    status: str
    text: str = ""
    drift: str = ""
    strays: Tuple[str, ...] = ()
    dead: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()


def check_names(names: Iterable[str], pve: bool) -> str:
    """Empty when each can be a guest's name or id; else all that cannot. With Proxmox here, a number is an id of its own."""
    wrong = [name for name in names if not NAME.fullmatch(name) or (pve and name.isdigit() and not ID.fullmatch(name))]
    if not wrong:
        return ""
    return f"expected names of guests (letters, digits, '_', '.', '-') or ids from 100 on, found {', '.join(repr(name) for name in wrong)}"


def tagged(text: str) -> bool:
    """Does a Proxmox guest carry the tag that makes it flyops' own?"""
    return pveguest.TAG in re.split(r"[;, ]+", lxcconf.value(text, "tags"))


def kind(target: str) -> str:
    """The name in /proc/devices that the node's major has; empty for what is no node of the driver."""
    folder, _, name = target.lstrip("/").partition("/")
    if folder != "dev":
        return ""
    other = OTHER.fullmatch(name)
    return next((found for pattern, found in KINDS if pattern.fullmatch(name)), other.group(1) if other else "")


def _target(entry: str) -> str:
    fields = entry.split()
    return fields[1] if len(fields) > 1 else ""


def whole(machine: Machine) -> Tuple[Pair, ...]:
    """Binds of the whole card. The nodes are optional: a host without the card still starts its guests."""
    names = ["nvidia-caps", *(f"nvidia{minor}" for minor in machine.gpus), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    kinds = {name: "dir" if name == "nvidia-caps" else "file" for name in names}
    return tuple(("lxc.mount.entry", f"/dev/{name} dev/{name} none bind,optional,create={kinds[name]}") for name in names)


def check_majors(confs: Sequence[Conf], machine: Machine) -> None:
    """Nothing is written while one is missing: a half-right set of rules would look like a guest with a card."""
    needed: Dict[str, list[str]] = {}
    for conf in confs:
        mounts = whole(machine) if conf.given else conf.mounts
        for name in dict.fromkeys(kind(_target(found)) for _, found in mounts):
            needed.setdefault(name, []).append(conf.name)
    missing = [name for name in REQUIRED if name in needed and name not in machine.live]
    if missing:
        found = ", ".join(f"{name} {number}" for name, number in sorted(machine.live.items())) or "none of the driver's"
        raise MajorsError(
            f"/proc/devices has no number for {', '.join(missing)} (needed by {', '.join(dict.fromkeys(n for name in missing for n in needed[name]))}); "
            f"found {found}: no config was written"
        )


def converge(conf: Conf, machine: Machine) -> Planned:
    """The config with each rule that its binds need once, at today's number, and none that is out of date."""
    if conf.text is None:
        return Planned(conf, "missing", notes=(f"{conf.name}: no config at {conf.path}",))
    mounts = whole(machine) if conf.given else conf.mounts
    if not mounts:
        return Planned(conf, "unchanged", conf.text, notes=_notes(conf, machine))
    kinds = {kind(_target(found)) for _, found in mounts}
    rules = [(machine.key, f"c {number}:* rwm") for number in sorted({machine.live[name] for name in kinds if name in machine.live})]

    def owned(key: str, found: str) -> bool:
        return key == machine.key and found.endswith(" rwm") and lxcconf.owned_rule(found, machine.registered)

    return _planned(conf, machine, lxcconf.converge(conf.text, [*rules, *mounts], owned, ": " if conf.pve else " = "))


def take_away(conf: Conf, machine: Machine) -> Planned:
    """The config without the card that we gave; what else it has stays."""
    if conf.text is None:
        return Planned(conf, "missing", notes=(f"{conf.name}: no config at {conf.path}",))

    def owned(key: str, found: str) -> bool:
        if key == "lxc.mount.entry":
            return bool(GIVEN.fullmatch(found) and kind(_target(found)))
        return key == machine.key and found.endswith(" rwm") and lxcconf.owned_rule(found, machine.registered)

    return _planned(conf, machine, lxcconf.converge(conf.text, [], owned))


def _planned(conf: Conf, machine: Machine, new: lxcconf.Converged) -> Planned:
    text = conf.text or ""
    status = "unchanged" if not new.changed else "locked" if conf.locked else "changed"
    words = [*(f"lacks {key} {found}" for key, found in new.added), *(f"has {key} {found}" for key, found in new.removed)]
    strays = tuple(f"{conf.name}: {line}" for line in lxcconf.strays(text, machine.registered))
    drift = f"{conf.name}: {'; '.join(words)}" if words else ""
    notes = _notes(conf, machine)
    if status == "locked":
        notes += (f"{conf.name} is locked ({conf.locked}): Proxmox is at work on it; run again when that has ended (or: pct unlock {conf.name})",)
    return Planned(conf, status, new.text, drift, strays, _dead(conf, machine), notes)


def _dead(conf: Conf, machine: Machine) -> Tuple[str, ...]:
    """Rules under the key of the cgroup version that does not hold devices here: obeyed by nobody, so reported and left."""
    other = next(key for version, key in lxcconf.DEVICE_KEYS.items() if version != machine.devices)
    return tuple(
        f"{conf.name}: {key} {found} has no effect: devices are on cgroup {machine.devices} here, whose key is {machine.key}"
        for key, found in lxcconf.parse(conf.text or "")
        if key == other and lxcconf.owned_rule(found, machine.registered)
    )


def _notes(conf: Conf, machine: Machine) -> Tuple[str, ...]:
    kinds = {kind(_target(found)) for _, found in conf.mounts}
    out = []
    if kinds and "nvidia-uvm" not in kinds and not conf.by_dev:
        out.append(f"{conf.name} binds no /dev/nvidia-uvm: NVML works there, CUDA does not (error 999)")
    out += [f"{conf.name} binds nodes of {name}, which /proc/devices does not have" for name in sorted(kinds - set(machine.live) - set(REQUIRED))]
    return tuple(out)
