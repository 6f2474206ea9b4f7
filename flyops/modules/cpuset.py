# SPDX-License-Identifier: Apache-2.0
"""Divides a guest's cpus between simulator, page and encoder, reads back what threads really got, and keeps this run off the simulator's cpus."""

from __future__ import annotations

from typing import Any, Callable

from flyops.domain import confine, cpuset, topology
from flyops.domain.systemd import unit_name
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

UNITS = {"flysim.slice": "sim", "flysim.service": "sim", "flypage.service": "page"}

SPEC = Spec(
    doc="Plan a CPU partition (texts of drop-ins included), compare the cpus of a running process with what was asked, or work beside the simulator.",
    args={
        "state": Arg(
            "str",
            default="planned",
            choices=("planned", "effective", "beside"),
            help="planned divides; effective compares; beside keeps this agent and what it starts off the cpus of a running `unit`, until the run ends",
        ),
        "cpus": Arg("str", default="", help="planned: list of cpus (0-7, 0-8:2/4); empty: all that this guest has"),
        "sim": Arg("int", default=1, help="planned: cpus of the simulator"),
        "encoder": Arg("int", default=0, help="planned: cpus of the encoder"),
        "minimum": Arg("int", default=4, help="planned: below so many cpus no partition is made unless force"),
        "force": Arg("bool", default=False, help="planned: divide below the minimum, too"),
        "cgroup": Arg("str", default="auto", choices=("auto", "v1", "v2"), help="where the cpuset controller is; auto looks"),
        "manager": Arg(
            "str", default="systemd", choices=("systemd", "supervisor"), help="under supervisor there are no drop-ins: use the taskset prefixes"
        ),
        "units": Arg("dict", default=UNITS, help="planned: unit -> sim, page, encoder or other (all but the simulator's)"),
        "confine": Arg(
            "bool", default=False, help="planned: drop-ins that keep system.slice, user.slice and init.scope on the other cpus, too (cgroup v2)"
        ),
        "systemd_dir": Arg("path", default="/etc/systemd/system", help="planned: where drop-ins live"),
        "pid": Arg("int", help="effective: process to look at"),
        "unit": Arg("str", help="effective: or the unit whose main process to look at; beside: the unit to stay away from"),
        "want": Arg("str", help="effective: list of cpus that every thread must have, exactly"),
        "sysfs": Arg("path", default="/sys/devices/system/cpu", help="topology, speed, online and isolated"),
        "nodes": Arg("path", default="/sys/devices/system/node", help="NUMA nodes"),
        "proc": Arg("path", default="/proc", help="status and cgroup of processes"),
        "cgroup_root": Arg("path", default="/sys/fs/cgroup", help="where cgroups are mounted"),
    },
    exclusive=(("pid", "unit"),),
    required_if=(("state", "effective", ("want",)), ("state", "beside", ("unit",))),
    examples="- name: Who runs where\n  cpuset: {cpus: 0-7, sim: 4}\n  register: cpus\n- name: It is so\n  cpuset: {state: effective, unit: flysim.service, want: '{{ cpus.sim }}'}\n",
    returns={
        "cpus": "the whole set",
        "sim": "list of the simulator",
        "page": "list of the page",
        "encoder": "list of the encoder, may be empty",
        "other": "list of everybody but the simulator",
        "mems": "memory nodes of the simulator's cpus; empty where there is one node",
        "governor": "frequency governors of the simulator's cpus; printed, never changed",
        "threads": "planned: threads of the simulator, as asked; effective: how many threads were looked at",
        "sim_count": "how many the simulator has",
        "page_count": "how many the page has",
        "partition": "the set was divided",
        "cgroup": "v1 or v2",
        "dropins": "path -> text",
        "taskset": "sim, page -> command prefix where no service manager confines",
        "notes": "what was rounded or left undivided, and why",
        "beside": "beside: the cpus that this run keeps to; empty: flysim has none of its own",
        "found": "effective: the list that was found",
    },
)


