# SPDX-License-Identifier: Apache-2.0
"""Runs the guest cases one after the other on one guest: `python -m tests.sabotage.run --out DIR [--from N] [--budget S] [--quick] [--only a,b]`.

One raw sample a case, `DIR/NN-NAME.json`; a case that has a good one there is not run again unless it is named. Ends early, between two cases, when
the budget is used up, and says at which number to go on.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.sabotage.box import DOUBLE, Box
from tests.sabotage.case import Case, Outcome, sample
from tests.sabotage.guest import CASES

BED = "double" if DOUBLE else "card"


def chosen(words: argparse.Namespace) -> list[tuple[int, Case]]:
    """Number and case, in their order."""
    only = set(words.only.split(",")) if words.only else set()
    unknown = only - {case.name for case in CASES}
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    rows = [(number, case) for number, case in enumerate(CASES, 1) if BED in case.beds and number >= words.start]
    return [(number, case) for number, case in rows if (case.name in only if only else not words.quick or case.quick)]


def one(box: Box, number: int, case: Case) -> dict[str, Any]:
    """A case; on the double a second and third time where only the load of this machine spoke (it computes on the same cpus)."""
    for attempt in range(1, 4 if DOUBLE else 2):
        found = {**once(box, number, case), "attempt": attempt}
        loaded = "realtime factor" not in case.words and re.search("realtime factor", found["text"])
        if found["verdict"] in ("caught", "passed") or not loaded:
            break
    return found


def once(box: Box, number: int, case: Case) -> dict[str, Any]:
    """Done, looked at, undone. A case that breaks is a finding, too."""
    began = time.monotonic()
    box.job.say(f"\n##### {number} {case.name}: {case.does}\n")
    try:
        with case.act(box):
            outcome = case.run(box)
    except Exception:
        outcome = Outcome(99, box.job.clean(traceback.format_exc()))
    found = sample(case, outcome, number, BED)
    found["whole_s"] = round(time.monotonic() - began, 1)
    return found


def is_done(path: Path) -> bool:
    """A good sample of an earlier run, which this one goes on from."""
    return path.exists() and json.loads(path.read_text())["verdict"] in ("caught", "passed")


def main(words: list[str]) -> int:
    """The table, and the exit code: 1 when something was missed or cried out without reason."""
    parser = argparse.ArgumentParser(prog="sabotage")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--from", dest="start", type=int, default=1)
    parser.add_argument("--budget", type=float, default=3600)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the guest goes, however this ends
    began, bad, rows = time.monotonic(), 0, chosen(given)
    box = Box(given.out)
    slowest = 0.0
    try:
        box.make()
        for number, case in rows:
            target = given.out / f"{number:02d}-{case.name}.json"
            if is_done(target) and not given.only:
                continue
            left = given.budget - (time.monotonic() - began)
            if left < max(20.0, slowest):
                print(f"budget used up: go on with --from {number}", flush=True)
                break
            found = one(box, number, case)
            slowest = max(slowest, found["whole_s"])
            target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            right = found["verdict"] in ("caught", "passed")
            bad += not right
            if case.caught_by and found["code"] == 0:  # it got through: the next one begins on the CPU backend all the same
                box.rollback_cpu()
            print(f"{number:3d} {found['whole_s']:6.1f} s  {'ok ' if right else 'BAD'} {case.name}: {found['verdict']}", flush=True)
    finally:
        box.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
