# SPDX-License-Identifier: Apache-2.0
"""Divides a guest's cpus between simulator, page and encoder, and reads back what threads really got. Changes nothing itself."""

from __future__ import annotations

from typing import Any

from flyops.domain import cpuset
from flyops.domain.systemd import unit_name
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

UNITS = {"flysim.service": "sim", "flypage.service": "page"}

SPEC = Spec(
    doc="Plan a CPU partition (texts of drop-ins included), or compare the cpus of a running process with what was asked.",
    args={
        "state": Arg("str", default="planned", choices=("planned", "effective"), help="planned divides; effective compares"),
        "cpus": Arg("str", default="", help="planned: list of cpus (0-7, 0-8:2/4); empty: all that this guest has"),
        "sim": Arg("int", default=1, help="planned: cpus of the simulator"),
        "encoder": Arg("int", default=0, help="planned: cpus of the encoder"),
        "minimum": Arg("int", default=4, help="planned: below so many cpus no partition is made unless force"),
        "force": Arg("bool", default=False, help="planned: divide below the minimum, too"),
        "cgroup": Arg("str", default="auto", choices=("auto", "v1", "v2"), help="where the cpuset controller is; auto looks"),
        "manager": Arg(
            "str", default="systemd", choices=("systemd", "supervisor"), help="under supervisor there are no drop-ins: use the taskset prefixes"
        ),
        "units": Arg("dict", default=UNITS, help="planned: unit -> sim, page or encoder"),
        "systemd_dir": Arg("path", default="/etc/systemd/system", help="planned: where drop-ins live"),
        "pid": Arg("int", help="effective: process to look at"),
        "unit": Arg("str", help="effective: or the unit whose main process to look at"),
        "want": Arg("str", help="effective: list of cpus that every thread must have, exactly"),
        "sysfs": Arg("path", default="/sys/devices/system/cpu", help="topology, online and isolated"),
        "proc": Arg("path", default="/proc", help="status and cgroup of processes"),
        "cgroup_root": Arg("path", default="/sys/fs/cgroup", help="where cgroups are mounted"),
    },
    exclusive=(("pid", "unit"),),
    required_if=(("state", "effective", ("want",)),),
    examples="- name: Who runs where\n  cpuset: {cpus: 0-7, sim: 4}\n  register: cpus\n- name: It is so\n  cpuset: {state: effective, unit: flysim.service, want: '{{ cpus.sim }}'}\n",
    returns={
        "cpus": "the whole set",
        "sim": "list of the simulator",
        "page": "list of the page",
        "encoder": "list of the encoder, may be empty",
        "sim_count": "how many the simulator has",
        "page_count": "how many the page has",
        "partition": "the set was divided",
        "cgroup": "v1 or v2",
        "dropins": "path -> text",
        "taskset": "sim, page -> command prefix where no service manager confines",
        "notes": "what was rounded or left undivided, and why",
        "found": "effective: the list that was found",
        "threads": "effective: how many threads were looked at",
    },
)


def _list(path: str, host: Host) -> cpuset.Cpus:
    return cpuset.parse(host.read_text(path, missing=""))


def _siblings(cpus: cpuset.Cpus, sysfs: str, host: Host) -> dict[int, cpuset.Cpus]:
    out = {}
    for cpu in cpus:
        found = _list(f"{sysfs}/cpu{cpu}/topology/thread_siblings_list", host)
        if len(found) > 1:
            out[cpu] = found
    return out


def _cgroup(args: dict[str, Any], host: Host) -> str:
    """v2 only where the controller is really there: AllowedCPUs= without it is taken and does nothing."""
    if args["cgroup"] != "auto":
        return str(args["cgroup"])
    version, _ = cpuset.cpuset_cgroup(host.read_text(f"{args['proc']}/self/cgroup", missing=""))
    controllers = host.read_text(f"{args['cgroup_root']}/cgroup.controllers", missing="").split()
    return "v2" if version == "v2" and "cpuset" in controllers else "v1"


def _read_planned(args: dict[str, Any], host: Host) -> dict[str, Any]:
    try:
        allowed = cpuset.allowed_list(host.read_text(f"{args['proc']}/self/status"))
        online, isolated = _list(f"{args['sysfs']}/online", host), _list(f"{args['sysfs']}/isolated", host)
        cpus, notes = cpuset.usable(cpuset.parse(args["cpus"]), online=online, allowed=allowed, isolated=isolated)
    except cpuset.CpusetError as err:
        raise Refused(str(err), fix="name cpus that this guest has (inventory: fly_cpus)") from err
    return {"cpus": cpus, "notes": notes, "siblings": _siblings(cpus, args["sysfs"], host), "cgroup": _cgroup(args, host)}


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


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """The division, or the comparison. A list that cannot be divided as asked is refused."""
    try:
        if args["state"] == "effective":
            return _plan_effective(args, state)
        parts = cpuset.divide(state["cpus"], args["sim"], args["encoder"], minimum=args["minimum"], force=args["force"], siblings=state["siblings"])
        systemd = args["manager"] == "systemd"
        dropins = cpuset.dropins(parts, args["units"], state["cgroup"], args["systemd_dir"]) if systemd else {}
    except cpuset.CpusetError as err:
        raise Refused(str(err), fix="change fly_cpus, rayon_threads or fly_encoder_cpus of this host in the inventory") from err
    sets = {"sim": parts.sim, "page": parts.page, "encoder": parts.encoder}
    values: dict[str, Any] = {name: cpuset.render(cpus) for name, cpus in sets.items()}
    values.update({f"{name}_count": len(cpus) for name, cpus in sets.items()})
    values.update(
        cpus=cpuset.render(parts.cpus),
        count=len(parts.cpus),
        partition=parts.divided,
        cgroup=state["cgroup"],
        dropins=dropins,
        taskset={name: cpuset.taskset(cpus) for name, cpus in sets.items()} if not systemd and parts.divided else {},
        notes=[*state["notes"], *parts.notes, *cpuset.shared_cores((parts.sim, parts.page, parts.encoder), state["siblings"])]
        if parts.divided
        else [*state["notes"], *parts.notes],
    )
    return Same(values)


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Never reached: this module only plans and compares; files are settings_receipt's business."""
