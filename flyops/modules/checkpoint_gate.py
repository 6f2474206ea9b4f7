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
        "binary": Arg("path", help="the staged flysim"),
        "connectome": Arg("path", help="the .fly file that the release will run"),
        "state_dir": Arg("path", required=True, help="folder of the checkpoints"),
        "accept": Arg(
            "list", elements="str", default=[], help="segments whose difference is taken: kernel, index-space, connectome, plasticity, state-format"
        ),
        "archive": Arg(
            "bool", default=False, help="with an accepted difference: move the state to STATE_DIR/archive-… now (only while no flysim holds it)"
        ),
        "fresh": Arg("bool", default=False, help="accept every difference, none and a damaged state, too: the brain starts afresh"),
        "put_back": Arg("path", help="an archive of this module: its state comes back, what is there goes to ARCHIVE-undone; needs no binary"),
    },
    required_one_of=(("binary", "put_back"), ("connectome", "put_back")),
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


def _state(args: dict[str, Any], host: Host) -> str | None:
    """The state's string; a state that cannot be read is refused, or, for a fresh brain, just `damaged`."""
    if host.stat(args["state_dir"], follow=True) is None:
        return "none"
    try:
        state = _ask(args, [STATE, args["state_dir"]], host)
        if state is not None and gate.no_state(state):
            _refuse_lost(args["state_dir"], host)
    except Refused:
        if not args["fresh"]:
            raise
        return "damaged"
    return state


def _names(state_dir: str, host: Host) -> list[str]:
    """What an archive takes: all but flysim's lock and the archives."""
    there = host.stat(state_dir, follow=True) is not None
    return [name for name in host.listdir(state_dir) if name != LOCK and not name.startswith("archive-")] if there else []


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Both strings, in the binary's own words."""
    if args["put_back"]:
        back = host.listdir(args["put_back"]) if host.stat(args["put_back"]) is not None else []
        return {"back": back, "holder": _holder(args["state_dir"], host), "names": _names(args["state_dir"], host)}
    unknown = gate.unknown_segments(args["accept"])
    if unknown:
        raise ModuleError(f"accept: expected {', '.join(s.replace(' ', '-') for s in gate.SEGMENTS)}, found {', '.join(unknown)}")
    binary = _ask(args, ["--print-compatibility", "--connectome", args["connectome"]], host)
    if binary is None:
        return {"unknown": True}
    return {
        "binary": binary,
        "state": _state(args, host),
        "names": _names(args["state_dir"], host),
        "holder": _holder(args["state_dir"], host) if args["archive"] else "",
        "stamp": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
    }


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Pass, refuse with every way out, or (accepted, asked for) archive."""
    if "back" in state:
        return _plan_back(args, state)
    if "unknown" in state:
        unknown = {"binary_compatibility": "", "state_compatibility": "", "differs": [], "open_segments": [], "archive_needed": False, "archive": ""}
        return Same({**unknown, "asked": False}, msg="check mode: the release is not staged yet, so the gate was not asked")
    verdict = gate.judge(state["binary"], state["state"], args["accept"], args["fresh"])
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
    _refuse_holder(args, state, **values)
    values.update(archive=archive, archive_needed=False)
    diff = Diff(args["state_dir"], "".join(f"{n}\n" for n in state["names"]), f"archive-{state['stamp']}/ with all of them\n")
    return Change(before=state["names"], after=archive, diff=(diff,), values=values)


def _refuse_holder(args: dict[str, Any], state: dict[str, Any], **values: Any) -> None:
    if state["holder"]:
        held = f"the state in {args['state_dir']} is in use by flysim, pid {state['holder']}"
        raise Refused(held, fix="stop it first; it writes its last checkpoint when it stops", **values)


def _plan_back(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """An archive that is empty, or not there, has been put back."""
    if not state["back"]:
        return Same({"archive": ""})
    _refuse_holder(args, state)
    diff = Diff(args["state_dir"], "".join(f"{n}\n" for n in state["names"]), "".join(f"{n}\n" for n in state["back"]))
    return Change(before=state["names"], after=state["back"], diff=(diff,), values={"archive": f"{args['put_back']}-undone"})


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Archive, or put back; a cut in between leaves each entry in one of the two places, and running again moves the rest."""
    if not args["put_back"]:
        _move(change.before, args["state_dir"], change.after, host)
        return
    aside = f"{args['put_back']}-undone"
    if host.stat(aside) is None:  # else a run that was cut off has moved all that was there
        _move(change.before, args["state_dir"], f"{aside}-part", host)
        host.rename(f"{aside}-part", aside)
    _move(change.after, args["put_back"], args["state_dir"], host)
    host.remove(args["put_back"])


def _move(names: list[str], old: str, new: str, host: Host) -> None:
    """The newest checkpoint goes last: until then it still says what the state is, and the gate still asks."""
    here = host.stat(old, follow=True)
    if host.stat(new, follow=True) is None:
        host.mkdir(new, mode=here.mode if here else 0o755)
        if here:
            host.chown(new, here.uid, here.gid)
    for name in sorted(names, key=lambda n: (n.startswith("ckpt-"), n)):
        host.rename(f"{old}/{name}", f"{new}/{name}")
