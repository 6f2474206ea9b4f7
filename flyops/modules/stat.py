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
        "get_mime": Arg(
            "bool", "Ask the program `file` (Ansible's default is yes; it costs a process)", default=False, aliases=("mime", "mime_type", "mime-type")
        ),
        "get_attributes": Arg(
            "bool", "Accepted for Ansible's sake; file attributes are not looked at", default=False, aliases=("attr", "attributes")
        ),
    },
    examples="""
- stat: {path: /opt/fly/current}
  register: current
""",
    returns={"stat": "exists, isdir, isreg, islnk, mode, size, checksum, lnk_source and so on, as in Ansible"},
)


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
    out.update(_mime(path, host) if args["get_mime"] else {"mimetype": "unknown", "charset": "unknown"})
    return {**out, "version": None, "attributes": [], "attr_flags": ""}


def _digest(algorithm: str, path: str, host: Host) -> str:
    if algorithm == "sha256":
        return host.sha256(path)
    return hashlib.new(algorithm, host.read_bytes(path)).hexdigest()


def _mime(path: str, host: Host) -> dict[str, str]:
    program = host.which("file")
    if program is None:
        return {"mimetype": "unknown", "charset": "unknown"}
    done = host.run([program, "--mime-type", "--mime-encoding", "--brief", "--", path], query=True)
    kind, _, charset = done.stdout.decode("utf-8", "replace").strip().partition("; charset=")
    return {"mimetype": kind if done.rc == 0 else "unknown", "charset": charset or "unknown"}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Never a change."""
    return Same({"stat": state})


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Nothing to do."""
