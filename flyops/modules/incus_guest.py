# SPDX-License-Identifier: Apache-2.0
"""An Incus or LXD container: made from an image, given cards and cpus, started, stopped, removed. Never touches one that it did not make."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple

from flyops.domain import cpuset, gpuask, incus, incuscpu, incushost, lxcconf, symptoms, topology
from flyops.domain.incushost import Client, Seen
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

NO_LIMIT = 1 << 60
SETTLE_S = 15.0
NOTHING, NO_UNIT = 44, 5
TAR = f"""for one; do shift; [ -d "/$one" ] && set -- "$@" "$one"; done
[ $# -gt 0 ] || exit {NOTHING}
exec tar -C / -czf - -- "$@\""""  # of the folders that are there

SPEC = Spec(
    doc="An Incus or LXD container with its cards and limits, its cpus read back as the kernel gives them.",
    args={
        "name": Arg(required=True, help="name of the instance"),
        "binary": Arg(default="incus", choices=("incus", "lxc"), help="the daemon's client; LXD's is lxc"),
        "project": Arg(default="", help="project of the daemon; empty: default"),
        "state": Arg(default="started", choices=("started", "stopped", "present", "absent"), help="present: made, running or not"),
        "image": Arg(default="", help="what a new one is made from: an alias or fingerprint, or REMOTE:IMAGE"),
        "profiles": Arg("list", elements="str", help="profiles in order; default: those it has, for a new one default"),
        "gpu": Arg("raw", default=False, help="true, a list of UUIDs, bus ids or indexes, or {mig: [CARD/GI/CI]}"),
        "runtime": Arg("bool", default=True, help="with a card: nvidia.runtime, which brings the driver's libraries at each start"),
        "capabilities": Arg("list", elements="str", default=("compute", "utility"), help="of the driver, for nvidia.runtime"),
        "cpus": Arg(help="cpus to pin it to (0-3,8), never a count: 4 is cpu 4"),
        "cpu_count": Arg("int", help="or how many: whole free cores of one node are chosen, and kept"),
        "mems": Arg(default="", help="memory nodes; empty: those of the cpus, none on a machine with one node"),
        "memory": Arg(default="", help="memory limit (4G, 512M)"),
        "disk": Arg(default="", help="size of the root disk (20G)"),
        "devices": Arg("dict", default=None, help="more devices: name -> options, as the daemon's documentation has them"),
        "autostart": Arg("bool", help="start with the daemon; default: as the profiles say"),
        "archive_state": Arg("list", default=(), elements="path", help="absent: its folders to archive first; a stopped one is started for that"),
        "archive_stop": Arg("list", default=(), elements="str", help="absent: units that are stopped in it before, so that they write their last"),
        "archive_to": Arg("path", help="absent: the .tar.gz to write, on this host"),
        "wait": Arg("int", default=60, help="seconds to wait for systemd in it"),
        "stop_wait": Arg("int", default=60, help="seconds that it may take to shut down before it is killed"),
    },
    exclusive=(("cpus", "cpu_count"),),
    examples="""
- name: An instance with the card of that UUID and eight cpus of one node
  incus_guest:
    name: dev1
    image: images:debian/12
    gpu: [GPU-11111111-2222-3333-4444-555555555555]
    cpu_count: 8
    memory: 16G
- name: The same with LXD, all cards, cpus by number
  incus_guest: {name: dev1, binary: lxc, image: debian12, gpu: true, cpus: 0-7}
""",
    returns={
        "cpus": "cpus that the kernel gives it",
        "memory": "memory limit in force, bytes; 0: none",
        "systemd": "running or degraded",
        "restarted": "whether a running instance was restarted",
        "notes": "what is odd about the placement",
        "strays": "gpu devices that flyops did not give: left alone",
        "archive": "path and size of the archived state; absent when it held none",
    },
)


@dataclass(frozen=True)
class Todo:
    """The steps of `apply`, in their order, and what they need."""

    steps: Tuple[str, ...]
    wanted: incus.Wanted = field(default_factory=incus.Wanted)
    cpus: cpuset.Cpus = ()
    memory: int = 0


def _client(args: Mapping[str, Any], host: Host) -> Client:
    return Client(host, args["binary"], args["project"])


def read(args: Dict[str, Any], host: Host) -> Seen:
    """The instance, its profiles, the machine's cpus and cards."""
    wrong = incus.check_name(args["name"])
    if wrong:
        raise ModuleError(wrong)
    return incushost.look(_client(args, host), args)


def plan(args: Dict[str, Any], state: Seen) -> Decision:
    """Which steps bring the instance to what is asked; refuses what the daemon would refuse, hang in or quietly pass over."""
    name, there = args["name"], state.instance
    if there is not None and not state.record.ours:
        raise Refused(f"instance {name!r} was not made by flyops: it is left alone", fix="choose another name")
    if args["state"] == "absent":
        return _plan_absent(args, state)
    if there is None and not args["image"]:
        raise ModuleError(f"instance {name!r} does not exist, and no image to make it from was named", fix="name an image")
    try:
        wanted, cpus, notes = _wanted(args, state)
        config, devices = incus.converge(there or {}, wanted, state.record)
    except (incus.IncusError, gpuask.GpuError, cpuset.CpusetError, lxcconf.LxcConfError) as error:
        raise Refused(f"instance {name!r}: {error}") from None
    memory = lxcconf.memory_bytes(args["memory"]) if args["memory"] else 0
    cpus = _expected(state, cpus)
    todo = Todo(_steps(args, state, (config, devices), cpus, memory), wanted, cpus, memory)
    values = _values(args, state, todo, notes)
    if not todo.steps:
        return Same(values)
    return Change(after=todo, diff=tuple(_diffs(args, state, (config, devices), todo)), values=values)


# the declaration against this host


def _wanted(args: Mapping[str, Any], seen: Seen) -> Tuple[incus.Wanted, cpuset.Cpus, List[str]]:
    asked = gpuask.ask(args["gpu"])
    if asked.every and not seen.cards:
        raise gpuask.GpuError("gpu: this host has no card in /proc/driver/nvidia/gpus; load the driver first (invoke host)")
    cpus, notes = _cpus(args, seen)
    config = incus.runtime(asked, args["runtime"], args["capabilities"])
    config.update({"limits.cpu": incuscpu.limit(cpus)} if cpus else {})
    config.update({"limits.memory": f"{lxcconf.memory_bytes(args['memory'])}B"} if args["memory"] else {})
    config.update({"boot.autostart": str(args["autostart"]).lower()} if args["autostart"] is not None else {})
    around = {**seen.expanded()[0], **_foreign(seen)}
    wrong = incus.refusals(asked, {**around, **config}, seen.lacking)
    if wrong:
        raise incus.IncusError("; ".join(wrong))
    devices = {**incus.gpu_devices(asked, seen.cards), **incus.check_devices(args["devices"] or {}), **_disk(args, seen)}
    if asked and around.get("security.nesting") == "true":
        notes.append(f"security.nesting: for containers in it with cards, {symptoms.SET_NO_CGROUPS}")
    nodes = cpuset.parse(args["mems"]) or topology.mems(cpus, seen.machine.top.nodes)
    return incus.Wanted(config, devices, incus.mems_line(cpuset.render(nodes), seen.cpuset_on)), cpus, notes


def _foreign(seen: Seen) -> Dict[str, str]:
    """The instance's own keys that are not ours."""
    config = (seen.instance or {}).get("config") or {}
    return {key: value for key, value in config.items() if key not in seen.record.config}


def _cpus(args: Mapping[str, Any], seen: Seen) -> Tuple[cpuset.Cpus, List[str]]:
    nodes = cpuset.parse(args["mems"])
    if args["cpu_count"]:
        now = incuscpu.pinned(((seen.instance or {}).get("config") or {}).get("limits.cpu", ""))
        cpus, notes = incuscpu.pick(args["cpu_count"], seen.machine, nodes=nodes, taken=seen.taken, now=now)
        return cpus, list(notes)
    if not args["cpus"]:
        return (), []
    cpus, notes = incuscpu.explicit(cpuset.parse(args["cpus"]), seen.machine, nodes)
    return cpus, list(notes)


def _expected(seen: Seen, cpus: cpuset.Cpus) -> cpuset.Cpus:
    """The cpus that the kernel must give: those asked for; when a limit goes, those of the profiles, or all; empty: no matter."""
    had = ((seen.instance or {}).get("config") or {}).get("limits.cpu", "")
    if cpus or not (seen.running and had):
        return cpus
    inherited = seen.expanded()[0].get("limits.cpu", "")
    return incuscpu.pinned(inherited) if inherited else seen.machine.automatic


def _disk(args: Mapping[str, Any], seen: Seen) -> Dict[str, Dict[str, str]]:
    if not args["disk"]:
        return {}
    if seen.pool_driver == "dir":
        raise incus.IncusError(
            "disk: the pool is a plain folder (driver dir), which keeps no size; use a pool of btrfs, zfs or lvm, or leave disk out"
        )
    name, device = incus.root_device({**seen.expanded()[1], **((seen.instance or {}).get("devices") or {})})
    return {name: {**device, "size": f"{lxcconf.memory_bytes(args['disk'])}B"}}


# steps


def _steps(args: Mapping[str, Any], seen: Seen, made: Tuple[Mapping[str, str], Mapping[str, Any]], cpus: cpuset.Cpus, memory: int) -> Tuple[str, ...]:
    there: Mapping[str, Any] = seen.instance or {}
    now = (there.get("config") or {}, there.get("devices") or {})
    profiles = list(seen.profiles) != list(there.get("profiles") or [])
    changed = not there or now != made or profiles
    # The cold keys are never changed under a running instance: so a stopped one always starts with what is declared.
    restart = seen.running and args["state"] != "stopped" and (profiles or incus.cold(*now) != incus.cold(*made))
    stop = restart or (seen.running and args["state"] == "stopped")
    start = restart or (args["state"] == "started" and not seen.running)
    off = seen.running and not changed and not stop and _off(seen, cpus, memory)
    wanted = (("create", not there), ("stop", stop), ("config", changed), ("start", start), ("limits", off))
    return tuple(step for step, needed in wanted if needed)


def _off(seen: Seen, cpus: cpuset.Cpus, memory: int) -> str:
    """What the kernel gives in place of what was asked; empty when all is in force."""
    texts = [cpuset.mismatch(cpus, seen.cpus)]
    if memory and seen.memory and not lxcconf.same_memory(memory, seen.memory):
        texts.append(f"expected a memory limit of {memory} bytes, found {seen.memory}")
    return "; ".join(text for text in texts if text)


def _values(args: Mapping[str, Any], seen: Seen, todo: Todo, notes: List[str]) -> Dict[str, Any]:
    """For the result: what there is, or in check mode what there would be."""
    moved = bool({"start", "config", "limits"} & set(todo.steps))
    return {
        "name": args["name"],
        "running": "start" in todo.steps or (seen.running and "stop" not in todo.steps),
        "cpus": cpuset.render(todo.cpus if moved and todo.cpus else seen.cpus),
        "memory": todo.memory if moved and todo.memory else _bytes(seen.memory),
        "restarted": {"stop", "start"} <= set(todo.steps),
        "notes": notes,
        "strays": incus.strays(seen.instance or {}, seen.record),
    }


def _bytes(limit: str) -> int:
    """0 where there is no limit: `max`, or v1's largest number."""
    return int(limit) if limit.isdigit() and int(limit) < NO_LIMIT else 0


def _diffs(args: Mapping[str, Any], seen: Seen, made: Tuple[Mapping[str, str], Mapping[str, Any]], todo: Todo) -> List[Diff]:
    there: Mapping[str, Any] = seen.instance or {}
    before = f"profiles: {', '.join(there['profiles'])}\n" + incus.listing(there.get("config") or {}, there.get("devices") or {}) if there else ""
    out = []
    if "config" in todo.steps:
        out.append(Diff(f"instance {args['name']}", before, f"profiles: {', '.join(seen.profiles)}\n" + incus.listing(*made)))
    if "limits" in todo.steps:
        found = f"cpus {cpuset.render(seen.cpus)}, memory {seen.memory}\n"
        out.append(Diff(f"limits in force of {args['name']}", found, f"cpus {cpuset.render(todo.cpus)}, memory {todo.memory or seen.memory}\n"))
    if {"stop", "start"} & set(todo.steps):
        states = ("running\n" if seen.running else "stopped\n" if there else "", "running\n" if "start" in todo.steps else "stopped\n")
        out.append(Diff(f"state of {args['name']}", *(("running\n", "running, restarted\n") if states[0] == states[1] else states)))
    return out


def _plan_absent(args: Mapping[str, Any], seen: Seen) -> Decision:
    if seen.instance is None:
        return Same({"name": args["name"]})
    if args["archive_state"] and not args["archive_to"]:
        raise ModuleError("archive_state was asked for without archive_to", fix="name the .tar.gz to write")
    # Its files are behind its ids and its pool, so its own tar reads them.
    archive = ("archive",) if seen.running else ("start", "archive")
    steps = (*(archive if args["archive_state"] else ()), *(("stop",) if seen.running or args["archive_state"] else ()), "delete")
    shown = incus.listing(seen.instance.get("config") or {}, seen.instance.get("devices") or {})
    return Change(
        after=Todo(steps), diff=(Diff(f"instance {args['name']}", shown or "there\n", ""),), values={"name": args["name"], "running": False}
    )


# doing


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any]:
    """Each step by the daemon; then what the kernel gives is read back and compared with what was asked."""
    client = _client(args, host)
    steps = {"create": _create, "stop": _stop, "config": _config, "start": _start, "limits": _limits, "delete": _delete}
    archived: Dict[str, Any] = {}
    for step in change.after.steps:
        host.note(f"{args['name']}: {step}")
        if step == "archive":
            archived = _archive(args, client)
        else:
            steps[step](args, change.after, client)
    if "delete" in change.after.steps:
        return archived
    return _read_back(args, change, client)


