# SPDX-License-Identifier: Apache-2.0
"""Gives an existing guest the card and its cpus, or takes them away, by converging the lines of its config. Never makes a guest."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from flyops.domain import cpuset, gpuask, lxccard, lxcconf, nvidia, pveconf, pveguest
from flyops.domain.lxcconf import Converged, Pair
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Give an existing guest the card and cpus, or take them away: lines of its config converge, a restart only when asked.",
    args={
        "manager": Arg(
            required=True, choices=("lxc", "pve", "incus"), help="who runs the guest; an Incus guest is refused: it has the module incus_guest"
        ),
        "guest": Arg(required=True, help="name of an LXC guest, number of a Proxmox one"),
        "gpu": Arg("raw", help="true, false, a list of UUIDs, bus ids or indexes, or {mig: CARD/GI/CI}; not given: the card's lines are left alone"),
        "nodes": Arg(
            default="auto",
            choices=("auto", "dev", "raw"),
            help="dev: Proxmox makes the nodes at each start (devN:, pve-container 5.0.7 and newer); raw: lxc.* keys; auto: dev where it can be",
        ),
        "mode": Arg("mode", default=0o666, help="dev: permission bits of the nodes inside; they are everybody's on the host, too"),
        "extra_nodes": Arg("list", default=(), elements="path", help="further devices (/dev/dri/renderD128); with gpu: false they are taken away"),
        "groups": Arg("dict", default={}, help="dev: the GUEST's gids of video and render; not given: asked from the running guest"),
        "driver": Arg(choices=("bind", "none"), help="bind: also the host's libraries, read-only (then nvidia_driver inside); not given: left alone"),
        "cpus": Arg(help="cpus of the guest (0-3,8); empty: the line goes; not given: left alone"),
        "mems": Arg(help="memory nodes of the guest; empty: the line goes; not given: left alone"),
        "ours": Arg("bool", default=False, help="the guest may be restarted (so may one tagged flyops, and one that flyops made)"),
        "restart": Arg("bool", default=False, help="restart a running guest of ours when a changed line needs it"),
        "stop_wait": Arg("int", default=120, help="seconds that the guest may take to shut down; it is never killed"),
        "conf_dir": Arg("path", help="where the guests' configs are; default: /etc/pve/lxc or /var/lib/lxc"),
        "state_dir": Arg("path", default="/var/lib/flyops/guests", help="where the config before our last write is kept"),
        "lock_dir": Arg("path", default="/run/lock/lxc", help="where pct has its locks"),
        "dev": Arg("path", default="/dev", help="folder of the host's nodes"),
        "proc_devices": Arg("path", default="/proc/devices", help="majors of the running kernel"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="gpus/ of the loaded module"),
        "mig_minors": Arg("path", default="/proc/driver/nvidia-caps/mig-minors", help="minors of capabilities"),
        "proc_mounts": Arg("path", default="/proc/mounts", help="where the controllers are mounted"),
        "online": Arg("path", default="/sys/devices/system/cpu/online", help="cpus that this host has"),
    },
    examples="""
- name: The whole card and four cpus
  container_gpu: {manager: pve, guest: "101", gpu: true, cpus: 0-3}
- name: Taken away, the config as it was before
  container_gpu: {manager: pve, guest: "101", gpu: false, cpus: "", mems: ""}
