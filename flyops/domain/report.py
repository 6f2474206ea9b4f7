# SPDX-License-Identifier: Apache-2.0
"""The report of the five checks: terminal table, JSON, dated Markdown. Pure: check values in, texts out."""

from __future__ import annotations

import json
import textwrap
from typing import Any, Mapping, Sequence

from flyops.domain.checks import CHECKS, FAILED, NOT_APPLICABLE, NOT_REACHED, PASSED, Judged, not_applicable, values

WORDS = {PASSED: "passed", FAILED: "FAILED", NOT_APPLICABLE: "n/a", NOT_REACHED: "not reached"}


def complete(given: Sequence[Mapping[str, Any]], backend: str = "cuda") -> list[dict[str, Any]]:
    """All five in their order. What is missing was not reached, or does not apply to a CPU deploy; nothing after a failure counts."""
    by_name = {str(entry.get("check")): entry for entry in given if entry.get("check")}
    out: list[dict[str, Any]] = []
    failed = ""
    for check in CHECKS:
        entry = by_name.get(check.name)
        if backend != "cuda" and (entry is None or entry.get("verdict") == NOT_REACHED):
            out.append(values(check.name, not_applicable(check.name)))
        elif failed:
            out.append(values(check.name, Judged(NOT_REACHED, f"not reached: {failed} failed")))
        elif entry is None:
            out.append(values(check.name, Judged(NOT_REACHED, "not reached")))
        else:
            out.append({**values(check.name, Judged(NOT_REACHED, "")), **entry})
        if out[-1]["verdict"] == FAILED and not failed:
            failed = f"check {check.title}"
    return out


def verdict(entries: Sequence[Mapping[str, Any]]) -> str:
    """`passed` when every check that applies did; else the first verdict that stands in the way."""
    return next((str(e["verdict"]) for e in entries if e["verdict"] not in (PASSED, NOT_APPLICABLE)), PASSED)


def _cells(entry: Mapping[str, Any], widths: Sequence[int]) -> list[str]:
    texts = (str(entry["title"]), WORDS.get(str(entry["verdict"]), str(entry["verdict"])), str(entry["seen"]).replace("\n", " "))
    wrapped = [textwrap.wrap(text, width) or [""] for text, width in zip(texts, widths)]
    height = max(map(len, wrapped))
    rows = zip(*(column + [""] * (height - len(column)) for column in wrapped))
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def table(entries: Sequence[Mapping[str, Any]], width: int = 100) -> str:
    """Plain columns for a terminal: check, verdict, what was seen; below each failure what was wanted and what to do."""
    widths = (31, 11, max(20, width - 46))
    out = ["  ".join(word.ljust(w) for word, w in zip(("check", "verdict", "seen"), widths)).rstrip()]
    for entry in entries:
        out += _cells(entry, widths)
        if entry["verdict"] == FAILED:
            for label, text in (("wanted", entry["wanted"]), ("looked at", entry["looked_at"]), ("to do", entry.get("to_do", ""))):
                lines = textwrap.wrap(str(text), width - 15) if text else []
                out += [f"    {label if n == 0 else '':<9}  {line}" for n, line in enumerate(lines)]
    return "\n".join(out) + "\n"


def to_json(entries: Sequence[Mapping[str, Any]], **head: Any) -> str:
    """One JSON document; `head` joins its top level (host, release, date)."""
    return json.dumps({**head, "verdict": verdict(entries), "checks": list(entries)}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _escape(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def markdown(entries: Sequence[Mapping[str, Any]], *, date: str, host: str, release: str = "", backend: str = "cuda") -> str:
    """A dated record for the operator's own repository: the table, then the raw details of each check."""
    lines = [
        f"# Five checks: {host}, {date}",
        "",
        f"Release {release or 'unknown'}, backend {backend}: **{WORDS.get(verdict(entries), verdict(entries))}**",
        "",
    ]
    lines += ["| check | looked at | wanted | seen | verdict |", "|---|---|---|---|---|"]
    for e in entries:
        cells = (e["title"], e["looked_at"], e["wanted"], e["seen"], WORDS.get(str(e["verdict"]), str(e["verdict"])))
        lines.append("| " + " | ".join(map(_escape, cells)) + " |")
    for e in entries:
        if e.get("details"):
            lines += ["", f"## {e['title']}", "", "```json", json.dumps(e["details"], indent=1, sort_keys=True, ensure_ascii=False), "```"]
        if e["verdict"] == FAILED and e.get("to_do"):
            lines += ["", f"To do: {e['to_do']}"]
    return "\n".join(lines) + "\n"
