# SPDX-License-Identifier: Apache-2.0
"""Releases on a target: staged beside the live one, verified against their MANIFEST, made current in one step, pruned."""

from __future__ import annotations

from typing import Any

from flyops.domain import manifest, release
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Stage, verify, switch, list, remove and prune releases below home/releases. Nothing is trusted that its MANIFEST does not prove.",
    args={
        "home": Arg("path", required=True, help="folder with releases/, current and previous"),
        "version": Arg("str", help="name of the release; the tar's top folder has it, too"),
        "src": Arg("blob", help="the release's tar.gz on the controller (staged)"),
        "state": Arg("str", default="read", choices=("staged", "current", "absent", "pruned", "read"), help="what is wanted"),
        "keep": Arg("int", default=3, help="pruned: how many of the newest to keep, beside current and previous"),
        "owner": Arg("str", default="", help="owner of a staged release's files"),
        "group": Arg("str", default="", help="group of a staged release's files"),
    },
    required_if=(("state", "staged", ("version", "src")), ("state", "current", ("version",)), ("state", "absent", ("version",))),
    examples="- name: The release is there and whole\n  release: {home: /opt/fly, version: 0.1.0-0123456789, src: flysim-0.1.0-0123456789.tar.gz, state: staged}\n",
    returns={
        "current": "version that current points to, or empty",
        "previous": "the one before it",
        "releases": "all versions, newest first (read: each with valid and problems)",
        "path": "folder of the version",
        "set_aside": "where a damaged release went",
        "pruned": "versions removed",
    },
)


def _folder(args: dict[str, Any], version: str) -> str:
    return f"{args['home']}/releases/{version}"


def _walk(folder: str, host: Host, below: str = "") -> dict[str, str]:
    """Relative path -> sha256 of every file, or the kind of what is no file."""
    out: dict[str, str] = {}
    for name in host.listdir(f"{folder}/{below}" if below else folder):
        path = f"{below}/{name}" if below else name
        seen = host.stat(f"{folder}/{path}")
        if seen is None:
            continue
        if seen.kind == "dir":
            out.update(_walk(folder, host, path))
        else:
            out[path] = host.sha256(f"{folder}/{path}") if seen.kind == "file" else seen.kind
    return out


def _problems(folder: str, version: str, host: Host) -> list[str]:
    """What is wrong with a staged folder; empty when it is whole."""
    seen = host.stat(folder)
    if seen is None:
        return ["it is not there"]
    if seen.kind != "dir":
        return [f"it is a {seen.kind}, expected a folder"]
    found = _walk(folder, host)
    if len(found.get(manifest.NAME, "")) != release.DIGEST:
        return ["it has no MANIFEST"]
    return release.problems(host.read_text(f"{folder}/{manifest.NAME}"), version, found)


def _pointed(args: dict[str, Any], name: str, host: Host) -> str:
    seen = host.stat(f"{args['home']}/{name}")
    return release.pointed(seen.target) if seen and seen.kind == "link" else ""


