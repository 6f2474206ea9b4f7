# SPDX-License-Identifier: Apache-2.0
"""Make, change or remove a user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from flyops.domain import accounts
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Make, change or remove a user. A password travels on stdin, never on a command line, and is in no diff.",
    args={
        "name": Arg("str", "Its name", required=True, aliases=("user",)),
        "state": Arg("str", "Whether it should be there", default="present", choices=("absent", "present")),
        "uid": Arg("int", "Its number"),
        "group": Arg("str", "Its own group, by name or number"),
        "groups": Arg("list", "The other groups; an empty list means none", elements="str"),
        "append": Arg("bool", "Add to the groups it has, in place of setting them", default=False),
        "comment": Arg("str", "Its full name or purpose"),
        "home": Arg("path", "Its home folder"),
        "shell": Arg("path", "Its shell"),
        "create_home": Arg("bool", "Make the home folder", default=True, aliases=("createhome",)),
        "move_home": Arg("bool", "Move the old home folder to the new place", default=False),
        "system": Arg("bool", "Take a number of the system's range", default=False),
        "non_unique": Arg("bool", "Let the number be another user's, too", default=False),
        "password": Arg("str", "Its password as a crypt hash", secret=True),
        "update_password": Arg("str", "Set it always, or only for a new user", default="always", choices=("always", "on_create")),
        "password_lock": Arg("bool", "Lock (or unlock) the password"),
        "remove": Arg("bool", "With state absent, remove its home folder, too", default=False),
        "force": Arg("bool", "With state absent, remove it even while it is in use", default=False),
    },
    examples="""
- user: {name: fly, system: true, group: fly, home: /var/lib/fly, create_home: false, shell: /usr/sbin/nologin}
- user: {name: fly, groups: [video, render], append: true}
""",
    returns={"uid": "its number", "group": "number of its group", "home": "its home folder", "shell": "its shell"},
)


@dataclass(frozen=True)
class State:
    """The account as it is."""

    entry: Optional[dict[str, Any]]
    gid: Optional[int] = None  # of the group asked for
    own_group_exists: bool = False
    hash: Optional[str] = None
    home_missing: bool = False


@dataclass(frozen=True)
class Work:
    """Commands in order, what is fed to each, and what check mode's later looks should see."""

    commands: tuple[tuple[list[str], bytes], ...]
    would: Any
    home: str = ""  # to make for a user that lacks it


def read(args: dict[str, Any], host: Host) -> State:
    """Look at the account, its groups and its password's hash."""
    name = args["name"]
    accounts.check_name(name, "user")
    accounts.check_field(args, "comment", "home", "shell", "password")
    found = host.user(name)
    entry = dict(found) if found is not None and found["name"] == name else None
    if args["state"] == "absent":
        if entry and args["remove"]:
            accounts.check_home(host, entry, "remove", owned=True)
        return State(entry)
    if entry and args["home"] and args["move_home"] and args["home"] != entry.get("home"):
        accounts.check_home(host, entry, "move", owned=False)
    gid = _group_number(args["group"], host)
    for other in args["groups"] or []:
        _group_number(other, host)
    wants_shadow = args["password"] is not None or args["password_lock"] is not None
    shadow = host.read_text("/etc/shadow", missing="") if entry and wants_shadow else ""
    home = str(args["home"] or (entry or {}).get("home") or "")
    missing = bool(entry and args["create_home"] and home.startswith("/") and host.stat(home, follow=True) is None)
    return State(entry, gid, host.group(name) is not None, accounts.shadow_hash(shadow, name), missing)


def _group_number(group: Optional[str], host: Host) -> Optional[int]:
    if group is None:
        return None
    found = host.group(group)
    if found is None:
        raise ModuleError(f"Group {group} does not exist", fix="make it first with the group module")
    return int(found["gid"])


def plan(args: dict[str, Any], state: State) -> Decision:
    """The commands that it takes."""
    if args["state"] == "absent":
        return _plan_absent(args, state)
    return _plan_new(args, state) if state.entry is None else _plan_present(args, state, state.entry)


