# SPDX-License-Identifier: Apache-2.0
"""`fly provision NAME --manager pve` and the retirement of such a guest: on this machine, or on a Proxmox node of the inventory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flyops.domain import cpuset, pveguest
from flyops.errors import EXIT_OK, UsageError
from flyops.loading.inventory import Inventory
from flyops.operations import guests, needs
from flyops.operations.options import ProvisionOptions, RetireOptions
from flyops.spec.arguments import to_bool

MANAGER = "pve"
LXC_ONLY = ("rootfs", "network", "address", "unprivileged")  # a node's inventory says these: pve_template, pve_network, pve_unprivileged
PYTHON = "/usr/bin/python3"
STOP_WAIT_S = 120  # that a guest may take to shut down; it is never killed


def is_pve(known: Mapping[str, Any]) -> bool:
    """Does the inventory say that the guest is Proxmox's?"""
    return known.get("container_manager") == MANAGER


def wanted(options: ProvisionOptions, inventory: Inventory) -> bool:
    """Is a Proxmox guest meant? What is typed counts, else the inventory; a guest does not change its manager."""
    known = guests.variables(inventory, options.name)
    has = str(known.get("container_manager", "lxc")) if known else ""
    if options.manager not in {"", "lxc", "incus", MANAGER}:
        raise UsageError(f"--manager: expected lxc, pve or incus, found {options.manager!r}")
    if has and options.manager not in {"", has}:
        raise UsageError(f"{options.name} is a guest of {has}, found --manager {options.manager}", fix="retire it first, or choose another name")
    return (options.manager or has) == MANAGER


def provision(options: ProvisionOptions, inventory: Inventory, gpu: Any) -> int:
    """The exit code of the play; `gpu` is the declaration of the card as it was typed or as the inventory has it."""
    chosen = choose(options, inventory, gpu)
    _reachable(chosen["guest_node"], inventory, f"make the container {options.name}")
    result = guests.play("provision-pve", inventory, chosen, options)
    if result.exit_code == EXIT_OK and not options.json:
        print(summary(options, chosen, result.hosts[chosen["guest_node"]].vars))
    return int(result.exit_code)


def choose(options: ProvisionOptions, inventory: Inventory, gpu: Any) -> dict[str, Any]:
    """The playbook's variables: what was typed, else what the inventory says of the guest, else how a new one is."""
    known = guests.variables(inventory, options.name)
    number = options.id or str(known.get("ansible_pct_id", ""))
    wrong = pveguest.check_id(number) if number else f"{options.name} is new, and a Proxmox guest needs a number"
    wrong = wrong or _taken(number, options.name, inventory)
    if wrong:
        raise UsageError(wrong, fix="--id NUMBER, one that `pct list` does not show")
    idle = [f"--{word}" for word in LXC_ONLY if getattr(options, word)]
    if idle:
        raise UsageError(
            f"{', '.join(idle)} mean nothing for a Proxmox guest",
            fix="set pve_template, pve_network, pve_unprivileged … for the node in the inventory (inventory/group_vars/all.yml has them all)",
        )
    cpus = options.cpus or str(known.get("container_cpus", ""))
    mems = options.mems or str(known.get("container_mems", ""))
    cpus, mems = "" if cpus == "all" else cpus, "" if mems in ("none", "auto") else mems
    return {
        "guest_name": options.name,
        "guest_id": number,
        "guest_node": options.on or known.get("ansible_via", "localhost"),
        "guest_python": known.get("ansible_python_interpreter", PYTHON),
        "guest_cores": _cores(cpus, known),
        "guest_cpus": cpus,
        "guest_mems": mems,
        "guest_memory": str(options.memory or known.get("container_memory", "4G")),
        "guest_disk": _gib(options.disk) or known.get("container_disk", 0),
        "guest_gpu": gpu,
        "guest_autostart": _yes(options.autostart) if options.autostart else known.get("container_autostart", ""),  # empty: the node's pve_onboot
        "inventory_file": str(guests.inventory_file(options.name)),
    }


def _cores(cpus: str, known: Mapping[str, Any]) -> int:
    try:
        return len(cpuset.parse(cpus)) or int(known.get("container_cores", 2))
    except cpuset.CpusetError as error:
        raise UsageError(f"--cpus: {error}") from None


def _yes(word: str) -> bool:
    try:
        return to_bool(word)
    except ValueError:
        raise UsageError(f"--autostart: expected yes or no, found {word!r}") from None


def _gib(text: str) -> int:
    found = re.fullmatch(r"(\d+)G?", text or "0")
    if not found:
        raise UsageError(f"--disk: expected GiB as 32G for a Proxmox guest, found {text!r}")
    return int(found.group(1))


def _taken(number: str, name: str, inventory: Inventory) -> str:
    for host in inventory.hosts:
        if host != name and str(inventory.variables_of(host).get("ansible_pct_id", "")) == number:
            return f"number {number} is that of {host} in the inventory"
    return ""


def _reachable(node: str, inventory: Inventory, what: str) -> None:
    """A node of the inventory is asked by its own connection; this machine must be one itself."""
    if node == "localhost":
        needs.root(what)
        needs.program("pct", "make Proxmox guests here; name the node with --on")
    elif node not in inventory.hosts:
        raise UsageError(f"no host {node!r} in the inventory", fix="add the Proxmox node to the inventory, or name one with --on")


def summary(options: ProvisionOptions, chosen: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What there is now (or would be) in one line, what an operator should know, and what comes next."""
    guest, card = found["guest"], found.get("guest_card") or {}
    cpus = f"cpus {chosen['guest_cpus']}" if chosen["guest_cpus"] else f"{chosen['guest_cores']} cores of Proxmox' choice"
    given = {"dev": ", GPU by devN entries", "raw": ", GPU by raw keys"}.get(card.get("nodes", ""), ", GPU") if chosen["guest_gpu"] else ""
    line = f"{options.name}: guest {guest['id']} on {chosen['guest_node']}, {cpus}, memory {chosen['guest_memory']}{given}"
    notes = [*card.get("notes", []), *card.get("strays", []), *card.get("dead", []), *guest.get("differs", [])]
    told = "".join(f"\n  note: {note}" for note in [*filter(None, [card.get("why")]), *notes])
    if options.plan:
        return f"{line}: nothing was changed, this is a plan{told}"
    return f"{line}; next: ./fly deploy --limit {options.name}{told}"


def retire(options: RetireOptions, inventory: Inventory, known: Mapping[str, Any], archive: str) -> int:
    """The exit code of the play. The archive stays on the node."""
    node = str(known.get("ansible_via", "localhost"))
    _reachable(node, inventory, f"remove the container {options.name}")
    chosen = {
        "guest_node": node,
        "guest_id": str(known["ansible_pct_id"]),
        "guest_state": known.get("fly_state", "/var/lib/fly"),
        "guest_stop_wait": STOP_WAIT_S,
        "archive_file": archive,
        "inventory_file": str(guests.inventory_file(options.name)),
    }
    return guests.retired(options, guests.play("retire-pve", inventory, chosen, options), node)
