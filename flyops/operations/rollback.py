# SPDX-License-Identifier: Apache-2.0
"""`invoke rollback`: the release before, after the checkpoint gate (playbooks/rollback.yml)."""

from __future__ import annotations

from flyops.operations import rollback_cpu
from flyops.operations.options import RollbackOptions


def run(options: RollbackOptions) -> int:
    """The exit code; one line a host."""
    return rollback_cpu.run(options, "rollback")
