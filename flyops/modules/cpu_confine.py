# SPDX-License-Identifier: Apache-2.0
"""Confines everybody but the simulator to the other cpus, on a host or guest with cgroup v2; releases them; or says who trespasses.

The lasting settings are drop-ins, written by receipt (settings_receipt, from cpuset's plan). systemd keeps an old mask when a drop-in goes,
and knows nothing of the cgroup that lxc-attach makes: bringing the live masks where the drop-ins want them is this module's part.
"""

from __future__ import annotations

from typing import Any

from flyops.domain import confine, cpuset
from flyops.domain.systemd import unit_name
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

RUNTIME = "/run/systemd/system.control/"

SPEC = Spec(
    doc="Keep everything but flysim off the simulator's cpus (cgroup v2), give them back, or name who may still run there.",
    args={
        "state": Arg("str", default="checked", choices=("applied", "released", "checked"), help="checked changes nothing and fails on a trespasser"),
        "sim": Arg("str", default="", help="the simulator's cpus; empty: there is no partition, so nothing is confined"),
        "other": Arg("str", default="", help="applied: the cpus of everybody else"),
        "units": Arg("list", elements="str", default=confine.UNITS, help="units that hold everybody else"),
        "unit": Arg("str", default="flysim.service", help="the simulator's unit"),
        "slice": Arg("str", default="flysim.slice", help="the simulator's own slice, which nobody else is in"),
        "attach": Arg("str", default=confine.ATTACH, help="cgroup in which commands from the container's host land; never created"),
        "systemctl": Arg("str", default="systemctl", help="program that sets the units' cpus"),
        "cgroup_root": Arg("path", default="/sys/fs/cgroup", help="where cgroup v2 is mounted"),
        "proc": Arg("path", default="/proc", help="processes"),
        "self_pid": Arg("int", default=0, help="checked: whose chain of parents is ours; 0: the agent's"),
    },
    examples="- name: Everybody else off the simulator's cpus\n  cpu_confine: {state: applied, sim: '{{ cpus.sim }}', other: '{{ cpus.other }}'}\n",
    returns={
        "confined": "units and cgroups that were set",
        "warnings": "what could not be set",
        "trespassers": "checked: who may run on the simulator's cpus",
        "noted": "checked: our own processes that may",
        "why": "why nothing was to do",
    },
)


def _asked(args: dict[str, Any], host: Host) -> dict[str, str]:
    """Unit or attach cgroup -> its own list of cpus. An attach cgroup that is not there is left out: it is never created."""
    attach = args["attach"].lstrip("/")
    names = [*args["units"], *([args["slice"]] if args["state"] == "released" else []), attach]
    texts = {name: host.read_text(f"{args['cgroup_root']}/{name}/cpuset.cpus", missing="absent").strip() for name in names}
    return {name: "" if text == "absent" else text for name, text in texts.items() if text != "absent" or name != attach}


def _configured(args: dict[str, Any], unit: str, host: Host) -> bool:
    """Whether a file asks for a mask; what set-property left until the next boot does not count, since that is how this module sets one."""
    argv = [args["systemctl"], "show", "-p", "FragmentPath,DropInPaths", "--value", unit]
    paths = host.run(argv, query=True, timeout=30).stdout.decode("utf-8", "replace").split()
    texts = [host.read_text(path, missing="") for path in paths if not path.startswith(RUNTIME)]
    return any(confine.asks(text) for text in texts)


def _sim_cgroup(args: dict[str, Any], host: Host) -> str | None:
    """The simulator's cgroup; None when it does not run."""
    shown = host.run([args["systemctl"], "show", "-p", "MainPID", "--value", args["unit"]], query=True, timeout=30).stdout.decode().strip()
    text = host.read_text(f"{args['proc']}/{shown}/cgroup", missing="") if shown.isdigit() and shown != "0" else ""
    return cpuset.cpuset_cgroup(text)[1] if text else None


def _processes(args: dict[str, Any], host: Host) -> dict[int, confine.Process]:
    out = {}
    for name in host.listdir(args["proc"]):
        if name.isdigit():
            folder = f"{args['proc']}/{name}"
            found = confine.process(host.read_text(f"{folder}/status", missing=""), host.read_text(f"{folder}/cgroup", missing=""))
            if found:
                out[found.pid] = found
    return out


