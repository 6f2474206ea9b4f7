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


def lines(more: Mapping[str, Any]) -> list[str]:
    """What a run says beside its checks: the card's neighbours, the neighbouring guests, the number of writes."""
    out = [f"card {when:<8} {look['said']}" for when, look in sorted(more.get("card", {}).items(), reverse=True)]
    out += [f"neighbours    {text}" for text in more.get("neighbours", {}).get("said", ())]
    writes = more.get("writes", ())
    return out + ([f"writes        {len(writes)}, each with its path in the report that deploy --record DIR keeps"] if writes else [])


def _writes(writes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The write log: task by task, what it wrote."""
    out = ["", f"## Writes ({len(writes)})", "", "| task | on | what | path or command |", "|---|---|---|---|"]
    return out + ["| " + " | ".join(_escape(entry.get(key, "")) for key in ("task", "on", "kind", "path")) + " |" for entry in writes]


def markdown(
    entries: Sequence[Mapping[str, Any]], *, date: str, host: str, release: str = "", backend: str = "cuda", more: Mapping[str, Any] | None = None
) -> str:
    """A dated record for the operator's own repository: the table, what was beside it, then the raw details of each check, then the writes."""
    more = more or {}
    text = [
        f"# Five checks: {host}, {date}",
        "",
        f"Release {release or 'unknown'}, backend {backend}: **{WORDS.get(verdict(entries), verdict(entries))}**",
        "",
    ]
    text += ["| check | looked at | wanted | seen | verdict |", "|---|---|---|---|---|"]
    for e in entries:
        cells = (e["title"], e["looked_at"], e["wanted"], e["seen"], WORDS.get(str(e["verdict"]), str(e["verdict"])))
        text.append("| " + " | ".join(map(_escape, cells)) + " |")
    text = [*text, "", *(f"- {line}" for line in lines(more))] if lines(more) else text
    for e in entries:
        if e.get("details"):
            text += ["", f"## {e['title']}", "", "```json", json.dumps(e["details"], indent=1, sort_keys=True, ensure_ascii=False), "```"]
        if e["verdict"] == FAILED and e.get("to_do"):
            text += ["", f"To do: {e['to_do']}"]
    text += _writes(more["writes"]) if more.get("writes") else []
    return "\n".join(text) + "\n"
