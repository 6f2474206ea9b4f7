# SPDX-License-Identifier: Apache-2.0
"""`invoke status`: a line a host, read through the agent (playbooks/status.yml)."""

from __future__ import annotations

import json

from flyops.operations import hosts, reports
from flyops.operations.options import Target


def run(target: Target) -> int:
    """The exit code of the play; with `--json` one JSON line a host."""
    result = hosts.play(hosts.find(target), "status", display="none", look=True)
    for name, host in result.hosts.items():
        row = host.vars.get("fly_row")
        if row is None:
            row = {"host": name, "error": host.message or "not reached"}
            print(json.dumps(row) if target.json else f"{name}: {row['error']}")
        else:
            print(json.dumps(row) if target.json else reports.line(row))
    return result.exit_code
