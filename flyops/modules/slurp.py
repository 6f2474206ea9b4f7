# SPDX-License-Identifier: Apache-2.0
"""Read a file of the host into a variable."""

from __future__ import annotations

import base64
from typing import Any

from flyops.domain import paths
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Read a file of the host into a variable, in base64.",
    args={
        "src": Arg("path", "The file", required=True, aliases=("path",)),
        "armor": Arg("bool", "Return base64; when false the content as UTF-8 text, which it then must be", default=True),
    },
    examples="""
- slurp: {src: /etc/fly/flysim.env}
  register: env_file
""",
    returns={"content": "the bytes in base64 (`| b64decode`)", "encoding": "base64", "source": "the file"},
)


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The content."""
    path = paths.expand_home(args["src"], host)
    stat = host.stat(path, follow=True)
    if stat is None:
        raise ModuleError(f"file not found: {path}", fix="see that an earlier task makes it")
    if stat.kind == "dir":
        raise ModuleError(f"source is a directory and must be a file: {path}", fix="use find for folders")
    data = host.read_bytes(path)
    if args["armor"]:
        return {"content": base64.b64encode(data).decode("ascii"), "encoding": "base64", "source": path}
    try:
        return {"content": data.decode("utf-8"), "encoding": "utf-8", "source": path}
    except UnicodeDecodeError as err:
        raise ModuleError(f"{path} is no UTF-8 text: {err}", fix="leave armor on") from None


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Never a change."""
    return Same(state)


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Nothing to do."""
