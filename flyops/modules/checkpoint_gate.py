# SPDX-License-Identifier: Apache-2.0
"""May the staged release go on from the state that is there? Refused with the segments that differ, or the state is archived."""

from __future__ import annotations

import time
from typing import Any

from flyops.domain import gate
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

TIME_LIMIT_S = 120.0
STATE = "--print-state-compatibility"
LOCK = "lock"  # flysim's own, with its pid inside

SPEC = Spec(
    doc="Compare the compatibility string of a staged binary with that of the state. Nothing is ever deleted or migrated.",
    args={
        "binary": Arg("path", required=True, help="the staged flysim"),
        "connectome": Arg("path", required=True, help="the .fly file that the release will run"),
        "state_dir": Arg("path", required=True, help="folder of the checkpoints"),
        "accept": Arg(
            "list", elements="str", default=[], help="segments whose difference is taken: kernel, index-space, connectome, plasticity, state-format"
        ),
        "archive": Arg(
            "bool", default=False, help="with an accepted difference: move the state to STATE_DIR/archive-… now (only while no flysim holds it)"
        ),
    },
    examples="- name: The state can go on\n  checkpoint_gate: {binary: /opt/fly/releases/V/bin/flysim, connectome: /opt/fly/connectomes/c.fly, state_dir: /var/lib/fly}\n",
    returns={
        "binary_compatibility": "what the release says",
        "state_compatibility": "what the newest valid checkpoint says, or none",
        "differs": "segments that differ",
        "archive_needed": "the difference was accepted and the state is still in the way",
        "archive": "where the state went",
        "asked": "false in check mode when the release is not here yet",
    },
)


def _ask(args: dict[str, Any], words: list[str], host: Host) -> str | None:
    """The line that the binary prints; None in check mode when it cannot be asked, because what is staged is only thought of."""
    try:
        done = host.run([args["binary"], *words], query=True, timeout=TIME_LIMIT_S)
    except OSError:
        if host.check:
            return None
        raise
    if done.rc != 0 and host.check and words[0] == "--print-compatibility":
        return None
    if done.rc != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-600:]
        told = f"{args['binary']} {' '.join(words)} ended with exit code {done.rc}: {said}"
        if words[0] == STATE:
            fix = "the state and the release stay as they are; `start` sets damaged checkpoints aside and goes on from the newest whole one"
            raise Refused(told, fix=fix, rc=done.rc)
        raise ModuleError(told, fix="the state and the release stay as they are", rc=done.rc)
    return gate.first_line(done.stdout.decode("utf-8", "replace"))


def _holder(state_dir: str, host: Host) -> str:
    """pid of a flysim that lives and holds the state folder, or empty."""
    pid = host.read_text(f"{state_dir}/{LOCK}", missing="").strip()
    if not pid.isdigit():
        return ""
    return pid if host.read_text(f"/proc/{pid}/comm", missing="").strip().startswith("flysim") else ""


def _refuse_lost(state_dir: str, host: Host) -> None:
    """No checkpoint, but some that were set aside as damaged: flysim does not start afresh over them, so no release can go on here."""
    aside = f"{state_dir}/damaged"
    here = host.listdir(aside) if host.stat(aside, follow=True) is not None else []
    lost = [name for name in here if name.endswith(".flyck")]
    if lost:
        raise Refused(
            f"all checkpoints in {state_dir} are damaged: {len(lost)} were set aside in {aside}, with the reason of each beside it",
            fix=f"put a whole one back into {state_dir}; or, to start afresh, move {aside} elsewhere. Nothing was changed",
            set_aside=sorted(lost),
        )


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Both strings, in the binary's own words."""
    unknown = gate.unknown_segments(args["accept"])
    if unknown:
        raise ModuleError(f"accept: expected {', '.join(s.replace(' ', '-') for s in gate.SEGMENTS)}, found {', '.join(unknown)}")
    binary = _ask(args, ["--print-compatibility", "--connectome", args["connectome"]], host)
    if binary is None:
        return {"unknown": True}
    there = host.stat(args["state_dir"], follow=True) is not None
    state = _ask(args, [STATE, args["state_dir"]], host) if there else "none"
    if state is not None and gate.no_state(state):
        _refuse_lost(args["state_dir"], host)
    names = [n for n in host.listdir(args["state_dir"]) if n != LOCK and not n.startswith("archive-")] if there else []
    return {
        "binary": binary,
        "state": state,
        "names": names,
        "holder": _holder(args["state_dir"], host) if args["archive"] else "",
        "stamp": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
    }


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Pass, refuse with every way out, or (accepted, asked for) archive."""
    if "unknown" in state:
        unknown = {"binary_compatibility": "", "state_compatibility": "", "differs": [], "open_segments": [], "archive_needed": False, "archive": ""}
        return Same({**unknown, "asked": False}, msg="check mode: the release is not staged yet, so the gate was not asked")
    verdict = gate.judge(state["binary"], state["state"], args["accept"])
    archive = f"{args['state_dir']}/archive-{state['stamp']}"
    values: dict[str, Any] = {
        "binary_compatibility": verdict.binary,
        "state_compatibility": verdict.state,
        "differs": list(verdict.differs),
        "open_segments": list(verdict.open_segments),
        "archive_needed": verdict.archive,
        "archive": "",
        "asked": True,
    }
    if not verdict.passes:
        raise Refused(gate.refusal(verdict), fix=gate.ways_out(verdict, f"{args['state_dir']}/archive-…"), **values)
    if not verdict.archive or not args["archive"]:
        return Same(values)
    if state["holder"]:
        raise Refused(
            f"the state in {args['state_dir']} is in use by flysim, pid {state['holder']}",
            fix="stop it first; it writes its last checkpoint when it stops",
            **values,
        )
    values.update(archive=archive, archive_needed=False)
    diff = Diff(args["state_dir"], "".join(f"{n}\n" for n in state["names"]), f"archive-{state['stamp']}/ with all of them\n")
    return Change(before=state["names"], after=archive, diff=(diff,), values=values)


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Move every entry; a cut in between leaves each entry in one of the two places, and running again moves the rest."""
    here = host.stat(args["state_dir"], follow=True)
    host.mkdir(change.after, mode=here.mode if here else 0o755)
    if here:
        host.chown(change.after, here.uid, here.gid)
    # The newest checkpoint goes last: until then it still says what the state is, and the gate still asks.
    for name in sorted(change.before, key=lambda n: (n.startswith("ckpt-"), n)):
        host.rename(f"{args['state_dir']}/{name}", f"{change.after}/{name}")
