# SPDX-License-Identifier: Apache-2.0
"""`invoke start`: Starts flysim and its page where they are deployed (playbooks/start.yml)."""

from __future__ import annotations

from flyops.operations import hosts
from flyops.operations.options import Target


def run(target: Target) -> int:
    """The exit code of the play."""
    return hosts.play(hosts.find(target), "start").exit_code