def _plan_absent(args: dict[str, Any], state: State) -> Decision:
    name = args["name"]
    values = {"name": name, "state": "absent", "remove": args["remove"], "force": args["force"]}
    if state.entry is None:
        return Same(values)
    argv = ["userdel", *(["-f"] if args["force"] else []), *(["-r"] if args["remove"] else []), name]
    return Change(state, Work(((argv, b""),), None), (Diff(f"user {name}", f"uid {state.entry['uid']}\n", ""),), values)


def _plan_new(args: dict[str, Any], state: State) -> Decision:
    name = args["name"]
    commands = [(accounts.useradd(args, own_group_exists=state.own_group_exists), b"")]
    if args["password"] is not None:
        commands.append((["chpasswd", "-e"], f"{name}:{args['password']}\n".encode()))
    if args["password_lock"]:
        commands.append((["usermod", "-L", name], b""))
    would = {
        "name": name,
        "uid": accounts.SOME_ID if args["uid"] is None else args["uid"],
        "gid": accounts.SOME_ID if state.gid is None else state.gid,
        "gecos": args["comment"] or "",
        "home": args["home"] or f"/home/{name}",
        "shell": args["shell"] or "",
        "groups": sorted(args["groups"] or []),
    }
    return Change(state, Work(tuple(commands), would), (Diff(f"user {name}", "", "present\n"),), {"name": name, "state": "present"})


def _plan_present(args: dict[str, Any], state: State, entry: dict[str, Any]) -> Decision:
    name = args["name"]
    fields = accounts.changed_fields(args, entry, state.gid)
    commands = [(accounts.usermod(args, fields), b"")] if fields else []
    diffs = list(accounts.diffs(name, fields))
    locked = state.hash is not None and state.hash.startswith("!")
    bare = (state.hash or "").lstrip("!") if args["password_lock"] is not None else state.hash
    may_set = args["update_password"] == "always"  # noqa: S105 (the name of an argument)
    if args["password"] is not None and may_set and bare != args["password"]:
        commands.append((["chpasswd", "-e"], f"{name}:{args['password']}\n".encode()))
        diffs.append(Diff(f"password of user {name}", "", "(set)"))
        locked = False
    if args["password_lock"] is not None and args["password_lock"] != locked:
        commands.append((["usermod", "-L" if args["password_lock"] else "-U", name], b""))
        diffs.append(Diff(f"password lock of user {name}", str(locked), str(args["password_lock"])))
    home = str(args["home"] or entry.get("home")) if state.home_missing and not ("home" in fields and args["move_home"]) else ""
    if home:
        diffs.append(Diff(home, "", "(folder)\n"))
    values = {"name": name, "state": "present", **_account(entry)}
    if not commands and not home:
        return Same(values)
    groups = sorted(set(fields["groups"][1].split(",")) - {""}) if "groups" in fields else entry.get("groups") or []
    moved = {accounts.SHOWN.get(field, field): want for field, (_, want) in fields.items() if field not in ("groups", "uid", "group")}
    numbers = {"uid": entry["uid"] if args["uid"] is None else args["uid"], "gid": entry["gid"] if state.gid is None else state.gid}
    return Change(state, Work(tuple(commands), {**entry, **moved, **numbers, "groups": groups}, home), tuple(diffs), values)


def _account(entry: dict[str, Any]) -> dict[str, Any]:
    named = {"uid": "uid", "group": "gid", "comment": "gecos", "home": "home", "shell": "shell"}
    return {name: entry.get(key) for name, key in named.items()}


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run the commands, then make a home folder that is missing."""
    work: Work = change.after
    name = args["name"]
    host.would("user", name, work.would)
    if work.would and change.before.entry is None and args["group"] is None and not change.before.own_group_exists:
        host.would("group", name, {"name": name, "gid": work.would["gid"], "members": []})
    for argv, stdin in work.commands:
        done = host.run(argv, stdin=stdin)
        if done.rc != 0:
            raise ModuleError(f"{argv[0]} {name}: {accounts.said(done)}", name=name, rc=done.rc)
    entry = host.user(name)
    if work.home and entry is not None:
        host.mkdir(work.home, mode=0o755)
        host.chown(work.home, entry["uid"], entry["gid"])
    return _account(dict(entry)) if entry is not None else {}
