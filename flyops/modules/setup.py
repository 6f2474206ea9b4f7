# SPDX-License-Identifier: Apache-2.0
"""Gather facts of a host. Each group has a time limit of its own, so that a dead mount or name server costs no more than that."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import platform
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable

from flyops.domain import cpuset, facts, systemd
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Gather facts of a host, by groups with a time limit each. No name is looked up.",
    args={
        "gather_subset": Arg(
            "list", "Groups: all, min, hardware, network, virtual or a single one; ! in front leaves one out", default=("all",), elements="str"
        ),
        "gather_timeout": Arg("float", "Seconds for each group", default=10.0),
        "filter": Arg("list", "Shell patterns of the facts to return", default=(), elements="str"),
        "fact_path": Arg("path", "Folder of *.fact files (JSON) that become ansible_local", default="/etc/ansible/facts.d"),
    },
    examples="""
- setup: {gather_subset: [min, hardware], filter: ["ansible_processor*", "fly_*"]}
""",
    returns={"ansible_facts": "the facts", "late": "groups that did not answer in time"},
)
Probe = Callable[["dict[str, Any]", Host], "dict[str, Any]"]
SIOCGIFADDR = 0x8915


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Every group that was asked for, side by side."""
    unknown = facts.unknown_subsets(args["gather_subset"])
    if unknown:
        raise ModuleError(
            f"gather_subset: no such group {', '.join(unknown)}", fix=f"use all, min, hardware, network, virtual or {', '.join(facts.GROUPS)}"
        )
    wanted = sorted(facts.groups(args["gather_subset"]))
    found: dict[str, dict[str, Any]] = {}
    threads = []
    for name in wanted:
        thread = threading.Thread(target=_probe, args=(name, args, host, found), daemon=True)
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + args["gather_timeout"]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    gathered = dict(found)
    late = [name for name in wanted if name not in gathered]
    merged = {key: value for name in wanted if name in gathered for key, value in gathered[name].items()}
    out: dict[str, Any] = {"ansible_facts": facts.chosen(merged, args["filter"])}
    return {**out, "late": late} if late else out


def _probe(name: str, args: dict[str, Any], host: Host, found: dict[str, dict[str, Any]]) -> None:
    try:
        found[name] = PROBES[name](args, host)
    except Exception as err:  # one group that fails (a strange /proc) must not cost the others
        found[name] = {f"fly_facts_failed_{name}": f"{type(err).__name__}: {err}"}


def _distribution(args: dict[str, Any], host: Host) -> dict[str, Any]:
    text = host.read_text("/etc/os-release", missing="") or host.read_text("/usr/lib/os-release", missing="")
    out = facts.distribution(text, host.read_text("/etc/debian_version", missing=""))
    managers = {"apt": "apt-get", "dnf": "dnf", "apk": "apk", "pacman": "pacman"}
    return {**out, "ansible_pkg_mgr": next((name for name, program in managers.items() if host.which(program)), "unknown")}


def _system(args: dict[str, Any], host: Host) -> dict[str, Any]:
    names = os.uname()
    uptime = host.read_text("/proc/uptime", missing="0").split()
    now = time.localtime()
    stamp = {
        "epoch": str(int(time.time())),
        "iso8601": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tz": time.strftime("%Z", now),
        "date": time.strftime("%Y-%m-%d", now),
    }
    return {
        "ansible_system": names.sysname,
        "ansible_kernel": names.release,
        "ansible_kernel_version": names.version,
        "ansible_machine": names.machine,
        "ansible_architecture": names.machine,
        "ansible_nodename": names.nodename,
        "ansible_hostname": names.nodename.partition(".")[0],
        "ansible_fqdn": names.nodename,
        "ansible_domain": names.nodename.partition(".")[2],
        "ansible_machine_id": host.read_text("/etc/machine-id", missing="").strip(),
        "ansible_uptime_seconds": int(float(uptime[0])) if uptime else 0,
        "ansible_date_time": stamp,
        "ansible_fips": host.read_text("/proc/sys/crypto/fips_enabled", missing="0").strip() == "1",
        "ansible_selinux": {"status": "disabled"},
        "ansible_product_name": host.read_text("/sys/class/dmi/id/product_name", missing="NA").strip(),
    }


def _python(args: dict[str, Any], host: Host) -> dict[str, Any]:
    version = sys.version_info
    return {
        "ansible_python": {
            "executable": sys.executable,
            "type": platform.python_implementation().lower(),
            "version": {"major": version[0], "minor": version[1], "micro": version[2], "releaselevel": version[3], "serial": version[4]},
            "version_info": list(version),
        },
        "ansible_python_version": platform.python_version(),
    }


def _processor(args: dict[str, Any], host: Host) -> dict[str, Any]:
    return facts.processor(host.read_text("/proc/cpuinfo", missing=""), len(os.sched_getaffinity(0)))


def _memory(args: dict[str, Any], host: Host) -> dict[str, Any]:
    return facts.memory(host.read_text("/proc/meminfo", missing=""))


def _mounts(args: dict[str, Any], host: Host) -> dict[str, Any]:
    return {"ansible_mounts": facts.mounts(host.read_text("/proc/self/mounts", missing=""))}


