# SPDX-License-Identifier: Apache-2.0
"""`fly provision NAME --manager incus` and the retirement of such a guest: on this machine, or on a host of the inventory that runs Incus or LXD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyops.errors import EXIT_OK, UsageError
from flyops.loading.inventory import Inventory
from flyops.operations import guests, needs
from flyops.operations.options import ProvisionOptions, RetireOptions
from flyops.spec.arguments import to_bool

MANAGER = "incus"
NOT_HERE = ("rootfs", "network", "address", "unprivileged", "id")  # an instance's profiles say these
PYTHON = "/usr/bin/python3"


def is_incus(known: Mapping[str, Any]) -> bool:
    """Does the inventory say that the guest is Incus' or LXD's?"""
    return known.get("container_manager") == MANAGER


def wanted(options: ProvisionOptions, inventory: Inventory) -> bool:
    """Is such a guest meant? What is typed counts, else the inventory."""
    return (options.manager or guests.variables(inventory, options.name).get("container_manager")) == MANAGER


def provision(options: ProvisionOptions, inventory: Inventory, gpu: Any) -> int:
    """The exit code of the play; `gpu` is the declaration of the card as it was typed or as the inventory has it."""
    chosen = choose(options, inventory, gpu)
    _reachable(chosen, inventory, f"make the container {options.name}")
    result = guests.play("provision-incus", inventory, chosen, options)
    if result.exit_code == EXIT_OK and not options.json:
        print(summary(options, chosen, result.hosts[chosen["guest_node"]].vars["guest"]))
    return int(result.exit_code)


def choose(options: ProvisionOptions, inventory: Inventory, gpu: Any) -> dict[str, Any]:
    """The playbook's variables: what was typed, else what the inventory says of the guest, else how a new one is."""
    known = guests.variables(inventory, options.name)
    idle = [f"--{word}" for word in NOT_HERE if getattr(options, word)]
    if idle:
        raise UsageError(
            f"{', '.join(idle)} mean nothing for an Incus guest", fix="its profiles say these: set incus_image and incus_profiles in the inventory"
        )
    node = options.on or known.get("ansible_via", "localhost")
    cpus = options.cpus or str(known.get("container_cpus", ""))
    mems = options.mems or str(known.get("container_mems", ""))
    return {
        "guest_name": options.name,
        "guest_node": node,
        "guest_binary": known.get("ansible_incus_binary") or _binary(inventory, node),
        "guest_python": known.get("ansible_python_interpreter", PYTHON),
        "guest_cpus": "" if cpus == "all" else cpus,
        "guest_mems": "" if mems in ("none", "auto") else mems,
        "guest_memory": str(options.memory or known.get("container_memory", "4G")),
        "guest_disk": options.disk or str(known.get("container_disk", "")),
        "guest_gpu": gpu,
        "guest_autostart": _yes(options.autostart) if options.autostart else known.get("container_autostart", ""),  # empty: as the profiles say
        "inventory_file": str(guests.inventory_file(options.name)),
    }


def _binary(inventory: Inventory, node: str) -> str:
    return str((inventory.variables_of(node) if node in inventory.hosts else {}).get("incus_binary", MANAGER))


def _yes(word: str) -> bool:
    try:
        return to_bool(word)
    except ValueError:
        raise UsageError(f"--autostart: expected yes or no, found {word!r}") from None


def _reachable(chosen: Mapping[str, Any], inventory: Inventory, what: str) -> None:
    """A host of the inventory is asked by its own connection; this machine must have the client itself."""
    if chosen["guest_node"] == "localhost":
        needs.program(chosen["guest_binary"], f"{what} (Incus; for LXD set incus_binary: lxc in the inventory, or name the host with --on)")
    elif chosen["guest_node"] not in inventory.hosts:
        raise UsageError(f"no host {chosen['guest_node']!r} in the inventory", fix="add the host that runs Incus, or name one with --on")


def summary(options: ProvisionOptions, chosen: Mapping[str, Any], guest: Mapping[str, Any]) -> str:
    """What there is now (or would be) in one line, what an operator should know, and what comes next."""
    cards = ", GPU" if chosen["guest_gpu"] else ""
    line = f"{options.name}: on {chosen['guest_node']}, cpus {guest['cpus'] or 'all'}, memory {chosen['guest_memory']}{cards}"
    told = "".join(f"\n  note: {note}" for note in [*guest["notes"], *guest["strays"]])
    if options.plan:
        return f"{line}: nothing was changed, this is a plan{told}"
    return f"{line}, systemd {guest.get('systemd') or 'as it was'}; next: ./fly deploy --limit {options.name}{told}"


def retire(options: RetireOptions, inventory: Inventory, known: Mapping[str, Any], archive: str) -> int:
    """The exit code of the play. The archive stays on the guest's host."""
    node = str(known.get("ansible_via", "localhost"))
    chosen = {
        "guest_name": options.name,
        "guest_node": node,
        "guest_binary": known.get("ansible_incus_binary", MANAGER),
        "guest_state": known.get("fly_state", "/var/lib/fly"),
        "archive_file": archive,
        "inventory_file": str(guests.inventory_file(options.name)),
    }
    _reachable(chosen, inventory, f"remove the container {options.name}")
    return guests.retired(options, guests.play("retire-incus", inventory, chosen, options), node)
