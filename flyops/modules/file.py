# SPDX-License-Identifier: Apache-2.0
"""Bring a path to a state: file, folder, link, hard link, touched or gone, with mode and owner."""

from __future__ import annotations

import posixpath
import time
from dataclasses import dataclass
from typing import Any, Optional

from flyops.domain import attributes, modes, paths
from flyops.domain.attributes import ATTRIBUTE_ARGS, Attributes
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host, Stat
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Bring a path to a state: file, folder, link, hard link, touched or gone, with mode and owner.",
    args={
        "path": Arg("path", "The path to manage", required=True, aliases=("dest", "name")),
        "state": Arg("str", "What the path should be; as it is when not given", choices=("absent", "directory", "file", "hard", "link", "touch")),
        **ATTRIBUTE_ARGS,
        "src": Arg("path", "What a link leads to, or the other name of a hard link"),
        "recurse": Arg("bool", "Set mode and owner of everything below the folder, too", default=False),
        "follow": Arg("bool", "Work on what a link leads to", default=True),
        "force": Arg("bool", "Make a link to nothing, or in place of a file or an empty folder", default=False),
        "modification_time": Arg("str", "`preserve`, `now` or a time in modification_time_format"),
        "access_time": Arg("str", "`preserve`, `now` or a time in access_time_format"),
        "modification_time_format": Arg("str", "How modification_time is written", default="%Y%m%d%H%M.%S"),
        "access_time_format": Arg("str", "How access_time is written", default="%Y%m%d%H%M.%S"),
        "unsafe_writes": Arg("bool", "Accepted for Ansible's sake; writes are always atomic here", default=False),
    },
    required_if=(("state", "hard", ("src",)),),
    examples="""
- file: {path: /etc/fly, state: directory, mode: '0755', owner: root, group: fly}
- file: {src: releases/1.2.3, dest: /opt/fly/current, state: link}
- file: {path: /opt/fly/old, state: absent}
""",
    returns={"path": "the path", "state": "what it is now", "mode": "four octal digits"},
)


@dataclass(frozen=True)
class State:
    """The path as found, what it should become, and what that needs to know."""

    path: str
    stat: Optional[Stat]
    state: str
    wanted: Attributes
    source: Optional[Stat] = None  # what src leads to
    source_path: str = ""
    link_end: str = ""  # where a link at the path ends
    end_stat: Optional[Stat] = None
    below: tuple[tuple[str, Stat], ...] = ()
    empty: bool = True


def read(args: dict[str, Any], host: Host) -> State:
    """Look at the path, and at what a link there leads to."""
    if args["src"] and args["state"] not in ("link", "hard", "touch", "absent"):
        raise ModuleError("src option requires state to be 'link' or 'hard'", fix="say what src is for", path=args["path"])
    wanted = attributes.wanted(args, host)
    path = paths.tidy(paths.expand_home(args["path"], host))
    stat = host.stat(path)
    state = args["state"] or _present_state(stat, args)
    for name in ("modification_time", "access_time"):
        _time(args[name] or "preserve", args[f"{name}_format"], 0.0, 0.0)
    if args["recurse"] and state != "directory":
        raise ModuleError("recurse option requires state to be 'directory'", fix="set state: directory, or drop recurse")
    if stat is not None and stat.kind == "link" and args["follow"] and state in ("file", "directory", "touch"):
        path = paths.follow(host, path)
        stat = host.stat(path)
    if state in ("link", "hard"):
        return _read_link(args, host, path, stat, state, wanted)
    below: tuple[tuple[str, Stat], ...] = ()
    if args["recurse"] and stat is not None and stat.kind == "dir":
        below = tuple(paths.walk(host, path))
    return State(path, stat, state, wanted, below=below)


def _present_state(stat: Optional[Stat], args: dict[str, Any]) -> str:
    if args["recurse"]:
        return "directory"
    if stat is None:
        return "file"
    return {"dir": "directory", "link": "link"}.get(stat.kind, "file")


def _read_link(args: dict[str, Any], host: Host, path: str, stat: Optional[Stat], state: str, wanted: Attributes) -> State:
    src = args["src"]
    if not src:
        if stat is None or stat.kind != "link":
            raise ModuleError("src is required for creating new links", fix="say what the link should lead to")
        src = stat.target
    src = paths.expand_home(src, host)
    folder = path if stat is not None and stat.kind == "dir" else posixpath.dirname(path)
    source_path = posixpath.join(folder, src)
    end = paths.follow(host, path) if stat is not None and stat.kind == "link" else path
    empty = not host.listdir(path) if stat is not None and stat.kind == "dir" else True
    return State(path, stat, state, wanted, host.stat(source_path, follow=state == "link"), src, end, host.stat(end), empty=empty)


