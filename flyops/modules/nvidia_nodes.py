# SPDX-License-Identifier: Apache-2.0
"""NVIDIA device nodes of this machine: made with the majors of the loaded module, or only looked at."""

from __future__ import annotations

import stat
import time
from typing import Any

from flyops.domain import nvidia
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Make the device nodes of the loaded NVIDIA module (they are not devtmpfs: gone at boot, stale after a reload), or report them.",
    args={
        "state": Arg(
            "str", default="read", choices=("read", "present"), help="read only reports; present makes missing nodes and replaces stale ones"
        ),
        "dev": Arg("path", default="/dev", help="folder of the nodes"),
        "proc_devices": Arg("path", default="/proc/devices", help="majors of the running kernel"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="version, params and gpus/ of the loaded module"),
        "mig_minors": Arg("path", default="/proc/driver/nvidia-caps/mig-minors", help="minors of capabilities"),
        "gpus": Arg("list", elements="int", help="device minors; default: those of proc_driver's gpus/"),
        "caps": Arg("bool", default=False, help="also nvidia-caps/nvidia-capN of config and monitor, where the driver has capabilities"),
        "mig": Arg("list", default=(), elements="str", help="also the nodes of MIG instances (gpu0/gi1/ci0), or of `all` that are there"),
        "modeset": Arg("bool", default=False, help="also nvidia-modeset (display only)"),
        "mode": Arg("mode", help="permission bits; default: the module's own parameter (0666)"),
        "wait": Arg("float", default=0.0, help="seconds to wait for the driver's majors (a boot unit runs while modules load)"),
        "fail": Arg("bool", default=False, help="read: a node that is not right is a failure"),
    },
    examples="- name: Nodes follow the loaded module\n  nvidia_nodes: {state: present, caps: true}\n",
    returns={
        "version": "of the loaded module; empty when it is not loaded",
        "majors": "live majors by name",
        "nodes": "path, state (right, missing, stale, regular, mode, folder, other), text of each wanted node",
        "strays": "nvidia* paths that no rule of ours knows",
        "all_right": "every wanted node can be used",
        "error": "why the nodes that are wanted cannot be told",
        "modify": "false where the driver's own setting forbids to make nodes (ModifyDeviceFiles 0)",
        "replaced": "path -> what was there in place of the node",
    },
)
POLL_S = 0.5


def _minors(args: dict[str, Any], host: Host) -> list[int]:
    if args["gpus"] is not None:
        return list(args["gpus"])
    folder = f"{args['proc_driver']}/gpus"
    buses = host.listdir(folder) if host.stat(folder, follow=True) else []
    return list(nvidia.device_minors([host.read_text(f"{folder}/{bus}/information", missing="") for bus in buses]))


def _instances(args: dict[str, Any], host: Host) -> list[str]:
    """MIG instances that are there: only these have capability files, the table of minors lists all that could be."""
    top = f"{args['proc_driver']}/capabilities"
    found = []
    for gpu in _names(top, host):
        for gi in _names(f"{top}/{gpu}/mig", host):
            found += [f"{gpu}/{gi}/{ci}" for ci in _names(f"{top}/{gpu}/mig/{gi}", host)]
    return [name for name in found if nvidia.INSTANCE.fullmatch(name)]


def _names(folder: str, host: Host) -> list[str]:
    seen = host.stat(folder, follow=True)
    return host.listdir(folder) if seen and seen.kind == "dir" else []


def _caps(args: dict[str, Any], majors: dict[str, int], host: Host) -> tuple[list[int], list[nvidia.Cap]]:
    """Minors of parent cards, and the capabilities whose nodes are wanted."""
    table = nvidia.mig_minors(host.read_text(args["mig_minors"], missing=""))
    there = _instances(args, host)
    parents, names = [], ["config", "monitor"] if args["caps"] and "nvidia-caps" in majors else []
    for instance in there if "all" in args["mig"] else args["mig"]:
        parent, needed = nvidia.instance_caps(instance)
        parents.append(parent)
        names += needed
    caps = []
    for name in names:
        text = host.read_text(f"{args['proc_driver']}/capabilities/{nvidia.cap_file(name)}", missing="")
        one = nvidia.cap(name, text, {} if there and not text and name not in ("config", "monitor") else table)
        if one is None:
            raise nvidia.NvidiaError(f"the driver has no capability {name}; MIG instances here: {', '.join(there) or 'none'}")
        caps.append(one)
    return parents, caps


def _listed(dev: str, host: Host) -> list[str]:
    """Every nvidia* path below dev, with those inside nvidia-caps."""
    if host.stat(dev, follow=True) is None:
        return []
    out = []
    for name in host.listdir(dev):
        path = f"{dev}/{name}"
        if name.startswith("nvidia"):
            inside = host.stat(path)
            out += [f"{path}/{sub}" for sub in host.listdir(path)] if inside and inside.kind == "dir" else [path]
    return out


