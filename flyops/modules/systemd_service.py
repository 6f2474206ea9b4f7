# SPDX-License-Identifier: Apache-2.0
"""Start, stop, enable or mask a unit of systemd."""

from __future__ import annotations

from typing import Any

from flyops.domain import systemd
from flyops.domain.systemd import Unit
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Start, stop, enable or mask a unit of systemd. Without systemd as PID 1 only enabled and masked work.",
    args={
        "name": Arg("str", "The unit; .service when it has no kind", aliases=("service", "unit")),
        "state": Arg("str", "What it should do; restarted and reloaded always act", choices=("reloaded", "restarted", "started", "stopped")),
        "enabled": Arg("bool", "Whether it starts at boot"),
        "masked": Arg("bool", "Whether it can be started at all"),
        "force": Arg("bool", "Accepted for Ansible's sake", default=False),
        "daemon_reload": Arg("bool", "Read unit files again first, when they changed", default=False, aliases=("daemon-reload",)),
        "daemon_reexec": Arg("bool", "Restart the manager first", default=False, aliases=("daemon-reexec",)),
        "scope": Arg("str", "Whose manager", default="system", choices=("system", "user", "global")),
        "no_block": Arg("bool", "Do not wait until it is done", default=False),
    },
    examples="""
- systemd_service: {name: flysim, state: started, enabled: true, daemon_reload: true}
- systemd_service: {daemon_reload: true}
""",
    returns={"status": "the unit's properties", "state": "what it does now", "enabled": "whether it starts at boot"},
)


def read(args: dict[str, Any], host: Host) -> Unit:
    """Look at the unit."""
    return systemd.look(args, host)


def plan(args: dict[str, Any], state: Unit) -> Decision:
    """The steps that it takes."""
    return systemd.decide(args, state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Take them."""
    return systemd.perform(args, change, host)
