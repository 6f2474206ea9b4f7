# SPDX-License-Identifier: Apache-2.0
"""Texts of /proc, /sys and /etc turned into Ansible's facts. Pure."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Iterable, Mapping

FAMILIES = {
    "debian": "Debian",
    "ubuntu": "Debian",
    "fedora": "RedHat",
    "rhel": "RedHat",
    "centos": "RedHat",
    "rocky": "RedHat",
    "alpine": "Alpine",
    "arch": "Archlinux",
}
NAMES = {
    "debian": "Debian",
    "ubuntu": "Ubuntu",
    "fedora": "Fedora",
    "rhel": "RedHat",
    "centos": "CentOS",
    "rocky": "Rocky",
    "alpine": "Alpine",
    "arch": "Archlinux",
}
GROUPS = ("distribution", "system", "python", "processor", "memory", "mounts", "user", "env", "network", "virtual", "service", "local", "fly")
SUBSETS = {
    "min": {"distribution", "system", "python", "user", "env", "service", "local", "fly"},
    "hardware": {"processor", "memory", "mounts"},
    "network": {"network"},
    "virtual": {"virtual"},
}


def groups(subset: Iterable[str]) -> set[str]:
    """Which groups of facts `gather_subset` asks for; the least is always among them unless it is excluded by name."""
    words = [str(word).strip() for word in subset]
    chosen = set(GROUPS) if not words or "all" in words or all(word.startswith("!") for word in words) else set(SUBSETS["min"])
    for word in words:
        name = word.lstrip("!")
        members = set(GROUPS) if name == "all" else SUBSETS.get(name, {name})
        if not word.startswith("!"):
            chosen |= members
        elif name == "all":
            chosen = set(SUBSETS["min"])
        else:
            chosen -= members
    return chosen


def unknown_subsets(subset: Iterable[str]) -> list[str]:
    """Words that name no group."""
    known = {"all", *SUBSETS, *GROUPS}
    return [word for word in subset if str(word).lstrip("!") not in known]


def chosen(facts: Mapping[str, Any], patterns: Iterable[str]) -> dict[str, Any]:
    """The facts that one of the shell patterns fits, with or without `ansible_` in front; all without patterns."""
    wanted = [pattern for pattern in patterns if pattern]
    if not wanted:
        return dict(facts)
    return {n: v for n, v in facts.items() if any(fnmatch.fnmatchcase(n, p) or fnmatch.fnmatchcase(n, f"ansible_{p}") for p in wanted)}


def distribution(os_release: str, debian_version: str = "") -> dict[str, Any]:
    """Name, version and family out of /etc/os-release."""
    found: dict[str, str] = {}
    for line in os_release.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip().strip("\"'")
    name = found.get("ID", "")
    family = next((FAMILIES[word] for word in [name, *found.get("ID_LIKE", "").split()] if word in FAMILIES), NAMES.get(name, name.capitalize()))
    version = found.get("VERSION_ID", "")
    minor = debian_version.strip() if name == "debian" and re.fullmatch(r"[0-9.]+\n?", debian_version) else version
    return {
        "ansible_distribution": NAMES.get(name, found.get("NAME", "")),
        "ansible_distribution_version": minor or version,
        "ansible_distribution_major_version": version.partition(".")[0],
        "ansible_distribution_release": found.get("VERSION_CODENAME", "") or "NA",
        "ansible_os_family": family,
    }


def memory(meminfo: str) -> dict[str, Any]:
    """Sizes in MiB."""
    kib: dict[str, int] = {}
    for line in meminfo.splitlines():
        match = re.match(r"(\w+):\s+(\d+) kB", line)
        if match:
            kib[match.group(1)] = int(match.group(2))
    names = {"memtotal": "MemTotal", "memfree": "MemFree", "memavailable": "MemAvailable", "swaptotal": "SwapTotal", "swapfree": "SwapFree"}
    return {f"ansible_{name}_mb": kib[key] // 1024 for name, key in names.items() if key in kib}


def processor(cpuinfo: str, online: int) -> dict[str, Any]:
    """Counts and models. vcpus are the processors the kernel has; nproc those this process may use."""
    blocks = [dict(_pairs(block)) for block in cpuinfo.split("\n\n") if "processor" in block]
    models = [block.get("model name") or block.get("Processor") or "" for block in blocks]
    sockets = {block.get("physical id", "0") for block in blocks} or {"0"}
    cores = {(block.get("physical id", "0"), block.get("core id", str(number))) for number, block in enumerate(blocks)}
    per_socket = max(1, len(cores) // len(sockets))
    vcpus = len(blocks) or online
    return {
        "ansible_processor": [part for number, model in enumerate(models) for part in (str(number), blocks[number].get("vendor_id", ""), model)],
        "ansible_processor_count": len(sockets),
        "ansible_processor_cores": per_socket,
        "ansible_processor_threads_per_core": max(1, vcpus // max(1, len(cores))),
        "ansible_processor_vcpus": vcpus,
        "ansible_processor_nproc": online,
    }


def _pairs(block: str) -> list[tuple[str, str]]:
    return [(key.strip(), value.strip()) for key, colon, value in (line.partition(":") for line in block.splitlines()) if colon]


def mounts(text: str) -> list[dict[str, str]]:
    """Mounts of devices and of network file systems; sizes are not asked for, as a dead server would never answer."""
    out = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4 and (fields[0].startswith("/") or ":" in fields[0] or fields[2] in ("overlay", "tmpfs", "zfs", "btrfs")):
            device, mount = (re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), part) for part in fields[:2])
            out.append({"device": device, "mount": mount, "fstype": fields[2], "options": fields[3]})
    return out


def default_route(route: str) -> dict[str, str]:
    """Interface and gateway of the default route out of /proc/net/route."""
    for line in route.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & 1:
            octets = [str(int(fields[2][at : at + 2], 16)) for at in (6, 4, 2, 0)]
            return {"interface": fields[0], "gateway": ".".join(octets)}
    return {}
