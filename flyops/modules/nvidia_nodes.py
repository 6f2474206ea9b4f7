# SPDX-License-Identifier: Apache-2.0
"""NVIDIA device nodes of this machine: made with the majors of the loaded module, or only looked at."""

from __future__ import annotations

import stat
from typing import Any

from flyops.domain import nvidia
from flyops.errors import ModuleError
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
        "caps": Arg("bool", default=False, help="also nvidia-caps/nvidia-capN of config and monitor"),
        "modeset": Arg("bool", default=False, help="also nvidia-modeset (display only)"),
        "mode": Arg("mode", help="permission bits; default: the module's own parameter (0666)"),
    },
    examples="- name: Nodes follow the loaded module\n  nvidia_nodes: {state: present, caps: true}\n",
    returns={
        "version": "of the loaded module; empty when it is not loaded",
        "majors": "live majors by name",
        "nodes": "path, state (right, missing, stale, regular, mode, other), text of each wanted node",
        "strays": "nvidia* paths that no rule of ours knows",
        "all_right": "every wanted node can be used",
    },
)


def _minors(args: dict[str, Any], host: Host) -> list[int]:
    if args["gpus"] is not None:
        return list(args["gpus"])
    folder = f"{args['proc_driver']}/gpus"
    if host.stat(folder, follow=True) is None:
        return []
    texts = (host.read_text(f"{folder}/{bus}/information", missing="") for bus in host.listdir(folder))
    found = [nvidia.information(text).get("Device Minor", "") for text in texts]
    return [int(minor) if minor.isdigit() else number for number, minor in enumerate(found)]


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


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Majors, wanted nodes and what is at their paths."""
    majors = nvidia.live_majors(host.read_text(args["proc_devices"], missing=""))
    version = nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing=""))
    mode, uid, gid = nvidia.params_mode(host.read_text(f"{args['proc_driver']}/params", missing=""))
    if isinstance(args["mode"], int):
        mode = args["mode"]
    minors = nvidia.mig_minors(host.read_text(args["mig_minors"], missing="")) if args["caps"] else {}
    caps = {name: minors.get(name, number) for name, number in (("config", 1), ("monitor", 2))} if args["caps"] and "nvidia-caps" in majors else {}
    try:
        wanted = nvidia.wanted_nodes(majors, _minors(args, host), caps=caps, modeset=args["modeset"], mode=mode, dev=args["dev"])
        error = ""
    except nvidia.NvidiaError as err:
        wanted, error = (), str(err)
    verdicts = [nvidia.judge_node(node, host.stat(node.path)) for node in wanted]
    known = {node.path for node in wanted}
    strays = []
    for path in _listed(args["dev"], host):
        if path not in known:
            seen = host.stat(path)
            expected = nvidia.expected_device(path[len(args["dev"]) + 1 :], majors)
            strays.append({"path": path, "kind": seen.kind if seen else "gone", "right": bool(seen and expected and seen.rdev == expected)})
    return {"majors": majors, "version": version, "verdicts": verdicts, "strays": strays, "error": error, "owner": (uid, gid)}


def _values(state: dict[str, Any]) -> dict[str, Any]:
    verdicts = state["verdicts"]
    nodes = [{"path": v.node.path, "state": v.state, "text": v.text, "major": v.node.major, "minor": v.node.minor} for v in verdicts]
    right = bool(verdicts) and all(v.right for v in verdicts)
    return {
        "version": state["version"],
        "majors": state["majors"],
        "nodes": nodes,
        "strays": state["strays"],
        "all_right": right,
        "error": state["error"],
    }


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Nothing when all are right or only a look was asked for; else the nodes to make again."""
    values = _values(state)
    if args["state"] == "read":
        return Same(values)
    if state["error"]:
        raise ModuleError(state["error"], fix="load the module on the container host; a guest gets its nodes from there", **values)
    wrong = [v for v in state["verdicts"] if not v.right]
    if not wrong:
        return Same(values)
    diffs = tuple(Diff(v.node.path, v.text, f"{v.node.major}:{v.node.minor} mode {v.node.mode:04o}") for v in wrong)
    return Change(before=[v.text for v in wrong], after=[(v.state, v.node, state["owner"]) for v in wrong], diff=diffs, values=values)


def _make(node: nvidia.Node, owner: tuple[int, int], host: Host) -> None:
    """Beside its place, then moved over it: a path that is in use is never without a node."""
    temporary = f"{node.path}.flyops-new"
    if host.stat(temporary) is not None:
        host.remove(temporary)
    host.mknod(temporary, stat.S_IFCHR | node.mode, node.major, node.minor)
    host.chown(temporary, *owner)
    seen = host.stat(node.path)
    if seen is not None and seen.kind == "dir":
        host.remove(temporary)
        raise ModuleError(f"{node.path} is a folder, expected a character device", fix="look at what made it and remove it")
    host.rename(temporary, node.path)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Make each; a node of which only the mode is wrong keeps its number."""
    for state, node, owner in change.after:
        folder = node.path.rpartition("/")[0]
        if host.stat(folder, follow=True) is None:
            host.mkdir(folder, mode=0o755)
        if state == "mode":
            host.chmod(node.path, node.mode)
        else:
            _make(node, owner, host)
    made = [node.path for _, node, _ in change.after]
    nodes = [{**n, "state": "right"} if n["path"] in made else n for n in change.values["nodes"]]
    return {"made": made, "nodes": nodes, "all_right": True}
