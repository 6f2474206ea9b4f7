# SPDX-License-Identifier: Apache-2.0
"""An LXC guest with systemd: made, limited, given the card, started, stopped, removed. Never touches a guest that it did not make.

The guest is an overlay: a shared, unchanging base folder below, its own files in `LXC_PATH/NAME/up`.
"""

from __future__ import annotations

from typing import Any, Dict

from flyops.domain import gpuask, lxcconf, lxcguest, lxcplan, lxcsteps
from flyops.domain.lxcguest import Seen
from flyops.domain.lxcplan import Todo
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="An LXC guest with systemd, its limits read back as the kernel enforces them.",
    args={
        "name": Arg(required=True, help="name of the guest: folder, host name and cgroup"),
        "state": Arg(default="started", choices=("started", "stopped", "present", "absent"), help="present: made, running or not"),
        "rootfs": Arg("path", help="folder of the base, the lower layer of the guest's overlay; an existing guest keeps its own"),
        "network": Arg(default="bridge", choices=("bridge", "none"), help="none: only a loopback of its own"),
        "bridge": Arg(default="flybr0", help="bridge of the guest; made when missing, removed with the last guest when we made it"),
        "bridge_address": Arg(default="10.117.0.1/24", help="address of the bridge when it has to be made"),
        "address": Arg(default="", help="the guest's address with its prefix length; empty: what it has, else the first free one"),
        "taken": Arg("dict", help="addresses that others have, and whose they are (`10.117.0.7: web1`)"),
        "cpus": Arg(default="", help="cpus of the guest (0-3,8); empty: all that this host has"),
        "mems": Arg(default="", help="memory nodes of the guest (0,1); auto: those of its cpus; empty: no limit"),
        "memory": Arg(default="4G", help="memory limit (4G, 512M)"),
        "disk": Arg(default="", help="limit of the guest's own files (8G), kept by an image of that size; empty: what it has, at first none"),
        "idmap": Arg(default="", help="unprivileged: auto or FIRST:COUNT (100000:65536); none: privileged; empty: what it has, at first none"),
        "gpu": Arg("raw", default=False, help="true: every card; a list of UUIDs, bus ids or nvidia-smi's indexes; {mig: CARD/GI/CI}; false: none"),
        "driver": Arg(
            default="bind", choices=("bind", "none"), help="bind: the host's user part of the driver, read-only; none: someone else brings it"
        ),
        "autostart": Arg("bool", default=False, help="start with the host"),
        "archive_state": Arg("list", default=(), elements="path", help="absent: folders of the guest to archive first"),
        "archive_to": Arg("path", help="absent: the .tar.gz to write"),
        "lxc_path": Arg("path", default="/var/lib/lxc", help="where LXC keeps guests"),
        "wait": Arg("int", default=60, help="seconds to wait for systemd in the guest"),
        "stop_wait": Arg("int", default=120, help="seconds that a guest may take to shut down before it is killed"),
    },
    required_if=(("state", "started", ("rootfs",)), ("state", "present", ("rootfs",))),
    examples="""
- name: A guest with two cpus
  container:
    name: dev1
    rootfs: /var/cache/base
    cpus: 0-1
    memory: 4G
- name: Gone, its state kept
  container:
    name: dev1
    state: absent
    archive_state: [/var/lib/fly]
    archive_to: /var/backups/dev1.tar.gz
""",
    returns={
        "address": "the guest's address, empty without a network",
        "cpus": "cpus that the kernel gives the guest",
        "memory": "memory limit in force, bytes",
        "mems": "memory nodes that the kernel gives the guest; empty without a limit",
        "disk": "size of the image of the guest's own files, bytes; 0 without a limit",
        "idmap": "FIRST:COUNT of an unprivileged guest",
        "notes": "what an operator should know: shared or isolated cpus, remote memory, dead keys, strays",
        "systemd": "running or degraded",
        "restarted": "whether a running guest was restarted",
        "archive": "path, sha256 and size of the archived state",
    },
)


def read(args: Dict[str, Any], host: Host) -> Seen:
    """Look at the guest, its neighbours, the bridge and, when asked, the card."""
    try:
        gpuask.ask(args["gpu"])
    except gpuask.GpuError as error:
        raise ModuleError(str(error)) from None
    wrong = lxcconf.check_name(args["name"]) or lxcconf.check_words(args["bridge"], args["archive_state"] or ())
    if wrong:
        raise ModuleError(wrong)
    if args["state"] != "absent":
        lxcguest.need_tools(host)
    return lxcguest.look(host, lxcplan.place_of(args), args)


def plan(args: Dict[str, Any], state: Seen) -> Decision:
    """Which steps bring the guest to what is asked; refuses what this host cannot give."""
    if state.exists and not state.ours:
        raise Refused(
            f"container {args['name']!r} exists in {args['lxc_path']} and was not made by flyops: it is left alone",
            fix="choose another name",
        )
    return lxcplan.plan_absent(args, state) if args["state"] == "absent" else lxcplan.plan_present(args, state)


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any] | None:
    """The steps one after the other; each may be run again after a run that was cut off."""
    todo: Todo = change.after
    place = lxcplan.place_of(args)
    out: Dict[str, Any] = {}
    for step in todo.steps:
        host.note(f"{args['name']}: {step}")
        out.update(lxcsteps.STEPS[step](args, todo, place, host) or {})
    if todo.asked and args["state"] == "started":
        out.update(lxcsteps.read_back(todo.asked, todo.seen.card, place, host))
    return out
