# SPDX-License-Identifier: Apache-2.0
"""Replace every match of a pattern in a text file."""

from __future__ import annotations

import re
from typing import Any

from flyops.domain import editing, lines
from flyops.domain.editing import EDIT_ARGS, Text
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Replace every match of a pattern in a text file; ^ and $ match at each line.",
    args={
        "path": Arg("path", "The file", required=True, aliases=("dest", "destfile", "name")),
        "regexp": Arg("str", "What to replace", required=True),
        "replace": Arg("str", "What to put there; \\1 is a group. Nothing: remove", default=""),
        "after": Arg("str", "Only after this pattern"),
        "before": Arg("str", "Only before this pattern"),
        **EDIT_ARGS,
    },
    examples="""
- replace: {path: /etc/hosts, regexp: '(\\s+)old\\.host(\\s+.*)?$', replace: '\\1new.host\\2'}
""",
    returns={"msg": "how many replacements were made", "backup": "the old file"},
)


def read(args: dict[str, Any], host: Host) -> Text:
    """The file; wrong patterns fail here."""
    for name in ("regexp", "after", "before"):
        editing.pattern(args[name], name)
    return editing.look(args, host, create=False)


def plan(args: dict[str, Any], state: Text) -> Decision:
    """The file with the replacements."""
    text = state.text or ""
    if lines.section(text, args["after"], args["before"])[0] is None:
        return Same({"msg": f"Pattern for before/after params did not match the given file: {args['after'] or ''}|{args['before'] or ''}"})
    pattern = re.compile(args["regexp"], re.MULTILINE)
    new, count = lines.substitute(text, pattern, args["replace"], args["after"], args["before"])
    return editing.decide(state, new, f"{count} replacements made" if count and new != text else "")


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Write it."""
    return editing.apply(args, change, host)
