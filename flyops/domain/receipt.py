# SPDX-License-Identifier: Apache-2.0
"""Receipts: what a set of files was before flyops changed it, and what it made of them. Pure: texts in, receipts and next steps out.

A file's state is a mapping `{content, mode, uid, gid}`; None is a file that is not there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Optional, Tuple

FORMAT = 1
FileState = Optional[Mapping[str, Any]]
Files = Mapping[str, FileState]


class ReceiptError(ValueError):
    """A receipt that cannot be trusted; the text says why."""


@dataclass(frozen=True)
class Entry:
    """One file: before the first change, after the last one, and digests of the states that flyops itself wrote in between."""

    before: FileState
    after: FileState
    between: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """A named set of entries. `made` are folders that had to be made for them."""

    name: str
    created: str
    updated: str
    entries: Mapping[str, Entry]
    made: Tuple[str, ...] = ()
    note: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def digest(state: FileState) -> str:
    """Identity of a file's state: content, mode and owner; `absent` when there is none."""
    if state is None:
        return "absent"
    keys = {key: state.get(key) for key in ("content", "mode", "uid", "gid")}
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()


def _body(receipt: Receipt) -> dict[str, Any]:
    files = {path: {"before": e.before, "after": e.after, "between": list(e.between)} for path, e in sorted(receipt.entries.items())}
    return {
        "format": FORMAT,
        "name": receipt.name,
        "created": receipt.created,
        "updated": receipt.updated,
        "note": receipt.note,
        "made": list(receipt.made),
        "extra": dict(receipt.extra),
        "files": files,
    }


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def dump(receipt: Receipt) -> str:
    """The receipt as the text of its file, with a checksum over the rest."""
    body = _body(receipt)
    return json.dumps({**body, "sha256": _checksum(body)}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load(text: str) -> Receipt:
    """A receipt out of its file's text; damage of any kind is a ReceiptError."""
    try:
        body = json.loads(text)
        claimed = body.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as err:
        raise ReceiptError(f"it is not a receipt: {err}") from err
    found = _checksum(body)
    if claimed != found:
        raise ReceiptError(f"its checksum does not fit: expected {claimed}, found {found}")
    if body.get("format") != FORMAT:
        raise ReceiptError(f"its format is {body.get('format')!r}, this flyops knows {FORMAT}")
    entries = {path: Entry(e["before"], e["after"], tuple(e["between"])) for path, e in body["files"].items()}
    return Receipt(body["name"], body["created"], body["updated"], entries, tuple(body["made"]), body["note"], body["extra"])


def foreign(receipt: Receipt, seen: Files) -> list[str]:
    """Paths whose present state is neither the recorded before nor anything that flyops wrote: someone else changed them."""
    out = []
    for path, entry in sorted(receipt.entries.items()):
        known = {digest(entry.before), digest(entry.after), *entry.between}
        if path in seen and digest(seen[path]) not in known:
            out.append(path)
    return out


def applied(
    old: Receipt | None,
    name: str,
    seen: Files,
    wanted: Files,
    now: str,
    *,
    made: Tuple[str, ...] = (),
    note: str = "",
    extra: Optional[Mapping[str, Any]] = None,
) -> Receipt:
    """The receipt to write before `wanted` is made of `seen`. What an older one calls before stays before, and so does its `extra`."""
    entries = dict(old.entries) if old else {}
    for path, after in wanted.items():
        past = entries.get(path)
        if past is None:
            entries[path] = Entry(seen[path], after)
        elif digest(past.after) != digest(after):
            between = tuple(dict.fromkeys((*past.between, digest(past.after), digest(seen[path]))))
            entries[path] = replace(past, after=after, between=between)
    folders = tuple(dict.fromkeys((*(old.made if old else ()), *made)))
    if old and entries == dict(old.entries) and folders == old.made and (note or old.note) == old.note:
        return old
    return Receipt(
        name, old.created if old else now, now, entries, folders, note or (old.note if old else ""), old.extra if old else dict(extra or {})
    )


def to_write(seen: Files, wanted: Files) -> dict[str, FileState]:
    """Paths whose present state is not the wanted one, with the wanted one."""
    return {path: state for path, state in wanted.items() if digest(seen.get(path)) != digest(state)}


def befores(receipt: Receipt) -> dict[str, FileState]:
    """What a restore makes of each path."""
    return {path: entry.before for path, entry in receipt.entries.items()}


def refusal(paths: list[str], receipt_path: str) -> str:
    """Someone else's change, and where."""
    return f"{', '.join(paths)}: neither what the receipt calls before nor what flyops wrote (receipt {receipt_path}); someone else changed it"


FORCE = "look at the file; --force takes it as it is now for flyops' own and goes on (its present text is kept in the receipt's folder)"


def restore_args(folder: str, name: str) -> dict[str, Any]:
    """Arguments of the one-shot call that puts the CPU settings back on the target, without a controller.

    `python3 BUNDLE --module settings_receipt --args FILE.json`, with this as FILE.json. `force` because nobody is there to ask:
    a card that is gone must not leave the simulator off, and what was found is kept.
    """
    return {"dir": folder, "name": name, "state": "restored", "force": True}


def restore_steps(manager: str, bundle: str, args_file: str, supervisor_conf: str = "") -> tuple[tuple[str, ...], ...]:
    """The commands of flyops-restore.service (and of supervisor's listener), in order; each must end with 0 before the next runs."""
    steps: list[tuple[str, ...]] = [("python3", bundle, "--module", "settings_receipt", "--args", args_file)]
    if manager == "systemd":
        steps += [
            ("systemctl", "daemon-reload"),
            ("systemctl", "reset-failed", "flysim.service"),
            ("systemctl", "--no-block", "restart", "flysim.service", "flypage.service"),
        ]
    else:
        control = ("supervisorctl", "-c", supervisor_conf)
        steps += [(*control, "reread"), (*control, "update"), (*control, "restart", "flysim", "flypage")]
    return tuple(steps)
