# SPDX-License-Identifier: Apache-2.0
"""What command and shell share: when to run, what to hand over, and how the result reads."""

from __future__ import annotations

import base64
import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, Optional

from flyops.domain import paths
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec.arguments import Arg

RUN_ARGS: dict[str, Arg] = {
    "chdir": Arg("path", "Folder to run in"),
    "creates": Arg("path", "Path or shell pattern; when it exists the command is not run"),
    "removes": Arg("path", "Path or shell pattern; when it does not exist the command is not run"),
    "stdin": Arg("str", "Text to feed"),
    "stdin_add_newline": Arg("bool", "End stdin with a newline", default=True),
    "strip_empty_ends": Arg("bool", "Strip newlines from the ends of stdout and stderr", default=True),
    "timeout": Arg("float", "Seconds after which the command is killed (not in Ansible)"),
}
RETURNS = {
    "rc": "exit code; -N when ended by signal N",
    "stdout": "output; bytes that are no UTF-8 become U+FFFD, the whole is then in stdout_b64, too",
    "stdout_lines": "the same by lines",
    "cmd": "what was run",
    "delta": "how long it took",
}
VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\})")


@dataclass(frozen=True)
class Prepared:
    """A command ready to run, and whether there is a reason not to."""

    argv: tuple[str, ...]
    shown: Any
    cwd: Optional[str] = None
    idle: tuple[str, str] = ("", "")  # why it need not run: a path, and what is so about it
    checking: bool = False


def expand(word: str, host: Host) -> str:
    """`$NAME`, `${NAME}` and a leading `~`, as Ansible's command does; unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2) or ""
        return host.getenv(name, match.group(0))

    return paths.expand_home(VARIABLE.sub(value, word), host)


def prepare(args: dict[str, Any], host: Host, argv: list[str], shown: Any) -> Prepared:
    """Look whether `creates` and `removes` let the command run. A wrong folder fails here, before anything ran."""
    cwd = paths.expand_home(args["chdir"], host) if args["chdir"] else None
    if cwd is not None:
        stat = host.stat(cwd, follow=True)
        if stat is None or stat.kind != "dir":
            raise ModuleError(f"Unable to change directory before execution: {cwd} is no folder", fix="make it first, or change chdir", cmd=shown)
    idle = ("", "")
    base = cwd or "/"
    if args["creates"] and _there(host, args["creates"], base):
        idle = (args["creates"], "exists")
    elif args["removes"] and not _there(host, args["removes"], base):
        idle = (args["removes"], "does not exist")
    return Prepared(tuple(argv), shown, cwd, idle, host.check)


def _there(host: Host, pattern: str, folder: str) -> bool:
    return bool(paths.glob(host, paths.expand_home(pattern, host), folder))


def decide(args: dict[str, Any], state: Prepared) -> Decision:
    """Run, or not. In check mode a command without `creates` or `removes` is skipped: nobody can know what it would do."""
    path, why = state.idle
    if path:
        would = "Would not run" if state.checking else "Did not run"
        return Same(_result(state.shown, 0, f"skipped, since {path} {why}", ""), msg=f"{would} command since '{path}' {why}")
    if state.checking and not (args["creates"] or args["removes"]):
        return Same(_result(state.shown, 0, "", ""), skipped=True, msg="Command would have run if not in check mode")
    values = {**_result(state.shown, 0, "", ""), "msg": "Command would have run if not in check mode"} if state.checking else {}
    return Change(before=state, after=state.argv, values=values)


def execute(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run it; a failure keeps everything it said."""
    state: Prepared = change.before
    stdin = b""
    if args["stdin"] is not None:
        stdin = (args["stdin"] + ("\n" if args["stdin_add_newline"] else "")).encode("utf-8", "surrogateescape")
    started = dt.datetime.now()
    try:
        done = host.run(state.argv, stdin=stdin, cwd=state.cwd, timeout=args["timeout"])
    except (FileNotFoundError, PermissionError, NotADirectoryError) as err:
        said = f"{err.strerror}: {err.filename or state.argv[0]}"
        raise ModuleError(f"Error executing command: {said}", **_result(state.shown, 2, "", ""), changed=False) from None
    ended = dt.datetime.now()
    values = _result(state.shown, done.rc, *(_text(data, strip=args["strip_empty_ends"]) for data in (done.stdout, done.stderr)))
    values.update(start=str(started), end=str(ended), delta=str(ended - started))
    for name, data in (("stdout", done.stdout), ("stderr", done.stderr)):
        if not _is_utf8(data):
            values[f"{name}_b64"] = base64.b64encode(data).decode("ascii")
    if done.rc != 0:
        raise ModuleError("non-zero return code", **values, changed=True)
    return values


def _result(shown: Any, rc: int, stdout: str, stderr: str) -> dict[str, Any]:
    return {"cmd": shown, "rc": rc, "stdout": stdout, "stderr": stderr, "stdout_lines": stdout.splitlines(), "stderr_lines": stderr.splitlines()}


def _text(data: bytes, *, strip: bool) -> str:
    text = data.decode("utf-8", "replace")
    return text.rstrip("\r\n") if strip else text


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
