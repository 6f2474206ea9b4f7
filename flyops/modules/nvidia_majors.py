# SPDX-License-Identifier: Apache-2.0
"""Device rules in the configs of managed guests, at the majors of the loaded driver; or only looked at."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Mapping, Tuple

from flyops.domain import lxcconf, majors, nvidia
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Keep the device rules of managed guests at the live majors, which move with every boot and module load. Takes force at a guest's next start.",
    args={
        "state": Arg(
            default="read",
            choices=("read", "present", "absent"),
            help="read only reports; present converges; absent takes the card away again where it was given by us (`record`)",
        ),
        "guests": Arg(
            "list", default=(), elements="str", help="guests by name (LXC) or id (Proxmox VE); one that binds no node yet gets the whole card"
        ),
        "made": Arg(
            "bool", default=False, help="also each guest that flyops made (its marker in lxc_path, its tag in pve_dir) and that has the card"
        ),
        "lxc_path": Arg("path", default="/var/lib/lxc", help="where LXC keeps guests: NAME/config"),
        "pve_dir": Arg("path", default="/etc/pve/lxc", help="where Proxmox VE keeps configs: ID.conf"),
        "proc_devices": Arg("path", default="/proc/devices", help="majors of the running kernel"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="gpus/ has the minors of the cards"),
        "proc_mounts": Arg("path", default="/proc/mounts", help="tells whether devices are on cgroup v1 or v2"),
        "gpus": Arg("list", elements="int", help="device minors of the whole card; default: those of proc_driver, else 0"),
        "record": Arg("path", help="file with the guests that were given the card; needed for absent"),
        "wait": Arg("float", default=0.0, help="seconds to wait for the driver's majors (a boot unit runs while modules load)"),
        "fail": Arg("bool", default=False, help="read: a drift is a failure"),
    },
    required_if=(("state", "absent", ("record",)),),
    examples="- name: Rules follow the loaded driver\n  nvidia_majors: {state: present, guests: ['101', dev1], made: true}\n",
    returns={
        "guests": "name or id -> changed, unchanged, missing or locked",
        "drift": "one text for each guest that is not as it should be",
        "strays": "rules that open a device which is not the driver's (a reused number); never deleted",
        "dead": "rules under the key of the cgroup version that holds no devices here",
        "notes": "what else a reader should know",
        "majors": "live majors by name",
        "given": "guests that have the card from us",
        "configs": "paths of the configs that are ours to change",
    },
)
POLL_S = 0.5


def read(args: Dict[str, Any], host: Host) -> Dict[str, Any]:
    """Configs of the guests, and the host they are on."""
    pve = host.stat(args["pve_dir"], follow=True) is not None
    wrong = majors.check_names(args["guests"], pve)
    if wrong:
        raise ModuleError(f"guests: {wrong}")
    given = _given(args, host)
    named = given if args["state"] == "absent" else list(dict.fromkeys(args["guests"]))
    confs = [_conf(name, pve, args, host) for name in named]
    if args["made"] and args["state"] != "absent":
        known = {conf.path for conf in confs}
        confs += [conf for conf in _made(pve, args, host) if conf.path not in known]
    paths = [conf.path for conf in confs] + [_path(name, pve, args) for name in given]
    return {"confs": confs, "given": given, "configs": list(dict.fromkeys(paths)), **_machine(args, confs, host)}


def _given(args: Mapping[str, Any], host: Host) -> List[str]:
    text = host.read_text(args["record"], missing="[]") if args["record"] else "[]"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or majors.check_names(map(str, found), pve=False):
        raise ModuleError(f"{args['record']}: expected a JSON list of guests, found {text[:80]!r}", fix="put it right or remove it")
    return [str(name) for name in found]


def _path(name: str, pve: bool, args: Mapping[str, Any]) -> str:
    return f"{args['pve_dir']}/{name}.conf" if pve and name.isdigit() else f"{args['lxc_path']}/{name}/config"


def _conf(name: str, pve: bool, args: Mapping[str, Any], host: Host) -> majors.Conf:
    """A guest that was named. What one of flyops' own has is its declaration's affair (provision), so it is given nothing here."""
    path, of_pve = _path(name, pve, args), pve and name.isdigit()
    text = host.read_text(path) if host.stat(path, follow=True) else None
    made = majors.tagged(text or "") if of_pve else _marked(name, args, host)
    return majors.Conf(name, path, text, of_pve, named=not made)


def _made(pve: bool, args: Mapping[str, Any], host: Host) -> List[majors.Conf]:
    """Guests with flyops' marker (LXC) or tag (Proxmox)."""
    ids = [name[: -len(".conf")] for name in _names(args["pve_dir"], host) if name.endswith(".conf")] if pve else []
    names = [name for name in _names(args["lxc_path"], host) if not (pve and name.isdigit()) and _marked(name, args, host)]
    confs = [_conf(name, pve, args, host) for name in [*names, *filter(str.isdigit, ids)]]
    return [conf for conf in confs if not conf.named and conf.text is not None]


def _names(folder: str, host: Host) -> List[str]:
    seen = host.stat(folder, follow=True)
    return host.listdir(folder) if seen and seen.kind == "dir" else []