def _user(args: dict[str, Any], host: Host) -> dict[str, Any]:
    uid = os.geteuid()
    entry = host.user(str(uid)) or {}
    return {
        "ansible_user_id": entry.get("name") or getpass.getuser(),
        "ansible_user_uid": uid,
        "ansible_user_gid": os.getegid(),
        "ansible_user_gecos": entry.get("gecos", ""),
        "ansible_user_dir": entry.get("home", ""),
        "ansible_user_shell": entry.get("shell", ""),
        "ansible_effective_user_id": uid,
        "ansible_real_user_id": os.getuid(),
        "ansible_effective_group_id": os.getegid(),
        "ansible_real_group_id": os.getgid(),
    }


def _env(args: dict[str, Any], host: Host) -> dict[str, Any]:
    return {"ansible_env": dict(os.environ)}


def _network(args: dict[str, Any], host: Host) -> dict[str, Any]:
    names = host.listdir("/sys/class/net") if host.stat("/sys/class/net") is not None else []
    addresses = {name: address for name, address in ((name, _address(name)) for name in names) if address}
    route = facts.default_route(host.read_text("/proc/net/route", missing=""))
    if route.get("interface") in addresses:
        route["address"] = addresses[route["interface"]]
    plain = [address for address in addresses.values() if not address.startswith("127.")]
    return {"ansible_interfaces": names, "ansible_default_ipv4": route, "ansible_all_ipv4_addresses": plain}


def _address(interface: str) -> str:
    """The IPv4 address of an interface, '' when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            answer = fcntl.ioctl(asker.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _virtual(args: dict[str, Any], host: Host) -> dict[str, Any]:
    kind = host.read_text("/run/systemd/container", missing="").strip()
    if not kind:
        try:
            environment = host.read_bytes("/proc/1/environ", missing=b"")
        except PermissionError:
            environment = b""
        words = dict(part.split(b"=", 1) for part in environment.split(b"\0") if b"=" in part)
        kind = words.get(b"container", b"").decode("utf-8", "replace")
    if not kind and host.stat("/.dockerenv") is not None:
        kind = "docker"
    if kind:
        return {"ansible_virtualization_type": kind, "ansible_virtualization_role": "guest"}
    guest = " hypervisor" in host.read_text("/proc/cpuinfo", missing="")
    product = host.read_text("/sys/class/dmi/id/product_name", missing="")
    named = next((name for word, name in (("KVM", "kvm"), ("VMware", "VMware"), ("VirtualBox", "virtualbox")) if word in product), "kvm")
    return {"ansible_virtualization_type": named if guest else "NA", "ansible_virtualization_role": "guest" if guest else "NA"}


def _service(args: dict[str, Any], host: Host) -> dict[str, Any]:
    init = host.read_text("/proc/1/comm", missing="").strip()
    running = "systemd" if systemd.booted(host) else init
    return {"ansible_service_mgr": running, "fly_service_manager": "systemd" if systemd.booted(host) else "supervisor"}


def _local(args: dict[str, Any], host: Host) -> dict[str, Any]:
    folder = args["fact_path"]
    out: dict[str, Any] = {}
    if host.stat(folder, follow=True) is None:
        return {"ansible_local": out}
    for name in host.listdir(folder):
        if name.endswith(".fact"):
            try:
                out[name[: -len(".fact")]] = json.loads(host.read_text(f"{folder}/{name}"))
            except ValueError as err:
                out[name[: -len(".fact")]] = f"error: {folder}/{name} is no JSON: {err}"
    return {"ansible_local": out}


def _fly(args: dict[str, Any], host: Host) -> dict[str, Any]:
    allowed = cpuset.allowed_list(host.read_text("/proc/self/status", missing=""))
    version, cpus = _cpuset_cgroup(host)
    nodes = [host.stat(path, follow=True) for path in ("/dev/nvidiactl", "/dev/nvidia0")]
    return {
        "fly_cpuset": list(cpus or allowed),
        "fly_cgroup_version": version,
        "fly_has_nvidia": any(node is not None and node.kind == "char" for node in nodes) or host.stat("/proc/driver/nvidia/version") is not None,
    }


def _cpuset_cgroup(host: Host) -> tuple[int, tuple[int, ...]]:
    """The version of the hierarchy that cpuset lives in (0: none), and the cpus that our group may use there."""
    own = {}
    for line in host.read_text("/proc/self/cgroup", missing="").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update({name: path.lstrip("/") for name in controllers.split(",")})
    if "cpuset" in own:
        files = [f"/sys/fs/cgroup/cpuset/{own['cpuset']}/{name}" for name in ("cpuset.effective_cpus", "cpuset.cpus")]
        return 1, _first_list(host, [*files, "/sys/fs/cgroup/cpuset/cpuset.effective_cpus"])
    if "cpuset" in host.read_text("/sys/fs/cgroup/cgroup.controllers", missing="").split():
        base = f"/sys/fs/cgroup/{own.get('', '')}".rstrip("/")
        return 2, _first_list(host, [f"{base}/cpuset.cpus.effective", "/sys/fs/cgroup/cpuset.cpus.effective"])
    return 0, ()


def _first_list(host: Host, files: list[str]) -> tuple[int, ...]:
    for path in files:
        text = host.read_text(path, missing="").strip()
        if text:
            return tuple(cpuset.parse(text))
    return ()


PROBES: dict[str, Probe] = {
    "distribution": _distribution,
    "system": _system,
    "python": _python,
    "processor": _processor,
    "memory": _memory,
    "mounts": _mounts,
    "user": _user,
    "env": _env,
    "network": _network,
    "virtual": _virtual,
    "service": _service,
    "local": _local,
    "fly": _fly,
}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Never a change."""
    return Same(state)


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Nothing to do."""
