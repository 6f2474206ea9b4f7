# SPDX-License-Identifier: Apache-2.0
"""An LXC guest with systemd: made, limited, given the card, started, stopped, removed. Never touches a guest that it did not make.

The guest is an overlay: a shared, unchanging base folder below, its own files in `LXC_PATH/NAME/up`.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import time
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from flyops.domain import cpuset, lxcconf, lxcguest, lxcnet
from flyops.domain.lxcguest import Place, Seen
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
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
        "cpus": Arg(default="", help="cpus of the guest (0-3,8); empty: all that this host has"),
        "memory": Arg(default="4G", help="memory limit (4G, 512M)"),
        "gpu": Arg("bool", default=False, help="give the guest every NVIDIA device of this host and the driver's user part"),
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
        "systemd": "running or degraded",
        "restarted": "whether a running guest was restarted",
        "archive": "path, sha256 and size of the archived state",
    },
)


@dataclass(frozen=True)
class Asked:
    """What the guest should be, checked against this host."""

    guest: lxcconf.Guest
    bridge_address: str
    cpus: Tuple[int, ...]


@dataclass(frozen=True)
class Todo:
    """The steps of `apply`, in their order, and what they need."""

    steps: Tuple[str, ...]
    seen: Seen
    asked: Asked | None = None
    config: str = ""
    digest: str = ""


def _place(args: Mapping[str, Any]) -> Place:
    return Place(args["name"], args["lxc_path"].rstrip("/") or "/")


def read(args: Dict[str, Any], host: Host) -> Seen:
    """Look at the guest, its neighbours, the bridge and, when asked, the card."""
    wrong = lxcconf.check_name(args["name"]) or lxcconf.check_words(args["bridge"], args["archive_state"] or ())
    if wrong:
        raise ModuleError(wrong)
    if args["state"] != "absent":
        lxcguest.need_tools(host)
    return lxcguest.look(host, _place(args), args)


def plan(args: Dict[str, Any], state: Seen) -> Decision:
    """Which steps bring the guest to what is asked; refuses what this host cannot give."""
    if state.exists and not state.ours:
        raise Refused(
            f"container {args['name']!r} exists in {args['lxc_path']} and was not made by flyops: it is left alone",
            fix="choose another name",
        )
    return _plan_absent(args, state) if args["state"] == "absent" else _plan_present(args, state)


# a guest that should be there


def _plan_present(args: Mapping[str, Any], seen: Seen) -> Decision:
    if args["state"] == "stopped" and not seen.exists:
        raise ModuleError(f"container {args['name']!r} does not exist, so it cannot be stopped", fix="make it first (state: present or started)")
    if args["state"] == "stopped":
        return _plan_stopped(args, seen)
    asked = _asked(args, seen)
    wanted = lxcconf.wanted(asked.guest)
    new = lxcconf.converge(seen.config, wanted, lxcconf.owned(seen.majors))
    digest = _digest(wanted)
    steps = _steps(args, seen, asked, new, digest)
    values = _values(args, seen, asked, steps)
    if not steps:
        return Same(values)
    diff = [Diff(_place(args).path("config"), seen.config, new.text)] if new.changed else []
    diff += [Diff(f"container {args['name']}", _before(step, seen), _after(step, args, asked)) for step in steps if step != "config"]
    return Change(after=Todo(steps, seen, asked, new.text, digest), diff=tuple(diff), values=values)


def _plan_stopped(args: Mapping[str, Any], seen: Seen) -> Decision:
    values = {"name": args["name"], "running": False}
    if not seen.running:
        return Same(values)
    return Change(after=Todo(("stop",), seen), diff=(Diff(f"container {args['name']}", "running\n", "stopped\n"),), values=values)


def _asked(args: Mapping[str, Any], seen: Seen) -> Asked:
    place = _place(args)
    try:
        cpus = _cpus(args["cpus"], seen.host_cpus)
        memory = lxcconf.memory_bytes(args["memory"])
        bridge_address, address = _addresses(args, seen)
    except (cpuset.CpusetError, lxcnet.AddressError, lxcconf.LxcConfError) as error:
        raise Refused(f"container {args['name']!r}: {error}") from None
    _need_base(args, seen)
    _need_controllers(args, seen)
    guest = lxcconf.Guest(
        name=args["name"],
        base=seen.base or args["rootfs"].rstrip("/"),
        upper=place.path("up"),
        cpus=cpuset.render(cpus),
        memory_bytes=memory,
        controllers=seen.controllers,
        network=args["network"],
        bridge=args["bridge"],
        address=address,
        autostart=args["autostart"],
        log=place.path("log"),
        gpu=lxcconf.gpu_lines(seen.card.devices, seen.card.driver, seen.controllers.devices) if args["gpu"] else (),
    )
    return Asked(guest, bridge_address, cpus)


def _cpus(listed: str, host_cpus: Tuple[int, ...]) -> Tuple[int, ...]:
    asked = cpuset.parse(listed) or host_cpus
    outside = [cpu for cpu in asked if cpu not in host_cpus]
    if outside:
        raise cpuset.CpusetError(
            f"cpus {cpuset.render(outside)} are not among this host's ({cpuset.render(host_cpus) or 'none known'}); ask for those"
        )
    return asked


def _addresses(args: Mapping[str, Any], seen: Seen) -> Tuple[str, str]:
    if args["network"] == "none":
        return "", ""
    if seen.bridge.exists and not seen.bridge.address:
        raise lxcnet.AddressError(f"interface {args['bridge']} exists without an IPv4 address; give it one or name another bridge")
    if seen.bridge.overlaps:
        raise lxcnet.AddressError(
            f"the bridge's network {args['bridge_address']} is in use here ({', '.join(seen.bridge.overlaps)}); set bridge_address"
        )
    bridge = seen.bridge.address or args["bridge_address"]
    has = lxcconf.value(seen.config, "lxc.net.0.ipv4.address")
    if args["address"] or has:
        return bridge, lxcnet.check(args["address"] or has, bridge, seen.taken)
    if seen.bridge.exists and not seen.bridge.ours:
        raise lxcnet.AddressError(f"bridge {args['bridge']} is not ours, so a free address cannot be known; give one (address)")
    return bridge, lxcnet.free(bridge, seen.taken)


def _need_base(args: Mapping[str, Any], seen: Seen) -> None:
    base = seen.base or args["rootfs"]
    if any(char in base for char in ":,\\\n") or not base.startswith("/"):
        raise ModuleError(f"rootfs {base!r}: expected an absolute path without ':', ',' or '\\' (it becomes an option of an overlay mount)")
    if not seen.base_ready:
        fix = "make it again at that path, or retire the guest" if seen.base else "name a folder with an unpacked system (fly provision makes one)"
        raise ModuleError(f"the base {base} has no /usr/lib/systemd/systemd", fix=fix)


def _need_controllers(args: Mapping[str, Any], seen: Seen) -> None:
    for name, found in (("cpuset", seen.controllers.cpuset), ("memory", seen.controllers.memory)):
        if not found:
            raise Refused(
                f"the {name} controller is mounted neither on cgroup v1 nor listed in /sys/fs/cgroup/cgroup.controllers: the guest's limit could not be kept",
                fix=f"enable the {name} controller on this host",
            )


def _digest(wanted: Tuple[lxcconf.Pair, ...]) -> str:
    """Of the lines that take force only at a start, so that a run that was cut off before the restart is finished by the next."""
    lines = sorted(f"{key} = {found}" for key, found in wanted if key not in lxcconf.LIVE)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _limits_off(seen: Seen, asked: Asked) -> bool:
    return bool(cpuset.mismatch(asked.cpus, lxcguest.listed(seen.effective_cpus))) or not lxcconf.same_memory(
        asked.guest.memory_bytes, seen.effective_memory
    )


def _steps(args: Mapping[str, Any], seen: Seen, asked: Asked, new: lxcconf.Converged, digest: str) -> Tuple[str, ...]:
    steps = []
    if args["network"] == "bridge" and not seen.bridge.exists:
        steps.append("bridge")
    if not seen.exists or not seen.config:
        steps.append("create")
    restart = seen.running and (new.restart or seen.marker.get("started") != digest)
    if restart:
        steps.append("restart")
    elif seen.running and _limits_off(seen, asked):
        steps.append("limits")
    if new.changed:
        steps.append("config")
    start = args["state"] == "started" and (restart or not seen.running)
    if start:
        steps.append("start")
    elif seen.running and args["state"] == "started" and seen.systemd not in ("running", "degraded"):
        steps.append("wait")
    if args["gpu"] and (start or seen.linker != lxcguest.linker_wanted(seen.card)):
        steps.append("driver")
    if not args["gpu"] and start and _had_driver(seen):
        steps.append("no-driver")
    return tuple(steps)


def _had_driver(seen: Seen) -> bool:
    return any(key == "lxc.mount.entry" and f" {lxcconf.DRIVER.lstrip('/')}/" in f" {found}" for key, found in lxcconf.parse(seen.config))


def _values(args: Mapping[str, Any], seen: Seen, asked: Asked, steps: Tuple[str, ...]) -> Dict[str, Any]:
    """For the result: what there is, or in check mode what there would be; `apply` puts what it read back in its place."""
    moved = bool({"start", "limits"} & set(steps))
    return {
        "name": args["name"],
        "pid": seen.pid,
        "address": asked.guest.address.partition("/")[0],
        "network": args["network"],
        "bridge": args["bridge"] if args["network"] == "bridge" else "",
        "bridge_address": asked.bridge_address,
        "cpus": asked.guest.cpus if moved else seen.effective_cpus or asked.guest.cpus,
        "memory": int(seen.effective_memory) if seen.effective_memory.isdigit() and not moved else asked.guest.memory_bytes,
        "cgroups": {"cpuset": seen.controllers.cpuset, "memory": seen.controllers.memory, "devices": seen.controllers.devices},
        "base": asked.guest.base,
        "gpu": args["gpu"],
        "driver": seen.card.version,
        "systemd": seen.systemd,
        "restarted": "restart" in steps,
        "strays": list(lxcconf.strays(seen.config, seen.majors)),
    }


def _before(step: str, seen: Seen) -> str:
    if step == "limits":
        return f"cpus {seen.effective_cpus or 'unknown'}, memory {seen.effective_memory or 'unknown'}\n"
    return {"restart": "running\n", "start": "stopped\n", "wait": f"systemd {seen.systemd or 'silent'}\n"}.get(step, "")


def _after(step: str, args: Mapping[str, Any], asked: Asked) -> str:
    return {
        "bridge": f"bridge {args['bridge']} {asked.bridge_address}\n",
        "create": f"overlay of {asked.guest.base} in {_place(args).folder}\n",
        "restart": "restarted: a changed line takes force only at a start\n",
        "limits": f"cpus {asked.guest.cpus}, memory {asked.guest.memory_bytes}\n",
        "start": f"running with systemd, cpus {asked.guest.cpus}, memory {asked.guest.memory_bytes}\n",
        "wait": "systemd running\n",
        "driver": "the driver's libraries known to the guest's linker\n",
        "no-driver": "the driver's libraries no longer known to the guest's linker\n",
    }[step]


# a guest that should be gone


def _plan_absent(args: Mapping[str, Any], seen: Seen) -> Decision:
    steps = []
    if seen.running:
        steps.append("stop")
    if seen.state_folders:
        if not args["archive_to"]:
            raise ModuleError("archive_state needs archive_to, the .tar.gz to write")
        if seen.in_base:
            raise ModuleError(
                f"{', '.join(seen.in_base)} is in the guest's base as well: archiving the upper layer alone would lose files",
                fix="copy it out by hand",
            )
        steps.append("archive")
    if seen.exists:
        steps.append("destroy")
    if seen.bridge.ours and not seen.bridge.users:
        steps.append("no-bridge")
    if not steps:
        return Same({"name": args["name"], "archive": None})
    gone = "".join(f"{word}\n" for word in steps)
    values = {"name": args["name"], "archive": None}
    return Change(after=Todo(tuple(steps), seen), diff=(Diff(f"container {args['name']}", "there\n" if seen.exists else "", gone),), values=values)


# doing it


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any] | None:
    """The steps one after the other; each may be run again after a run that was cut off."""
    todo: Todo = change.after
    place = _place(args)
    out: Dict[str, Any] = {}
    for step in todo.steps:
        host.note(f"{args['name']}: {step}")
        out.update(STEPS[step](args, todo, place, host) or {})
    if todo.asked and args["state"] == "started":
        out.update(_read_back(todo.asked, place, host))
    return out


def _must(host: Host, argv: list[str], what: str, fix: str = "") -> None:
    done = host.run(argv)
    if done.rc != 0:
        raise ModuleError(f"{what}: {argv[0]} ended with {done.rc}: {lxcguest.words(done)}", fix=fix, cmd=argv)


def _bridge(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    name = args["bridge"]
    _must(host, ["ip", "link", "add", name, "type", "bridge"], f"making bridge {name}")
    # The alias first: a run cut off after it leaves a bridge that is known to be ours.
    _must(host, ["ip", "link", "set", name, "alias", lxcguest.ALIAS, "up"], f"marking bridge {name}")
    _must(host, ["ip", "addr", "add", todo.asked.bridge_address, "dev", name], f"giving bridge {name} its address")


def _no_bridge(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    name = lxcconf.value(todo.seen.config, "lxc.net.0.link") or args["bridge"]
    ports = f"{lxcguest.INTERFACES}/{name}/brif"
    if host.stat(ports) is None or not host.listdir(ports):
        _must(host, ["ip", "link", "del", name], f"removing bridge {name}")


def _create(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    lxcguest.make_folders(host, place.folder, 0o755)
    # The marker before everything else: whatever is cut off later, the folder is known to be ours.
    _mark(host, place, {})
    name = args["name"]
    lxcguest.make_folders(host, place.path("up"), 0o755)
    lxcguest.make_folders(host, place.path("up/etc"), 0o755)
    host.write_text(place.path("up/etc/hostname"), f"{name}\n", mode=0o644)
    host.write_text(place.path("up/etc/hosts"), f"127.0.0.1 localhost {name}\n::1 localhost\n", mode=0o644)


def _mark(host: Host, place: Place, more: Mapping[str, Any]) -> None:
    host.write_text(place.path("flyops.json"), json.dumps({"owner": "flyops", "name": place.name, **more}, sort_keys=True) + "\n", mode=0o644)


def _stop(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    _must(host, place.lxc("lxc-stop", "-t", str(args["stop_wait"])), f"stopping {place.name}")


def _limits(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    guest, control = todo.asked.guest, todo.asked.guest.controllers
    settings = (
        (lxcconf.CPUSET_KEYS[control.cpuset], guest.cpus),
        (lxcconf.MEMORY_KEYS[control.memory], str(guest.memory_bytes)),
    )
    for key, found in settings:
        name = key.split(".", 2)[2]
        _must(host, place.lxc("lxc-cgroup", name, found), f"setting {name} of {place.name} to {found} (its config is as it was)")


def _start(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> Dict[str, Any]:
    _mark(host, place, {"started": todo.digest})
    if host.stat(place.path("log")) is not None:
        host.remove(place.path("log"))
    done = host.run(place.lxc("lxc-start", "-d"))
    if done.rc != 0:
        log = host.read_text(place.path("log"), missing="")
        errors = [line.split(" - ", 1)[-1] for line in log.splitlines() if " ERROR " in line]
        raise ModuleError(
            f"container {place.name!r} did not start: {'; '.join(errors[:4]) or lxcguest.words(done)}",
            fix=f"see {place.path('log')}",
            log=log[-4000:],
        )
    return _wait(args, todo, place, host)


def _wait(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> Dict[str, Any]:
    deadline = time.monotonic() + args["wait"]
    found = ""
    while time.monotonic() < deadline:
        found = lxcguest.systemd_state(host, place)
        if found in ("running", "degraded"):
            failed = (
                host.run(place.inside("systemctl", "--failed", "--plain", "--no-legend", "list-units"), query=True) if found == "degraded" else None
            )
            return {"systemd": found, "failed_units": [line.split()[0] for line in lxcguest.text(failed).splitlines() if line] if failed else []}
        time.sleep(0.2)
    raise ModuleError(
        f"systemd in container {place.name!r} is {found or 'silent'} after {args['wait']} s, expected running",
        fix=f"lxc-attach -n {place.name} -- systemctl list-jobs",
    )


def _driver(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    card = todo.seen.card
    _must(host, place.inside(*lxcguest.gpu_files(card.tools)), f"telling {place.name}'s linker about the driver")
    found, wanted = lxcguest.linker(host, place), lxcguest.linker_wanted(card)
    if found != wanted:
        raise ModuleError(
            f"the driver {card.version} is bound into {place.name!r}, and its linker does not know it: expected {wanted.split()}, found {found.split()}"
        )


def _no_driver(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    _must(host, place.inside(*lxcguest.gpu_files_gone()), f"taking the driver out of {place.name}'s linker")


def _read_back(asked: Asked, place: Place, host: Host) -> Dict[str, Any]:
    """What the kernel enforces; an error when it is not what was asked (cgroup v2 widens an impossible set without a word)."""
    cpus, memory = lxcguest.effective(host, place, asked.guest.controllers)
    wrong = [cpuset.mismatch(asked.cpus, lxcguest.listed(cpus))]
    if not lxcconf.same_memory(asked.guest.memory_bytes, memory):
        wrong.append(f"expected memory limit {asked.guest.memory_bytes}, found {memory or 'none'}")
    if any(wrong):
        raise ModuleError(
            f"container {place.name!r} runs with other limits than asked: {'; '.join(w for w in wrong if w)}",
            fix="see which cgroup above the guest's is narrower (cpuset.cpus.effective, memory.max)",
        )
    done = host.run(place.lxc("lxc-info", "-p", "-H"), query=True)
    pid = lxcguest.text(done)
    return {"cpus": cpus, "memory": int(memory), "pid": int(pid) if pid.isdigit() else 0}


def _archive(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> Dict[str, Any]:
    target, upper = args["archive_to"], place.path("up")
    lxcguest.make_folders(host, posixpath.dirname(target), 0o700)
    part = target + ".part"
    host.write_bytes(part, b"", mode=0o600)
    folders = [folder.strip("/") for folder in todo.seen.state_folders]
    _must(
        host,
        ["tar", "--force-local", "--numeric-owner", "-C", upper, "-czf", part, "--", *folders],
        f"archiving {', '.join(folders)} of {place.name}",
    )
    # Reads every byte of the archive back and compares it with the files, before anything is removed.
    _must(host, ["tar", "--force-local", "--numeric-owner", "-C", upper, "-dzf", part], f"the archive {part} differs from the files of {place.name}")
    host.rename(part, target)
    stat = host.stat(target)
    return {"archive": {"path": target, "sha256": host.sha256(target), "size": stat.size if stat else 0, "folders": list(todo.seen.state_folders)}}


def _destroy(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    held = lxcguest.mounted_below(host, place.folder)
    if held:
        raise ModuleError(
            f"{', '.join(held)} is still mounted: removing {place.folder} could reach what is behind it", fix="unmount it and run again"
        )
    # The marker last, so that a removal that was cut off still knows whose folder it is.
    for name in sorted(host.listdir(place.folder), key=lambda child: child == "flyops.json"):
        host.remove(place.path(name))
    host.remove(place.folder)


STEPS = {
    "bridge": _bridge,
    "no-bridge": _no_bridge,
    "create": _create,
    "restart": _stop,
    "stop": _stop,
    "limits": _limits,
    "config": lambda args, todo, place, host: host.write_text(place.path("config"), todo.config, mode=0o644),
    "start": _start,
    "wait": _wait,
    "driver": _driver,
    "no-driver": _no_driver,
    "archive": _archive,
    "destroy": _destroy,
}
