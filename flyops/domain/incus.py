# SPDX-License-Identifier: Apache-2.0
"""An Incus or LXD instance as one declaration: the config keys and devices it means, what is ours of an existing one, what must change. Pure.

Instances are the JSON of `/1.0/instances/NAME`. What flyops wrote stands in the key `user.flyops`: whose the instance is, which keys and
devices are ours (so that a removal is a converge, too, and nothing else is touched).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from flyops.domain import gpuask

RECORD = "user.flyops"
NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
COLD = re.compile(r"(nvidia|security|raw|linux|environment)\..*")  # keys that take force only at a start
MEMS = re.compile(r"\s*lxc\.cgroup2?\.cpuset\.mems\s*=.*")
HOOK_FAILED = ("Failed to run mount hooks", "Script exited with status 1", "Failed to setup container")
LOG_LINE = re.compile(r"(?:-- )?([EWF])\d{4} [\d:.]+ \d+ \S+\] ?(.*)")  # of nvidia-container-cli: a letter, month and day, time, pid, file:line]
LXC_ERROR = re.compile(r"^lxc \S+ [\d.]+ ERROR\s+(.*)$", re.MULTILINE)

Device = Mapping[str, str]


class IncusError(ValueError):
    """A declaration that means nothing, or that the daemon would refuse or quietly pass over."""


@dataclass(frozen=True)
class Wanted:
    """What the declaration means: config keys, devices, and the lines of raw.lxc that are ours."""

    config: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Device] = field(default_factory=dict)
    mems: str = ""  # a whole line of raw.lxc; empty: none


@dataclass(frozen=True)
class Record:
    """What `user.flyops` says is ours."""

    ours: bool = False
    config: Tuple[str, ...] = ()
    devices: Tuple[str, ...] = ()
    mems: bool = False

    def text(self) -> str:
        """As it is written."""
        return json.dumps({"owner": "flyops", "config": self.config, "devices": self.devices, "mems": self.mems}, sort_keys=True)


def check_name(name: str) -> str:
    """Empty when it can be an instance's name; else what is wrong."""
    return "" if NAME.fullmatch(name) else f"an instance's name begins with a letter and has letters, digits and '-' (1 to 63), found {name!r}"


def record(config: Mapping[str, str]) -> Record:
    """Of an instance's config."""
    try:
        found = json.loads(config.get(RECORD, ""))
    except ValueError:
        return Record()
    if not isinstance(found, dict) or found.get("owner") != "flyops":
        return Record()
    return Record(True, tuple(found.get("config", ())), tuple(found.get("devices", ())), bool(found.get("mems")))


# the declaration


def gpu_devices(asked: gpuask.Ask, cards: Sequence[gpuask.Card]) -> Dict[str, Dict[str, str]]:
    """The gpu devices that a declaration means. A card is named by its PCI address: an index moves when a card is added."""
    if asked.every:
        return {"flyops-gpu": {"type": "gpu", "gputype": "physical", "mode": "0666"}}
    found = [gpuask.find(name, cards) for name in asked.cards]
    out = {_device(card): {"type": "gpu", "gputype": "physical", "pci": card.bus, "mode": "0666"} for card in found}
    for one in asked.mig:
        card = gpuask.find(one.card, cards)
        out[f"{_device(card)}-{one.gi}-{one.ci}"] = {"type": "gpu", "gputype": "mig", "pci": card.bus, "mig.gi": str(one.gi), "mig.ci": str(one.ci)}
    return out


def _device(card: gpuask.Card) -> str:
    return f"flyops-gpu-{re.sub('[^0-9a-f]', '-', card.bus)}"


def runtime(asked: gpuask.Ask, use: bool, capabilities: Sequence[str]) -> Dict[str, str]:
    """The keys of the NVIDIA runtime; none without a card, or when it is not to be used."""
    if not asked or not use:
        return {}
    return {"nvidia.runtime": "true", "nvidia.driver.capabilities": ",".join(capabilities)}


def refusals(asked: gpuask.Ask, expanded: Mapping[str, str], tools: Sequence[str]) -> List[str]:
    """What the daemon would refuse at the start, or hang in. `expanded`: profiles and ours together; `tools`: what of the runtime is missing here."""
    with_runtime = expanded.get("nvidia.runtime") == "true"
    out = []
    if with_runtime and expanded.get("security.privileged") == "true":
        out.append("nvidia.runtime works in unprivileged instances only (its hook needs a user namespace), and security.privileged is true")
    if asked.mig and not with_runtime:
        out.append("a MIG instance can be given with nvidia.runtime only")
    if with_runtime and tools:
        out.append(f"the tools of nvidia.runtime are missing on this host: {', '.join(tools)}")
    return out


