# SPDX-License-Identifier: Apache-2.0
"""A Proxmox VE container: made once from a template, its settings kept, started, stopped. Never made again over an existing one, never killed."""

from __future__ import annotations

import posixpath
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from flyops.domain import lxcconf, pveconf, pvecreate, pveguest
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="A Proxmox VE container from a template: cores, memory, swap and start at boot are kept as asked; it is never made again.",
    args={
        "id": Arg(required=True, help="the guest's number, from 100"),
        "state": Arg(default="started", choices=("started", "present", "stopped", "absent"), help="present: made, running or not"),
        "hostname": Arg(default="", help="host name; needed for a guest that has to be made"),
        "template": Arg(default="", help="volume (local:vztmpl/…); empty: the newest of `system` in template_storage"),
        "system": Arg(default="debian-13-standard", help="beginning of a template's file name, up to its version"),
        "template_storage": Arg(default="local", help="storage that holds templates"),
        "cores": Arg("int", default=2, help="cores (which ones: container_gpu's cpus)"),
        "memory": Arg(default="4G", help="memory (4G, 512M, or MiB)"),
        "swap": Arg(default="0", help="swap (4G, 512M, or MiB)"),
        "storage": Arg(default="local-lvm", help="storage of the root disk"),
        "disk": Arg("int", default=16, help="size of the root disk in GiB; never changed later"),
        "network": Arg(default="name=eth0,bridge=vmbr0,ip=dhcp", help="net0; empty: no network"),
        "features": Arg(default="nesting=1", help="features (systemd in a guest needs nesting)"),
        "unprivileged": Arg("bool", default=True, help="with a user namespace of its own"),
        "onboot": Arg("bool", default=False, help="start with the host"),
        "wait": Arg("int", default=60, help="seconds to wait until a started guest runs a command"),
        "stop_wait": Arg("int", default=120, help="seconds that it may take to shut down; it is never killed"),
        "archive_state": Arg("list", default=(), elements="path", help="absent: folders of the guest to archive first, as far as they are there"),
        "archive_to": Arg("path", help="absent: the .tar.gz to write"),
        "conf_dir": Arg("path", default="/etc/pve/lxc", help="where the guests' configs are"),
    },
    examples="- name: A guest for the fly\n  pve_container: {id: '101', hostname: dev1, cores: 4, memory: 8G, disk: 32}\n",
    returns={
        "template": "what it was, or would be, made from",
        "set": "settings that were changed",
        "differs": "what can only be decided when a guest is made, and is other than asked",
        "running": "whether it runs",
        "archive": "absent: path, sha256, size and folders of the archived state",
    },
)


MOUNTED = re.compile(r"in '(/[^']+)'")


@dataclass(frozen=True)
class State:
    """What `read` saw."""

    exists: bool
    text: str
    running: bool
    templates: Tuple[str, ...]


@dataclass(frozen=True)
class Todo:
    """The steps of `apply`, in their order."""

    steps: Tuple[str, ...]
    guest: pvecreate.Guest | None = None
    template: str = ""
    settings: Mapping[str, str] | None = None


def read(args: Dict[str, Any], host: Host) -> State:
    """The guest; the templates only when it has to be made."""
    wrong = pveguest.check_id(args["id"])
    if wrong:
        raise ModuleError(wrong)
    pveguest.need_tools(host)
    place = pveguest.Place(args["id"], args["conf_dir"])
    seen = pveguest.look(host, place)
    listing = b""
    if not seen.exists and not args["template"] and args["state"] in ("started", "present"):
        done = host.run(["pveam", "list", args["template_storage"]], query=True)
        if done.rc != 0:
            raise ModuleError(
                f"pveam list {args['template_storage']} ended with {done.rc}: {pveguest.said(done)}", fix="is it a storage (pvesm status)?"
            )
        listing = done.stdout
    return State(seen.exists, seen.text, seen.running, pvecreate.templates(listing.decode("utf-8", "replace")))


