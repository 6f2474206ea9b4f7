# SPDX-License-Identifier: Apache-2.0
"""`invoke inventory`: every host that is known, its groups and its variables as written (templates are not rendered: no host is asked)."""

from __future__ import annotations

import json

from flyops.loading.extravars import parse_extra
from flyops.loading.inventory import limit_hosts
from flyops.operations.options import InventoryOptions
from flyops.operations.play import as_inventory, default_inventory

SECRET_WORDS = ("pass", "secret", "token", "private_key")


def run(options: InventoryOptions) -> int:
    """Prints them; with `--json` one JSON line a host, else variables only with `--verbose`."""
    target = options.target
    inventory = as_inventory(default_inventory(target.inventory))
    within = limit_hosts(inventory, target.limit or None)
    extra = parse_extra(target.extra)
    members = inventory.members()
    for name in inventory.hosts:
        if within is not None and name not in within:
            continue
        groups = [group for group, hosts in members.items() if name in hosts and group != "all"]
        variables = {key: _masked(key, value) for key, value in sorted({**inventory.variables_of(name), **extra}.items())}
        if target.json:
            print(json.dumps({"host": name, "groups": groups, "vars": variables}, default=str))
            continue
        print(f"{name}  [{', '.join(groups) or 'ungrouped'}]")
        for key, value in variables.items() if target.verbose else ():
            print(f"  {key}: {value}")
    return 0


def _masked(name: str, value: object) -> object:
    """A value whose name says that it is nobody's business is not shown."""
    return "********" if value and any(word in name.lower() for word in SECRET_WORDS) and not name.endswith("_file") else value
