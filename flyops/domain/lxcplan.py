# SPDX-License-Identifier: Apache-2.0
"""What brings an LXC guest from what was seen to what is asked: the steps, in their order, or why not. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from flyops.domain import cpuset, lxccard, lxcconf, lxcguest, lxcnet
from flyops.domain.lxcguest import Seen
from flyops.domain.lxcplace import Place
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same


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


def place_of(args: Mapping[str, Any]) -> Place:
    """Where the guest of these arguments lives."""
    return Place(args["name"], args["lxc_path"].rstrip("/") or "/")


# a guest that should be there


def plan_present(args: Mapping[str, Any], seen: Seen) -> Decision:
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
    diff = [Diff(place_of(args).path("config"), seen.config, new.text)] if new.changed else []
    diff += [Diff(f"container {args['name']}", _before(step, seen), _after(step, args, asked)) for step in steps if step != "config"]
    return Change(after=Todo(steps, seen, asked, new.text, digest), diff=tuple(diff), values=values)


def _plan_stopped(args: Mapping[str, Any], seen: Seen) -> Decision:
    values = {"name": args["name"], "running": False}
    if not seen.running:
        return Same(values)
    return Change(after=Todo(("stop",), seen), diff=(Diff(f"container {args['name']}", "running\n", "stopped\n"),), values=values)


def _asked(args: Mapping[str, Any], seen: Seen) -> Asked:
    place = place_of(args)
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
    if args["gpu"] and (start or seen.linker != lxccard.linker_wanted(seen.card)):
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
        "create": f"overlay of {asked.guest.base} in {place_of(args).folder}\n",
        "restart": "restarted: a changed line takes force only at a start\n",
        "limits": f"cpus {asked.guest.cpus}, memory {asked.guest.memory_bytes}\n",
        "start": f"running with systemd, cpus {asked.guest.cpus}, memory {asked.guest.memory_bytes}\n",
        "wait": "systemd running\n",
        "driver": "the driver's libraries known to the guest's linker\n",
        "no-driver": "the driver's libraries no longer known to the guest's linker\n",
    }[step]


# a guest that should be gone


def plan_absent(args: Mapping[str, Any], seen: Seen) -> Decision:
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
