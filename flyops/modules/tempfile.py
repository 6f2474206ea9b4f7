# SPDX-License-Identifier: Apache-2.0
"""Make a file or folder with a name of its own that only its owner can read."""

from __future__ import annotations

import posixpath
import secrets
from typing import Any

from flyops.domain import attributes, paths
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Make a file or folder with a name of its own that only its owner can read.",
    args={
        "state": Arg("str", "What to make", default="file", choices=("file", "directory")),
        "path": Arg("path", "Folder to make it in; $TMPDIR or /tmp when not given"),
        "prefix": Arg("str", "How the name begins", default="ansible."),
        "suffix": Arg("str", "How the name ends", default=""),
    },
    examples="""
- tempfile: {state: directory, suffix: build}
  register: work
""",
    returns={"path": "what was made"},
)


def read(args: dict[str, Any], host: Host) -> str:
    """The folder."""
    folder = paths.tidy(paths.expand_home(args["path"] or host.getenv("TMPDIR") or "/tmp", host))
    stat = host.stat(folder, follow=True)
    if stat is None or stat.kind != "dir":
        raise ModuleError(f"{folder} is no folder", fix="make it first, or give another path")
    for name in ("prefix", "suffix"):
        if "/" in args[name]:
            raise ModuleError(f"{name} must be a valid file name component, found {args[name]!r}", fix="give the folder as path")
    return folder


def plan(args: dict[str, Any], state: str) -> Decision:
    """Always something new; the name is made by apply."""
    return Change(after=state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Make it with a mode that lets nobody else in."""
    path = posixpath.join(change.after, f"{args['prefix']}{secrets.token_hex(8)}{args['suffix']}")
    if args["state"] == "directory":
        host.mkdir(path, mode=0o700)
    else:
        host.write_bytes(path, b"", mode=0o600)
    return attributes.facts(host, path)
