# SPDX-License-Identifier: Apache-2.0
"""Digests of the neighbouring guests' config files on a container host, and what moved since an earlier look. It only looks."""

from __future__ import annotations

from typing import Any

from flyops.domain import neighbours
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Look at the config files of all guests on this container host but one's own (LXC and Proxmox). Changes nothing.",
    args={
        "own": Arg("list", elements="str", default=[], help="names or ids of the run's own guests: left out"),
        "lxc_path": Arg("path", default="/var/lib/lxc", help="folder with a folder for each guest"),
        "pve_dir": Arg("path", default="/etc/pve/lxc", help="folder of Proxmox' ID.conf files"),
        "before": Arg("dict", help="digests of an earlier look, to compare with"),
    },
    examples="- name: The neighbours\n  neighbours: {own: [dev1]}\n  delegate_to: \"{{ ansible_via | default('localhost') }}\"\n  register: neighbours_before\n",
    returns={"digests": "path -> sha256 of each neighbour's config", "moved": "path -> came, went or changed since `before`"},
)


def _paths(args: dict[str, Any], host: Host) -> list[str]:
    """Every neighbour's config that is there."""
    out = []
    for folder, form in ((args["lxc_path"], "{}/config"), (args["pve_dir"], "{}")):
        for name in host.listdir(folder) if host.stat(folder, follow=True) else []:
            path = f"{folder}/{form.format(name)}"
            whose = name[: -len(".conf")] if name.endswith(".conf") else name
            if whose not in args["own"] and _is_config(path, host):
                out.append(path)
    return out


def _is_config(path: str, host: Host) -> bool:
    seen = host.stat(path, follow=True)
    return seen is not None and seen.kind == "file" and path.endswith(("/config", ".conf"))


def _digest(path: str, host: Host) -> str:
    """A guest may be removed by its owner between two looks of ours."""
    try:
        return host.sha256(path)
    except FileNotFoundError:
        return ""


def read(args: dict[str, Any], host: Host) -> dict[str, str]:
    """Path -> sha256."""
    digests = {path: _digest(path, host) for path in _paths(args, host)}
    return {path: digest for path, digest in digests.items() if digest}


def plan(args: dict[str, Any], state: dict[str, str]) -> Decision:
    """What is there, and what moved."""
    return Same({"digests": state, "moved": {} if args["before"] is None else neighbours.moved(args["before"], state)})


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Never reached: it only looks."""
