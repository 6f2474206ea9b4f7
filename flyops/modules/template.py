# SPDX-License-Identifier: Apache-2.0
"""Write a rendered template to the host. The controller renders: the host never needs Jinja2."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any, Mapping

from flyops.domain import attributes, modes, paths, placing
from flyops.domain.attributes import WRITE_ARGS, Attributes
from flyops.domain.placing import Payload, Place
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Write a rendered template to the host. The old content is replaced in one step; a link is replaced unless `follow` is set.",
    args={
        "src": Arg("template", "Template on the controller", required=True),
        "dest": Arg("path", "Path on the host; a slash at the end or an existing folder keeps the template's name", required=True),
        **WRITE_ARGS,
        "mode": Arg("raw", "Permission bits, octal text or symbolic; `preserve` takes the template's"),
        "force": Arg("bool", "Replace content that differs; when false only a missing file is written", default=True),
        "follow": Arg("bool", "Write to where a link at dest leads, in place of replacing the link", default=False),
        "trim_blocks": Arg("bool", "Drop the newline after a block", default=True),
        "lstrip_blocks": Arg("bool", "Drop the blanks before a block", default=False),
        "newline_sequence": Arg("str", "Line end of the result", default="\n", choices=("\n", "\r", "\r\n")),
        "output_encoding": Arg("str", "Encoding of the result", default="utf-8"),
        "block_start_string": Arg("str", "Where a block starts", default="{%"),
        "block_end_string": Arg("str", "Where a block ends", default="%}"),
        "variable_start_string": Arg("str", "Where an expression starts", default="{{"),
        "variable_end_string": Arg("str", "Where an expression ends", default="}}"),
        "comment_start_string": Arg("str", "Where a comment starts; {# when not given"),
        "comment_end_string": Arg("str", "Where a comment ends; #} when not given"),
    },
    examples="""
- template: {src: flysim.env.j2, dest: /etc/fly/flysim.env, mode: '0640'}
- template: {src: sudoers.j2, dest: /etc/sudoers.d/fly, mode: '0440', validate: 'visudo -cf %s'}
""",
    returns={
        "dest": "where it went",
        "checksum": "SHA-1 of the content",
        "md5sum": "MD5 of it",
        "backup_file": "the old content, when backup is set",
    },
)


@dataclass(frozen=True)
class State:
    """The destination, what should be there, and whether its folder has to be made."""

    place: Place
    payload: Payload
    folder: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)


def read(args: dict[str, Any], host: Host) -> State:
    """Look at the destination."""
    source = args["src"]
    preserve = args["mode"] == "preserve"
    wanted = attributes.wanted({**args, "mode": None if preserve else args["mode"]}, host)
    if preserve:
        wanted = Attributes(source.get("mode"), wanted.uid, wanted.gid)
    dest = paths.expand_home(args["dest"], host)
    at = host.stat(dest, follow=True)
    folder = ""
    if dest.endswith("/") or (at is not None and at.kind == "dir"):
        folder = "" if at is not None else paths.tidy(dest)
        dest = posixpath.join(dest, posixpath.basename(source["path"]))
    if not folder:
        placing.need_parent(host, dest)
    place = placing.look(host, dest, wanted, follow=args["follow"])
    if place.stat is not None and place.stat.kind == "dir":
        raise ModuleError(f"{dest} is a directory, expected a file or nothing there", fix="remove it or choose another dest")
    payload = placing.with_text(host, place, Payload(source["sha256"], source["size"], blob=source["sha256"]))
    return State(place, payload, folder, placing.at_hand(host, place, payload))


def plan(args: dict[str, Any], state: State) -> Decision:
    """The content and attributes that differ."""
    values: dict[str, Any] = {"dest": state.place.path, **state.digests}
    stat = state.place.stat
    if stat is not None:
        values.update(size=state.payload.size, mode=modes.text(stat.mode), uid=stat.uid, gid=stat.gid)
        if not args["force"]:
            return Same({**values, "msg": "file already exists"})
    found = placing.differences(state.place, state.payload)
    if not found:
        return Same(values)
    return Change(before=state, after=state.payload, diff=tuple(found), values=values)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Write it."""
    state: State = change.before
    if state.folder:
        host.mkdir(state.folder)
    return {**placing.put(host, state.place, change.after, args), "dest": state.place.path, "src": args["src"]["path"]}
