# SPDX-License-Identifier: Apache-2.0
"""`fly provision NAME`: a dev container on this machine. What is not typed stays as the inventory has it, so that `--gpu` alone keeps the limits."""

from __future__ import annotations

from typing import Any

from flyops import places
from flyops.operations import guests, needs, rootfs
from flyops.operations.options import ProvisionOptions
from flyops.operations.play import run_playbook


def run(options: ProvisionOptions) -> int:
    """The exit code of the play."""
    inventory = guests.checked(options.name)
    needs.root(f"make the container {options.name}")
    needs.program("lxc-start", "run containers")
    known = guests.variables(inventory, options.name)
    base = guests.base_of(options.name) or (rootfs.place(options.rootfs) if options.plan else rootfs.ensure(options.rootfs))
    chosen: dict[str, Any] = {
        "guest_name": options.name,
        "guest_rootfs": str(base),
        "guest_network": "none" if options.network == "none" else known.get("container_network", options.network),
        "guest_bridge": known.get("container_bridge") or guests.BRIDGE,
        "guest_cpus": options.cpus or known.get("container_cpus", ""),
        "guest_memory": str(options.memory or known.get("container_memory", "4G")),
        "guest_gpu": options.gpu or known.get("container_gpu", False),
        "guest_lxc_path": guests.LXC_PATH,
        "inventory_file": str(guests.inventory_file(options.name)),
    }
    playbook = places.REPOSITORY / "playbooks" / "provision.yml"
    result = run_playbook(
        playbook,
        inventory=inventory,
        extra_vars=chosen,
        check=options.plan,
        diff=options.plan,
        display="json" if options.json else "brief",
        verbose=options.verbose,
    )
    if result.exit_code == 0 and not options.plan and not options.json:
        print(summary(options.name, result.hosts["localhost"].vars["guest"]))
    return int(result.exit_code)


def summary(name: str, guest: dict[str, Any]) -> str:
    """One line for the person who asked: what there is now, and what comes next."""
    where = guest["address"] or "no network"
    card = f", GPU with driver {guest['driver']}" if guest["gpu"] else ""
    return f"{name}: {where}, cpus {guest['cpus']}, memory {guest['memory'] / (1 << 30):.3g} GiB{card}, systemd {guest['systemd']}; next: ./fly deploy --limit {name}"
