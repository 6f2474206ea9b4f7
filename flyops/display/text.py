# SPDX-License-Identifier: Apache-2.0
"""Events as words: what the plain and the live display have in common."""

from __future__ import annotations

import difflib
import json
from typing import Any

from flyops.model.event import Event

QUIET_KEYS = frozenset(
    {"changed", "failed", "msg", "diff", "skipped", "skip_reason", "false_condition", "exception", "refused", "unknown", "unreachable"}
    | {"stdout_lines", "stderr_lines", "ansible_loop_var", "ansible_facts", "attempts", "assertion", "evaluated_to", "failed_when_result", "delta"}
)
SHOWN_LINES_MAX = 40
HEADS = {
    "failed": "fatal",
    "refused": "refused",
    "unreachable": "fatal",
    "skipped": "skipping",
    "unknown": "unknown",
    "ignored": "fatal",
    "retry": "retrying",
}
COLORS = {
    "ok": "green",
    "changed": "yellow",
    "skipped": "cyan",
    "failed": "red",
    "refused": "red",
    "unreachable": "red",
    "unknown": "magenta",
    "ignored": "yellow",
    "retry": "yellow",
}


def headline(event: Event) -> str:
    """`changed: [host] => (item=x)`."""
    head = HEADS.get(event.status, event.status)
    text = f"{head}: [{event.host}]"
    if event.kind == "item":
        head = "failed" if event.status in ("failed", "ignored") else head
        return f"{head}: [{event.host}] => (item={event.label})"
    if event.status == "failed":
        text += ": FAILED!"
    elif event.status == "unreachable":
        text += ": UNREACHABLE!"
    elif event.status == "refused":
        text += ": REFUSED"
    elif event.status == "ignored":
        text += ": FAILED! ...ignoring"
    elif event.status == "retry":
        text += f": {event.label}"
    return text


def details(event: Event, verbose: bool = False) -> list[str]:
    """The lines below the headline."""
    result = event.result
    lines: list[str] = []
    if "censored" in result:
        return [f"  {result['censored']}"] if event.status in ("failed", "refused", "ignored", "unreachable") else []
    loud = event.status in ("failed", "refused", "ignored", "unreachable")
    if loud or (event.module in ("debug", "assert") and event.status != "skipped" and event.kind != "stats"):
        if result.get("msg") not in (None, ""):
            lines += _block(result["msg"], "  ")
    if event.module == "debug" and not loud and event.status != "skipped":
        lines += [line for key, value in result.items() if key not in QUIET_KEYS for line in _block(f"{key}: {_value(value)}", "  ")]
    if loud:
        for key in ("stdout", "stderr"):
            if str(result.get(key) or "").strip() and str(result[key]).strip() != str(result.get("msg")).strip():
                lines += _block(f"{key}: {result[key]}", "  ")
        if result.get("rc") not in (None, 0, ""):
            lines.append(f"  rc: {result['rc']}")
        if result.get("exception"):
            lines += _block(result["exception"], "  ")
        lines.append(f"  at {event.where}") if event.where else None
    elif verbose:
        lines += [line for key, value in result.items() if key not in QUIET_KEYS for line in _block(f"{key}: {_value(value)}", "  ")]
    return lines


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2, default=str)


def _block(value: Any, indent: str) -> list[str]:
    lines = (_value(value)).splitlines() or [""]
    if len(lines) > SHOWN_LINES_MAX:
        lines = [*lines[: SHOWN_LINES_MAX // 2], f"… {len(lines) - SHOWN_LINES_MAX} lines left out …", *lines[-SHOWN_LINES_MAX // 2 :]]
    return [indent + line for line in lines]


def diff_lines(result: dict[str, Any]) -> list[str]:
    """All diffs of a result, unified."""
    found = result.get("diff") or []
    out: list[str] = []
    for part in found if isinstance(found, list) else [found]:
        if isinstance(part, dict):
            header = str(part.get("header") or part.get("after_header") or "")
            out += unified(str(part.get("before") or ""), str(part.get("after") or ""), header)
    return out


def unified(before: str, after: str, header: str) -> list[str]:
    """A unified diff; a missing last newline is said."""
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"before: {header}", f"after: {header}")
    out = []
    for line in lines:
        out.append(line.rstrip("\n"))
        if line[:1] in "+- " and not line.startswith(("---", "+++")) and not line.endswith("\n"):
            out.append("\\ No newline at end of file")
    return out


def recap(stats: dict[str, dict[str, int]]) -> list[str]:
    """A line a host."""
    width = max((len(name) for name in stats), default=0)
    always = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored")
    out = []
    for name, numbers in stats.items():
        words = [f"{key}={numbers[key]:<4}" for key in always]
        words += [f"{key}={numbers[key]}" for key in ("refused", "unknown") if numbers.get(key)]
        out.append(f"{name:<{width}} : {' '.join(words)}".rstrip())
    return out
