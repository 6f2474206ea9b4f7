# SPDX-License-Identifier: Apache-2.0
"""May a release go on from a state? The compatibility strings of both are compared whole, and a refusal names the segments. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

SEGMENTS: Tuple[str, ...] = ("kernel", "index space", "connectome", "plasticity", "state format")
EMPTY = ("", "none", "no state", "empty")


@dataclass(frozen=True)
class Verdict:
    """`differs` are the names of the segments that do; `open_segments` those of them that nobody accepted."""

    binary: str
    state: str
    differs: Tuple[str, ...]
    open_segments: Tuple[str, ...]
    fresh: bool = False  # the state is to be archived whatever it is

    @property
    def passes(self) -> bool:
        """Nothing stands between the release and the state."""
        return not self.open_segments

    @property
    def archive(self) -> bool:
        """The difference was accepted, or a fresh brain asked for: the state has to make room."""
        return self.fresh or (bool(self.differs) and self.passes)


def first_line(output: str) -> str:
    """The string that a flysim command printed: its last line that is not blank."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def no_state(text: str) -> bool:
    """The printed state compatibility says that there is no state yet."""
    return text.strip().lower() in EMPTY


def differing(binary: str, state: str) -> tuple[str, ...]:
    """Names of the segments that differ, in order; `number of segments` when the strings cannot be laid side by side."""
    if binary == state:
        return ()
    ours, theirs = binary.split("/"), state.split("/")
    if len(ours) != len(SEGMENTS) or len(theirs) != len(SEGMENTS):
        return ("number of segments",)
    return tuple(name for name, a, b in zip(SEGMENTS, ours, theirs) if a != b)


def normal(segment: str) -> str:
    """`index-space` and `index_space` are `index space`."""
    return segment.strip().lower().replace("-", " ").replace("_", " ")


def unknown_segments(accept: Sequence[str]) -> list[str]:
    """Accepted names that no segment has."""
    known = (*SEGMENTS, "number of segments")
    return [name for name in accept if normal(name) not in known]


def judge(binary: str, state: str, accept: Sequence[str] = (), fresh: bool = False) -> Verdict:
    """Compare; `accept` names the segments whose difference somebody takes, at the price of the state being archived; `fresh` takes all."""
    if no_state(state):
        return Verdict(binary, state, (), ())
    if fresh:
        return Verdict(binary, state, differing(binary, state), (), fresh=True)
    accepted = {normal(name) for name in accept}
    differs = differing(binary, state)
    return Verdict(binary, state, differs, tuple(name for name in differs if name not in accepted))


def ways_out(verdict: Verdict, archive: str) -> str:
    """What an operator may do about a refusal. One segment is accepted by its name; several only with the whole state."""
    flag = f"--accept {verdict.differs[0].replace(' ', '-')}" if len(verdict.differs) == 1 else "--archive-state"
    return (
        f"(1) deploy a release whose {', '.join(verdict.open_segments)} is the state's; "
        f"(2) stay on the release before (invoke rollback); "
        f"(3) {flag}: moves the state to {archive} and starts a new one; nothing is deleted, and moving it back undoes it"
    )


def refusal(verdict: Verdict) -> str:
    """The refusal's text, with both strings."""
    names = ", ".join(verdict.open_segments)
    return f"the state cannot go on under this release: {names} differ{'s' if len(verdict.open_segments) == 1 else ''}\n  release: {verdict.binary}\n  state:   {verdict.state}"
