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
from flyops.errors import UsageError
from flyops.loading.inventory import Inventory, load_inventory

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
