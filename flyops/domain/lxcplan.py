# SPDX-License-Identifier: Apache-2.0
"""What brings an LXC guest from what was seen to what is asked: the steps, in their order, or why not. Pure."""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from flyops.domain import cpuset, lxccard, lxcconf, lxcdisk, lxcguest, lxcids, lxcnet
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
    mems: Tuple[int, ...] = ()  # empty: nothing to compare
    disk_bytes: int = 0


@dataclass(frozen=True)
class Todo:
    """The steps of `apply`, in their order, and what they need."""

    steps: Tuple[str, ...]
    seen: Seen
    asked: Asked | None = None
    config: str = ""
    digest: str = ""
    why: str = ""  # a running guest is restarted


def place_of(args: Mapping[str, Any]) -> Place:
    """Where the guest of these arguments lives."""
    return Place(args["name"], args["lxc_path"].rstrip("/") or "/")


# a guest that should be there


def plan_present(args: Mapping[str, Any], seen: Seen) -> Decision:
    """The steps to a guest as it is asked: there, running or stopped."""
    if args["state"] == "stopped" and not seen.exists:
        raise ModuleError(f"container {args['name']!r} does not exist, so it cannot be stopped", fix="make it first (state: present or started)")
    if args["state"] == "stopped":
        return _plan_stopped(args, seen)
    asked = _asked(args, seen)
    wanted = lxcconf.wanted(asked.guest)
    new = lxcconf.converge(seen.config, wanted, lxcconf.owned(seen.majors))
    digest = _digest(wanted)
    why = _why_restart(seen, new, digest)
    steps = _steps(args, seen, asked, new, why)
    values = _values(args, seen, asked, steps)
    if not steps:
        return Same(values)
    todo = Todo(steps, seen, asked, new.text, digest, why)
    diff = [Diff(place_of(args).path("config"), seen.config, new.text)] if new.changed else []
    diff += [Diff(f"container {args['name']}", _before(step, seen), _after(step, args, todo)) for step in steps if step != "config"]
    return Change(after=todo, diff=tuple(diff), values=values)


def _plan_stopped(args: Mapping[str, Any], seen: Seen) -> Decision:
    values = {"name": args["name"], "running": False}
    if not seen.running:
        return Same(values)
    return Change(after=Todo(("stop",), seen), diff=(Diff(f"container {args['name']}", "running\n", "stopped\n"),), values=values)


def _asked(args: Mapping[str, Any], seen: Seen) -> Asked:
    place = place_of(args)
    try:
        cpus = _cpus(args["cpus"], seen)
        mems = _mems(args["mems"], args["cpus"] and cpus, seen.nodes)
        memory = lxcconf.memory_bytes(args["memory"])
        bridge_address, address = _addresses(args, seen)
        ids = lxcids.choose(args["idmap"], seen.ids, bool(seen.config), *seen.subids)
        disk = lxcdisk.size(args["disk"], seen.disk_bytes, bool(seen.config))
    except (cpuset.CpusetError, lxcnet.AddressError, lxcconf.LxcConfError, lxcids.IdsError, lxcdisk.DiskError) as error:
        raise Refused(f"container {args['name']!r}: {error}") from None
    _need_base(args, seen)
    _need_controllers(args, seen)
    _need_tools(seen)
    rootfs = (args["rootfs"] or "").rstrip("/")
    guest = lxcconf.Guest(
        name=args["name"],
        base=seen.base or (place.shifted(rootfs, ids.first) if ids else rootfs),
        upper=place.upper(disk > 0),
        cpus=cpuset.render(cpus) if args["cpus"] else "",
        memory_bytes=memory,
        controllers=seen.controllers,
        network=args["network"],
        bridge=args["bridge"],
        address=address,
        autostart=args["autostart"],
        log=place.path("log"),
        gpu=lxcconf.gpu_lines(seen.card.devices, seen.card.driver, seen.controllers.devices, seen.card.some) if seen.card.devices else (),
        mems=cpuset.render(mems),
        ids=ids,
        hook=place.path(lxcdisk.HOOK) if disk else "",
    )
    return Asked(guest, bridge_address, cpus, mems or (tuple(seen.nodes) if seen.effective_mems else ()), disk)


