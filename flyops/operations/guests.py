# SPDX-License-Identifier: Apache-2.0
"""What provision and retire share: a guest's place in the inventory, and what it says about the guest."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyops import places
from flyops.domain import lxcconf
from flyops.errors import EXIT_OK, UsageError
from flyops.executor.run import RunResult
from flyops.loading.inventory import Inventory, load_inventory
from flyops.operations.options import ProvisionOptions, RetireOptions
from flyops.operations.play import run_playbook

INVENTORY = places.REPOSITORY / "inventory"
LXC_PATH = "/var/lib/lxc"
BRIDGE = "flybr0"


def inventory_file(name: str) -> Path:
    """Where the guest stands in the inventory; kept out of git, so that a provision leaves the checkout clean."""
    return INVENTORY / "hosts.d" / f"{name}.yml"


def checked(name: str) -> Inventory:
    """The inventory, once it is clear that the name can be a guest's: one error for each way in which it cannot."""
    wrong = lxcconf.check_name(name)
    inventory = load_inventory([INVENTORY])
    if name in inventory.groups:
        wrong = f"{name!r} is a group of the inventory"
    elif name in inventory.hosts and not inventory_file(name).exists():
        wrong = f"{name!r} is a host of the inventory that provision did not write"
    if wrong:
        raise UsageError(wrong, fix="choose another name")
    return inventory


def play(name: str, inventory: Inventory, chosen: Mapping[str, Any], options: ProvisionOptions | RetireOptions) -> RunResult:
    """One run of playbooks/NAME.yml; a plan is its check mode."""
    return run_playbook(
        places.REPOSITORY / "playbooks" / f"{name}.yml",
        inventory=inventory,
        extra_vars=dict(chosen),
        check=options.plan,
        diff=options.plan,
        display="json" if options.json else "brief",
        verbose=options.verbose,
    )


def retired(options: RetireOptions, result: RunResult, node: str = "localhost") -> int:
    """Says where the guest's state is now, once it is gone; the exit code."""
    if result.exit_code == EXIT_OK and not options.plan and not options.json:
        kept = result.hosts[node].vars["guest"].get("archive")
        there = "" if node == "localhost" else f" on {node}"
        print(f"{options.name}: gone; " + (f"state in {kept['path']}{there} ({kept['size']} bytes)" if kept else "it held no state"))
    return int(result.exit_code)


def variables(inventory: Inventory, name: str) -> Mapping[str, Any]:
    """The guest's variables; empty when it is not in the inventory."""
    return inventory.variables_of(name) if name in inventory.hosts else {}


def addresses(inventory: Inventory, name: str) -> dict[str, str]:
    """Addresses of the inventory's other hosts, and whose they are: a guest must not get one of them."""
    out = {}
    for host in inventory.hosts:
        found = inventory.variables_of(host) if host != name else {}
        for key in ("ansible_host", "container_address"):
            text = str(found.get(key) or "")
            with contextlib.suppress(ValueError):
                out[str(ipaddress.IPv4Address(text.partition("/")[0]))] = f"host {host!r} of the inventory"
    return out


def base_of(name: str) -> str:
    """The base of a guest that exists, which it keeps; empty when there is no such guest."""
    config = Path(LXC_PATH, name, "config")
    path = lxcconf.value(config.read_text(), "lxc.rootfs.path") if config.exists() else ""
    return path.split(":")[1] if path.count(":") >= 2 else ""