""",
    returns={
        "nodes": "dev or raw: how the nodes come into the guest; empty: none does",
        "privileged": "whether the guest has no user namespace; in one that has, Proxmox opens the device filter and allow lines decide nothing",
        "added": "lines that came",
        "removed": "lines that went",
        "why": "what the file tells of the reason: a rollback, a restore that lost raw keys",
        "strays": "lines that look like ours and are not; they stay",
        "dead": "keys of a cgroup version that this host does not use",
        "dropped": "lines that Proxmox drops at its next write",
        "notes": "what else should be known",
        "restart_needed": "the guest runs, and a changed line takes force only at its start",
        "restarted": "whether it was restarted",
        "cpus_effective": "cpus that the kernel gives the running guest, where lxc-cgroup can be asked",
        "cpus_wrong": "how they differ from those asked, once the guest has been started with them",
    },
)


@dataclass(frozen=True)
class State:
    """What `read` saw."""

    seen: pveguest.Seen
    majors: Mapping[str, int]
    controller: str
    cpuset: str
    asked: gpuask.Ask = field(default_factory=gpuask.Ask)
    verdicts: Tuple[nvidia.Verdict, ...] = ()
    extra: Tuple[lxcconf.Device, ...] = ()
    driver: Tuple[Tuple[str, str, str], ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict)
    online: Tuple[int, ...] = ()
    installed: Tuple[int, ...] = ()
    effective: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Plan:
    """What `apply` does."""

    seen: pveguest.Seen
    cpuset: str
    text: str
    raw: Tuple[Pair, ...]
    write: bool
    restart: bool


def _place(args: Mapping[str, Any]) -> pveguest.Place:
    folder = (args["conf_dir"] or {"pve": "/etc/pve/lxc", "lxc": "/var/lib/lxc"}[args["manager"]]).rstrip("/")
    return pveguest.Place(args["guest"], folder, posixpath.join(args["state_dir"], args["manager"]), args["lock_dir"])


# looking


def read(args: Dict[str, Any], host: Host) -> State:
    """The guest, the host's majors and, when the card is asked for, its nodes."""
    manager = args["manager"]
    if manager == "incus":
        raise ModuleError(
            f"guest {args['guest']}: Incus keeps its guests' config itself, there are no lines to converge", fix="use the module incus_guest"
        )
    wrong = pveguest.check_id(args["guest"]) if manager == "pve" else lxcconf.check_name(args["guest"])
    wrong = wrong or next((text for path in args["extra_nodes"] or () for text in [pveconf.check_path(path)] if text), "")
    if wrong:
        raise ModuleError(wrong)
    seen, ours = LOOK[manager](args, host)
    if not seen.exists:
        raise ModuleError(
            f"no guest {args['guest']} here: expected its config {_conf(args)}", fix="make it first (invoke provision), or name its host"
        )
    proc_devices = host.read_text(args["proc_devices"], missing="")
    control = lxcconf.controllers(host.read_text(args["proc_mounts"], missing=""), "")
    try:
        asked = gpuask.ask(args["gpu"])
        wanted = _nodes(args, host, asked, nvidia.live_majors(proc_devices)) if asked else ()
    except (gpuask.GpuError, nvidia.NvidiaError) as error:
        raise Refused(str(error)) from None
    return State(
        seen=seen,
        majors=nvidia.char_majors(proc_devices),
        controller="v1" if control.devices == "v1" else "v2",
        cpuset="v1" if control.cpuset == "v1" else "v2",
        asked=asked,
        verdicts=tuple(nvidia.judge_node(node, host.stat(node.path), check_mode=False) for node in wanted),
        extra=tuple(_extra(args, host)),
        driver=_driver(args, host) if asked else (),
        groups=_groups(args, host, seen),
        online=cpuset.parse(host.read_text(args["online"], missing="").strip()),
        installed=pveguest.installed(host) if manager == "pve" and args["nodes"] != "raw" and _needs_style(args) else (),
        effective=_effective(args, host, control.cpuset) if seen.running else "",
        ours=ours or args["ours"],
    )


def _look_pve(args: Mapping[str, Any], host: Host) -> Tuple[pveguest.Seen, bool]:
    pveguest.need_tools(host)
    seen = pveguest.look(host, _place(args))
    return seen, seen.ours


def _look_lxc(args: Mapping[str, Any], host: Host) -> Tuple[pveguest.Seen, bool]:
    place = _place(args)
    text = host.read_text(_conf(args), missing="")
    done = host.run(["lxc-info", "-P", place.conf_dir, "-n", args["guest"], "-s", "-p", "-H"], query=True) if text else None
    words = done.stdout.decode("utf-8", "replace").split() if done and done.rc == 0 else []
    marker = host.read_text(posixpath.join(place.conf_dir, args["guest"], "flyops.json"), missing="")
    pid = next((word for word in words if word.isdigit()), "")
    return pveguest.Seen(bool(text), text, text, "RUNNING" in words, pid, pveguest.read_memory(host, place)), '"owner": "flyops"' in marker


LOOK: Dict[str, Callable[[Mapping[str, Any], Host], Tuple[pveguest.Seen, bool]]] = {"pve": _look_pve, "lxc": _look_lxc}


def _conf(args: Mapping[str, Any]) -> str:
    place = _place(args)
    return place.conf if args["manager"] == "pve" else posixpath.join(place.conf_dir, args["guest"], "config")