def _cpus(listed: str, seen: Seen) -> Tuple[int, ...]:
    asked = cpuset.parse(listed) or seen.host_cpus
    offline = [cpu for cpu in asked if cpu in seen.offline]
    if offline:
        raise cpuset.CpusetError(f"cpus {cpuset.render(offline)} are offline on this host; bring them online or ask for others")
    outside = [cpu for cpu in asked if cpu not in seen.host_cpus]
    if outside:
        raise cpuset.CpusetError(
            f"cpus {cpuset.render(outside)} are not among this host's ({cpuset.render(seen.host_cpus) or 'none known'}); ask for those"
        )
    return asked


def _mems(listed: str, cpus: Sequence[int], nodes: Mapping[int, Tuple[int, ...]]) -> Tuple[int, ...]:
    """Memory nodes; `auto` are those of the cpus, and none where there is nothing to choose."""
    if not listed:
        return ()
    if listed == "auto":
        return tuple(sorted(node for node, there in nodes.items() if set(cpus) & set(there))) if len(nodes) > 1 else ()
    asked = cpuset.parse(listed)
    outside = [node for node in asked if node not in nodes]
    if outside:
        raise cpuset.CpusetError(f"mems {cpuset.render(outside)} are not among this host's memory nodes ({cpuset.render(nodes) or 'none known'})")
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


def _need_tools(seen: Seen) -> None:
    if seen.lacking:
        packages = sorted({lxcdisk.TOOLS[tool] for tool in seen.lacking})
        raise ModuleError(f"disk: {', '.join(seen.lacking)} not found on this host", fix=f"install {' and '.join(packages)}")


