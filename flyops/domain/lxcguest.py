# SPDX-License-Identifier: Apache-2.0
"""What is on a container host, seen through the Host that is handed in: one guest, its neighbours' addresses, the bridge, the card, the driver."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Tuple

from flyops.domain import cpuset, driver, gpuask, lxccard, lxcconf, lxcdisk, lxcids, lxcnet
from flyops.domain.lxccard import Card
from flyops.domain.lxcplace import Place, text
from flyops.errors import ModuleError
from flyops.model.host import Host

ALIAS = "flyops"  # the bridge's alias says whose it is, and goes with it
INTERFACES = "/sys/class/net"
NODES = "/sys/devices/system/node"


@dataclass(frozen=True)
class Bridge:
    """The bridge as it is. `users`: other guests whose config names it."""

    exists: bool = False
    ours: bool = False
    address: str = ""
    users: Tuple[str, ...] = ()
    overlaps: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """Everything that the decision needs."""

    exists: bool = False
    config: str = ""
    marker: Mapping[str, Any] = field(default_factory=dict)
    running: bool = False
    pid: int = 0
    systemd: str = ""
    effective_cpus: str = ""
    effective_memory: str = ""
    effective_mems: str = ""
    linker: str = ""
    linker_left: bool = False  # files of the driver in the guest, whether or not it has one
    broken: Tuple[str, ...] = ()
    controllers: lxcconf.Controllers = field(default_factory=lxcconf.Controllers)
    host_cpus: Tuple[int, ...] = ()
    offline: Tuple[int, ...] = ()
    isolated: Tuple[int, ...] = ()
    nodes: Mapping[int, Tuple[int, ...]] = field(default_factory=dict)  # NUMA node -> its cpus; only looked at when mems are asked for
    mounts: str = ""
    neighbours: Mapping[str, str] = field(default_factory=dict)  # other guests and their configs
    subids: Tuple[str, str] = ("", "")
    ids_ours: bool = False  # a neighbour of ours brought the range along
    bases: Tuple[str, ...] = ()  # copies of bases for unprivileged guests
    disk_bytes: int = 0
    disk_mounted: bool = False
    lacking: Tuple[str, ...] = ()  # tools that the disk's limit needs
    majors: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    bridge: Bridge = Bridge()
    card: Card = field(default_factory=Card)
    base_ready: bool = False
    state_folders: Tuple[str, ...] = ()
    in_base: Tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Did flyops make this guest?"""
        return self.marker.get("owner") == "flyops"

    @property
    def base(self) -> str:
        """The lower layer that the guest has now."""
        path = lxcconf.value(self.config, "lxc.rootfs.path")
        return path.split(":")[1] if path.count(":") >= 2 else ""

    @property
    def ids(self) -> lxcids.Ids:
        """The ids that the guest has now."""
        return lxcids.in_config(lxcconf.parse(self.config))


def listed(cpus: str) -> Tuple[int, ...]:
    """A list of cpus as the kernel printed it; empty when it is none."""
    try:
        return cpuset.parse(cpus)
    except cpuset.CpusetError:
        return ()


def need_tools(host: Host) -> None:
    """LXC must be there; says how to get it."""
    missing = [tool for tool in ("lxc-start", "lxc-stop", "lxc-attach", "lxc-info", "lxc-cgroup") if host.which(tool) is None]
    if missing:
        raise ModuleError(f"{', '.join(missing)} not found on this host", fix="install LXC (apt-get install lxc)")


