# SPDX-License-Identifier: Apache-2.0
"""What is on a container host, seen through the Host that is handed in: one guest, its neighbours' addresses, the bridge, the card, the driver."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from flyops.domain import cpuset, lxcconf, lxcnet, nvidia
from flyops.errors import ModuleError, Refused
from flyops.model.host import Completed, Host

GUEST_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LINKER_CONF = "/etc/ld.so.conf.d/00-flyops-nvidia.conf"
LINKER_TEXT = f"{lxcconf.DRIVER}/lib64\n"
ALIAS = "flyops"  # the bridge's alias says whose it is, and goes with it
DRIVER_FOLDERS = ("/usr/local/nvidia",)  # where some machines keep the driver's whole user part
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
class Card:
    """The host's nodes and the driver's user part: (path here, path in the guest, dir or file)."""

    devices: Tuple[lxcconf.Device, ...] = ()
    driver: Tuple[Tuple[str, str, str], ...] = ()
    tools: Tuple[str, ...] = ()
    version: str = ""


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
    card: Card = Card()
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


@dataclass(frozen=True)
class Place:
    """Where a guest lives."""

    name: str
    lxc_path: str

    @property
    def folder(self) -> str:
        """The guest's own folder."""
        return posixpath.join(self.lxc_path, self.name)

    def path(self, *parts: str) -> str:
        """A path below the guest's folder."""
        return posixpath.join(self.folder, *parts)

    def lxc(self, tool: str, *words: str) -> List[str]:
        """An LXC command about this guest."""
        return [tool, "-P", self.lxc_path, "-n", self.name, *words]

    def inside(self, *argv: str) -> List[str]:
        """A command in the guest. Nothing of our environment goes along."""
        return [*self.lxc("lxc-attach", "--clear-env", "-v", GUEST_PATH), "--", *argv]


def listed(cpus: str) -> Tuple[int, ...]:
    """A list of cpus as the kernel printed it; empty when it is none."""
    try:
        return cpuset.parse(cpus)
    except cpuset.CpusetError:
        return ()


def text(done: Completed) -> str:
    """What a command printed, without the line's end."""
    return done.stdout.decode("utf-8", "replace").strip()


def words(done: Completed) -> str:
    """What a command said when it failed: stderr, else stdout, without LXC's source positions."""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    lines = [line.rsplit(": ", 1)[-1] if "../src/" in line else line for line in said.splitlines()]
    return "; ".join(lines[-3:])


def make_folders(host: Host, path: str, mode: int) -> None:
    """A folder with this mode, and those above it that are missing."""
    if host.stat(path) is None:
        make_folders(host, posixpath.dirname(path), 0o755)
        host.mkdir(path, mode=mode)


def mounted_below(host: Host, folder: str) -> List[str]:
    """What is mounted somewhere below a folder: a removal would go through it."""
    mounts = [line.split()[1] for line in host.read_text("/proc/mounts", missing="").splitlines() if line.count(" ") > 1]
    return [path for path in mounts if path.startswith(folder + "/")]


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
        card=_card(host) if args["gpu"] and args["state"] != "absent" else Card(),
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
        out["linker"] = linker(host, place)
    return out


def systemd_state(host: Host, place: Place) -> str:
    """`running`, `degraded`, `starting` … in systemd's own words; empty when it does not answer."""
    return text(host.run(place.inside("systemctl", "is-system-running"), query=True))


def linker(host: Host, place: Place) -> str:
    """What the guest's linker and its PATH know of the driver, as `gpu_files` leaves it; empty when it lacks something."""
    script = f'cat {LINKER_CONF} 2>/dev/null; ldconfig -p | grep -q "libcuda.so.1 " && echo found; ls -1 /usr/local/bin | grep ^nvidia-'
    return text(host.run(place.inside("sh", "-c", script), query=True))


def linker_wanted(card: Card) -> str:
    """The text of `linker` when all is right."""
    return "\n".join([LINKER_TEXT.strip(), "found", *sorted(card.tools)])


