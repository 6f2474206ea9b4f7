# SPDX-License-Identifier: Apache-2.0
"""`invoke logs`: the last lines of flysim and its page (playbooks/logs.yml)."""

from __future__ import annotations

import json

from flyops.operations import hosts
from flyops.operations.options import LogsOptions


def run(options: LogsOptions) -> int:
    """The exit code of the play."""
    result = hosts.play(hosts.find(options.target), "logs", display="none", look=True, lines=options.lines)
    for name, host in result.hosts.items():
        text = host.vars.get("fly_log", host.message or "not reached")
        print(json.dumps({"host": name, "log": text}) if options.target.json else f"== {name}\n{text}")
    return result.exit_code
