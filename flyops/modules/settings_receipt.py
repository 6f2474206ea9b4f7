# SPDX-License-Identifier: Apache-2.0
"""Changes a set of files with a receipt of what they were, and puts them back by it."""

from __future__ import annotations

import time
from typing import Any, Mapping

from flyops.domain import receipt
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Write files so that they can be put back: first the receipt (checksummed), then the files. `restored` replays it.",
    args={
        "dir": Arg("path", required=True, help="folder of the receipts"),
        "name": Arg("str", required=True, help="name of the receipt, for example gpu"),
        "state": Arg(
            "str",
            default="read",
            choices=("planned", "applied", "restored", "read", "absent"),
            help="what is wanted; planned writes the receipt alone; absent forgets the receipt, the files stay",
        ),
        "files": Arg("dict", help="applied: path -> {content, mode (0644), owner, group}, or null for a file that must not be there"),
        "force": Arg("bool", default=False, help="go on although somebody else changed a file; its text is kept beside the receipt"),
        "note": Arg("str", default="", help="a line for whoever reads the receipt"),
        "extra": Arg("dict", help="planned, applied: what else was so before; kept as the receipt was first written with"),
        "keep": Arg("bool", default=False, help="restored: the receipt stays open, for steps that follow; restored again without it closes it"),
    },
    required_if=(("state", "applied", ("files",)), ("state", "planned", ("files",))),
    examples="- name: GPU settings, with a way back\n  settings_receipt:\n    dir: /var/lib/flyops/receipts\n    name: gpu\n    state: applied\n"
    "    files:\n      /etc/fly/backend.env: {content: \"FLY_LIF_CUDA=1\\n\", mode: '0644'}\n",
    returns={
        "receipt": "path of the receipt",
        "exists": "an open receipt is there",
        "created": "when it was first written",
        "updated": "when it was last extended",
        "files": "path -> before and after (absent, or sha256)",
        "extra": "what the receipt was first written with",
        "written": "paths that were changed",
        "kept": "where somebody else's texts were kept (force)",
    },
)


def _path(args: dict[str, Any]) -> str:
    if "/" in args["name"] or args["name"].startswith(".") or not args["name"]:
        raise ModuleError(f"name: expected a plain name, found {args['name']!r}")
    return f"{args['dir']}/{args['name']}.json"


def _load(path: str, host: Host) -> receipt.Receipt | None:
    if host.stat(path) is None:
        return None
    try:
        return receipt.load(host.read_text(path))
    except receipt.ReceiptError as err:
        raise Refused(
            f"receipt {path} is damaged: {err}",
            fix="nothing was changed; put the files right by hand (the folder may hold an older .done receipt), then remove it with state: absent",
            receipt=path,
            damaged=True,
        ) from err


def _look(path: str, host: Host) -> receipt.FileState:
    seen = host.stat(path)
    if seen is None:
        return None
    if seen.kind != "file":
        raise ModuleError(f"{path} is a {seen.kind}, expected a file or nothing", fix="a receipt covers plain files only")
    return {"content": host.read_text(path), "mode": seen.mode, "uid": seen.uid, "gid": seen.gid}


def _number(value: Any, path: str) -> int:
    try:
        return value if isinstance(value, int) else int(str(value), 8)
    except ValueError as err:
        raise ModuleError(f"{path}: expected an octal mode such as '0644', found {value!r}") from err


def _wanted(path: str, asked: Any, seen: receipt.FileState, host: Host) -> receipt.FileState:
    """What a file is to be; owner and group stay as they are unless they are named."""
    if asked is None:
        return None
    if not isinstance(asked, Mapping) or "content" not in asked or set(asked) - {"content", "mode", "owner", "group"}:
        raise ModuleError(f"files: {path}: expected {{content, mode, owner, group}} or null, found {asked!r}")
    owner = host.user(str(asked["owner"])) if asked.get("owner") else None
    group = host.group(str(asked["group"])) if asked.get("group") else None
    for key, found in (("owner", owner), ("group", group)):
        if asked.get(key) and found is None:
            raise ModuleError(f"files: {path}: there is no {'user' if key == 'owner' else 'group'} {asked[key]!r} here")
    old = seen or {}
    here = host.stat(_above(path, host))
    mode = _number(asked["mode"], path) if asked.get("mode") is not None else int(old.get("mode", 0o644))
    uid = int(owner["uid"]) if owner else int(old.get("uid", here.uid if here and not seen else 0))
    gid = int(group["gid"]) if group else int(owner["gid"]) if owner else int(old.get("gid", here.gid if here and not seen else 0))
    return {"content": str(asked["content"]), "mode": mode, "uid": uid, "gid": gid}


def _above(path: str, host: Host) -> str:
    """The nearest folder above a path that is there."""
    folder = path.rpartition("/")[0] or "/"
    while folder != "/" and host.stat(folder, follow=True) is None:
        folder = folder.rpartition("/")[0] or "/"
    return folder