def gpu_files(tools: Sequence[str]) -> List[str]:
    """A command for the guest: linker configuration, tools on the PATH, linker cache. Safe to run again."""
    script = f"""set -e
umask 022
mkdir -p /etc/ld.so.conf.d /usr/local/bin
printf '%s\\n' {lxcconf.DRIVER}/lib64 > {LINKER_CONF}
for tool in "$@"; do ln -sfn "{lxcconf.DRIVER}/bin/$tool" "/usr/local/bin/$tool"; done
ldconfig"""
    return ["sh", "-c", script, "sh", *tools]


def gpu_files_gone() -> List[str]:
    """A command for the guest that undoes `gpu_files`."""
    script = f"""rm -f {LINKER_CONF}
for link in /usr/local/bin/nvidia-*; do
  case "$(readlink "$link")" in {lxcconf.DRIVER}/*) rm -f "$link" ;; esac
done
ldconfig"""
    return ["sh", "-c", script]


def _devices(host: Host) -> Tuple[lxcconf.Device, ...]:
    found = []
    for name in host.listdir("/dev"):
        if not name.startswith("nvidia"):
            continue
        stat = host.stat(f"/dev/{name}")
        below = [f"/dev/{name}/{child}" for child in host.listdir(f"/dev/{name}")] if stat and stat.kind == "dir" else [f"/dev/{name}"]
        for path in below:
            node = host.stat(path)
            if node and node.kind == "char":
                found.append(lxcconf.Device(path, *node.rdev))
    return tuple(found)


def _card(host: Host) -> Card:
    devices = _devices(host)
    names = {device.path[len("/dev/") :] for device in devices}
    lacking = [name for name in ("nvidiactl", "nvidia-uvm") if name not in names]
    if not any(name[len("nvidia") :].isdigit() for name in names):
        lacking.insert(0, "nvidia0 (or another card)")
    if lacking:
        raise Refused(
            f"no card to give: expected character devices /dev/nvidiactl, /dev/nvidia-uvm and at least one /dev/nvidiaN on this host, "
            f"missing {', '.join(lacking)}; found {', '.join(sorted(names)) or 'none'}",
            fix="load the driver (nvidia-smi and nvidia-modprobe -u -c 0 make the nodes), or provision without gpu",
        )
    version = nvidia.module_version(host.read_text("/proc/driver/nvidia/version", missing=""))
    if not version:
        raise Refused("no card to give: /proc/driver/nvidia/version is missing or names no version", fix="load the nvidia module")
    return Card(devices, *_driver(host, version), version=version)


def _driver(host: Host, version: str) -> Tuple[Tuple[Tuple[str, str, str], ...], Tuple[str, ...]]:
    """Binds of the driver's user part of exactly the loaded version, and its tools."""
    for folder in DRIVER_FOLDERS:
        if host.stat(f"{folder}/lib64/libcuda.so.{version}") is not None:
            tools = tuple(tool for tool in lxcconf.TOOLS if host.stat(f"{folder}/bin/{tool}") is not None)
            bins = ((f"{folder}/bin", f"{lxcconf.DRIVER}/bin", "dir"),) if tools else ()
            return ((f"{folder}/lib64", f"{lxcconf.DRIVER}/lib64", "dir"), *bins), tools
    done = host.run(["ldconfig", "-p"], query=True)
    folders = lxcconf.library_folders(text(done))
    binds = [
        (f"{folder}/{name}", f"{lxcconf.DRIVER}/lib64/{name}", "file")
        for folder in folders
        for name in lxcconf.driver_files(host.listdir(folder), version)
    ]
    if not any(posixpath.basename(source) == f"libcuda.so.{version}" for source, _, _ in binds):
        raise Refused(
            f"the loaded module is {version}; expected libcuda.so.{version} in {DRIVER_FOLDERS[0]}/lib64 or where ldconfig knows libcuda.so.1, "
            f"found none in {', '.join(folders) or 'any folder'}",
            fix="install the driver's libraries of the loaded version on this host",
        )
    programs = {tool: found for tool in lxcconf.TOOLS for found in [host.which(tool)] if found}
    binds += [(found, f"{lxcconf.DRIVER}/bin/{tool}", "file") for tool, found in programs.items()]
    return tuple(binds), tuple(programs)