def check_devices(devices: Mapping[str, Any]) -> Dict[str, Dict[str, str]]:
    """Devices as they were typed, values as texts; each needs a type."""
    wrong = [name for name, device in devices.items() if not isinstance(device, Mapping) or "type" not in device]
    if wrong:
        raise IncusError(f"devices: each is a mapping with a type (disk, unix-char, proxy, …); not so: {', '.join(wrong)}")
    return {str(name): {str(key): _text(value) for key, value in device.items()} for name, device in devices.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# an instance that is there


def converge(instance: Mapping[str, Any], wanted: Wanted, mine: Record) -> Tuple[Dict[str, str], Dict[str, Dict[str, str]]]:
    """(config, devices) as they should be: ours as declared, ours that are no longer declared gone, everything else as it is."""
    config = dict(instance.get("config") or {})
    devices = {name: dict(device) for name, device in (instance.get("devices") or {}).items()}
    for key in mine.config:
        config.pop(key, None)
    for name in mine.devices:
        devices.pop(name, None)
    foreign = sorted(set(devices) & set(wanted.devices))
    if foreign:
        raise IncusError(f"devices {', '.join(foreign)} are there and not ours; choose other names, or remove them")
    raw = raw_lxc(config.get("raw.lxc", ""), wanted.mems, mine.mems)
    config.pop("raw.lxc", None)
    config.update({**wanted.config, **({"raw.lxc": raw} if raw else {})})
    devices.update({name: dict(device) for name, device in wanted.devices.items()})
    own = Record(True, tuple(sorted(wanted.config)), tuple(sorted(wanted.devices)), bool(wanted.mems))
    return {**config, RECORD: own.text()}, devices


def cold(config: Mapping[str, str], devices: Mapping[str, Device]) -> Dict[str, Any]:
    """What of an instance takes force only at a start: some keys, and MIG instances, which cannot be plugged in."""
    keys = {key: value for key, value in config.items() if COLD.fullmatch(key)}
    return {**keys, **{f"device {name}": dict(device) for name, device in devices.items() if device.get("gputype") == "mig"}}


def raw_lxc(text: str, line: str, ours: bool) -> str:
    """raw.lxc with our one line in it, or without; all its other lines stay. A line of that key which is not ours is an error."""
    if not line and not ours:
        return text
    lines = text.splitlines()
    there = [one for one in lines if MEMS.fullmatch(one)]
    if there and line and not ours and there != [line]:
        raise IncusError(f"raw.lxc has {there[0].strip()!r}, which is not ours; remove it, or leave mems out")
    return "\n".join([one for one in lines if not MEMS.fullmatch(one)] + ([line] if line else []))


def mems_line(mems: str, controller: str) -> str:
    """The line that keeps an instance's memory on nodes: `limits.cpu.nodes` places cpus only, and an explicit list beats it."""
    return f"lxc.cgroup{'2' if controller == 'v2' else ''}.cpuset.mems = {mems}" if mems else ""


def listing(config: Mapping[str, str], devices: Mapping[str, Device]) -> str:
    """For diffs: one line each, sorted; the daemon's own (volatile, image) and our record left out."""
    shown = {key: value for key, value in config.items() if not key.startswith(("volatile.", "image.")) and key != RECORD}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(shown.items())]
    lines += [f"device {name}: {' '.join(f'{k}={v}' for k, v in sorted(device.items()))}" for name, device in sorted(devices.items())]
    return "".join(f"{line}\n" for line in lines)


def strays(instance: Mapping[str, Any], mine: Record) -> List[str]:
    """gpu devices of the instance (its profiles' too) that are not ours: reported, never removed."""
    found = {**(instance.get("expanded_devices") or {}), **(instance.get("devices") or {})}
    return sorted(
        f"device {name}: a gpu that flyops did not give" for name, device in found.items() if device.get("type") == "gpu" and name not in mine.devices
    )


def root_device(expanded: Mapping[str, Device]) -> Tuple[str, Dict[str, str]]:
    """(name, device) of the root disk in profiles and instance together."""
    for name, device in expanded.items():
        if device.get("type") == "disk" and device.get("path") == "/":
            return name, dict(device)
    raise IncusError("no root disk in the instance's profiles; name a profile that has one (incus profile show default)")


# failures


def first_bad_line(log: str) -> str:
    """The first error of nvidia-container-cli's debug output, else its first warning; empty when there is none."""
    found = [match for match in map(LOG_LINE.match, (line.strip() for line in log.splitlines())) if match]
    for letters in ("EF", "W"):
        for match in found:
            if match[1] in letters:
                return match.group().strip()
    return next((line.strip() for line in log.splitlines() if line.startswith("nvidia-container-cli: ")), "")


def lxc_errors(log: str) -> List[str]:
    """The ERROR lines of an instance's log, the first (the cause) first, without time and source."""
    return [re.sub(r"^\S+ - \S+ - ", "", text) for text in LXC_ERROR.findall(log)]


def hook_failed(text: str) -> bool:
    """Did a hook fail, whose own words are lost?"""
    return any(sign in text for sign in HOOK_FAILED)
