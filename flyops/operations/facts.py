# SPDX-License-Identifier: Apache-2.0
"""`invoke facts`: what `setup` sees on each host (playbooks/facts.yml); changes nothing."""

from __future__ import annotations

import json

from flyops.operations import hosts
from flyops.operations.options import InventoryOptions


def run(options: InventoryOptions) -> int:
    """The exit code of the play; with `--json` one JSON line a host."""
    target = options.target
    result = hosts.play(hosts.find(target), "facts", display="none", look=True)
    for name, host in result.hosts.items():
        seen = host.vars.get("ansible_facts")
        if target.json:
            print(
                json.dumps(
                    {"host": name, "facts": seen} if seen else {"host": name, "error": host.message or "not reached"}, sort_keys=True, default=str
                )
            )
            continue
        print(name if seen else f"{name}: {host.message or 'not reached'}")
        for key, value in sorted((seen or {}).items()):
            print(f"  {key}: {value if isinstance(value, str) else json.dumps(value, default=str)}")
    return result.exit_code