def _nodes(args: Mapping[str, Any], host: Host, asked: gpuask.Ask, majors: Mapping[str, int]) -> Tuple[nvidia.Node, ...]:
    """The control nodes, and those of the cards and MIG instances that were asked for."""
    folder = f"{args['proc_driver']}/gpus"
    buses = host.listdir(folder) if host.stat(folder, follow=True) else []
    there = gpuask.cards({bus: host.read_text(f"{folder}/{bus}/information", missing="") for bus in buses})
    if not there:
        raise gpuask.GpuError(f"gpu: no card on this host ({folder} has none); load the driver (modprobe nvidia) and run again")
    chosen = gpuask.choose(asked, there, nvidia.mig_minors(host.read_text(args["mig_minors"], missing="")))
    minors = chosen.minors if chosen else [card.minor if card.minor >= 0 else at for at, card in enumerate(there)]
    caps = [nvidia.Cap(f"cap{minor}", minor, 0o444) for minor in (chosen.caps if chosen else ())]
    return nvidia.wanted_nodes(majors, minors, caps=caps, mode=args["mode"], dev=args["dev"])


def _effective(args: Mapping[str, Any], host: Host, controller: str) -> str:
    """The cpus that the kernel really gives a running guest: a narrower parent widens or moves a set without a word."""
    if not args["cpus"] or host.which("lxc-cgroup") is None:
        return ""
    path = ["-P", _place(args).conf_dir] if args["manager"] == "lxc" else []
    done = host.run(["lxc-cgroup", *path, "-n", args["guest"], lxcconf.EFFECTIVE_CPUS[controller or "v2"]], query=True)
    return done.stdout.decode("utf-8", "replace").strip() if done.rc == 0 else ""


def _driver(args: Mapping[str, Any], host: Host) -> Tuple[Tuple[str, str, str], ...]:
    """The user part of exactly the loaded driver: what is bound cannot be of another version."""
    if args["driver"] != "bind":
        return ()
    version = nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing=""))
    if not version:
        raise Refused(f"{args['proc_driver']}/version names no version, so the driver's libraries cannot be chosen", fix="load the nvidia module")
    return lxccard.user_part(host, version)[0]


def _extra(args: Mapping[str, Any], host: Host) -> Iterator[lxcconf.Device]:
    """The further devices that are there. One that is not cannot be given, but can be taken away."""
    for path in args["extra_nodes"] or ():
        found = host.stat(args["dev"] + path[len("/dev") :], follow=True)
        if found is not None and found.kind == "char":
            yield lxcconf.Device(path, *found.rdev)
        elif _gives(args):
            raise Refused(
                f"{path}: expected a character device on this host, found {found.kind if found else 'nothing'}",
                fix="load its driver, or leave it out",
            )


def _groups(args: Mapping[str, Any], host: Host, seen: pveguest.Seen) -> Mapping[str, int]:
    """Gids inside the guest. The host's are other numbers with the same names, so they are never looked up here."""
    given = {str(name): int(number) for name, number in (args["groups"] or {}).items()}
    needed = {pveconf.group_of(path) for path in args["extra_nodes"] or ()} - {"", *given}
    if args["manager"] != "pve" or not needed or not seen.running:
        return given
    done = host.run(pveguest.inside(args["guest"], "getent", "group", *sorted(needed)), query=True)
    rows = [line.split(":") for line in done.stdout.decode("utf-8", "replace").splitlines()]
    return {**{row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdigit()}, **given}


# deciding


def plan(args: Dict[str, Any], state: State) -> Decision:
    """Which lines come and go, and whether the guest has to be restarted for them."""
    seen = state.seen
    try:
        style = _style(args, state)
        wanted = _wanted(args, state, style)
        found = _converge(args, state, wanted)
    except (pveconf.PveConfError, cpuset.CpusetError, lxcconf.LxcConfError) as error:
        raise Refused(f"guest {args['guest']}: {error}") from None
    write = found.changed or seen.raw != found.text
    if write:
        pveguest.may_write(args["guest"], seen.text)
    waits = seen.running and (found.changed or seen.restart_waits)
    restart = waits and args["restart"]
    if restart and not state.ours:
        raise Refused(
            f"guest {args['guest']} is not declared ours, so it is not restarted and its config stays as it is",
            fix="say ours: true or tag it flyops if it is; else leave restart out, and ask its owner to restart it",
        )
    values = _values(args, state, style, found, waits, restart)
    if not write and not restart:
        return Same(values)
    diff = [Diff(_conf(args), seen.raw, found.text)] if write else []
    diff += [Diff(f"guest {args['guest']}", "running\n", "restarted: a changed line takes force only at a start\n")] if restart else []
    return Change(after=Plan(seen, state.cpuset, found.text, wanted.raw, write, restart), diff=tuple(diff), values=values)


