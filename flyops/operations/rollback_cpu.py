# SPDX-License-Identifier: Apache-2.0
"""`invoke rollback-cpu`: the GPU backend off, by receipt (playbooks/rollback-cpu.yml)."""

from __future__ import annotations

from flyops.domain import report
from flyops.operations import hosts, reports
from flyops.operations.options import RollbackOptions


def run(options: RollbackOptions, playbook: str = "rollback-cpu") -> int:
    """The exit code; one line a host."""
    chosen = hosts.find(options.target)
    result = hosts.play(chosen, playbook, run_wait=options.wait_s, force=options.force)
    for host in result.hosts.values():
        row = host.vars.get("fly_row")
        if row and not options.target.json:
            print(reports.line(row))
            print("".join(f"  {text}\n" for text in report.lines(reports.beside(host))), end="")
    return result.exit_code or reports.touched(result.hosts)