def _missing_folders(paths: list[str], host: Host) -> tuple[str, ...]:
    out: dict[str, None] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and host.stat(folder, follow=True) is None:
            out[folder] = None
            folder = folder.rpartition("/")[0]
    return tuple(sorted(out))


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The receipt, and every file that it or the task names, as it is now."""
    path = _path(args)
    if args["state"] == "absent":
        seen = host.stat(path)
        return {"path": path, "there": seen is not None}
    old = _load(path, host)
    asked = args["files"] or {} if args["state"] in ("applied", "planned") else {}
    for name in asked:
        if not str(name).startswith("/"):
            raise ModuleError(f"files: expected absolute paths, found {name!r}")
    names = {*asked, *(old.entries if old else ())}
    seen_files = {name: _look(name, host) for name in sorted(names)}
    wanted = {name: _wanted(name, value, seen_files[name], host) for name, value in asked.items()}
    made = _missing_folders([name for name, value in wanted.items() if value is not None], host)
    done = host.stat(f"{path}.done") is not None
    return {
        "path": path,
        "old": old,
        "seen": seen_files,
        "wanted": wanted,
        "made": made,
        "done": done,
        "now": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _values(path: str, found: receipt.Receipt | None) -> dict[str, Any]:
    if found is None:
        return {"receipt": path, "exists": False, "files": {}, "extra": {}}
    files = {name: {"before": receipt.digest(e.before), "after": receipt.digest(e.after)} for name, e in found.entries.items()}
    when = {"created": found.created, "updated": found.updated}
    return {"receipt": path, "exists": True, **when, "note": found.note, "files": files, "extra": dict(found.extra)}


def _text(state: receipt.FileState) -> str:
    return "" if state is None else f"{state['content']}(mode {state['mode']:04o}, owner {state['uid']}:{state['gid']})\n"


def _diffs(seen: receipt.Files, todo: receipt.Files) -> tuple[Diff, ...]:
    return tuple(Diff(path, _text(seen.get(path)), _text(state)) for path, state in sorted(todo.items()))


def _strangers(args: dict[str, Any], state: dict[str, Any], old: receipt.Receipt) -> dict[str, receipt.FileState]:
    """Files that somebody else changed: refused, or taken over with their texts kept (`force`)."""
    paths = receipt.foreign(old, state["seen"])
    if paths and not args["force"]:
        raise Refused(receipt.refusal(paths, state["path"]), fix=receipt.FORCE, foreign=paths, **_values(state["path"], old))
    return {path: state["seen"][path] for path in paths}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """What to write, after the question whether somebody else was here."""
    if args["state"] == "absent":
        return Change(before=state["path"], diff=(Diff(state["path"], "receipt\n", ""),)) if state["there"] else None
    old: receipt.Receipt | None = state["old"]
    if args["state"] == "read":
        return Same({**_values(state["path"], old), "restored_before": state["done"]})
    strangers = _strangers(args, state, old) if old else {}
    if args["state"] == "restored":
        if old is None:
            word = "already restored" if state["done"] else "there is no receipt: nothing to put back"
            return Same({**_values(state["path"], None), "restored_before": state["done"], "written": []}, msg=word)
        todo = receipt.to_write(state["seen"], receipt.befores(old))
        if args["keep"] and not todo:
            return Same({**_values(state["path"], old), "written": []})
        after = {"restore": old, "todo": todo, "kept": strangers}
        return Change(
            before=state["path"],
            after=after,
            diff=_diffs(state["seen"], todo),
            values={**_values(state["path"], old), "exists": args["keep"], "written": sorted(todo)},
        )
    more = {"made": state["made"], "note": args["note"], "extra": args["extra"]}
    new = receipt.applied(old, args["name"], state["seen"], state["wanted"], state["now"], **more)
    todo = receipt.to_write(state["seen"], state["wanted"]) if args["state"] == "applied" else {}
    values = {**_values(state["path"], new), "written": sorted(todo)}
    # Files that are as wanted need no receipt; one that is open stays, and a planned one is wanted for itself.
    if not todo and (old == new or (old is None and args["state"] == "applied")):
        return Same({**_values(state["path"], old), "written": []})
    after = {"receipt": new if new != old else None, "todo": todo, "kept": strangers}
    return Change(before=state["path"], after=after, diff=_diffs(state["seen"], todo), values=values)


def _folder(path: str, host: Host) -> None:
    if path and host.stat(path, follow=True) is None:
        _folder(path.rpartition("/")[0], host)
        host.mkdir(path)


def _write(path: str, state: receipt.FileState, host: Host) -> None:
    if state is None:
        if host.stat(path) is not None:
            host.remove(path)
        return
    _folder(path.rpartition("/")[0], host)
    host.write_text(path, state["content"], mode=state["mode"], uid=state["uid"], gid=state["gid"])


def _keep(args: dict[str, Any], strangers: Mapping[str, receipt.FileState], host: Host) -> list[str]:
    """Texts that are about to be overwritten although they are not ours."""
    out = []
    for number, (path, state) in enumerate(sorted(strangers.items()), 1):
        if state is not None:
            kept = f"{args['dir']}/{args['name']}.foreign-{number}-{path.rpartition('/')[2]}"
            host.write_text(kept, state["content"], mode=0o600)
            out.append(kept)
    return out


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Receipt first, files second; back: files first, receipt second. A cut in between is finished by the same command."""
    if args["state"] == "absent":
        host.remove(change.before)
        return {}
    _folder(args["dir"], host)
    kept = _keep(args, change.after["kept"], host)
    if args["state"] in ("applied", "planned") and change.after["receipt"] is not None:
        host.write_text(change.before, receipt.dump(change.after["receipt"]), mode=0o600)
    for path, state in sorted(change.after["todo"].items()):
        _write(path, state, host)
    if args["state"] == "restored" and not args["keep"]:
        _unmake(change.after["restore"].made, host)
        host.rename(change.before, f"{change.before}.done")
    return {"kept": kept}


def _unmake(folders: tuple[str, ...], host: Host) -> None:
    """Folders that we made and that are empty again; deepest first."""
    for folder in sorted(folders, reverse=True):
        if host.stat(folder) is not None and not host.listdir(folder):
            host.remove(folder)