def _aged(args: dict[str, Any], host: Host) -> list[tuple[str, float]]:
    """(version, time of staging) of the releases, newest first. Names with a dot in front are ours for a moment, or set aside."""
    folder = f"{args['home']}/releases"
    if host.stat(folder, follow=True) is None:
        return []
    out = []
    for name in host.listdir(folder):
        seen = host.stat(f"{folder}/{name}")
        if seen and seen.kind == "dir" and release.NAME.fullmatch(name):
            out.append((name, seen.mtime))
    return sorted(out, key=lambda pair: (-pair[1], pair[0]))


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Links, versions, and the health of what the wanted state is about."""
    if args["version"]:
        try:
            release.check_version(args["version"])
        except release.ReleaseError as err:
            raise ModuleError(str(err)) from err
    for name in ("current", "previous"):
        seen = host.stat(f"{args['home']}/{name}")
        if seen is not None and seen.kind != "link":
            raise ModuleError(f"{args['home']}/{name} is a {seen.kind}, expected a link to releases/VERSION", fix="move it out of the way")
    aged = _aged(args, host)
    state: dict[str, Any] = {name: _pointed(args, name, host) for name in ("current", "previous")}
    state.update(aged=aged, problems={}, leftovers=[])
    looked = [version for version, _ in aged] if args["state"] == "read" else [args["version"]] if args["state"] in ("staged", "current") else []
    for version in looked:
        state["problems"][version] = _problems(_folder(args, version), version, host)
    if args["state"] == "pruned" and host.stat(f"{args['home']}/releases", follow=True):
        state["leftovers"] = [f"releases/{n}" for n in host.listdir(f"{args['home']}/releases") if n.startswith(".") and n.endswith(".incoming")]
        # Links that a flip was about to put in place when it was cut off.
        state["leftovers"] += [n for n in host.listdir(args["home"]) if n.startswith(".flyops-") or n.endswith(".flyops-new")]
    if args["state"] == "absent":
        state["there"] = host.stat(_folder(args, args["version"])) is not None
    return state


def _values(args: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"current": state["current"], "previous": state["previous"], "releases": [version for version, _ in state["aged"]]}
    if args["version"]:
        out["path"] = _folder(args, args["version"])
        out["version"] = args["version"]
    return out


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """One small decision for each wanted state."""
    return {"read": _plan_read, "staged": _plan_staged, "current": _plan_current, "absent": _plan_absent, "pruned": _plan_pruned}[args["state"]](
        args, state
    )


def _plan_read(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    listed = [{"version": version, "valid": not state["problems"][version], "problems": state["problems"][version]} for version, _ in state["aged"]]
    return Same({**_values(args, state), "releases": listed})


def _plan_staged(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    wrong = state["problems"][args["version"]]
    values = _values(args, state)
    if not wrong:
        return Same(values)
    there = wrong != ["it is not there"]
    before = f"damaged: {'; '.join(wrong)}\n" if there else ""
    return Change(before=there, after=args["version"], diff=(Diff(values["path"], before, f"release {args['version']}\n"),), values=values)


def _plan_current(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    wrong = state["problems"][args["version"]]
    values = _values(args, state)
    if wrong:
        raise Refused(
            f"release {args['version']} does not verify: {'; '.join(wrong)}",
            fix="stage it again (state: staged); current stays where it is",
            problems=wrong,
            **values,
        )
    if state["current"] == args["version"]:
        return Same(values)
    values.update(current=args["version"], previous=state["current"] or state["previous"])
    diff = Diff(f"{args['home']}/current", f"releases/{state['current']}\n" if state["current"] else "", f"releases/{args['version']}\n")
    return Change(before=state["current"], after=args["version"], diff=(diff,), values=values)


def _plan_absent(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    values = _values(args, state)
    if not state["there"]:
        return Same(values)
    holder = next((name for name in ("current", "previous") if state[name] == args["version"]), "")
    if holder:
        raise Refused(f"release {args['version']} is {holder}: it stays", fix="make another one current first", **values)
    return Change(before=args["version"], after="", diff=(Diff(values["path"], f"release {args['version']}\n", ""),), values=values)


def _plan_pruned(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    gone = release.to_prune(state["aged"], [name for name in (state["current"], state["previous"]) if name], args["keep"])
    values = {**_values(args, state), "pruned": list(gone)}
    if not gone and not state["leftovers"]:
        return Same(values)
    names = [*(f"releases/{version}" for version in gone), *state["leftovers"]]
    return Change(before=names, after=[], diff=(Diff(args["home"], "".join(f"{n}\n" for n in names), ""),), values=values)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Do it; each step can be cut off and run again."""
    if args["state"] == "staged":
        return _stage(args, bool(change.before), host)
    if args["state"] == "current":
        _flip(args, change, host)
    elif args["state"] == "absent":
        host.remove(_folder(args, args["version"]))
    else:
        for name in change.before:
            host.remove(f"{args['home']}/{name}")
    return {}


