# SPDX-License-Identifier: Apache-2.0
"""Look at a path: what it is, its mode, owner, times and digest."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from flyops.domain import attributes, paths, statfields
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Look at a path: what it is, its mode, owner, times and digest.",
    args={
        "path": Arg("path", "The path", required=True, aliases=("dest", "name")),
        "follow": Arg("bool", "Look at what a link leads to", default=False),
        "get_checksum": Arg("bool", "Read a file to make its digest", default=True),
        "checksum_algorithm": Arg(
            "str",
            "Which digest",
            default="sha1",
            choices=("md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
            aliases=("checksum", "checksum_algo"),
        ),
        "get_mime": Arg("bool", "Tell text from other content, by its first bytes", default=True, aliases=("mime", "mime_type", "mime-type")),
        "get_attributes": Arg("bool", "Accepted for Ansible's sake; file attributes are not looked at", default=True, aliases=("attr", "attributes")),
        "get_selinux_context": Arg("bool", "Return selinux_context, which is never known here", default=False),
    },
    examples="""
- stat: {path: /opt/fly/current}
  register: current
""",
    returns={"stat": "exists, isdir, isreg, islnk, mode, size, checksum, lnk_source and so on, as in Ansible"},
)

MAX_MIME_BYTES = 64 * 1024 * 1024


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """All of it."""
    path = paths.expand_home(args["path"], host)
    stat = host.stat(path, follow=args["follow"])
    if stat is None:
        return {"exists": False}
    out = {"exists": True, **statfields.fields(path, stat)}
    out.update(statfields.access(host.stat(path, follow=True) or stat, os.geteuid(), [os.getegid(), *os.getgroups()]))
    out.update(pw_name=attributes.name_of(host, stat.uid, "user"), gr_name=attributes.name_of(host, stat.gid, "group"))
    if stat.kind == "link":
        out.update(lnk_target=stat.target, lnk_source=paths.follow(host, path))
    if args["get_checksum"] and stat.kind == "file" and out["readable"]:
        out["checksum"] = _digest(args["checksum_algorithm"], path, host)
    if args["get_mime"]:
        head = host.read_bytes(path)[: statfields.HEAD_BYTES] if stat.kind == "file" and out["readable"] and stat.size <= MAX_MIME_BYTES else None
        out.update(statfields.kind_of_content(stat, head))
    if args["get_selinux_context"]:
        out["selinux_context"] = None
    return {**out, "version": None, "attributes": [], "attr_flags": ""}


def _digest(algorithm: str, path: str, host: Host) -> str:
    if algorithm == "sha256":
        return host.sha256(path)
    return hashlib.new(algorithm, host.read_bytes(path)).hexdigest()


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Never a change."""
    return Same({"stat": state})


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Nothing to do."""
