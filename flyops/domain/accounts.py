# SPDX-License-Identifier: Apache-2.0
"""Users and groups: names that may reach the system's tools, and the commands that bring an account to what was asked."""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional

from flyops.domain import paths, system
from flyops.errors import ModuleError
from flyops.model.change import Diff
from flyops.model.host import Completed, Host

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,255}\$?$")
SOME_ID = 65533  # check mode: the system would give a number
FIELDS = {"uid": "-u", "group": "-g", "comment": "-c", "home": "-d", "shell": "-s"}
SHOWN = {"comment": "gecos", "group": "gid"}


def check_name(name: str, what: str) -> None:
    """Refuse a name that a tool could take for an option, or that would break a line of the account files."""
    if not NAME.fullmatch(name):
        raise ModuleError(
            f"{what} {name!r}: not a name for a {what}", fix="use letters, digits, dot, dash and underscore, a letter or underscore first"
        )


def check_field(args: Mapping[str, Any], *names: str) -> None:
    """Refuse values that would break a line of the account files."""
    for name in names:
        if args[name] is not None and any(c in args[name] for c in ":\n"):
            raise ModuleError(f"{name} holds a colon or newline, which ends a field of the account files", fix=f"give another {name}")


def check_home(host: Host, entry: Mapping[str, Any], deed: str, *, owned: bool) -> None:
    """Refuse to let `userdel -r` or `usermod -m` take a home that is not this user's alone: they take whatever the account file says, even `/`."""
    home = str(entry.get("home") or "")
    where = paths.resolve(host, home) if home.startswith("/") else ""
    stat = host.stat(where) if where else None
    if stat is None or stat.kind != "dir":
        return
    name = entry["name"]
    fix = f"give {name} a home of its own first (usermod -d), or leave the folder where it is"
    if where in system.FOLDERS:
        raise ModuleError(f"refused to {deed} {home}, the home of {name}: it is a folder of the system itself", fix=fix)
    for line in host.read_text("/etc/passwd", missing="").splitlines():
        fields = line.split(":")
        if len(fields) < 7 or fields[0] == name or not fields[5].startswith("/"):
            continue
        other = paths.resolve(host, fields[5])
        if other == where or other.startswith(f"{where}/"):
            raise ModuleError(f"refused to {deed} {home}, the home of {name}: {fields[0]} lives in {fields[5]}", fix=fix)
    if owned and stat.uid != entry["uid"]:
        raise ModuleError(f"refused to {deed} {home}, the home of {name}: it belongs to uid {stat.uid}, expected {entry['uid']}", fix=fix)


def said(done: Completed) -> str:
    """What a tool complained about."""
    return (done.stderr or done.stdout).decode("utf-8", "replace").strip()


def useradd(args: Mapping[str, Any], *, own_group_exists: bool) -> list[str]:
    """The command that makes the user."""
    argv = ["useradd"]
    for field, flag in FIELDS.items():
        if args[field] is not None:
            argv += [flag, str(args[field])]
            if field == "uid" and args["non_unique"]:
                argv.append("-o")
    if args["group"] is None and own_group_exists:
        argv.append("-N")
    if args["groups"]:
        argv += ["-G", ",".join(args["groups"])]
    argv.append("-m" if args["create_home"] else "-M")
    if args["system"]:
        argv.append("-r")
    return [*argv, args["name"]]


def changed_fields(args: Mapping[str, Any], entry: Mapping[str, Any], gid: Optional[int]) -> dict[str, tuple[str, str]]:
    """Field: (value there, value wanted) for what differs; the password is not among them."""
    out: dict[str, tuple[str, str]] = {}
    for field in FIELDS:
        have = entry.get(SHOWN.get(field, field))
        want = gid if field == "group" else args[field]
        if args[field] is not None and str(want) != str(have):
            out[field] = (str(have), str(want))
    if args["groups"] is not None:
        have_groups, want_groups = set(entry.get("groups") or []), set(args["groups"])
        if args["append"] and not want_groups <= have_groups:
            out["groups"] = (",".join(sorted(have_groups)), ",".join(sorted(have_groups | want_groups)))
        elif not args["append"] and want_groups != have_groups:
            out["groups"] = (",".join(sorted(have_groups)), ",".join(sorted(want_groups)))
    return out


def usermod(args: Mapping[str, Any], fields: Mapping[str, tuple[str, str]]) -> list[str]:
    """The command that brings those fields to what is wanted."""
    argv = ["usermod"]
    for field, flag in FIELDS.items():
        if field not in fields:
            continue
        argv += [flag, str(args[field])]
        if field == "uid" and args["non_unique"]:
            argv.append("-o")
        if field == "home" and args["move_home"]:
            argv.append("-m")
    if "groups" in fields:
        argv += ["-a", "-G", ",".join(args["groups"])] if args["append"] else ["-G", fields["groups"][1]]
    return [*argv, args["name"]]


def diffs(name: str, fields: Mapping[str, tuple[str, str]]) -> tuple[Diff, ...]:
    """One diff for each field."""
    return tuple(Diff(f"{field} of user {name}", before, after) for field, (before, after) in fields.items())


def shadow_hash(shadow: str, name: str) -> Optional[str]:
    """The second field of the user's line, None when there is no such line."""
    for line in shadow.splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) > 1:
            return fields[1]
    return None
