# SPDX-License-Identifier: Apache-2.0
"""Keeping everybody else off the simulator's cpus: who is where, who may still run there, and what is to be set. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence, Tuple

from flyops.domain.cpuset import Cpus, CpusetError, allowed_list, cpuset_cgroup, parse, render

UNITS = ("system.slice", "user.slice", "init.scope")
ATTACH = "/.lxc"  # where lxc-attach and pct exec put what they start


@dataclass(frozen=True)
class Process:
    """What /proc says of one process."""

    pid: int
    parent: int
    name: str
    cgroup: str
    allowed: Cpus
    kernel: bool  # a kernel thread, or a process that has ended: no memory of its own


def process(status: str, cgroup: str) -> Process | None:
    """Out of /proc/PID/status and /proc/PID/cgroup; None for one that ended while we looked."""
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in status.splitlines())}
    if not fields.get("Pid", "").isdigit():
        return None
    try:
        allowed = allowed_list(status)
    except CpusetError:
        allowed = ()
    parent = int(fields.get("PPid") or 0)
    return Process(int(fields["Pid"]), parent, fields.get("Name", "?"), cpuset_cgroup(cgroup)[1] or "/", allowed, "VmSize" not in fields)


def inside(cgroup: str, folder: str) -> bool:
    """Whether a cgroup is that one or below it."""
    return cgroup == folder or cgroup.startswith(f"{folder}/")


def outside(cgroup: str, slice_name: str) -> str:
    """Empty when the simulator is in its own slice; else why nothing may be confined."""
    if inside(cgroup, f"/{slice_name}"):
        return ""
    return f"flysim runs in {cgroup or '/'}, expected /{slice_name}: confining the cgroups around it would take its own cpus from it"


def asks(unit_text: str) -> bool:
    """Whether a unit file or drop-in asks for a mask; an empty assignment asks for none."""
    values = [line.partition("=")[2].strip() for line in unit_text.splitlines() if line.strip().startswith("AllowedCPUs=")]
    return bool(values and values[-1])


def differing(asked: Mapping[str, str], want: Cpus) -> Tuple[str, ...]:
    """The cgroups whose own list (`cpuset.cpus`) is not `want`, in their order."""
    return tuple(name for name, text in asked.items() if set(parse(text)) != set(want))


def chain(processes: Mapping[int, Process], pid: int) -> Tuple[int, ...]:
    """A process and those that it came from, up to init: our own agent and its shell are no strangers."""
    out: list[int] = []
    while pid in processes and pid > 1 and pid not in out:
        out.append(pid)
        pid = processes[pid].parent
    return tuple(out)


def trespassers(processes: Iterable[Process], sim: Cpus, slice_name: str, own: Sequence[int] = ()) -> Tuple[list[Process], list[Process]]:
    """(who may run on the simulator's cpus and is neither in its slice, nor the kernel's, nor ours; those of ours)."""
    found = [p for p in processes if not p.kernel and set(p.allowed) & set(sim) and not inside(p.cgroup, f"/{slice_name}")]
    return [p for p in found if p.pid not in own], [p for p in found if p.pid in own]


def describe(one: Process, sim: Cpus) -> str:
    """`hog (pid 40, /system.slice/hog.service) may run on cpus 1,3,5,7 of the simulator`."""
    return f"{one.name} (pid {one.pid}, {one.cgroup}) may run on cpus {render(set(one.allowed) & set(sim))} of the simulator"
