# SPDX-License-Identifier: Apache-2.0
"""A CDI spec of this host's cards for podman and other engines: made from what is loaded, verified against it, or removed."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from flyops.domain import cdi, cdihost, driver
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Give the NVIDIA cards to container engines by CDI (podman --device nvidia.com/gpu=0): a spec in JSON, which is YAML, too; or verify what is there.",
    args={
        "state": Arg(
            default="present", choices=("present", "absent", "verified"), help="verified only judges: paths, majors, versions, readers, duplicates"
        ),
        "path": Arg(
            "path", default="/run/cdi/flyops-nvidia.json", help="the spec; below /run it goes with the majors at a reboot, /etc/cdi keeps old ones"
        ),
        "spec_dirs": Arg("list", elements="path", default=("/etc/cdi", "/run/cdi"), help="where engines look; a later folder wins"),
        "capabilities": Arg("list", default=driver.DEFAULT_CAPABILITIES, choices=tuple(driver.CAPABILITIES), help="which of the driver's libraries"),
        "libraries": Arg("list", elements="path", help="folders of the driver's libraries; default: where ldconfig knows libcuda.so.1"),
        "reader_version": Arg(default="", help="newest cdiVersion that the engine knows; empty: any"),
        "dev": Arg("path", default="/dev", help="folder of the nodes here (in a container they are in /dev)"),
        "proc_devices": Arg("path", default="/proc/devices", help="majors of the running kernel"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="version, gpus/ and capabilities/ of the loaded module"),
        "mig_minors": Arg("path", default="/proc/driver/nvidia-caps/mig-minors", help="minors of capabilities"),
    },
    examples="""
- name: podman sees the cards, by today's majors and driver
  cdi_spec: {state: present}
- name: What engines would read is right
  cdi_spec: {state: verified}
""",
    returns={
        "path": "the spec",
        "cdi_version": "the least that its fields need",
        "devices": "name -> file that an engine takes it from",
        "faults": "what was wrong with the spec that is replaced; with verified: with those in force",
        "shadowed": "files of the same kind that a later folder wholly covers",
    },
)


@dataclass(frozen=True)
class Seen:
    """The folders' files, what is at `path`, and the text that should be there."""

    folders: Tuple[Tuple[cdi.File, ...], ...]
    here: cdi.File | None
    text: str
    wanted: str
    world: cdi.World
    problem: str = ""
    podman: str = ""


def read(args: Dict[str, Any], host: Host) -> Seen:
    """Every spec in the folders, and what a new one would say."""
    places = cdihost.Places(args["dev"], args["proc_devices"], args["proc_driver"], args["mig_minors"])
    folders = tuple(cdihost.files(host, folder) for folder in args["spec_dirs"])
    here = cdihost.file(host, args["path"]) if host.stat(args["path"]) is not None else None
    specs = [file.spec for files in folders for file in files] + ([here.spec] if here else [])
    wanted = problem = ""
    if args["state"] == "present":
        try:
            made = cdi.document(cdihost.parts(host, places, args["capabilities"], args["libraries"] or ()))
            wanted = json.dumps(made, indent=2) + "\n"
        except cdihost.CdiError as error:
            problem = str(error)
    engine = host.run(["podman", "--version"], query=True).stdout.decode("utf-8", "replace") if host.which("podman") else ""
    text = host.read_text(args["path"]) if here and not here.problem else ""
    return Seen(folders, here, text, wanted, cdihost.world(host, places, specs), problem, engine)


def plan(args: Dict[str, Any], state: Seen) -> Decision:
    """Judge, write or remove."""
    return {"verified": _verified, "present": _present, "absent": _absent}[args["state"]](args, state)


def _verified(args: Dict[str, Any], seen: Seen) -> Decision:
    devices, conflicts = cdi.winners(seen.folders)
    faults = [f"{name}: in {' and in '.join(paths)}: an engine takes neither" for name, paths in sorted(conflicts.items())]
    shadowed = []
    for file in (file for files in seen.folders for file in files):
        if file.problem or file.path in devices.values():
            faults += [f"{file.path}: {text}" for text in cdi.faults(file, seen.world, args["reader_version"])]
        elif file.ours and not set(cdi.names(file.spec)) & set(conflicts):
            shadowed.append(file.path)
    if not devices and not conflicts:
        faults.append(f"no spec of kind {cdi.KIND} in {', '.join(args['spec_dirs'])}")
    if not seen.world.module:
        faults.append("the nvidia module is not loaded: versions and majors could not be compared")
    faults += [text for text in [cdi.engine_fault(seen.podman)] if text]
    values = {"path": args["path"], "devices": devices, "faults": faults, "shadowed": shadowed}
    if faults:
        raise ModuleError("; ".join(faults), fix="make the spec again (cdi_spec, state: present); remove what another tool left", **values)
    return Same(values)


def _present(args: Dict[str, Any], seen: Seen) -> Decision:
    if seen.problem:
        raise ModuleError(seen.problem)
    spec = json.loads(seen.wanted)
    ours = cdi.File(args["path"], 0o644, spec)
    others = [tuple(file for file in files if file.path != ours.path) for files in seen.folders]
    if posixpath.dirname(ours.path) in args["spec_dirs"]:
        place = list(args["spec_dirs"]).index(posixpath.dirname(ours.path))
        others[place] = (*others[place], ours)
        _need_first(ours, others)
    stale = cdi.faults(seen.here, seen.world) if seen.here else []
    values = {"path": ours.path, "cdi_version": spec["cdiVersion"], "devices": dict.fromkeys(cdi.names(spec), ours.path), "faults": stale}
    if seen.text == seen.wanted and seen.here and seen.here.mode == ours.mode:
        return Same(values)
    diff = [Diff(ours.path, seen.text, seen.wanted)] if seen.text != seen.wanted else []
    if seen.here and seen.here.mode != ours.mode:
        diff.append(Diff(f"mode of {ours.path}", f"{seen.here.mode:04o}\n", "0644\n"))
    return Change(after=seen.wanted, diff=tuple(diff), values=values)


def _need_first(ours: cdi.File, folders: List[Tuple[cdi.File, ...]]) -> None:
    """An engine must take our names from our file."""
    taken, conflicts = cdi.winners(folders)
    other = sorted({path for paths in conflicts.values() for path in paths if path != ours.path})
    if other:
        raise Refused(
            f"{', '.join(other)} names the same devices in the same folder: an engine would take neither",
            fix="remove it (it is another tool's: stop its generator, too), or set path to it",
        )
    covered = sorted({taken[name] for name in cdi.names(ours.spec) if taken.get(name) != ours.path})
    if covered:
        raise Refused(f"{', '.join(covered)} is in a later folder and would win over {ours.path}", fix="remove it, or put the spec there (path)")


def _absent(args: Dict[str, Any], seen: Seen) -> Decision:
    values = {"path": args["path"]}
    if seen.here is None:
        return Same(values)
    if not seen.here.ours:
        raise Refused(f"{args['path']} is no CDI spec of kind {cdi.KIND}: it is left alone", fix="name the spec's own path")
    return Change(diff=(Diff(args["path"], seen.text, ""),), values=values)


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any]:
    """By rename, so that an engine reads the old or the new."""
    if change.after is None:
        host.remove(args["path"])
        return {}
    folder = posixpath.dirname(args["path"])
    if host.stat(folder, follow=True) is None:
        host.mkdir(folder, mode=0o755)
    host.write_text(args["path"], change.after, mode=0o644)
    return {}