def plan(args: Dict[str, Any], state: State) -> Decision:
    """Make it, set what differs, start or stop it."""
    if not state.exists and args["state"] == "stopped":
        raise ModuleError(f"guest {args['id']} does not exist, so it cannot be stopped", fix="make it first (state: present or started)")
    if state.exists and pveconf.value(state.text, "lock") == "create":
        raise Refused(
            f"guest {args['id']} is being made, or a making was cut off (lock: create): it is left alone",
            fix=f"wait for it; if nothing runs any more: pct unlock {args['id']} && pct destroy {args['id']}, and run again",
        )
    if state.exists and not pveguest.Seen(text=state.text).ours:
        raise Refused(
            f"guest {args['id']} ({pveconf.value(state.text, 'hostname', 'no host name')}) exists and was not made by flyops: it is left alone",
            fix=f"choose another number (pct list); if it is yours: pct set {args['id']} --tags flyops",
        )
    if args["state"] == "stopped":
        return _plan_stopped(args, state)
    if args["state"] == "absent":
        return _plan_absent(args, state)
    guest = _guest(args, state)
    template = "" if state.exists else _template(args, state)
    has = dict(pveconf.parse(state.text))
    settings = pvecreate.differing(guest, has) if state.exists else {}
    start = args["state"] == "started" and not state.running
    steps = [name for name, wanted in (("create", not state.exists), ("set", bool(settings)), ("start", start)) if wanted]
    if state.exists and steps:
        pveguest.may_write(args["id"], state.text)
    values = {
        "id": args["id"],
        "hostname": guest.hostname,
        "template": template,
        "set": settings,
        "differs": list(pvecreate.fixed(guest, has)) if state.exists else [],
        "running": start or state.running,
        "unprivileged": guest.unprivileged,
    }
    if not steps:
        return Same(values)
    return Change(after=Todo(tuple(steps), guest, template, settings), diff=tuple(_diffs(args, steps, guest, template, settings, has)), values=values)


def _plan_stopped(args: Mapping[str, Any], state: State) -> Decision:
    values = {"id": args["id"], "running": False}
    if not state.running:
        return Same(values)
    return Change(after=Todo(("stop",)), diff=(Diff(f"guest {args['id']}", "running\n", "stopped\n"),), values=values)


def _plan_absent(args: Mapping[str, Any], state: State) -> Decision:
    values: Dict[str, Any] = {"id": args["id"], "running": False, "archive": None}
    if not state.exists:
        return Same(values)
    pveguest.may_write(args["id"], state.text)
    wrong = lxcconf.check_words("net0", args["archive_state"] or ())
    if wrong or (args["archive_state"] and not args["archive_to"]):
        raise ModuleError(wrong or "archive_state needs archive_to, the .tar.gz to write")
    steps = [name for name, wanted in (("stop", state.running), ("archive", args["archive_state"]), ("destroy", True)) if wanted]
    return Change(after=Todo(tuple(steps)), diff=(Diff(f"guest {args['id']}", "there\n", "".join(f"{step}\n" for step in steps)),), values=values)


def _guest(args: Mapping[str, Any], state: State) -> pvecreate.Guest:
    try:
        guest = pvecreate.Guest(
            number=args["id"],
            hostname=args["hostname"] or pveconf.value(state.text, "hostname"),
            cores=args["cores"],
            memory_mib=pvecreate.mebibytes(args["memory"]),
            swap_mib=pvecreate.mebibytes(args["swap"]),
            storage=args["storage"],
            disk_gib=args["disk"],
            network=args["network"],
            features=args["features"],
            unprivileged=args["unprivileged"],
            onboot=args["onboot"],
        )
    except lxcconf.LxcConfError as error:
        raise ModuleError(f"guest {args['id']}: {error}") from None
    wrong = pvecreate.check(guest)
    if wrong:
        raise ModuleError(f"guest {args['id']}: {'; '.join(wrong)}")
    return guest


def _template(args: Mapping[str, Any], state: State) -> str:
    found = str(args["template"]) or pvecreate.newest(state.templates, args["system"])
    if found and not found.startswith("-") and ":vztmpl/" in found:
        return found
    storage, system = args["template_storage"], args["system"]
    raise Refused(
        f"no template of {system} in the storage {storage} (found {', '.join(state.templates) or 'none at all'})"
        if not found
        else f"template: expected STORAGE:vztmpl/FILE, found {found!r}",
        fix=f"pveam update; pveam available --section system | grep {system}; pveam download {storage} NAME",
    )


