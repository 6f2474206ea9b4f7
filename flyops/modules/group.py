# SPDX-License-Identifier: Apache-2.0
"""Make, change or remove a group."""

from __future__ import annotations

from typing import Any, Optional

from flyops.domain import accounts
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Make, change or remove a group.",
    args={
        "name": Arg("str", "Its name", required=True),
        "state": Arg("str", "Whether it should be there", default="present", choices=("absent", "present")),
        "gid": Arg("int", "Its number"),
        "system": Arg("bool", "Take a number of the system's range", default=False),
        "non_unique": Arg("bool", "Let the number be another group's, too", default=False),
        "force": Arg("bool", "Remove it even when it is a user's own group", default=False),
    },
    examples="""
- group: {name: fly, system: true}
""",
    returns={"gid": "its number"},
)


def read(args: dict[str, Any], host: Host) -> Optional[dict[str, Any]]:
    """The group as it is."""
    accounts.check_name(args["name"], "group")
    found = host.group(args["name"])
    return dict(found) if found is not None and found["name"] == args["name"] else None


def plan(args: dict[str, Any], state: Optional[dict[str, Any]]) -> Decision:
    """One command, or none."""
    name, gid = args["name"], args["gid"]
    values = {"name": name, "state": args["state"], "system": args["system"]}
    header = f"group {name}"
    if args["state"] == "absent":
        if state is None:
            return Same(values)
        argv = ["groupdel", *(["-f"] if args["force"] else []), name]
        return Change(state, (argv, False), (Diff(header, f"gid {state['gid']}\n", ""),), values)
    number = [] if gid is None else ["-g", str(gid), *(["-o"] if args["non_unique"] else [])]
    if state is None:
        argv = ["groupadd", *(["-r"] if args["system"] else []), *number, name]
        would = {"name": name, "gid": accounts.SOME_ID if gid is None else gid, "members": []}
        return Change(None, (argv, would), (Diff(header, "", "present\n"),), values)
    if gid is None or gid == state["gid"]:
        return Same({**values, "gid": state["gid"]})
    diff = Diff(header, f"gid {state['gid']}\n", f"gid {gid}\n")
    return Change(state, (["groupmod", *number, name], {**state, "gid": gid}), (diff,), values)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run it."""
    argv, would = change.after
    host.would("group", args["name"], would)
    done = host.run(argv)
    if done.rc != 0:
        raise ModuleError(f"{argv[0]} {args['name']}: {accounts.said(done)}", fix="see the message of the system's tool", rc=done.rc)
    found = host.group(args["name"])
    return {"gid": found["gid"]} if found else {}
