# SPDX-License-Identifier: Apache-2.0
"""What is on a container host, seen through the Host that is handed in: one guest, its neighbours' addresses, the bridge, the card, the driver."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

from flyops.domain import cpuset, lxccard, lxcconf, lxcnet
from flyops.domain.lxccard import Card
from flyops.domain.lxcplace import Place, text
from flyops.errors import ModuleError
from flyops.model.host import Host

ALIAS = "flyops"  # the bridge's alias says whose it is, and goes with it
INTERFACES = "/sys/class/net"


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
    linker: str = ""
    controllers: lxcconf.Controllers = field(default_factory=lxcconf.Controllers)
    host_cpus: Tuple[int, ...] = ()
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
    control = lxcconf.controllers(host.read_text("/proc/mounts", missing=""), host.read_text("/sys/fs/cgroup/cgroup.controllers", missing=""))
    others = _others(host, place)
    bridge = args["bridge"] if wants_bridge(args) else lxcconf.value(config, "lxc.net.0.link")
    base = args["rootfs"] or ""
    seen = Seen(
        exists=_filled(host, place.folder),  # an empty folder is what a run leaves that was cut off right after making it
        config=config,
        marker=_marker(host, place),
        running=running,
        pid=pid,
        controllers=control,
        host_cpus=_host_cpus(host, control),
        majors=lxcconf.registered(host.read_text("/proc/devices", missing="")),
        taken=lxcnet.taken([(name, address) for name, (address, _) in others.items()]),
        bridge=_bridge(host, bridge or args["bridge"], others, args),
        card=lxccard.look(host) if args["gpu"] and args["state"] != "absent" else Card(),
    )
    folders = tuple(path for path in args["archive_state"] or () if _filled(host, place.path("up") + path))
    base = seen.base or base
    inside = _inside(host, place, control, bool(args["gpu"])) if running else {}
    return Seen(
        **{
            **seen.__dict__,
            **inside,
            # In check mode the base may be what would be made first.
            "base_ready": bool(base) and (host.stat(base + "/usr/lib/systemd/systemd") is not None or host.check),
            "state_folders": folders,
            "in_base": tuple(path for path in folders if base and _filled(host, base + path)),
        }
    )


def wants_bridge(args: Mapping[str, Any]) -> bool:
    """Does what is asked need a bridge?"""
    return args["network"] == "bridge" and args["state"] in ("started", "present")


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
    found = text(done).split()
    numbers = [int(word) for word in found if word.isdigit()]
    return done.rc == 0 and "RUNNING" in found, numbers[0] if numbers else 0


def _others(host: Host, place: Place) -> Dict[str, Tuple[str, str]]:
    """Other guests: name -> (address, bridge)."""
    out = {}
    folder = host.stat(place.lxc_path)
    for name in host.listdir(place.lxc_path) if folder and folder.kind == "dir" else []:
        config = "" if name == place.name else host.read_text(posixpath.join(place.lxc_path, name, "config"), missing="")
        if config:
            out[name] = (lxcconf.value(config, "lxc.net.0.ipv4.address"), lxcconf.value(config, "lxc.net.0.link"))
    return out


def _host_cpus(host: Host, control: lxcconf.Controllers) -> Tuple[int, ...]:
    paths = {"v1": "/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "v2": "/sys/fs/cgroup/cpuset.cpus.effective"}
    path = paths.get(control.cpuset, "")
    listed = host.read_text(path, missing="") if path else ""
    return cpuset.parse(listed.strip() or host.read_text("/sys/devices/system/cpu/online", missing="").strip())


def _bridge(host: Host, name: str, others: Mapping[str, Tuple[str, str]], args: Mapping[str, Any]) -> Bridge:
    users = tuple(sorted(guest for guest, (_, link) in others.items() if link == name))
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


def _inside(host: Host, place: Place, control: lxcconf.Controllers, gpu: bool) -> Dict[str, Any]:
    cpus, memory = effective(host, place, control)
    out = {"effective_cpus": cpus, "effective_memory": memory, "systemd": systemd_state(host, place)}
    if gpu:
        out["linker"] = lxccard.linker(host, place)
    return out


def systemd_state(host: Host, place: Place) -> str:
    """`running`, `degraded`, `starting` … in systemd's own words; empty when it does not answer."""
    return text(host.run(place.inside("systemctl", "is-system-running"), query=True))