def _ids(args: dict[str, Any], host: Host) -> tuple[int | None, int | None]:
    uid: int | None = None
    gid: int | None = None
    if args["owner"]:
        user = host.user(args["owner"])
        if user is None:
            raise ModuleError(f"owner: there is no user {args['owner']!r} here", fix="make the user first (module user)")
        uid, gid = int(user["uid"]), int(user["gid"])
    if args["group"]:
        group = host.group(args["group"])
        if group is None:
            raise ModuleError(f"group: there is no group {args['group']!r} here", fix="make the group first (module group)")
        gid = int(group["gid"])
    return uid, gid


def _make_folder(path: str, host: Host, owner: tuple[int | None, int | None] = (None, None)) -> None:
    if host.stat(path, follow=True) is None:
        parent = path.rpartition("/")[0]
        if parent:
            _make_folder(parent, host)
        host.mkdir(path, mode=0o755)
        if owner != (None, None):
            host.chown(path, -1 if owner[0] is None else owner[0], -1 if owner[1] is None else owner[1])


def _unpack(args: dict[str, Any], temporary: str, host: Host) -> None:
    """The tar into a folder of its own, then the same proof that a staged release needs. A member that the tar must not have never lands."""
    uid, gid = _ids(args, host)
    members = release.unpack(host.read_bytes(host.blob(args["src"]["sha256"])), args["version"])
    _make_folder(temporary, host, (uid, gid))
    for folder in release.folders(members):
        _make_folder(f"{temporary}/{folder}", host, (uid, gid))
    for member in members:
        host.write_bytes(f"{temporary}/{member.path}", member.data, mode=member.mode, uid=uid, gid=gid)
    wrong = _problems(temporary, args["version"], host)
    if wrong:
        raise release.ReleaseError(f"the tar does not hold what its MANIFEST says: {'; '.join(wrong)}")


def _stage(args: dict[str, Any], damaged: bool, host: Host) -> dict[str, Any]:
    final = _folder(args, args["version"])
    temporary = f"{args['home']}/releases/.{args['version']}.incoming"
    _make_folder(f"{args['home']}/releases", host)
    if host.stat(temporary) is not None:
        host.remove(temporary)  # of a run that was cut off
    try:
        _unpack(args, temporary, host)
    except (release.ReleaseError, ModuleError, OSError) as err:
        if host.stat(temporary) is not None:
            host.remove(temporary)
        if isinstance(err, release.ReleaseError):
            raise ModuleError(f"release {args['version']}: {err}", fix="build or copy the tar again; nothing was left here", path=final) from err
        raise
    aside = ""
    if damaged:
        aside = _free(f"{args['home']}/releases/.{args['version']}.damaged", host)
        host.note(f"release {args['version']} here is damaged: set aside as {aside}")
        host.rename(final, aside)
    host.rename(temporary, final)
    return {"set_aside": aside, "msg": f"the damaged release was set aside as {aside}"} if aside else {"set_aside": ""}


def _free(path: str, host: Host) -> str:
    number = 1
    while host.stat(f"{path}-{number}") is not None:
        number += 1
    return f"{path}-{number}"


def _flip(args: dict[str, Any], change: Change, host: Host) -> None:
    """`previous` first: a cut between the two leaves current as it was, and the same command again ends right."""
    if change.before:
        _point(f"{args['home']}/previous", str(change.before), host)
    _point(f"{args['home']}/current", str(change.after), host)


def _point(link: str, version: str, host: Host) -> None:
    temporary = f"{link}.flyops-new"
    if host.stat(temporary) is not None:
        host.remove(temporary)
    host.symlink(f"releases/{version}", temporary)
    host.rename(temporary, link)
