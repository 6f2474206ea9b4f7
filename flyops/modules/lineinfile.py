# SPDX-License-Identifier: Apache-2.0
"""See to it that one line is in a text file, or that lines are not."""

from __future__ import annotations

from typing import Any

from flyops.domain import editing, lines
from flyops.domain.editing import EDIT_ARGS, Text
from flyops.domain.lines import LineRule
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="See to it that one line is in a text file, or that lines are not. The last line that matches is replaced.",
    args={
        "path": Arg("path", "The file", required=True, aliases=("dest", "destfile", "name")),
        "line": Arg("str", "The line; its end does not matter, and several lines in one are recognised when they stand together", aliases=("value",)),
        "regexp": Arg("str", "Which line to replace or remove", aliases=("regex",)),
        "search_string": Arg("str", "The same as a plain text that the line contains"),
        "state": Arg("str", "Whether the line should be there", default="present", choices=("absent", "present")),
        "backrefs": Arg("bool", "Fill \\1 in the line from the match; without a match nothing is done", default=False),
        "insertafter": Arg("str", "Where a new line goes: after the last line that matches, or EOF"),
        "insertbefore": Arg("str", "Where a new line goes: before the last line that matches, or BOF"),
        "firstmatch": Arg("bool", "Use the first line that matches in place of the last", default=False),
        "create": Arg("bool", "Make the file when it is missing", default=False),
        **EDIT_ARGS,
    },
    exclusive=(("insertafter", "insertbefore"), ("regexp", "search_string")),
    required_if=(("state", "present", ("line",)),),
    examples="""
- lineinfile: {path: /etc/sysctl.conf, regexp: '^vm.swappiness=', line: vm.swappiness=10}
- lineinfile: {path: /etc/hosts, line: 10.0.0.2 fly, state: absent}
""",
    returns={"msg": "line added, line replaced, or how many were removed", "found": "how many lines were removed", "backup": "the old file"},
)


def read(args: dict[str, Any], host: Host) -> Text:
    """The file; wrong arguments fail here, before any write."""
    _check(args)
    return editing.look(args, host, create=args["create"] or args["state"] == "absent")


def _check(args: dict[str, Any]) -> None:
    for name in ("regexp", "insertafter", "insertbefore"):
        if args[name] not in (None, "EOF", "BOF"):
            editing.pattern(args[name], name)
    if args["state"] == "absent":
        if args["regexp"] is None and args["search_string"] is None and args["line"] is None:
            raise ModuleError("one of line, search_string, or regexp is required with state=absent", fix="say which lines should go")
        return
    if args["backrefs"] and args["regexp"] is None:
        raise ModuleError("regexp is required with backrefs=true", fix="give the expression whose groups the line uses")


def _rule(args: dict[str, Any]) -> LineRule:
    return LineRule(
        line=(args["line"] or "").rstrip("\r\n"),
        regexp=editing.pattern(args["regexp"], "regexp"),
        search=args["search_string"],
        insertafter=args["insertafter"],
        insertbefore=args["insertbefore"],
        backrefs=args["backrefs"],
        firstmatch=args["firstmatch"],
    )


def plan(args: dict[str, Any], state: Text) -> Decision:
    """The file with the line, or without the lines."""
    if args["state"] == "absent":
        if state.text is None:
            return Same({"msg": "file not present", "found": 0})
        new, found = lines.remove(state.text, _rule(args))
        return editing.decide(state, new, f"{found} line(s) removed" if found else "", found=found)
    new, msg = lines.ensure(state.text or "", _rule(args))
    return editing.decide(state, new, msg)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Write it."""
    return editing.apply(args, change, host)
