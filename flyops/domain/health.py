# SPDX-License-Identifier: Apache-2.0
"""Is the live service well? Two reads of its /status by an outside clock, and what its process was really started from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from flyops.domain.checks import FAILED, MIN_FACTOR, RESOLUTION_S, TICKS_PER_S, Judged, weigh


@dataclass(frozen=True)
class Process:
    """What the kernel says of the process that answers, beside what it should be: settings of its environment, and its release's folder."""

    env: Mapping[str, str] = field(default_factory=dict)
    exe: str = ""
    wanted_env: Mapping[str, str] = field(default_factory=dict)
    wanted_below: str = ""


def _process_problems(process: Process) -> list[str]:
    """Files can be overridden by anybody's drop-in, links can be turned: what runs is what counts."""
    out = [
        f"it runs with {name}={process.env.get(name, '(not set)')}, expected {value} (`systemctl cat flysim` shows who sets it)"
        for name, value in process.wanted_env.items()
        if value and process.env.get(name) != value
    ]
    if process.wanted_below and not process.exe.startswith(process.wanted_below.rstrip("/") + "/"):
        out.append(f"it runs {process.exe or 'a program that cannot be seen'}, expected one below {process.wanted_below} (the current release)")
    if process.exe.endswith(" (deleted)"):
        out.append(f"it runs {process.exe}: the file was replaced after the start")
    return out


def judge_health(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    seconds: float,
    backend: str = "",
    min_factor: float = MIN_FACTOR,
    process: Process | None = None,
) -> Judged:
    """Two reads of /status, `seconds` apart by an outside clock; and the process behind them."""
    details = {"first": dict(first), "second": dict(second), "seconds": seconds}
    for number, status in (("first", first), ("second", second)):
        if "tick" not in status:
            return Judged(
                FAILED,
                f"the {number} read of /status did not answer: {status.get('error', 'no tick in it')}",
                "look at its log: invoke logs",
                details,
            )
    speed = float(second.get("speed", 1) or 0)
    grown = second["tick"] - first["tick"]
    factor = grown / TICKS_PER_S / seconds if seconds > 0 else 0.0
    details["factor"] = round(factor, 5)
    problems = []
    if second.get("paused"):
        problems.append("it is paused")
    if grown <= 0 or seconds <= 0:
        problems.append(f"ticks stand still at {second['tick']}")
    elif factor + RESOLUTION_S / seconds < min_factor * (speed or 1):
        problems.append(f"realtime factor {factor:.4f} by the outside clock, expected >= {min_factor * (speed or 1):g}")
    if backend and second.get("backend") != backend:
        problems.append(f"expected backend {backend}, found {second.get('backend')}")
    if first.get("pid") != second.get("pid"):
        problems.append(f"the process changed: pid {first.get('pid')} -> {second.get('pid')}")
    problems += _process_problems(process) if process else []
    seen = f"{second.get('backend')} backend, pid {second.get('pid')}, {grown} ticks in {seconds:.2f} s (factor {factor:.4f})"
    return weigh(problems, seen, "look at its log: invoke logs" if problems else "", **details)
