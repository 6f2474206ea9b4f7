# SPDX-License-Identifier: Apache-2.0
"""What must hold on a host before its guests are given the card. Pure: what was seen in, one finding for each thing that can go wrong out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Iterable, Mapping, Tuple

from flyops.domain import nvidia

VENDOR = "0x10de"
SWITCH_CLASS = "0x0680"  # a bridge of no other kind: what NVSwitch is on the PCI bus
CARD_CLASSES = ("0x0300", "0x0302")
WORLD = 0o006
MODULES = ("nvidia", "nvidia-uvm")


@dataclass(frozen=True)
class Seen:
    """The host. `devices`: (vendor, class) of each PCI device as sysfs writes them; `units`: ActiveState by unit, empty where it is not installed."""

    modules: Tuple[str, ...] = ()  # loaded, as /proc/modules names them
    majors: Mapping[str, int] = field(default_factory=dict)
    loaded: str = ""  # version of the loaded module
    on_disk: str = ""  # version that the next load would bring
    params: str = ""
    devices: Tuple[Tuple[str, str], ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    fabric: str = ""  # version of the fabric manager's program
    tegra: bool = False
    runtime: bool = False  # an Incus or LXD runtime is asked for
    cli: bool = False  # nvidia-container-cli is on the PATH

    @property
    def to_load(self) -> Tuple[str, ...]:
        """Modules whose device has no number yet."""
        return tuple(name for name in MODULES if name not in self.majors)


@dataclass(frozen=True)
class Finding:
    """`level`: ok, todo (`host` does it), warning or refuse."""

    name: str
    level: str
    text: str
    fix: str = ""


def parse_modules(text: str) -> Tuple[str, ...]:
    """Names in /proc/modules."""
    return tuple(line.split()[0] for line in text.splitlines() if line.strip())


def fabric_version(text: str) -> str:
    """The version in what `nv-fabricmanager --version` says."""
    found = nvidia.VERSION.search(text)
    return found.group() if found else ""


def judge(seen: Seen) -> Tuple[Finding, ...]:
    """Every finding; a reader wants all of them at once."""
    if seen.tegra:
        fix = "use a host with a discrete card"
        return (Finding("tegra", "refuse", "this is a Jetson (/dev/nvmap): its devices and libraries are others, and are not supported yet", fix),)
    return tuple(rule(seen) for rule in RULES)


def refused(findings: Iterable[Finding]) -> Tuple[Finding, ...]:
    """Those that must be put right first."""
    return tuple(one for one in findings if one.level == "refuse")


def _nouveau(seen: Seen) -> Finding:
    if "nouveau" not in seen.modules:
        return Finding("nouveau", "ok", "nouveau is not loaded")
    fix = "blacklist it (blacklist nouveau, options nouveau modeset=0 in /etc/modprobe.d), renew the initramfs, restart"
    return Finding("nouveau", "refuse", "module nouveau is loaded: it holds the card, and nvidia cannot take it", fix)


def _module(seen: Seen) -> Finding:
    if not seen.to_load:
        return Finding("module", "ok", f"nvidia and nvidia-uvm are loaded{f', version {seen.loaded}' if seen.loaded else ''}")
    names = ", ".join(seen.to_load)
    if seen.on_disk or seen.loaded:
        return Finding("module", "todo", f"{names} not loaded yet", f"modprobe {' '.join(seen.to_load)} (invoke host does it)")
    cards = sum(vendor == VENDOR and kind.startswith(CARD_CLASSES) for vendor, kind in seen.devices)
    found = f"{cards} NVIDIA card{'s' * (cards != 1)} on the PCI bus" if cards else "no NVIDIA card on the PCI bus"
    fix = "install the driver for this kernel (its headers, or DKMS)"
    return Finding(
        "module", "refuse", f"expected modules nvidia and nvidia-uvm, found neither {names} loaded nor one for this kernel on disk; {found}", fix
    )


def _on_disk(seen: Seen) -> Finding:
    if not seen.loaded or not seen.on_disk or seen.loaded == seen.on_disk:
        return Finding("on disk", "ok", f"the module on disk is {seen.on_disk or 'unknown'}")
    text = f"the loaded module is {seen.loaded}, the one on disk {seen.on_disk}: the next load or restart changes the driver under the guests"
    return Finding("on disk", "warning", text, "restart at a time of your choosing, then put the guests' libraries in step")


def _fabric(seen: Seen) -> Finding:
    if not any(vendor == VENDOR and kind.startswith(SWITCH_CLASS) for vendor, kind in seen.devices):
        return Finding("fabric", "ok", "no NVSwitch on this board: no fabric manager is needed")
    driver, unit = seen.loaded or seen.on_disk, "nvidia-fabricmanager"
    fix = f"install {unit} of version {driver} and start it: systemctl enable --now {unit}"
    state = seen.units.get(unit) or "not installed"
    if state != "active":
        return Finding("fabric", "refuse", f"an NVSwitch board: expected {unit} active, found {state}; CUDA would fail with error 802", fix)
    if seen.fabric != driver:
        return Finding("fabric", "refuse", f"an NVSwitch board: expected {unit} of the driver's version {driver}, found {seen.fabric or 'none'}", fix)
    return Finding("fabric", "ok", f"{unit} {driver} is active")


def _persistence(seen: Seen) -> Finding:
    unit = "nvidia-persistenced"
    state = seen.units.get(unit, "")
    if state in ("", "active"):
        return Finding("persistence", "ok", f"{unit} is {state or 'not installed'}")
    text = f"{unit} is {state}: it loses a race with the nodes at boot when nothing orders it"
    return Finding("persistence", "warning", text, f"systemctl restart {unit} (flyops-majors.service is ordered before it)")


def _node_mode(seen: Seen) -> Finding:
    mode, uid, gid = nvidia.params_mode(seen.params)
    if mode & WORLD == WORLD:
        return Finding("node mode", "ok", f"the driver gives nodes mode {mode:04o}")
    text = f"the driver gives nodes mode {mode:04o}, owner {uid}:{gid}: a guest's users and the helper of nvidia-container-cli (nobody) are denied"
    return Finding("node mode", "warning", text, "options nvidia NVreg_DeviceFileMode=0666 in /etc/modprobe.d, or give the guest's group (gid=)")


def _modify(seen: Seen) -> Finding:
    if nvidia.modifies(seen.params):
        return Finding("modify", "ok", "nodes may be made")
    return Finding(
        "modify", "warning", "ModifyDeviceFiles is 0: flyops makes no nodes here, somebody else has to", "NVreg_ModifyDeviceFiles=1, or a udev rule"
    )


def _runtime(seen: Seen) -> Finding:
    if not seen.runtime or seen.cli:
        return Finding("runtime", "ok", f"nvidia-container-cli is {'here' if seen.cli else 'not asked for'}")
    text = "nvidia.runtime is asked for, and nvidia-container-cli is not on this host: a guest would get DRI nodes and an empty NVRM version"
    return Finding("runtime", "refuse", text, "install libnvidia-container-tools, or do without nvidia.runtime")


RULES: Tuple[Callable[[Seen], Finding], ...] = (_nouveau, _module, _on_disk, _fabric, _persistence, _node_mode, _modify, _runtime)
UNITS = ("nvidia-persistenced", "nvidia-fabricmanager")
UNIT_STATE = re.compile(r"^(LoadState|ActiveState)=(.*)$", re.MULTILINE)


def unit_state(shown: str) -> str:
    """ActiveState out of `systemctl show`; empty for a unit that is not installed."""
    found = dict(UNIT_STATE.findall(shown))
    return found.get("ActiveState", "") if found.get("LoadState") == "loaded" else ""