def plan(args: dict[str, Any], state: State) -> Decision:
    """What has to be done to the path."""
    return PLANS[state.state](args, state)


def _plan_absent(args: dict[str, Any], state: State) -> Decision:
    if state.stat is None:
        return Same({"path": state.path, "state": "absent"})
    diff = Diff(state.path, f"({state.stat.kind})\n", "")
    return Change(after=state, diff=(diff,), values={"path": state.path, "state": "absent"})


def _plan_file(args: dict[str, Any], state: State) -> Decision:
    if state.stat is None:
        raise ModuleError(f"file ({state.path}) is absent, cannot continue", fix="state: touch makes an empty file", path=state.path, state="absent")
    if state.stat.kind == "dir" or (state.stat.kind == "link" and args["state"]):
        what = "directory" if state.stat.kind == "dir" else state.stat.kind
        raise ModuleError(f"file ({state.path}) is {what}, cannot continue", fix=f"state: {what}, or another path", path=state.path, state=what)
    return _attributes_or_times(args, state, state.stat)


def _attributes_or_times(args: dict[str, Any], state: State, stat: Stat) -> Decision:
    diffs = attributes.drift(state.path, stat, state.wanted)
    for path, below in state.below:
        diffs += attributes.drift(path, below, state.wanted)
    if _times_differ(args, stat):
        diffs.append(Diff(f"times of {state.path}", "", "as asked"))
    if diffs:
        return Change(after=state, diff=tuple(diffs), values=_where(state))
    return Same({**_seen(state, stat), **_where(state)})


def _where(state: State) -> dict[str, Any]:
    return {"path": state.path, "dest": state.path}


def _seen(state: State, stat: Stat) -> dict[str, Any]:
    what = {"dir": "directory", "link": "link"}.get(stat.kind, "hard" if stat.nlink > 1 else "file")
    return {"state": what, "mode": modes.text(stat.mode), "uid": stat.uid, "gid": stat.gid, "size": stat.size}


def _times_given(args: dict[str, Any], idle: str) -> bool:
    """Whether a time was asked for that is not the idle one of this state."""
    return any(args[name] not in (None, idle) for name in ("modification_time", "access_time"))


def _times_differ(args: dict[str, Any], stat: Stat) -> bool:
    """Whether a time was asked for that the path does not have; an access time that the host does not tell counts as such."""
    present = {"modification_time": stat.mtime, "access_time": getattr(stat, "atime", None)}
    for name, have in present.items():
        asked = args[name]
        if asked in (None, "preserve"):
            continue
        if asked == "now" or have is None or _time(asked, args[f"{name}_format"], 0.0, 0.0) != float(int(have)):
            return True
    return False


def _plan_directory(args: dict[str, Any], state: State) -> Decision:
    if state.stat is None:
        return Change(after=state, diff=(Diff(state.path, "", "(folder)\n"),), values=_where(state))
    if state.stat.kind != "dir":
        raise ModuleError(f"{state.path} already exists as a {state.stat.kind}", fix="remove it or choose another path", path=state.path)
    return _attributes_or_times(args, state, state.stat)


def _plan_touch(args: dict[str, Any], state: State) -> Decision:
    if state.stat is None:
        return Change(after=state, diff=(Diff(state.path, "", "(empty file)\n"),), values=_where(state))
    if state.stat.kind not in ("file", "dir"):
        raise ModuleError(f"Can only touch files, directories, and hardlinks ({state.path} is a {state.stat.kind})", fix="choose another path")
    if "now" not in [args[name] or "now" for name in ("modification_time", "access_time")]:
        return _attributes_or_times(args, state, state.stat)
    return Change(after=state, diff=(Diff(f"times of {state.path}", "", "as asked"),), values=_where(state))


def _plan_link(args: dict[str, Any], state: State) -> Decision:
    if state.source is None and not args["force"]:
        fix = "make it first, or set force: true for a link to nothing"
        raise ModuleError(
            f'src file does not exist, use "force=yes" if you really want to create the link: {state.source_path}', fix=fix, path=state.path
        )
    stat = state.stat
    if stat is not None and stat.kind == "link" and stat.target == state.source_path:
        if args["follow"] and state.end_stat is not None:
            diffs = attributes.drift(state.link_end, state.end_stat, state.wanted)
        else:
            diffs = attributes.drift(state.path, stat, state.wanted)
        values = {**_where(state), "src": state.source_path, "state": "link"}
        return Change(after=state, diff=tuple(diffs), values=values) if diffs else Same({**_seen(state, stat), **values})
    _refuse_conversion(args, state)
    before = f"(link to {stat.target})\n" if stat is not None and stat.kind == "link" else f"({stat.kind})\n" if stat else ""
    diff = Diff(state.path, before, f"(link to {state.source_path})\n")
    return Change(before=True, after=state, diff=(diff,), values={**_where(state), "src": state.source_path, "state": "link"})


