# SPDX-License-Identifier: Apache-2.0
"""List the paths below folders that fit: by name, kind, age, size or content."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import time
from dataclasses import dataclass
from typing import Any, Optional

from flyops.domain import attributes, modes, paths, statfields
from flyops.domain.editing import codec, pattern
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host, Stat
from flyops.spec import Arg, Spec
from flyops.spec.arguments import to_mode

SPEC = Spec(
    doc="List the paths below folders that fit: by name, kind, age, size or content.",
    args={
        "paths": Arg("list", "Folders to look in", required=True, aliases=("name", "path"), elements="str"),
        "patterns": Arg("list", "Shell patterns (or expressions, with use_regex) for names", default=(), aliases=("pattern",), elements="str"),
        "excludes": Arg("list", "The same, for names to leave out", default=(), aliases=("exclude",), elements="str"),
        "use_regex": Arg("bool", "patterns and excludes are regular expressions", default=False),
        "file_type": Arg("str", "Which kind", default="file", choices=("any", "directory", "file", "link")),
        "recurse": Arg("bool", "Go into folders", default=False),
        "depth": Arg("int", "How deep, when recursing"),
        "hidden": Arg("bool", "Names that begin with a dot, too", default=False),
        "follow": Arg("bool", "Go into folders behind links", default=False),
        "age": Arg("str", "Older than this (1d, 2w), or younger with a minus in front"),
        "age_stamp": Arg("str", "Which time", default="mtime", choices=("atime", "ctime", "mtime")),
        "size": Arg("str", "At least this (10m), or at most with a minus in front"),
        "contains": Arg("str", "Expression that a line of the file must match"),
        "encoding": Arg("str", "Encoding of the files, for `contains`", default="utf-8"),
        "read_whole_file": Arg("bool", "Match `contains` against the whole content", default=False),
        "get_checksum": Arg("bool", "Digest of each file", default=False),
        "checksum_algorithm": Arg("str", "Which digest", default="sha1", choices=("md5", "sha1", "sha224", "sha256", "sha384", "sha512")),
        "mode": Arg("raw", "Permission bits, octal text or symbolic"),
        "exact_mode": Arg("bool", "Exactly these bits; when false any of them", default=True),
        "limit": Arg("int", "Stop after so many"),
    },
    examples="""
- find: {paths: /opt/fly/releases, file_type: directory}
- find: {paths: [/var/log], patterns: ["*.gz"], age: 2w, recurse: true}
""",
    returns={"files": "what was found, as stat names it", "matched": "how many", "examined": "how many were looked at", "skipped_paths": "path: why"},
)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
KINDS = {"directory": "dir", "file": "file", "link": "link"}


@dataclass(frozen=True)
class Limits:
    """Age in seconds and size in bytes; a negative one means below."""

    age_s: Optional[float]
    size_bytes: Optional[int]
    now: float
    mode: Optional[int] = None


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Walk the folders."""
    for expression in [*args["patterns"], *args["excludes"]] if args["use_regex"] else []:
        pattern(expression, "patterns")
    pattern(args["contains"], "contains")
    codec(args["encoding"])
    age = _number(args["age"], SECONDS, "s", "age")
    size = _number(args["size"], BYTES, "b", "size")
    limits = Limits(age, None if size is None else int(size), time.time(), _mode(args["mode"]))
    files: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    examined = 0
    for top in args["paths"]:
        folder = paths.tidy(paths.expand_home(top, host))
        stat = host.stat(folder, follow=True)
        if stat is None or stat.kind != "dir":
            skipped[folder] = f"'{folder}' is not a directory"
            continue
        for path, found in _below(host, folder, args, 1, skipped):
            examined += 1
            try:
                if _fits(args, host, path, found, limits):
                    files.append(_entry(args, host, path, found))
            except UnicodeDecodeError:
                skipped[folder] = f"Failed to decode the file '{path}' with encoding: {args['encoding']}"
    files = files[: args["limit"]] if args["limit"] else files
    msg = "All paths examined" if not skipped else "Not all paths examined, check warnings for details"
    return {"files": files, "matched": len(files), "examined": examined, "skipped_paths": skipped, "msg": msg}