def _digest(wanted: Tuple[lxcconf.Pair, ...]) -> str:
    """Of the lines that take force only at a start, so that a run that was cut off before the restart is finished by the next.

    Without device rules: their numbers move at boot, where nvidia_majors writes them before the guest starts; a guest that runs with
    old ones has broken nodes, and that is a reason of its own.
    """
    lines = sorted(f"{key} = {found}" for key, found in wanted if key not in (*lxcconf.LIVE, *lxcconf.DEVICE_KEYS.values()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _limits_off(seen: Seen, asked: Asked) -> bool:
    wrong = cpuset.mismatch(asked.cpus, lxcguest.listed(seen.effective_cpus)) or _mems_off(seen, asked)
    return bool(wrong) or not lxcconf.same_memory(asked.guest.memory_bytes, seen.effective_memory)


def _mems_off(seen: Seen, asked: Asked) -> bool:
    return bool(asked.mems) and set(asked.mems) != set(lxcguest.listed(seen.effective_mems))


def _why_restart(seen: Seen, new: lxcconf.Converged, digest: str) -> str:
    """Empty when a running guest may go on as it is."""
    if not seen.running:
        return ""
    if new.restart:
        return "a changed line takes force only at a start"
    if seen.marker.get("started") != digest:
        return "it was not restarted when its lines changed"
    return "; ".join(seen.broken)


def _steps(args: Mapping[str, Any], seen: Seen, asked: Asked, new: lxcconf.Converged, why: str) -> Tuple[str, ...]:
    start = bool(why) or (args["state"] == "started" and not seen.running)  # a running guest is not left stopped by `present`
    up = start or seen.running
    bind = bool(seen.card.driver)
    limits = seen.running and not why and _limits_off(seen, asked)
    grow = bool(seen.config) and asked.disk_bytes > seen.disk_bytes
    chosen = (
        ("bridge", args["network"] == "bridge" and not seen.bridge.exists),
        ("base", bool(asked.guest.ids) and not seen.base and posixpath.basename(asked.guest.base) not in seen.bases),
        ("create", not seen.exists or not seen.config),
        ("ids", asked.guest.ids.add),  # after the marker that remembers whose the range is
        ("restart", bool(why)),
        ("grow", grow),
        ("limits", limits),
        ("config", new.changed),
        ("no-bridge", args["network"] == "none" and _bridge_left(seen)),
        ("start", start),
        ("wait", not start and seen.running and args["state"] == "started" and seen.systemd not in ("running", "degraded")),
        ("driver", bind and up and (start or seen.linker != lxccard.linker_wanted(seen.card))),
        ("no-driver", not bind and up and ((seen.linker_left and not args["gpu"]) or _had_driver(seen))),
    )
    return tuple(step for step, wanted in chosen if wanted)


def _bridge_left(seen: Seen) -> bool:
    """The guest leaves a bridge of ours that nobody else is on."""
    return bool(lxcconf.value(seen.config, "lxc.net.0.link")) and seen.bridge.ours and not seen.bridge.users


def _notes(args: Mapping[str, Any], seen: Seen, asked: Asked) -> List[str]:
    """What an operator should know and no limit forbids."""
    out = []
    mine = set(asked.cpus) if args["cpus"] else set()
    kept_out = mine & set(seen.isolated)
    if kept_out:
        out.append(f"cpus {cpuset.render(kept_out)} are isolated (isolcpus): taken because they were named")
    for name, config in seen.neighbours.items():
        key = lxcconf.CPUSET_KEYS.get(seen.controllers.cpuset, "")
        shared = mine & set(lxcguest.listed(lxcconf.value(config, key)))
        if shared:
            out.append(f"cpus {cpuset.render(shared)} are also container {name}'s")
    home = {node for node, cpus in seen.nodes.items() if set(asked.cpus) & set(cpus)}
    if args["mems"] not in ("", "auto") and set(asked.mems) != home:
        out.append(
            f"mems {cpuset.render(asked.mems)}: the cpus {cpuset.render(asked.cpus)} are on node {cpuset.render(home)}, so memory may be remote"
        )
    return out + list(lxcconf.dead(seen.config, seen.mounts)) + [f"stray: {line}" for line in lxcconf.strays(seen.config, seen.majors)]


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
        "cpus": cpuset.render(asked.cpus) if moved else seen.effective_cpus or cpuset.render(asked.cpus),
        "mems": cpuset.render(asked.mems) if moved else seen.effective_mems or asked.guest.mems,
        "disk": asked.disk_bytes,
        "idmap": asked.guest.ids.text,
        "memory": int(seen.effective_memory) if seen.effective_memory.isdigit() and not moved else asked.guest.memory_bytes,
        "cgroups": {"cpuset": seen.controllers.cpuset, "memory": seen.controllers.memory, "devices": seen.controllers.devices},
        "base": asked.guest.base,
        "gpu": args["gpu"],
        "driver": seen.card.version,
        "systemd": seen.systemd,
        "restarted": "restart" in steps,
        "notes": _notes(args, seen, asked),
        "strays": list(lxcconf.strays(seen.config, seen.majors)),
    }


def _before(step: str, seen: Seen) -> str:
    if step == "grow":
        return f"an image of {seen.disk_bytes} bytes\n"
    if step == "limits":
        return f"cpus {seen.effective_cpus or 'unknown'}, memory {seen.effective_memory or 'unknown'}\n"
    return {"restart": "running\n", "start": "stopped\n", "wait": f"systemd {seen.systemd or 'silent'}\n"}.get(step, "")


def _after(step: str, args: Mapping[str, Any], todo: Todo) -> str:
    assert todo.asked is not None
    asked, guest = todo.asked, todo.asked.guest
    limits = f"cpus {cpuset.render(asked.cpus)}, memory {guest.memory_bytes}" + (f", mems {cpuset.render(asked.mems)}" if asked.mems else "")
    disk = f", an image of {asked.disk_bytes} bytes for its own files" if asked.disk_bytes else ""
    return {
        "bridge": f"bridge {args['bridge']} {asked.bridge_address}\n",
        "ids": f"{' and '.join(lxcids.FILES)}: root:{guest.ids.text}\n",
        "base": f"a copy of the base for the ids {guest.ids.text}: {guest.base}\n",
        "create": f"overlay of {guest.base} in {place_of(args).folder}{disk}\n",
        "grow": f"an image of {asked.disk_bytes} bytes\n",
        "restart": f"restarted: {todo.why}\n",
        "limits": f"{limits}\n",
        "no-bridge": "the unused bridge is removed\n",
        "start": f"running with systemd, {limits}\n",
        "wait": "systemd running\n",
        "driver": "the driver's libraries known to the guest's linker\n",
        "no-driver": "the driver's libraries no longer known to the guest's linker\n",
    }[step]


# a guest that should be gone


def plan_absent(args: Mapping[str, Any], seen: Seen) -> Decision:
    """The steps to no guest, its state archived first."""
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
    if seen.exists and seen.marker.get("ids") and not any(lxcids.in_config(lxcconf.parse(text)) for text in seen.neighbours.values()):
        steps.append("no-ids")
    if not steps:
        return Same({"name": args["name"], "archive": None})
    gone = "".join(f"{word}\n" for word in steps)
    values = {"name": args["name"], "archive": None}
    return Change(after=Todo(tuple(steps), seen), diff=(Diff(f"container {args['name']}", "there\n" if seen.exists else "", gone),), values=values)
