# SPDX-License-Identifier: Apache-2.0
"""Files of this machine that tasks offer to hosts: named by digest first, sent only when a host asks."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyops.errors import PlanError
from flyops.loading.lookups import find_file, read_text
from flyops.loading.templating import render_file
from flyops.loading.variables import PendingResult, Scope
from flyops.spec import Spec, canonical_names
from flyops.spec.arguments import to_bool

HASH_BYTES = 1024 * 1024
JINJA_SETTINGS = (
    "trim_blocks",
    "lstrip_blocks",
    "block_start_string",
    "block_end_string",
    "variable_start_string",
    "variable_end_string",
    "comment_start_string",
    "comment_end_string",
)


@dataclass(frozen=True)
class Offer:
    """A file (`path`) or a text (`data`) that an agent may ask for."""

    sha256: str
    size: int
    path: str = ""
    data: bytes = b""


_digests: dict[tuple[str, int, int, int], str] = {}


def digest_of(path: str) -> tuple[str, os.stat_result]:
    """A file's digest, worked out once while it does not change."""
    seen = os.stat(path)
    key = (path, seen.st_size, seen.st_mtime_ns, seen.st_ino)
    if key not in _digests:
        digest = hashlib.sha256()
        with Path(path).open("rb") as stream:
            for piece in iter(lambda: stream.read(HASH_BYTES), b""):
                digest.update(piece)
        _digests[key] = digest.hexdigest()
    return _digests[key], seen


def offer_files(spec: Spec, args: dict[str, Any], scope: Scope) -> dict[str, Offer]:
    """Replace blob and template arguments by what the agent gets in their place; the offers by digest."""
    offers: dict[str, Offer] = {}
    names = canonical_names(spec, args)
    for typed in list(args):
        name = next(iter(canonical_names(spec, {typed: None})))
        kind = spec.args[name].kind if name in spec.args else ""
        if kind not in ("blob", "template") or not isinstance(args[typed], str):
            continue
        if kind == "blob" and to_bool(names.get("remote_src") or False):
            continue
        if scope.pending_files:
            raise PendingResult(typed)
        try:
            args[typed] = _blob(args[typed], names, scope, offers) if kind == "blob" else _template(args[typed], names, scope, offers)
        except OSError as err:
            raise PlanError(f"cannot read {args[typed]}: {err.strerror}") from err
    return offers


def _file(path: str, offers: dict[str, Offer]) -> dict[str, Any]:
    sha256, seen = digest_of(path)
    offers[sha256] = Offer(sha256, seen.st_size, path=path)
    return {"sha256": sha256, "size": seen.st_size, "mode": stat.S_IMODE(seen.st_mode)}


def _blob(name: str, args: Mapping[str, Any], scope: Scope, offers: dict[str, Offer]) -> dict[str, Any]:
    path = find_file(name, scope.folders, "files")
    if not os.path.isdir(path):
        return {"path": name, **_file(path, offers)}
    follow = to_bool(args["local_follow"]) if args.get("local_follow") is not None else True
    tree = [_entry(path, below, offers, follow) for below in _walk(path.rstrip("/"), follow)]
    return {"path": name, "sha256": "", "size": 0, "mode": stat.S_IMODE(os.stat(path).st_mode), "tree": tree}


def _walk(top: str, follow: bool, below: str = "") -> Iterator[str]:
    for name in sorted(os.listdir(os.path.join(top, below))):
        path = f"{below}/{name}" if below else name
        yield path
        full = os.path.join(top, path)
        if os.path.isdir(full) and (follow or not os.path.islink(full)):
            yield from _walk(top, follow, path)


def _entry(top: str, below: str, offers: dict[str, Offer], follow: bool) -> dict[str, Any]:
    full = os.path.join(top, below)
    seen = os.stat(full) if follow else os.lstat(full)
    if stat.S_ISLNK(seen.st_mode):
        return {"path": below, "kind": "link", "target": os.readlink(full), "mode": 0o777, "size": 0, "sha256": ""}
    if stat.S_ISDIR(seen.st_mode):
        return {"path": below, "kind": "dir", "mode": stat.S_IMODE(seen.st_mode), "size": 0, "sha256": ""}
    return {"path": below, "kind": "file", **_file(full, offers)}


def _template(name: str, args: Mapping[str, Any], scope: Scope, offers: dict[str, Offer]) -> dict[str, Any]:
    path = find_file(name, scope.folders, "templates")
    settings = {key: args[key] for key in JINJA_SETTINGS if args.get(key) is not None}
    for key in ("trim_blocks", "lstrip_blocks"):
        if key in settings:
            settings[key] = to_bool(settings[key])
    inner = scope.child({"template_path": path, "template_fullpath": os.path.abspath(path), "template_host": os.uname().nodename})
    text = render_file(read_text(path), path, inner, **settings)
    if args.get("newline_sequence"):
        text = text.replace("\r\n", "\n").replace("\n", str(args["newline_sequence"]).encode().decode("unicode_escape"))
    data = text.encode(str(args.get("output_encoding") or "utf-8"))
    sha256 = hashlib.sha256(data).hexdigest()
    offers[sha256] = Offer(sha256, len(data), data=data)
    return {"path": name, "sha256": sha256, "size": len(data), "mode": stat.S_IMODE(os.stat(path).st_mode)}