def _marked(name: str, args: Mapping[str, Any], host: Host) -> bool:
    try:
        marker = json.loads(host.read_text(f"{args['lxc_path']}/{name}/flyops.json", missing="{}"))
    except ValueError:
        return False
    return isinstance(marker, dict) and marker.get("owner") == "flyops"


def _machine(args: Mapping[str, Any], confs: List[majors.Conf], host: Host) -> Dict[str, Any]:
    """The host, once its majors are there or the time to wait for them is over."""
    deadline = time.monotonic() + args["wait"]
    version = lxcconf.controllers(host.read_text(args["proc_mounts"], missing=""), "").devices or "v2"
    while True:
        text = host.read_text(args["proc_devices"], missing="")
        machine = majors.Machine(nvidia.char_majors(text), nvidia.live_majors(text), version, _gpus(args, host))
        try:
            if args["state"] != "absent":
                majors.check_majors(confs, machine)
            return {"machine": machine, "error": ""}
        except majors.MajorsError as err:
            if time.monotonic() >= deadline:
                return {"machine": machine, "error": str(err)}
        time.sleep(POLL_S)


def _gpus(args: Mapping[str, Any], host: Host) -> Tuple[int, ...]:
    if args["gpus"] is not None:
        return tuple(sorted(set(args["gpus"])))
    folder = f"{args['proc_driver']}/gpus"
    texts = [host.read_text(f"{folder}/{bus}/information", missing="") for bus in _names(folder, host)]
    return nvidia.device_minors(texts) or (0,)


def plan(args: Dict[str, Any], state: Dict[str, Any]) -> Decision:
    """All guests or none: a missing major stops every write."""
    machine: majors.Machine = state["machine"]
    if state["error"]:
        return _no_majors(args, state)
    convert = majors.take_away if args["state"] == "absent" else majors.converge
    planned = [convert(conf, machine) for conf in state["confs"]]
    todo = [one for one in planned if one.status == "changed"]
    values = _values(planned, state)
    if args["state"] == "read":
        if args["fail"] and values["drift"]:
            raise ModuleError(f"drifted: {'; '.join(values['drift'])}", fix="systemctl restart flyops-majors, or invoke host", **values)
        return Same(values)
    given = _given_after(args, state, planned)
    if not todo and given == state["given"]:
        return Same(values)
    diff = tuple(Diff(one.conf.path, one.conf.text or "", one.text) for one in todo)
    return Change(before=state["given"], after={"todo": todo, "given": given}, diff=diff, values={**values, "given": given})


def _no_majors(args: Mapping[str, Any], state: Mapping[str, Any]) -> Decision:
    values = {**_values([], state), "error": state["error"]}
    if args["state"] == "read" and not args["fail"]:
        return Same(values)
    raise ModuleError(state["error"], fix="load the modules (modprobe nvidia; modprobe nvidia-uvm) and run again", **values)


def _given_after(args: Mapping[str, Any], state: Mapping[str, Any], planned: List[majors.Planned]) -> List[str]:
    if args["state"] == "absent":
        return [one.conf.name for one in planned if one.status == "locked"]
    fresh = [one.conf.name for one in planned if one.conf.given and one.status == "changed"]
    return list(dict.fromkeys([*state["given"], *fresh])) if args["record"] else []


def _values(planned: List[majors.Planned], state: Mapping[str, Any]) -> Dict[str, Any]:
    machine: majors.Machine = state["machine"]
    notes = [note for one in planned for note in one.notes]
    number = machine.live.get("nvidia", majors.COMPILED_IN)
    if number != majors.COMPILED_IN:
        notes.append(f"nvidia has major {number}, expected {majors.COMPILED_IN}: is this the NVIDIA driver?")
    return {
        "guests": {one.conf.name: one.status for one in planned},
        "drift": [one.drift for one in planned if one.drift],
        "strays": [line for one in planned for line in one.strays],
        "dead": [line for one in planned for line in one.dead],
        "notes": notes,
        "majors": dict(machine.live),
        "given": state["given"],
        "configs": state["configs"],
    }


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any]:
    """The record first, so that a run which is cut off knows what it gave; then each config, unless somebody wrote it meanwhile."""
    after = change.after
    if args["record"] and args["state"] == "present" and after["given"] != change.before:
        _write_record(args["record"], after["given"], host)
    for one in after["todo"]:
        _write(one, host)
    if args["state"] == "absent":
        _write_record(args["record"], after["given"], host)
    return {}


def _write_record(path: str, given: List[str], host: Host) -> None:
    if given:
        host.write_text(path, json.dumps(given) + "\n", mode=0o644)
    elif host.stat(path) is not None:
        host.remove(path)


def _write(one: majors.Planned, host: Host) -> None:
    if host.read_text(one.conf.path) != one.conf.text:
        raise ModuleError(f"{one.conf.path} was changed by somebody else while it was looked at", fix="run again")
    if one.conf.pve:
        # /etc/pve is pmxcfs: it takes no chmod and no chown, and a file that is renamed into it is a second transaction of the cluster.
        host.write_through(one.conf.path, one.text)
    else:
        host.write_text(one.conf.path, one.text)