def _style(args: Mapping[str, Any], state: State) -> str:
    if not _needs_style(args):
        return ""  # no node comes, so there is nothing to choose
    if args["manager"] == "pve":
        return pveconf.style(args["nodes"], state.installed)
    if args["nodes"] == "dev":
        raise pveconf.PveConfError("devN: entries are Proxmox's, and an LXC guest has none; use nodes: raw")
    return "raw"


def _wanted(args: Mapping[str, Any], state: State, style: str) -> pveconf.Wanted:
    wrong = [verdict.text for verdict in state.verdicts if not verdict.right]
    if wrong:
        raise Refused(
            f"the host's nodes are not right, so guest {args['guest']} would not start or get a foreign device: {'; '.join(wrong)}",
            fix="invoke host makes them (nvidia_nodes), and at every boot before the guests start",
        )
    listed = {name: args[name] for name in ("cpus", "mems") if args[name] is not None}
    _need_online(args["guest"], listed.get("cpus", ""), state.online)
    cpus = pveconf.cpuset_lines(listed, state.seen.text, state.cpuset)
    nodes = [nvidia.Node("/dev" + v.node.path[len(args["dev"]) :], v.node.major, v.node.minor) for v in state.verdicts]
    extra = state.extra if _gives(args) else ()
    if style == "dev":
        own = [pveconf.Dev(node.path, args["mode"]) for node in nodes]
        return pveconf.Wanted(
            tuple(own + [_extra_dev(device.path, args["guest"], state) for device in extra]),
            (*lxcconf.gpu_lines((), state.driver, state.controller), *cpus),
        )
    devices = [lxcconf.Device(node.path, node.major, node.minor) for node in nodes]
    if state.asked.every and "nvidia-caps" in state.majors:
        devices.append(lxcconf.Device("/dev/nvidia-caps/nvidia-cap1", state.majors["nvidia-caps"], 1))  # becomes the whole folder
    return pveconf.Wanted(
        (),
        (
            *lxcconf.gpu_lines(devices, state.driver, state.controller),
            *(line for device in extra for line in _extra_raw(device, state.controller)),
            *cpus,
        ),
    )


def _needs_style(args: Mapping[str, Any]) -> bool:
    return bool(args["extra_nodes"] or gpuask.ask(args["gpu"]))


def _gives(args: Mapping[str, Any]) -> bool:
    return args["gpu"] is None or bool(gpuask.ask(args["gpu"]))


def _extra_dev(path: str, guest: str, state: State) -> pveconf.Dev:
    group = pveconf.group_of(path)
    if group and group not in state.groups:
        raise Refused(
            f"{path} belongs to the group {group}, whose gid inside guest {guest} is not known (the guest does not run, or has no such group)",
            fix=f"start the guest, or give groups: {{{group}: GID}} with the GUEST's number",
        )
    gid = state.groups.get(group, 0)
    if not pveconf.is_guests_id(state.seen.text, "g", gid):
        raise Refused(
            f"gid {gid} for {path} is a number of the host: guest {guest} cannot have it", fix="give the guest's own number (getent group there)"
        )
    return pveconf.Dev(path, gid=gid)


def _extra_raw(device: lxcconf.Device, controller: str) -> Tuple[Pair, ...]:
    bind = f"{device.path} {device.path.lstrip('/')} none bind,optional,create=file"
    return ((lxcconf.DEVICE_KEYS[controller], _rule(device)), ("lxc.mount.entry", bind))


def _rule(device: lxcconf.Device) -> str:
    return f"c {device.major}:{device.minor} rwm"


def _need_online(guest: str, listed: str, online: Tuple[int, ...]) -> None:
    outside = [cpu for cpu in cpuset.parse(listed) if online and cpu not in online]
    if outside:
        raise pveconf.PveConfError(f"cpus {cpuset.render(outside)} are offline or not this host's; it has {cpuset.render(online)}: ask for those")