def _list(path: str, host: Host) -> cpuset.Cpus:
    return cpuset.parse(host.read_text(path, missing=""))


def _table(cpus: cpuset.Cpus, path: Callable[[int], str], host: Host) -> dict[int, int]:
    """cpu -> the number in its file; without those whose file holds none."""
    texts = {cpu: host.read_text(path(cpu), missing="").strip() for cpu in cpus}
    return {cpu: int(text) for cpu, text in texts.items() if text.isdigit()}


def _topology(cpus: cpuset.Cpus, args: dict[str, Any], host: Host) -> topology.Topology:
    root = args["sysfs"]
    twins = {cpu: _list(f"{root}/cpu{cpu}/topology/thread_siblings_list", host) for cpu in cpus}
    capacity = _table(cpus, lambda cpu: f"{root}/cpu{cpu}/cpu_capacity", host)
    frequency = _table(cpus, lambda cpu: f"{root}/cpu{cpu}/cpufreq/cpuinfo_max_freq", host)
    names = host.listdir(args["nodes"]) if host.stat(args["nodes"]) is not None else []
    nodes: dict[int, int] = {}
    for name in names:
        if name[:4] == "node" and name[4:].isdigit():
            nodes.update((cpu, int(name[4:])) for cpu in _list(f"{args['nodes']}/{name}/cpulist", host))
    return topology.Topology({cpu: own for cpu, own in twins.items() if len(own) > 1}, nodes, topology.speeds(capacity, frequency))


def _governors(cpus: cpuset.Cpus, args: dict[str, Any], host: Host) -> str:
    """What is set, for whoever wonders about speed. Nothing of ours ever writes there."""
    found = {host.read_text(f"{args['sysfs']}/cpu{cpu}/cpufreq/scaling_governor", missing="").strip() for cpu in cpus}
    return ", ".join(sorted(found - {""}))


def _cgroup(args: dict[str, Any], host: Host) -> str:
    """v2 only where the controller is really there: AllowedCPUs= without it is taken and does nothing."""
    if args["cgroup"] != "auto":
        return str(args["cgroup"])
    version, _ = cpuset.cpuset_cgroup(host.read_text(f"{args['proc']}/self/cgroup", missing=""))
    controllers = host.read_text(f"{args['cgroup_root']}/cgroup.controllers", missing="").split()
    return "v2" if version == "v2" and "cpuset" in controllers else "v1"


def _allowed(args: dict[str, Any], version: str, host: Host) -> cpuset.Cpus:
    """The cpus that the service manager can give. This agent may have fewer: it may be confined, or keep to the page's."""
    own = host.read_text(f"{args['proc']}/self/status")
    if args["manager"] != "systemd":
        return cpuset.allowed_list(own)
    whole = _list(f"{args['cgroup_root']}/cpuset.cpus.effective", host) if version == "v2" else ()
    return whole or cpuset.allowed_list(host.read_text(f"{args['proc']}/1/status", missing=own))


def _mems_allowed(args: dict[str, Any], host: Host) -> cpuset.Cpus:
    for line in host.read_text(f"{args['proc']}/self/status", missing="").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return cpuset.parse(line.partition(":")[2])
    return ()


def _read_planned(args: dict[str, Any], host: Host) -> dict[str, Any]:
    version = _cgroup(args, host)
    try:
        allowed = _allowed(args, version, host)
        asked = cpuset.parse(args["cpus"])
        online, isolated = _list(f"{args['sysfs']}/online", host), _list(f"{args['sysfs']}/isolated", host)
        cpus, notes = cpuset.usable(asked, online=online, allowed=allowed, isolated=isolated)
        top = _topology(allowed, args, host)
    except cpuset.CpusetError as err:
        raise Refused(str(err), fix="name cpus that this guest has (inventory: fly_cpus)") from err
    if not asked:
        cpus, chosen = topology.choose(cpus, args["sim"] + args["encoder"] + 1, top)
        notes = (*notes, *chosen)
    return {
        "cpus": cpus,
        "allowed": allowed,
        "notes": notes,
        "top": top,
        "mems_allowed": _mems_allowed(args, host),
        "governors": _governors(cpus, args, host),
        "cgroup": version,
    }


