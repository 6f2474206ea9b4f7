# SPDX-License-Identifier: Apache-2.0
"""Keep a block of lines between two markers of a text file."""

from __future__ import annotations

from typing import Any

from flyops.domain import editing, lines
from flyops.domain.editing import EDIT_ARGS, Text
from flyops.domain.lines import BlockRule
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Keep a block of lines between two markers of a text file; an empty block is removed with its markers.",
    args={
        "path": Arg("path", "The file", required=True, aliases=("dest", "destfile", "name")),
        "block": Arg("str", "The lines", default="", aliases=("content",)),
        "state": Arg("str", "Whether the block should be there", default="present", choices=("absent", "present")),
        "marker": Arg("str", "The marker lines; {mark} becomes marker_begin and marker_end", default="# {mark} ANSIBLE MANAGED BLOCK"),
        "marker_begin": Arg("str", "Word of the first marker", default="BEGIN"),
        "marker_end": Arg("str", "Word of the last marker", default="END"),
        "insertafter": Arg("str", "Where a new block goes: after the last line that matches, or EOF"),
        "insertbefore": Arg("str", "Where a new block goes: before the last line that matches, or BOF"),
        "append_newline": Arg("bool", "An empty line after a new block", default=False),
        "prepend_newline": Arg("bool", "An empty line before a new block", default=False),
        "create": Arg("bool", "Make the file when it is missing", default=False),
        **EDIT_ARGS,
    },
    exclusive=(("insertafter", "insertbefore"),),
    examples="""
- blockinfile: {path: /etc/hosts, block: "10.0.0.2 fly\\n10.0.0.3 page\\n", marker: "# {mark} fly"}
""",
    returns={"msg": "Block inserted, Block removed or File created", "backup": "the old file"},
)


def read(args: dict[str, Any], host: Host) -> Text:
    """The file; wrong patterns fail here."""
    for name in ("insertafter", "insertbefore"):
        if args[name] not in (None, "EOF", "BOF"):
            editing.pattern(args[name], name)
    return editing.look(args, host, create=args["create"] or args["state"] == "absent")


def plan(args: dict[str, Any], state: Text) -> Decision:
    """The file with the block as asked."""
    gone = args["state"] == "absent"
    if state.text is None and gone:
        return Same({"msg": f"File {args['path']} not present"})
    rule = BlockRule(
        block="" if gone else args["block"],
        begin=args["marker"].replace("{mark}", args["marker_begin"]),
        end=args["marker"].replace("{mark}", args["marker_end"]),
        insertafter=args["insertafter"],
        insertbefore=args["insertbefore"],
        append_newline=args["append_newline"],
        prepend_newline=args["prepend_newline"],
    )
    new, msg = lines.set_block(state.text or "", rule)
    return editing.decide(state, new, "File created" if state.text is None else msg)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Write it."""
    return editing.apply(args, change, host)