def _mode(asked: Any) -> Optional[int]:
    if asked is None:
        return None
    try:
        return modes.resolve(to_mode(asked), 0)
    except ValueError as err:
        raise ModuleError(str(err), fix="write the mode in quotes: '0644', or 'u=rw,g=r,o='") from None


def _number(text: Optional[str], units: dict[str, int], default: str, name: str) -> Optional[float]:
    if text is None:
        return None
    match = re.fullmatch(rf"(-?\d+)([{''.join(units)}]?)", text.strip().lower())
    if not match:
        raise ModuleError(f"{name} {text!r}: expected a number with one of the units {', '.join(units)}", fix=f"write it as 10{default}")
    return float(int(match.group(1)) * units[match.group(2) or default])


def _below(host: Host, folder: str, args: dict[str, Any], level: int, skipped: dict[str, str]) -> list[tuple[str, Stat]]:
    out: list[tuple[str, Stat]] = []
    try:
        names = sorted(host.listdir(folder))
    except PermissionError as err:
        skipped[folder] = str(err)
        return out
    for name in names:
        path = f"{folder.rstrip('/')}/{name}"
        stat = host.stat(path, follow=args["follow"]) or host.stat(path)
        if stat is None or (name.startswith(".") and not args["hidden"]):
            continue
        out.append((path, stat))
        if stat.kind == "dir" and args["recurse"] and (args["depth"] is None or level < args["depth"]):
            out += _below(host, path, args, level + 1, skipped)
    return out


def _name_fits(name: str, patterns: list[str], *, regex: bool) -> bool:
    return any(re.match(p, name) if regex else fnmatch.fnmatchcase(name, p) for p in patterns)


def _fits(args: dict[str, Any], host: Host, path: str, stat: Stat, limits: Limits) -> bool:
    name = path.rpartition("/")[2]
    if args["file_type"] != "any" and stat.kind != KINDS[args["file_type"]]:
        return False
    if args["patterns"] and not _name_fits(name, args["patterns"], regex=args["use_regex"]):
        return False
    if _name_fits(name, args["excludes"], regex=args["use_regex"]):
        return False
    if limits.mode is not None and (stat.mode != limits.mode if args["exact_mode"] else not stat.mode & limits.mode):
        return False
    if limits.age_s is not None and not _beyond(limits.now - getattr(stat, args["age_stamp"], stat.mtime), limits.age_s):
        return False
    if limits.size_bytes is not None and args["file_type"] in ("any", "file") and not _beyond(stat.size, limits.size_bytes):
        return False
    return args["contains"] is None or (stat.kind == "file" and _contains(args, host.read_bytes(path).decode(args["encoding"])))


def _beyond(value: float, limit: float) -> bool:
    return value >= limit if limit >= 0 else value <= -limit


def _contains(args: dict[str, Any], text: str) -> bool:
    if args["read_whole_file"]:
        return re.search(args["contains"], text) is not None
    return any(re.match(args["contains"], line) for line in text.split("\n"))


def _entry(args: dict[str, Any], host: Host, path: str, stat: Stat) -> dict[str, Any]:
    out = statfields.fields(path, stat)
    out.update(pw_name=attributes.name_of(host, stat.uid, "user"), gr_name=attributes.name_of(host, stat.gid, "group"))
    if args["get_checksum"] and stat.kind == "file":
        out["checksum"] = hashlib.new(args["checksum_algorithm"], host.read_bytes(path)).hexdigest()
    if stat.kind == "link":
        out["lnk_source"] = paths.follow(host, path)
    return out


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Never a change."""
    return Same(state)


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Nothing to do."""