def _read_beside(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The guest's cpus, those of the running unit, and ours."""
    own = host.read_text(f"{args['proc']}/self/status")
    allowed = _allowed(args, _cgroup(args, host), host)
    unit_name(args["unit"])
    shown = (
        host.run(["systemctl", "show", "-p", "MainPID", "--value", args["unit"]], query=True, timeout=30).stdout.decode("utf-8", "replace").strip()
    )
    text = host.read_text(f"{args['proc']}/{shown}/status", missing="") if shown.isdigit() and shown != "0" else ""
    pid = next((line.partition(":")[2].strip() for line in own.splitlines() if line.startswith("Pid:")), "")
    return {"allowed": allowed, "sim": cpuset.allowed_list(text) if text else (), "pid": pid, "now": cpuset.allowed_list(own)}


def _pid(args: dict[str, Any], host: Host) -> int:
    if args["pid"]:
        return int(args["pid"])
    if not args["unit"]:
        raise ModuleError("effective: expected pid or unit")
    unit_name(args["unit"])  # one that begins with a dash would be an option
    done = host.run(["systemctl", "show", "-p", "MainPID", "--value", args["unit"]], query=True, timeout=30)
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.rc != 0 or not text.isdigit() or text == "0":
        raise ModuleError(f"{args['unit']} has no main process", fix=f"systemctl status {args['unit']}")
    return int(text)


def _own_cgroup(pid: int, args: dict[str, Any], host: Host) -> str:
    """The effective list of the process's own cgroup, for the report; empty where it cannot be seen."""
    version, path = cpuset.cpuset_cgroup(host.read_text(f"{args['proc']}/{pid}/cgroup", missing=""))
    roots = [f"{args['cgroup_root']}{path}"] if version == "v2" else [f"{args['cgroup_root']}/cpuset{path}"]
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        text = host.read_text(f"{roots[0]}/{name}", missing="").strip()
        if text:
            return text
    return ""


def _read_effective(args: dict[str, Any], host: Host) -> dict[str, Any]:
    pid = _pid(args, host)
    folder = f"{args['proc']}/{pid}/task"
    if host.stat(folder) is None:
        raise ModuleError(f"there is no process {pid}", pid=pid)
    found = {}
    for tid in host.listdir(folder):
        text = host.read_text(f"{folder}/{tid}/status", missing="")
        if text:  # a thread may end while we look
            found[tid] = cpuset.allowed_list(text)
    return {"pid": pid, "found": found, "cgroup_effective": _own_cgroup(pid, args, host)}


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The guest's cpus and cores, or the cpus of each thread."""
    if args["state"] == "planned":
        return _read_planned(args, host)
    if args["state"] == "beside":
        return _read_beside(args, host)
    if host.check:  # what would run has neither been started nor confined
        return {"pid": 0, "found": {}, "cgroup_effective": ""}
    return _read_effective(args, host)


def _plan_effective(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    want = cpuset.parse(args["want"])
    wrong = {tid: text for tid, text in ((tid, cpuset.mismatch(want, found)) for tid, found in state["found"].items()) if text}
    main = state["found"].get(str(state["pid"])) or next(iter(state["found"].values()), ())
    values = {
        "pid": state["pid"],
        "want": cpuset.render(want),
        "found": cpuset.render(main),
        "cgroup_effective": state["cgroup_effective"],
        "threads": len(state["found"]),
        "wrong_threads": wrong,
    }
    if wrong:
        who = args["unit"] or f"process {state['pid']}"
        first = next(iter(wrong.values()))
        raise Refused(
            f"{who}: {first}; {len(wrong)} of {len(state['found'])} threads",
            fix="restart the unit after a daemon-reload; widen the guest if it has not these cpus",
            **values,
        )
    return Same(values)


def _plan_beside(state: dict[str, Any]) -> Decision:
    """Keep to what the unit leaves free, if it leaves anything: heavy steps of a deploy must not take time from the simulator."""
    rest = tuple(c for c in state["allowed"] if c not in state["sim"])
    free = rest if state["sim"] else ()
    values = {
        "cpus": cpuset.render(state["allowed"]),
        "count": len(state["allowed"]),
        "sim": cpuset.render(state["sim"]),
        "beside": cpuset.render(free),
        "pid": state["pid"],
    }
    if not free or set(free) == set(state["now"]):
        return Same(values)
    return Change(before=state["now"], after=(cpuset.render(free), state["pid"]), values=values)


def _notes(state: dict[str, Any], parts: cpuset.Partition) -> list[str]:
    notes = [*state["notes"], *parts.notes]
    top = state["top"]
    if not parts.divided:
        return notes
    wrong = topology.remote(state["mems_allowed"], parts.sim, top.nodes)
    shared = cpuset.shared_cores((parts.sim, parts.page, parts.encoder), top.siblings)
    return [*notes, *topology.remarks(parts.sim, top), *([wrong] if wrong else []), *shared]


def _dropins(args: dict[str, Any], state: dict[str, Any], parts: cpuset.Partition) -> dict[str, str]:
    """All from one plan; none without a partition."""
    if args["manager"] != "systemd" or not parts.divided:
        return {}
    sets = cpuset.sets(parts, state["allowed"])
    units = {**args["units"], **(dict.fromkeys(confine.UNITS, "other") if args["confine"] else {})}
    mems = {role: topology.mems(sets[role], state["top"].nodes) for role in ("sim", "page", "encoder")}
    return cpuset.dropins(sets, units, state["cgroup"], args["systemd_dir"], mems)


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """The division, or the comparison. A list that cannot be divided as asked is refused."""
    if args["state"] == "beside":
        return _plan_beside(state)
    try:
        if args["state"] == "effective":
            return _plan_effective(args, state)
        siblings = state["top"].siblings
        parts = cpuset.divide(state["cpus"], args["sim"], args["encoder"], minimum=args["minimum"], force=args["force"], siblings=siblings)
        dropins = _dropins(args, state, parts)
    except cpuset.CpusetError as err:
        raise Refused(str(err), fix="change fly_cpus, rayon_threads or fly_encoder_cpus of this host in the inventory") from err
    sets = cpuset.sets(parts, state["allowed"]) if parts.divided else {"sim": parts.sim, "page": parts.page, "encoder": (), "other": ()}
    values: dict[str, Any] = {name: cpuset.render(cpus) for name, cpus in sets.items()}
    values.update({f"{name}_count": len(cpus) for name, cpus in sets.items()})
    prefixes = args["manager"] != "systemd" and parts.divided
    values.update(
        cpus=cpuset.render(parts.cpus),
        count=len(parts.cpus),
        threads=args["sim"],
        partition=parts.divided,
        cgroup=state["cgroup"],
        mems=cpuset.render(topology.mems(parts.sim, state["top"].nodes)),
        governor=state["governors"],
        dropins=dropins,
        taskset={name: cpuset.taskset(sets[name]) for name in ("sim", "page", "encoder")} if prefixes else {},
        notes=_notes(state, parts),
    )
    return Same(values)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """`beside` alone: this agent and all its threads. Files are settings_receipt's business."""
    cpus, pid = change.after
    if host.check:
        return {}
    done = host.run(["taskset", "--all-tasks", "--cpu-list", "--pid", cpus, pid], timeout=30)
    if done.rc != 0:  # slower for the simulator, not wrong
        text = done.stderr.decode("utf-8", "replace").strip()[-200:]
        host.note(f"WARNING: this run stays on the simulator's cpus: {text}")
        return {"beside": "", "changed": False, "warnings": [text]}
    return {}