def _diffs(
    args: Mapping[str, Any], steps: List[str], guest: pvecreate.Guest, template: str, settings: Mapping[str, str], has: Mapping[str, str]
) -> List[Diff]:
    out = []
    name = f"guest {args['id']}"
    if "create" in steps:
        out.append(Diff(name, "", " ".join(pvecreate.create(guest, template, pveguest.TAG)) + "\n"))
    if "set" in steps:
        before = "".join(f"{key}: {has[key]}\n" for key in sorted(settings) if key in has)
        out.append(Diff(name, before, "".join(f"{key}: {settings[key]}\n" for key in sorted(settings))))
    if "start" in steps:
        out.append(Diff(name, "stopped\n" if "create" not in steps else "", "running\n"))
    return out


# doing it


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any] | None:
    """The steps one after the other; each may be run again after a run that was cut off."""
    todo: Todo = change.after
    out: Dict[str, Any] = {}
    for step in todo.steps:
        host.note(f"{args['id']}: {step}")
        out.update(STEPS[step](args, todo, host) or {})
    return out


def _create(args: Mapping[str, Any], todo: Todo, host: Host) -> None:
    assert todo.guest is not None
    argv = pvecreate.create(todo.guest, todo.template, pveguest.TAG)
    pveguest.must(host, argv, f"making guest {args['id']}", "pct said why; put that right and run again")


def _set(args: Mapping[str, Any], todo: Todo, host: Host) -> None:
    words = [word for key, value in sorted((todo.settings or {}).items()) for word in (f"--{key}", value)]
    pveguest.must(host, ["pct", "set", args["id"], *words], f"setting guest {args['id']}")


def _start(args: Mapping[str, Any], todo: Todo, host: Host) -> None:
    pveguest.start(host, args["id"])
    deadline = time.monotonic() + args["wait"]
    while True:
        done = host.run(pveguest.inside(args["id"], "true"), query=True)
        if done.rc == 0:
            return
        if time.monotonic() >= deadline:
            raise ModuleError(
                f"guest {args['id']} was started and runs no command after {args['wait']} s: {pveguest.said(done) or 'no word'}",
                fix=f"pct console {args['id']} shows what it does",
            )
        time.sleep(0.5)


def _stop(args: Mapping[str, Any], todo: Todo, host: Host) -> None:
    pveguest.shut_down(host, args["id"], args["stop_wait"])


def _archive(args: Mapping[str, Any], todo: Todo, host: Host) -> Dict[str, Any]:
    """Of the stopped guest's disk; written, read back and compared before anything is destroyed."""
    done = pveguest.must(host, ["pct", "mount", args["id"]], f"mounting the disk of guest {args['id']}")
    found = MOUNTED.search(done.stdout.decode("utf-8", "replace"))
    try:
        if found is None:
            raise ModuleError(f"pct mount {args['id']} does not say where: {pveguest.said(done)!r}")
        return _packed(args, found.group(1), host)
    finally:
        pveguest.must(host, ["pct", "unmount", args["id"]], f"unmounting the disk of guest {args['id']}", "nothing was destroyed")


def _packed(args: Mapping[str, Any], root: str, host: Host) -> Dict[str, Any]:
    folders = [folder.strip("/") for folder in args["archive_state"] if host.stat(f"{root}/{folder.strip('/')}") is not None]
    if not folders:
        return {"archive": None}
    target, part = args["archive_to"], args["archive_to"] + ".part"
    if host.stat(posixpath.dirname(target)) is None:
        host.mkdir(posixpath.dirname(target), mode=0o700)
    host.write_bytes(part, b"", mode=0o600)
    what = f"archiving {', '.join(folders)} of guest {args['id']}"
    tar = ["tar", "--force-local", "--numeric-owner", "-C", root]
    pveguest.must(host, [*tar, "-czf", part, "--", *folders], what)
    pveguest.must(host, [*tar, "-dzf", part], f"{what}: the archive differs from the files")
    host.rename(part, target)
    stat = host.stat(target)
    return {"archive": {"path": target, "sha256": host.sha256(target), "size": stat.size if stat else 0, "folders": [f"/{name}" for name in folders]}}


def _destroy(args: Mapping[str, Any], todo: Todo, host: Host) -> None:
    pveguest.must(host, ["pct", "destroy", args["id"]], f"destroying guest {args['id']}")


STEPS: Dict[str, Callable[[Mapping[str, Any], Todo, Host], Optional[Dict[str, Any]]]] = {
    "create": _create,
    "set": _set,
    "start": _start,
    "stop": _stop,
    "archive": _archive,
    "destroy": _destroy,
}
