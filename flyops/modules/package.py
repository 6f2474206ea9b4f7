# SPDX-License-Identifier: Apache-2.0
"""Install and remove packages by the system's own package manager."""

from __future__ import annotations

from typing import Any

from flyops.domain import debian
from flyops.domain.debian import DEFAULTS, Packages
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Install and remove packages by the system's own package manager; only apt is known so far.",
    args={
        "name": Arg("list", "Packages", required=True, aliases=("pkg",), elements="str"),
        "state": Arg("str", "What they should be", default="present", choices=("absent", "latest", "present")),
        "use": Arg("str", "Which package manager", default="auto", choices=("auto", "apt")),
    },
    examples="""
- package: {name: rsync, state: present}
""",
    returns={"stdout": "what the package manager said"},
)


def read(args: dict[str, Any], host: Host) -> Packages:
    """Ask dpkg and apt."""
    return debian.look({**DEFAULTS, **args}, host)


def plan(args: dict[str, Any], state: Packages) -> Decision:
    """The commands that it takes."""
    return debian.decide({**DEFAULTS, **args}, state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run them."""
    return debian.perform({**DEFAULTS, **args}, change, host)