def _self(args: dict[str, Any], host: Host) -> int:
    status = host.read_text(f"{args['proc']}/self/status", missing="")
    found = confine.process(status, "")
    return args["self_pid"] or (found.pid if found else 0)


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The masks as they are, or every process with its cpus."""
    for unit in [*args["units"], args["unit"], args["slice"]]:
        unit_name(unit)
    if "cpuset" not in host.read_text(f"{args['cgroup_root']}/cgroup.controllers", missing="").split():
        return {"why": "cpuset is not on cgroup v2 here: systemd cannot confine a slice"}
    if args["state"] != "released" and not args["sim"].strip():
        return {"why": "no partition: everybody shares all cpus"}
    if args["state"] == "checked":
        return {"processes": _processes(args, host), "self": _self(args, host), "sim": _sim_cgroup(args, host)}
    asked = _asked(args, host)
    full = host.read_text(f"{args['cgroup_root']}/cpuset.cpus.effective", missing="").strip()
    if args["state"] == "applied":
        return {"asked": asked, "sim": _sim_cgroup(args, host), "full": full}
    # A mask that some configuration asks for is not left over: it is somebody's.
    attach, left = args["attach"].lstrip("/"), {name: text for name, text in asked.items() if text}
    kept = {name for name in left if name != attach and _configured(args, name, host)}
    if kept & set(args["units"]):  # everybody else is confined on purpose, so what comes from the container's host is, too
        kept.add(attach)
    return {"asked": {name: text for name, text in left.items() if name not in kept}, "full": full}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Which masks to set; refused when the simulator is not in its own slice."""
    if "why" in state:
        return Same({"confined": [], "warnings": [], "why": state["why"]}, msg=state["why"])
    try:
        sim = cpuset.parse(args["sim"])
        wrong = confine.outside(state["sim"], args["slice"]) if state.get("sim") is not None else ""
        if wrong:
            raise Refused(wrong, fix="deploy again (its unit says Slice=flysim.slice), then confine; nothing was changed")
        return _judge(args, state, sim) if args["state"] == "checked" else _set(args, state, sim)
    except cpuset.CpusetError as err:
        raise Refused(str(err), fix="look at the plan of the cpuset module: its `sim` and `other`") from err


def _judge(args: dict[str, Any], state: dict[str, Any], sim: cpuset.Cpus) -> Decision:
    own = confine.chain(state["processes"], state["self"])
    strangers, ours = confine.trespassers(state["processes"].values(), sim, args["slice"], own)
    said = [confine.describe(one, sim) for one in strangers]
    values: dict[str, Any] = {"trespassers": said, "noted": [confine.describe(one, sim) for one in ours], "why": ""}
    if said:
        more = f" and {len(said) - 1} more" if len(said) > 1 else ""
        raise ModuleError(f"{said[0]}{more}", fix="deploy with fly_confine: true, or move that process; a cgroup's own list decides", **values)
    return Same(values)


def _set(args: dict[str, Any], state: dict[str, Any], sim: cpuset.Cpus) -> Decision:
    want = cpuset.parse(args["other"] if args["state"] == "applied" else state["full"])
    if not want or (args["state"] == "applied" and set(want) & set(sim)):
        raise cpuset.CpusetError(f"everybody else needs cpus of their own beside {args['sim'] or 'none'}, found {cpuset.render(want) or 'none'}")
    todo = confine.differing(state["asked"], want)
    if not todo:
        return Same({"confined": [], "warnings": [], "why": "it is so"})
    text = cpuset.render(want)
    diff = tuple(Diff(f"cpus of {name}", f"{state['asked'][name]}\n", f"{text}\n") for name in todo)
    return Change(before=state["asked"], after=(todo, text), diff=diff)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Units through systemd, until the next boot (drop-ins last); the attach cgroup by its own file, which may be closed to us."""
    todo, text = change.after
    if host.check:
        return {"confined": list(todo), "warnings": []}
    done, warnings = [], []
    for name in todo:
        if name == args["attach"].lstrip("/"):
            wrong = host.run(["tee", f"{args['cgroup_root']}/{name}/cpuset.cpus"], stdin=f"{text}\n".encode(), timeout=30)
        else:
            wrong = host.run([args["systemctl"], "set-property", "--runtime", name, f"AllowedCPUs={text}"], timeout=60)
        if wrong.rc == 0:
            done.append(name)
        else:
            warnings.append(f"{name}: cpus {text} could not be set: {wrong.stderr.decode('utf-8', 'replace').strip()[-300:]}")
    failed = [line for line in warnings if not line.startswith(f"{args['attach'].lstrip('/')}:")]
    if failed:
        raise ModuleError(failed[0], confined=done, warnings=warnings)
    for line in warnings:
        host.note(f"WARNING: {line}")
    return {"confined": done, "warnings": warnings, "changed": bool(done)}