def _converge(args: Mapping[str, Any], state: State, wanted: pveconf.Wanted) -> Converged:
    keys = [key for name in ("cpus", "mems") if args[name] is not None for key in pveconf.CPUSET_KEYS[name].values()]
    rules = tuple(_rule(device) for device in state.extra)
    card = args["gpu"] is not None
    driver = args["driver"] is not None or (card and not state.asked)
    owned = pveconf.Ownership(card, driver, state.majors, tuple(args["extra_nodes"] or ()), rules, tuple(keys))
    if args["manager"] == "lxc":
        return lxcconf.converge(state.seen.text, wanted.raw, owned)
    return pveconf.converge(state.seen.text, wanted, owned)


def _values(args: Mapping[str, Any], state: State, style: str, found: Converged, waits: bool, restart: bool) -> Dict[str, Any]:
    text, pve = state.seen.text, args["manager"] == "pve"
    return {
        "guest": args["guest"],
        "nodes": style,
        "privileged": not pveconf.unprivileged(text) if pve else lxcconf.value(text, "lxc.idmap") == "",
        "added": [f"{key}: {value}" for key, value in found.added],
        "removed": [f"{key}: {value}" for key, value in found.removed],
        "why": pveconf.why(text, found.removed, found.added, state.seen.written) if pve else "",
        "strays": list(pveconf.strays(text, state.majors)),
        "dead": list(pveconf.dead(text, state.controller)),
        "dropped": list(pveconf.unreadable(text)) if pve else [],
        "notes": _notes(args, state, found) if pve else [],
        "restart_needed": waits and not restart,
        "restarted": restart,
        "ours": state.ours,
        "cpus_effective": state.effective,
        "cpus_wrong": "" if waits else _wrong_cpus(args, state.effective),
    }


def _wrong_cpus(args: Mapping[str, Any], effective: str) -> str:
    return cpuset.mismatch(cpuset.parse(args["cpus"]), cpuset.parse(effective)) if effective else ""


def _notes(args: Mapping[str, Any], state: State, found: Converged) -> List[str]:
    text = state.seen.text
    out = [*(f"{line}; it is left alone" for line in pveconf.host_ids(found.text)), *pveconf.hazards(text)]
    if state.asked and pveconf.unprivileged(text):
        out.append("unprivileged: Proxmox opens the device filter of this guest, so that it works proves nothing about its allow lines")
    if any(key in pveconf.CPUSET_KEYS["cpus"].values() for key, _ in found.removed) and not args["cpus"]:
        out.append("without a cpuset line Proxmox picks the guest's cpus again, blind to cores and sockets, within seconds")
    pending = [line for line in pveconf.sections(text).get("pve:pending", "").splitlines() if line.strip()]
    if pending:
        out.append(f"changes wait in [pve:pending] and take force at the next start: {'; '.join(pending)}")
    return out


# doing it


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any] | None:
    """Write, then restart."""
    todo: Plan = change.after
    place = _place(args)
    if todo.write and args["manager"] == "pve":
        pveguest.write(host, place, todo.seen, todo.text, todo.raw)
    elif todo.write:
        _write_lxc(args, todo, place, host)
    if not todo.restart:
        return None
    if args["manager"] == "pve":
        pveguest.restart(host, args["guest"], args["stop_wait"])
    else:
        where = ["-P", place.conf_dir, "-n", args["guest"]]
        pveguest.must(
            host, ["lxc-stop", *where, "-t", str(args["stop_wait"]), "--nokill"], f"guest {args['guest']} did not shut down; it was not killed"
        )
        pveguest.must(host, ["lxc-start", *where, "-d"], f"guest {args['guest']} did not start")
    return _read_back(args, todo, host)


def _read_back(args: Mapping[str, Any], todo: Plan, host: Host) -> Dict[str, Any]:
    found = _effective(args, host, todo.cpuset)
    wrong = _wrong_cpus(args, found)
    if wrong:
        raise ModuleError(
            f"guest {args['guest']} was restarted and runs on other cpus than asked: {wrong}",
            fix="see which cgroup above the guest's is narrower (cpuset.cpus.effective)",
        )
    return {"cpus_effective": found}


def _write_lxc(args: Mapping[str, Any], todo: Plan, place: pveguest.Place, host: Host) -> None:
    host.mkdir(place.state_dir, mode=0o700)
    host.write_text(place.kept("before"), todo.seen.raw, mode=0o600)
    host.write_text(place.kept("json"), json.dumps({"pid": todo.seen.pid if todo.seen.running else ""}) + "\n", mode=0o600)
    host.write_text(_conf(args), todo.text)