def _refuse_conversion(args: dict[str, Any], state: State) -> None:
    stat = state.stat
    if stat is None or stat.kind == "link":
        return
    what = "directory" if stat.kind == "dir" else stat.kind
    if not args["force"]:
        fix = "set force: true, or remove it first"
        raise ModuleError(f"refusing to convert from {what} to symlink for {state.path}", fix=fix, path=state.path)
    if not state.empty:
        raise ModuleError(f"the directory {state.path} is not empty, refusing to convert it", fix="remove it first", path=state.path)


def _plan_hard(args: dict[str, Any], state: State) -> Decision:
    if state.source is None:
        raise ModuleError(f"src does not exist: {state.source_path}", fix="a hard link needs an existing file", path=state.path)
    stat = state.stat
    values = {**_where(state), "src": state.source_path, "state": "hard"}
    if stat is not None and stat.inode == state.source.inode:
        diffs = attributes.drift(state.path, stat, state.wanted)
        return Change(after=state, diff=tuple(diffs), values=values) if diffs else Same({**_seen(state, stat), **values})
    if stat is not None and not args["force"]:
        found = "different hard link" if stat.nlink > 1 else "directory" if stat.kind == "dir" else stat.kind
        raise ModuleError(f"Cannot link, {found} exists at destination: {state.path}", fix="set force: true, or remove it first", path=state.path)
    if stat is not None and stat.kind == "dir":
        raise ModuleError(f"Cannot link, directory exists at destination: {state.path}", fix="remove it first", path=state.path)
    return Change(before=True, after=state, diff=(Diff(state.path, "", f"(hard link to {state.source_path})\n"),), values=values)


PLANS = {
    "absent": _plan_absent,
    "file": _plan_file,
    "directory": _plan_directory,
    "touch": _plan_touch,
    "link": _plan_link,
    "hard": _plan_hard,
}


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Do it; attributes and times come last."""
    state: State = change.after
    if state.state == "absent":
        host.remove(state.path)
        return {}
    target = state.path
    if state.state == "directory" and state.stat is None:
        _make_folders(host, state)
    elif state.state == "touch" and state.stat is None:
        host.write_bytes(state.path, b"", mode=state.wanted.mode_for(None))
    elif state.state in ("link", "hard"):
        target = _make_link(args, host, state, bool(change.before))
    attributes.set_on(host, target, state.wanted)
    for path, _ in state.below:
        attributes.set_on(host, path, state.wanted)
    if state.state not in ("link", "hard"):
        _set_times(args, host, state)
    found = attributes.facts(host, state.path)
    return {**found, "dest": state.path, "state": state.state if state.state in ("link", "hard") else found["state"]}


def _make_folders(host: Host, state: State) -> None:
    """Each missing folder on the way gets the attributes asked for, as Ansible does."""
    missing: list[str] = []
    path = state.path
    while path not in ("/", "") and host.stat(path, follow=True) is None:
        missing.insert(0, path)
        path = posixpath.dirname(path)
    for folder in missing:
        host.mkdir(folder)
        attributes.set_on(host, folder, state.wanted)


def _make_link(args: dict[str, Any], host: Host, state: State, make: bool) -> str:
    if make:
        if state.stat is not None and state.stat.kind == "dir":
            host.remove(state.path)
        if state.state == "hard":
            host.link(state.source_path, state.path)
        else:
            host.symlink(state.source_path, state.path)
    if state.state == "link" and args["follow"]:
        end = paths.follow(host, state.path)
        return end if host.stat(end) is not None else state.path
    return state.path


def _set_times(args: dict[str, Any], host: Host, state: State) -> None:
    idle = "now" if state.state == "touch" else "preserve"
    stat = host.stat(state.path)
    if stat is None or (state.state != "touch" and not _times_given(args, "preserve")):
        return
    now = time.time()
    accessed = float(getattr(stat, "atime", stat.mtime))
    host.utime(
        state.path,
        _time(args["access_time"] or idle, args["access_time_format"], now, accessed),
        _time(args["modification_time"] or idle, args["modification_time_format"], now, stat.mtime),
    )


def _time(asked: str, form: str, now: float, present: float) -> float:
    """A time as asked; one that does not fit its format is the task's error, found before anything is written."""
    if asked == "preserve":
        return present
    if asked == "now":
        return now
    try:
        return time.mktime(time.strptime(asked, form))
    except ValueError as err:
        raise ModuleError(f"Error while obtaining timestamp for time {asked} using format {form}: {err}", fix="write it as 202611302359.00") from None
