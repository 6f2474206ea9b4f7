# SPDX-License-Identifier: Apache-2.0
"""Whether this host can give guests its NVIDIA card: looks only, says all that is wrong at once."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from flyops.domain import nvidia, preflight
from flyops.errors import Refused
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Look whether this host can give guests its NVIDIA card: modules, nouveau, versions, fabric manager, modes, tools. Refuses what cannot work.",
    args={
        "refuse": Arg("bool", default=True, help="false: findings only"),
        "runtime": Arg("bool", default=False, help="an Incus or LXD guest with nvidia.runtime is wanted, so nvidia-container-cli must be here"),
        "proc_devices": Arg("path", default="/proc/devices", help="majors of the running kernel"),
        "proc_modules": Arg("path", default="/proc/modules", help="loaded modules"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="version and params of the loaded module"),
        "sys_pci": Arg("path", default="/sys/bus/pci/devices", help="devices of the PCI bus"),
        "dev": Arg("path", default="/dev", help="folder of the nodes"),
    },
    examples="- name: This host can give the card\n  nvidia_preflight: {}\n  register: preflight\n",
    returns={
        "findings": "name, level (ok, todo, warning, refuse), text, fix of each",
        "warnings": "texts of those that are to be looked at",
        "loaded": "version of the loaded module",
        "on_disk": "version that the next load would bring",
        "to_load": "modules whose device has no number yet",
    },
)


def read(args: Dict[str, Any], host: Host) -> preflight.Seen:
    """Everything that a finding needs."""
    nvmap = host.stat(f"{args['dev']}/nvmap")
    return preflight.Seen(
        modules=preflight.parse_modules(host.read_text(args["proc_modules"], missing="")),
        majors=nvidia.live_majors(host.read_text(args["proc_devices"], missing="")),
        loaded=nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing="")),
        on_disk=_said(host, "modinfo", "-F", "version", "nvidia"),
        params=host.read_text(f"{args['proc_driver']}/params", missing=""),
        devices=_pci(args["sys_pci"], host),
        units={unit: preflight.unit_state(_said(host, "systemctl", "show", "-p", "LoadState,ActiveState", unit)) for unit in preflight.UNITS},
        fabric=preflight.fabric_version(_said(host, "nv-fabricmanager", "--version")),
        tegra=nvmap is not None and nvmap.kind == "char",
        runtime=args["runtime"],
        cli=host.which("nvidia-container-cli") is not None,
    )


def _said(host: Host, *argv: str) -> str:
    """What a program says; empty when it is not here or fails."""
    if host.which(argv[0]) is None:
        return ""
    done = host.run(list(argv), query=True)
    return done.stdout.decode("utf-8", "replace").strip() if done.rc == 0 else ""


def _pci(folder: str, host: Host) -> Tuple[Tuple[str, str], ...]:
    names = host.listdir(folder) if host.stat(folder, follow=True) else []
    ids = [[host.read_text(f"{folder}/{name}/{word}", missing="").strip() for word in ("vendor", "class")] for name in names]
    return tuple((vendor, kind) for vendor, kind in ids if vendor == preflight.VENDOR)


def plan(args: Dict[str, Any], state: preflight.Seen) -> Decision:
    """Never a change."""
    findings = preflight.judge(state)
    values: Dict[str, Any] = {
        "findings": [dict(one.__dict__) for one in findings],
        "warnings": [f"{one.text}; to do: {one.fix}" for one in findings if one.level == "warning"],
        "loaded": state.loaded,
        "on_disk": state.on_disk,
        "to_load": list(state.to_load),
    }
    wrong = preflight.refused(findings)
    if wrong and args["refuse"]:
        raise Refused("; ".join(one.text for one in wrong), fix="; ".join(one.fix for one in wrong), **values)
    return Same(values)


def apply(args: Dict[str, Any], change: Change, host: Host) -> None:
    """Nothing to do."""