def _majors(args: dict[str, Any], host: Host) -> dict[str, int]:
    """The driver's numbers, once they are there or the time to wait for them is over."""
    deadline = time.monotonic() + args["wait"]
    while True:
        found = nvidia.live_majors(host.read_text(args["proc_devices"], missing=""))
        if {"nvidia", "nvidia-uvm"} <= set(found) or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_S)


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Majors, wanted nodes and what is at their paths."""
    majors = _majors(args, host)
    version = nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing=""))
    params = host.read_text(f"{args['proc_driver']}/params", missing="")
    mode, uid, gid = nvidia.params_mode(params)
    if isinstance(args["mode"], int):
        mode = args["mode"]
    try:
        parents, caps = _caps(args, majors, host)
        wanted = nvidia.wanted_nodes(
            majors, [*_minors(args, host), *parents], caps=caps, modeset=args["modeset"], mode=mode, owner=(uid, gid), dev=args["dev"]
        )
        error = ""
    except nvidia.NvidiaError as err:
        wanted, error = (), str(err)
    return {
        "majors": majors,
        "version": version,
        "verdicts": [nvidia.judge_node(node, host.stat(node.path)) for node in wanted],
        "strays": _strays(args["dev"], {node.path for node in wanted}, majors, host),
        "error": error,
        "modify": nvidia.modifies(params),
    }


def _strays(dev: str, known: set[str], majors: dict[str, int], host: Host) -> list[dict[str, Any]]:
    out = []
    for path in _listed(dev, host):
        if path not in known:
            seen = host.stat(path)
            expected = nvidia.expected_device(path[len(dev) + 1 :], majors)
            out.append({"path": path, "kind": seen.kind if seen else "gone", "right": bool(seen and expected and seen.rdev == expected)})
    return out


def _values(state: dict[str, Any]) -> dict[str, Any]:
    verdicts = state["verdicts"]
    nodes = [{"path": v.node.path, "state": v.state, "text": v.text, "major": v.node.major, "minor": v.node.minor} for v in verdicts]
    right = bool(verdicts) and all(v.right for v in verdicts)
    return {**{name: state[name] for name in ("version", "majors", "strays", "error", "modify")}, "nodes": nodes, "all_right": right}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Nothing when all are right or only a look was asked for; else the nodes to make again."""
    values = _values(state)
    if args["state"] == "read" and not args["fail"]:
        return Same(values)
    if state["error"]:
        raise ModuleError(state["error"], fix="load the module on the container host; a guest gets its nodes from there", **values)
    wrong = [v for v in state["verdicts"] if not v.right]
    if not wrong:
        return Same(values)
    said = "; ".join(v.text for v in wrong)
    if args["state"] == "read":
        raise ModuleError(said, fix="systemctl restart flyops-majors, or invoke host", **values)
    if not state["modify"]:
        raise Refused(
            f"{said}; and the driver's setting ModifyDeviceFiles is 0: nodes are somebody else's to make, so none was touched",
            fix="let what made that setting make them (a udev rule, say), or set NVreg_ModifyDeviceFiles=1 for module nvidia and load it again",
            **values,
        )
    folders = [v.node.path for v in wrong if v.state == "folder"]
    if folders:
        raise ModuleError(
            f"{', '.join(folders)}: a folder, expected a character device", fix="look at what made it and remove it; no node was touched", **values
        )
    diffs = tuple(Diff(v.node.path, v.text, f"{v.node.major}:{v.node.minor} mode {v.node.mode:04o}") for v in wrong)
    return Change(before=[v.text for v in wrong], after=[(v.state, v.node) for v in wrong], diff=diffs, values=values)


def _make(node: nvidia.Node, host: Host) -> None:
    """Beside its place, then moved over it: a path that is in use is never without a node."""
    temporary = f"{node.path}.flyops-new"
    if host.stat(temporary) is not None:
        host.remove(temporary)
    host.mknod(temporary, stat.S_IFCHR | node.mode, node.major, node.minor)
    host.chown(temporary, *node.owner or (0, 0))
    host.rename(temporary, node.path)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Make each; a node of which only mode or owner is wrong stays itself."""
    for state, node in change.after:
        folder = node.path.rpartition("/")[0]
        if host.stat(folder, follow=True) is None:
            host.mkdir(folder, mode=0o755)
        if state == "mode":
            host.chmod(node.path, node.mode)
            host.chown(node.path, *node.owner or (-1, -1))
        else:
            _make(node, host)
    made = [node.path for _, node in change.after]
    nodes = [{**n, "state": "right"} if n["path"] in made else n for n in change.values["nodes"]]
    replaced = {node.path: was for (state, node), was in zip(change.after, change.before) if state in ("stale", "regular", "other")}
    return {"made": made, "nodes": nodes, "all_right": True, "replaced": replaced}
