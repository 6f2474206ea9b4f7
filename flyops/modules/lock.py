# SPDX-License-Identifier: Apache-2.0
"""Holds a lock on the target until this run ends, so that two runs never change it at once."""

from __future__ import annotations

from typing import Any

from flyops.errors import Refused
from flyops.model.change import Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Take a lock on the target and hold it until the run ends. Refused (exit 3) when somebody else has it.",
    args={
        "path": Arg("path", required=True, help="lock file; its folder is made when it is missing"),
        "holder": Arg("str", required=True, help="who is asking: pid, user, since, command; what the next one is told"),
        "wait": Arg("float", default=0.0, help="seconds to wait for it"),
    },
    examples="- name: One run at a time\n  lock: {path: /var/lib/flyops/lock, holder: 'pid 4711, root@ops1, since 12:00, invoke deploy'}\n",
    returns={"path": "the lock file", "holder": "who has it", "held": "by this run (false in check mode, which only looks)"},
)


def read(args: dict[str, Any], host: Host) -> str | None:
    """Takes it; that is the look. In check mode the overlay only sees whether it is free."""
    if args["wait"] > 0:
        host.note(f"waiting up to {args['wait']:g} s for {args['path']}")
    return host.hold_lock(args["path"], args["holder"], args["wait"])


def plan(args: dict[str, Any], state: str | None) -> Decision:
    """Nobody else, or refused with the holder's name."""
    if state is None:
        return Same({"path": args["path"], "holder": args["holder"], "held": True})
    waited = f" after {args['wait']:g} s" if args["wait"] else ""
    raise Refused(
        f"another run holds {args['path']}{waited}: {state}",
        fix="wait for it (--wait SECONDS), or end that run; the lock goes with its process, there is no file to delete",
        path=args["path"],
        holder=state,
        held=False,
    )


def apply(args: dict[str, Any], change: Any, host: Host) -> None:
    """Never reached: taking the lock changes nothing that a run could report."""
