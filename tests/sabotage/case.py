# SPDX-License-Identifier: Apache-2.0
"""One way to make a GPU deploy wrong while it looks right, or one healthy variant: what is done, who must say so, and in which words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

FIVE = ("feature", "card", "ptx", "bitexact", "cost")
HEALTHY = ""


@dataclass(frozen=True)
class Case:
    """`caught_by`: one of the five, or the gate that stands elsewhere (gate, release, receipt, proof, trial, …); empty: healthy."""

    name: str
    does: str
    caught_by: str
    words: str  # a regular expression over what it said
    act: Callable[[Any], AbstractContextManager[None]]  # does it; undoes it on the way out
    run: Callable[[Any], Outcome]  # what the operator does meanwhile
    beds: tuple[str, ...] = ("double", "card")
    quick: bool = False  # also in the part that CI runs
    moves_live: bool = False  # the sabotage itself restarts the live service


@dataclass
class Outcome:
    """What the operator got: exit code, what was printed, verdict and words of each check."""

    code: int
    text: str
    checks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    live_kept: bool = True  # same pid, same release
    seconds: float = 0.0


def verdict(raw: Mapping[str, Any]) -> str:
    """`caught`, `passed` (a healthy one), or why not. Out of the raw sample alone, so that a record can be recomputed."""
    checks, name, words = raw["checks"], raw["caught_by"], raw["words"]
    failed = [check for check, row in checks.items() if row["verdict"] == "failed"]
    if name == HEALTHY:
        return "passed" if raw["code"] == 0 and not failed else f"false alarm: exit {raw['code']}, failed {failed}"
    if raw["code"] == 0:
        return "missed: exit 0"
    if name not in FIVE:
        said = re.search(words, raw["text"], re.DOTALL)
        return "caught" if said else f"stopped with other words than /{words}/"
    row = checks.get(name, {"verdict": "absent", "said": ""})
    before = [checks.get(check, {}).get("verdict") for check in FIVE[: FIVE.index(name)]]
    if row["verdict"] != "failed" or not all(found == "passed" for found in before):
        return f"named by {failed or raw['text'][-200:]!r}, expected check {FIVE.index(name) + 1} ({name})"
    if not re.search(words, row["said"], re.DOTALL):
        return f"check {name} failed with other words than /{words}/: {row['said'][:300]}"
    return "caught" if raw["live_kept"] else "caught, but the live service changed"


def sample(case: Case, outcome: Outcome, number: int, bed: str) -> dict[str, Any]:
    """The raw sample of a case."""
    row = {"number": number, "bed": bed, "case": case.name, "does": case.does, "caught_by": case.caught_by, "words": case.words, **asdict(outcome)}
    row["text"] = outcome.text[-6000:]
    row["live_kept"] = outcome.live_kept or case.moves_live
    return {**row, "verdict": verdict(row)}


def green_again(samples: list[Mapping[str, Any]]) -> dict[str, bool]:
    """Sabotage -> whether what caught it passed in a later run of the same bed, so that its undoing is proven.

    One of the five: its verdict is `passed` later. Any other gate: a later run of the bed ended with 0.
    """
    out = {}
    for at, row in enumerate(samples):
        if row["caught_by"] == HEALTHY:
            continue
        later = samples[at + 1 :]
        name = row["caught_by"]
        out[row["case"]] = any((other["checks"].get(name, {}).get("verdict") == "passed" if name in FIVE else other["code"] == 0) for other in later)
    return out