def _done(said: str, what: str) -> None:
    if said:
        raise ModuleError(f"{what}: {said}")


def _create(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    words = [word for profile in args["profiles"] or () for word in ("-p", profile)]
    # It is marked as ours from its first moment: a run that is cut off after this line is finished by the next.
    done = client.call("init", args["image"], args["name"], *words, "-c", f"{incus.RECORD}={incus.Record(True).text()}", "--quiet")
    if done.rc:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise ModuleError(
            f"instance {args['name']!r} could not be made from {args['image']!r}: {said}", fix=f"{args['binary']} image list shows the images"
        )


def _config(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    there = client.get(incushost.path(args["name"]))
    config, devices = incus.converge(there, todo.wanted, incus.record(there["config"]))
    fields = {key: there[key] for key in ("architecture", "ephemeral", "stateful", "description") if key in there}
    profiles = args["profiles"] if args["profiles"] is not None else there["profiles"]
    body = {**fields, "profiles": profiles, "config": config, "devices": devices}
    _done(client.send("PUT", incushost.path(args["name"]), body), f"instance {args['name']!r} does not take its configuration")


def _stop(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    path, body = f"{incushost.path(args['name'])}/state", {"action": "stop", "timeout": args["stop_wait"], "force": False}
    if client.send("PUT", path, body):
        _done(client.send("PUT", path, {**body, "force": True}), f"instance {args['name']!r} could not be stopped")


def _start(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    said = client.send("PUT", f"{incushost.path(args['name'])}/state", {"action": "start", "timeout": args["wait"]})
    if said:
        text, fix = incushost.why(client, args["name"], said)
        raise ModuleError(f"instance {args['name']!r} does not start: {text}", fix=fix)


def _limits(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    """The daemon writes a limit only when its key changes."""
    if "limits.memory" in todo.wanted.config:
        for value in ("", todo.wanted.config["limits.memory"]):
            _set(args, client, "limits.memory", value)
    _place_again(args, todo, client)


def _place_again(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    """Make the daemon place the cpus now. It does so in another thread when `limits.cpu` changes, and that may read the old value: the new one is
    stored a moment later, and nothing is pinned until some instance starts or stops. Between two ways to write one list either reading is right.
    """
    if todo.cpus:
        same = incuscpu.limit(todo.cpus)
        for value in (f"0{same}", todo.wanted.config.get("limits.cpu", "")):
            _set(args, client, "limits.cpu", value)


def _set(args: Mapping[str, Any], client: Client, key: str, value: str) -> None:
    _done(client.send("PATCH", incushost.path(args["name"]), {"config": {key: value}}), f"instance {args['name']!r}: {key}")


def _delete(args: Mapping[str, Any], todo: Todo, client: Client) -> None:
    _done(client.send("DELETE", incushost.path(args["name"])), f"instance {args['name']!r} could not be removed")


def _archive(args: Mapping[str, Any], client: Client) -> Dict[str, Any]:
    """Written whole and read again before anything is removed."""
    path, host = args["archive_to"], client.host
    if args["archive_stop"]:
        incushost.wait_systemd(client, args["name"], args["wait"])
    for unit in args["archive_stop"]:
        done = client.call("exec", args["name"], "-T", "--", "systemctl", "stop", unit)
        if done.rc not in (0, NO_UNIT):
            raise ModuleError(f"instance {args['name']!r}: {unit} does not stop: {done.stderr.decode('utf-8', 'replace').strip()}")
    folders = [folder.strip("/") for folder in args["archive_state"]]
    words = [
        args["binary"],
        "exec",
        args["name"],
        *(["--project", args["project"]] if args["project"] else []),
        "-T",
        "--",
        "sh",
        "-c",
        TAR,
        "sh",
        *folders,
    ]
    done = host.run(["sh", "-c", 'umask 077; "$@" > "$0"', f"{path}.part", *words])
    if done.rc == NOTHING:
        host.remove(f"{path}.part")
        return {}
    check = host.run(["tar", "-tzf", f"{path}.part"], query=True)
    if done.rc or check.rc:
        said = (done.stderr or check.stderr).decode("utf-8", "replace").strip()
        raise ModuleError(
            f"instance {args['name']!r}: its state could not be archived to {path}: {said}",
            fix="nothing was removed, its units are stopped; make room, or leave archive_state out",
        )
    host.rename(f"{path}.part", path)
    seen = host.stat(path)
    return {"archive": {"path": path, "size": seen.size if seen else 0}}


def _read_back(args: Mapping[str, Any], change: Change, client: Client) -> Dict[str, Any]:
    todo: Todo = change.after
    if not change.values["running"]:
        return {}
    found = _in_force(args, todo, client)
    systemd = incushost.wait_systemd(client, args["name"], args["wait"]) if "start" in todo.steps else ""
    return {"cpus": cpuset.render(found["cpus"]), "memory": _bytes(found["memory"]), **({"systemd": systemd} if systemd else {})}


def _in_force(args: Mapping[str, Any], todo: Todo, client: Client) -> Dict[str, Any]:
    """What the kernel gives; the daemon is given a moment, and told again when it lets it pass."""
    began = time.monotonic()
    while True:
        pid = int(client.get(f"{incushost.path(args['name'])}/state").get("pid") or 0)
        found = incushost.given(client.host, pid, incushost.controllers(client.host))
        wrong = _off(Seen(**found), todo.cpus, todo.memory)
        if not wrong:
            return found
        if time.monotonic() - began >= SETTLE_S:
            raise ModuleError(f"instance {args['name']!r}: {wrong}", fix="look at the daemon's log, and at cpus that went offline since")
        time.sleep(incushost.POLL_S * 2)
        if cpuset.mismatch(todo.cpus, found["cpus"]):
            _place_again(args, todo, client)