def look(host: Host, place: Place, args: Mapping[str, Any]) -> Seen:
    """One look at everything."""
    config = host.read_text(place.path("config"), missing="")
    running, pid = _state(host, place)
    mounts = host.read_text("/proc/mounts", missing="")
    control = lxcconf.controllers(mounts, host.read_text("/sys/fs/cgroup/cgroup.controllers", missing=""))
    others = _others(host, place)
    addresses = [(name, lxcconf.value(found, "lxc.net.0.ipv4.address")) for name, found in others.items()]
    bridge = args["bridge"] if wants_bridge(args) else lxcconf.value(config, "lxc.net.0.link")
    seen = Seen(
        exists=_filled(host, place.folder),  # an empty folder is what a run leaves that was cut off right after making it
        config=config,
        marker=_marker(host, place),
        running=running,
        pid=pid,
        controllers=control,
        mounts=mounts,
        neighbours=others,
        majors=lxcconf.registered(host.read_text("/proc/devices", missing="")),
        taken={**(args["taken"] or {}), **lxcnet.taken(addresses)},
        bridge=_bridge(host, bridge or args["bridge"], others, args),
        ids_ours=any('"ids": true' in host.read_text(posixpath.join(place.lxc_path, name, "flyops.json"), missing="") for name in others),
        bases=tuple(_names(host, place.bases)),
        **_machine(host, control, args, config),
        **_disk(host, place, mounts, args),
    )
    upper = place.upper(seen.disk_bytes > 0)
    folders = tuple(path for path in args["archive_state"] or () if (seen.disk_bytes and not seen.disk_mounted) or _filled(host, upper + path))
    base = seen.base or args["rootfs"] or ""
    inside = _inside(host, place, control, seen.card, config) if running else {}
    return replace(
        seen,
        # In check mode the base may be what would be made first.
        base_ready=bool(base) and (host.stat(base + "/usr/lib/systemd/systemd") is not None or host.check),
        state_folders=folders,
        in_base=tuple(path for path in folders if base and _filled(host, base + path)),
        linker_left=host.stat(upper + driver.LINKER_CONF) is not None,
        **inside,
    )


def _machine(host: Host, control: lxcconf.Controllers, args: Mapping[str, Any], config: str) -> Dict[str, Any]:
    """What this host can give: cpus, NUMA nodes, ranges of ids, the card."""
    asked = gpuask.ask(args["gpu"]) if args["state"] in ("started", "present") else gpuask.Ask()
    return {
        "host_cpus": _host_cpus(host, control),
        "offline": listed(host.read_text("/sys/devices/system/cpu/offline", missing="").strip()),
        "isolated": listed(host.read_text("/sys/devices/system/cpu/isolated", missing="").strip()),
        "nodes": _nodes(host) if args["mems"] or "cpuset.mems" in config else {},
        "subids": (host.read_text(lxcids.FILES[0], missing=""), host.read_text(lxcids.FILES[1], missing="")),
        "card": lxccard.look(host, asked, args["driver"]) if asked else Card(),
    }


def _nodes(host: Host) -> Dict[int, Tuple[int, ...]]:
    names = [name for name in _names(host, NODES) if name.startswith("node") and name[4:].isdigit()]
    return {int(name[4:]): listed(host.read_text(f"{NODES}/{name}/cpulist", missing="").strip()) for name in names}


def _disk(host: Host, place: Place, mounts: str, args: Mapping[str, Any]) -> Dict[str, Any]:
    image = place.path("disk.img")
    told = host.run(["dumpe2fs", "-h", image], query=True) if host.stat(image) is not None else None
    points = {line.split()[1] for line in mounts.splitlines() if line.count(" ") > 1}
    return {
        "disk_bytes": lxcdisk.read_size(text(told)) if told else 0,
        "disk_mounted": place.path("disk") in points,
        "lacking": tuple(tool for tool in lxcdisk.TOOLS if args["disk"] and host.which(tool) is None),
    }


def wants_bridge(args: Mapping[str, Any]) -> bool:
    """Does what is asked need a bridge?"""
    return args["network"] == "bridge" and args["state"] in ("started", "present")


def _names(host: Host, path: str) -> List[str]:
    folder = host.stat(path)
    return host.listdir(path) if folder and folder.kind == "dir" else []


def _filled(host: Host, path: str) -> bool:
    found = host.stat(path)
    return bool(found and found.kind == "dir" and host.listdir(path))


def _marker(host: Host, place: Place) -> Mapping[str, Any]:
    try:
        found = json.loads(host.read_text(place.path("flyops.json"), missing="{}"))
    except ValueError:
        # Cut off while it was written cannot be (writes are atomic), so someone edited it: not ours until they repair it.
        return {}
    return found if isinstance(found, dict) else {}


