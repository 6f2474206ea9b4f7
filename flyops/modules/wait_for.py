# SPDX-License-Identifier: Apache-2.0
"""Wait until a port answers, a path is there, or a text appears."""

from __future__ import annotations

import re
import socket
import time
from typing import Any, Optional

from flyops.domain import paths
from flyops.domain.editing import pattern
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Wait until a port answers, a path is there, or a text appears. Check mode does not wait.",
    args={
        "host": Arg("str", "Address to connect to, from the host", default="127.0.0.1"),
        "port": Arg("int", "TCP port to wait for"),
        "path": Arg("path", "Path to wait for"),
        "search_regex": Arg("str", "Expression that the file, or what the port says, must match"),
        "state": Arg("str", "What to wait for", default="started", choices=("absent", "present", "started", "stopped")),
        "timeout": Arg("float", "Seconds to wait at most", default=300.0),
        "delay": Arg("float", "Seconds to wait first", default=0.0),
        "sleep": Arg("float", "Seconds between looks", default=1.0),
        "connect_timeout": Arg("float", "Seconds for one connection", default=5.0),
        "msg": Arg("str", "Message to fail with"),
    },
    exclusive=(("port", "path"),),
    check="unknown",
    examples="""
- wait_for: {port: 8080, timeout: 30}
- wait_for: {path: /run/fly/feed.sock, timeout: 10, sleep: 0.2}
""",
    returns={"elapsed": "seconds waited", "match_groups": "groups of search_regex"},
)
READ_BYTES = 65536


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Check the arguments; the waiting is apply's, so that check mode does not."""
    pattern(args["search_regex"], "search_regex")
    if args["state"] == "absent" and args["path"] is None and args["port"] is None:
        raise ModuleError("state: absent needs a path or a port", fix="say what should go")
    return {"state": args["state"], "port": args["port"], "path": args["path"]}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Whether it has to wait is only known by waiting."""
    return Change(after=state, values=state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Wait. Nothing is changed by it."""
    start = time.monotonic()
    time.sleep(args["delay"])
    if args["port"] is None and args["path"] is None:
        time.sleep(max(0.0, args["timeout"] - args["delay"]))
        return {"changed": False, "elapsed": int(time.monotonic() - start)}
    while True:
        there, groups = _look(args, host)
        if there == (args["state"] in ("started", "present")):
            return {"changed": False, "elapsed": int(time.monotonic() - start), "match_groups": groups, "match_groupdict": {}}
        if time.monotonic() - start + args["sleep"] > args["timeout"]:
            raise ModuleError(args["msg"] or _late(args), fix="see the log of what should have come", elapsed=int(time.monotonic() - start))
        time.sleep(args["sleep"])


def _late(args: dict[str, Any]) -> str:
    what = f"{args['host']}:{args['port']}" if args["port"] is not None else str(args["path"])
    if args["search_regex"]:
        return f"Timeout when waiting for search string {args['search_regex']} in {what}"
    if args["state"] in ("absent", "stopped"):
        return f"Timeout when waiting for {what} to {'stop' if args['port'] is not None else 'be absent'}."
    return f"Timeout when waiting for {what}"


def _look(args: dict[str, Any], host: Host) -> tuple[bool, list[Optional[str]]]:
    """Whether it is there now, and what the expression caught."""
    if args["path"] is not None:
        path = paths.expand_home(args["path"], host)
        if host.stat(path, follow=True) is None:
            return False, []
        return _match(args["search_regex"], host.read_text(path, missing="") if args["search_regex"] else "")
    try:
        with socket.create_connection((args["host"], args["port"]), timeout=args["connect_timeout"]) as connection:
            return _match(args["search_regex"], _hear(connection) if args["search_regex"] else "")
    except OSError:
        return False, []


def _hear(connection: socket.socket) -> str:
    """What the other side says until it pauses."""
    data = b""
    try:
        while len(data) < READ_BYTES:
            more = connection.recv(4096)
            if not more:
                break
            data += more
    except OSError:
        pass
    return data.decode("utf-8", "replace")


def _match(expression: Optional[str], text: str) -> tuple[bool, list[Optional[str]]]:
    if not expression:
        return True, []
    found = re.search(expression, text, re.MULTILINE)
    return (True, list(found.groups())) if found else (False, [])