def _state(host: Host, place: Place) -> Tuple[bool, int]:
    if host.which("lxc-info") is None or host.stat(place.path("config")) is None:
        return False, 0
    done = host.run(place.lxc("lxc-info", "-s", "-p", "-H"), query=True)
    if "STOPPING" in text(done).split():  # a run before this one was cut off
        host.run(place.lxc("lxc-wait", "-s", "STOPPED", "-t", "30"), query=True)
        done = host.run(place.lxc("lxc-info", "-s", "-p", "-H"), query=True)
    found = text(done).split()
    numbers = [int(word) for word in found if word.isdigit()]
    return done.rc == 0 and "RUNNING" in found, numbers[0] if numbers else 0


def _others(host: Host, place: Place) -> Dict[str, str]:
    """Other guests: name -> config."""
    out = {}
    for name in _names(host, place.lxc_path):
        config = "" if name == place.name else host.read_text(posixpath.join(place.lxc_path, name, "config"), missing="")
        if config:
            out[name] = config
    return out


def _host_cpus(host: Host, control: lxcconf.Controllers) -> Tuple[int, ...]:
    paths = {"v1": "/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "v2": "/sys/fs/cgroup/cpuset.cpus.effective"}
    path = paths.get(control.cpuset, "")
    listed = host.read_text(path, missing="") if path else ""
    return cpuset.parse(listed.strip() or host.read_text("/sys/devices/system/cpu/online", missing="").strip())


def _bridge(host: Host, name: str, others: Mapping[str, str], args: Mapping[str, Any]) -> Bridge:
    users = tuple(sorted(guest for guest, config in others.items() if lxcconf.value(config, "lxc.net.0.link") == name))
    exists = host.stat(f"{INTERFACES}/{name}") is not None
    wanted = wants_bridge(args)
    if not exists and not wanted:
        return Bridge(users=users)
    if host.which("ip") is None:
        raise ModuleError("`ip` not found on this host, and a bridge needs it", fix="install iproute2, or use network: none")
    addresses = text(host.run(["ip", "-j", "-4", "addr", "show"], query=True))
    routes = text(host.run(["ip", "-j", "-4", "route", "show"], query=True)) if wanted and not exists else ""
    return Bridge(
        exists=exists,
        ours=exists and host.read_text(f"{INTERFACES}/{name}/ifalias", missing="").strip() == ALIAS,
        address=lxcnet.bridge_address(addresses, name),
        users=users,
        overlaps=lxcnet.overlaps(args["bridge_address"], addresses, routes, name) if wanted and not exists else (),
    )


def effective(host: Host, place: Place, control: lxcconf.Controllers) -> Tuple[str, str]:
    """The cpus and the memory limit that the kernel really gives the guest; empty where it has no such controller."""
    keys = (lxcconf.EFFECTIVE_CPUS.get(control.cpuset, ""), {"v1": "memory.limit_in_bytes", "v2": "memory.max"}.get(control.memory, ""))
    found = [host.run(place.lxc("lxc-cgroup", key), query=True) if key else None for key in keys]
    cpus, memory = (text(done) if done and done.rc == 0 else "" for done in found)
    return cpus, memory


def effective_mems(host: Host, place: Place, control: lxcconf.Controllers) -> str:
    """The memory nodes that the kernel really gives the guest."""
    done = host.run(place.lxc("lxc-cgroup", lxcconf.EFFECTIVE_MEMS[control.cpuset]), query=True) if control.cpuset else None
    return text(done) if done and done.rc == 0 else ""


def _inside(host: Host, place: Place, control: lxcconf.Controllers, card: Card, config: str) -> Dict[str, Any]:
    cpus, memory = effective(host, place, control)
    out: Dict[str, Any] = {"effective_cpus": cpus, "effective_memory": memory, "systemd": systemd_state(host, place)}
    if "cpuset.mems" in config:
        out["effective_mems"] = effective_mems(host, place, control)
    if card.driver:
        out["linker"] = lxccard.linker(host, place)
    return {**out, "broken": lxccard.broken(host, place, card)}


def systemd_state(host: Host, place: Place) -> str:
    """`running`, `degraded`, `starting` … in systemd's own words; empty when it does not answer."""
    return text(host.run(place.inside("systemctl", "is-system-running"), query=True))
