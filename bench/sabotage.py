# SPDX-License-Identifier: Apache-2.0
"""Ways to make a GPU deploy wrong while it looks right, and healthy variants: caught by who names it, green when undone, no false alarm.

Beds: `texts` (what a host would show, judged by a deploy's own functions), `double` (real commands against a real guest whose card computes on the
CPU, tests/beds/doublecard.py), `card` (the same on a GPU machine). The guest beds run by themselves: below `python -m tests.beds.doublecard`, or on
a machine with a card through bench/h200.sh, with CPU_RELEASE and CUDA_RELEASE naming prebuilt tars. SABOTAGE_KEPT names the raw samples of an earlier
record (bench/records/sabotage): those of another bed stay, those of this one are not run again; SABOTAGE_FROM=N begins at a case, SABOTAGE_BUDGET_S
ends it early, SABOTAGE_QUICK=1 runs what CI runs.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tests.sabotage import run, texts
from tests.sabotage.case import HEALTHY, green_again, verdict

GOALS: dict[str, tuple[str, Any]] = {
    "caught_share": ("==", 1.0),
    "green_again_share": ("==", 1.0),
    "false_alarms": ("==", 0),
    "sabotages": (">=", 45),
    "healthy_variants": (">=", 20),
    "guest_sabotages": (">=", 25),
}


def measure(raw: Path) -> None:
    """Texts, then the guest of this machine's bed."""
    if os.environ.get("SABOTAGE_KEPT"):
        shutil.copytree(os.environ["SABOTAGE_KEPT"], raw, dirs_exist_ok=True, ignore=shutil.ignore_patterns("texts"))
    measure_texts(raw / "texts")
    guest = raw / run.BED
    words = ["--out", str(guest), "--from", os.environ.get("SABOTAGE_FROM", "1"), "--budget", os.environ.get("SABOTAGE_BUDGET_S", "3600")]
    run.main([*words, *(["--quick"] if os.environ.get("SABOTAGE_QUICK") else [])])
    for name in ("releases", "report", "swapped"):  # megabytes that anybody can make again
        path = guest / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    transcript = guest / "transcript.txt"
    (guest / f"transcript-{time.strftime('%H%M%S', time.gmtime())}.txt.gz").write_bytes(gzip.compress(transcript.read_bytes(), mtime=0))
    transcript.unlink()
    sys.stderr.write(table(raw))


def measure_texts(folder: Path) -> None:
    """Each wrong and right, and the healthy ones."""
    folder.mkdir(parents=True)
    for text in texts.WRONG:
        wrong, right = text.wrong(), text.right()
        row = {"case": text.name, "does": text.does, "caught_by": text.caught_by, "words": text.words}
        row |= {"wrong": [wrong.verdict, wrong.seen, wrong.fix], "right": [right.verdict, right.seen]}
        (folder / f"{text.name}.json").write_text(json.dumps(row, indent=1, sort_keys=True) + "\n")
    healthy = {name: [judge().verdict, judge().seen] for name, judge in texts.HEALTHY}
    (folder / "healthy.json").write_text(json.dumps(healthy, indent=1, sort_keys=True) + "\n")


def guest_rows(raw: Path) -> list[dict[str, Any]]:
    """Raw samples of the guests, bed by bed, in their order."""
    return [json.loads(path.read_text()) for bed in ("double", "card") for path in sorted((raw / bed).glob("[0-9]*.json"))]


def text_rows(raw: Path) -> list[dict[str, Any]]:
    """Raw samples that are texts."""
    return [json.loads(path.read_text()) for path in sorted((raw / "texts").glob("*.json")) if path.stem != "healthy"]


def _text_caught(row: dict[str, Any]) -> bool:
    state, seen, fix = row["wrong"]
    return state == "failed" and re.search(row["words"], f"{seen} {fix}", re.DOTALL) is not None


def beds(raw: Path) -> dict[str, dict[str, int]]:
    """Per bed: sabotages, how many were caught and green again, healthy variants, false alarms."""
    rows, told = guest_rows(raw), text_rows(raw)
    healthy = json.loads((raw / "texts" / "healthy.json").read_text())
    out = {
        "texts": {
            "sabotages": len(told), "caught": sum(map(_text_caught, told)), "green_again": sum(row["right"][0] == "passed" for row in told),
            "healthy": len(healthy), "false_alarms": sum(state != "passed" for state, _ in healthy.values()),
        }
    }  # fmt: skip
    for bed in sorted({row["bed"] for row in rows}):
        mine = [row for row in rows if row["bed"] == bed]
        wrong, green = [row for row in mine if row["caught_by"] != HEALTHY], green_again(mine)
        out[bed] = {
            "sabotages": len(wrong), "caught": sum(verdict(row) == "caught" for row in wrong), "green_again": sum(green[row["case"]] for row in wrong),
            "healthy": len(mine) - len(wrong), "false_alarms": sum(verdict(row) != "passed" for row in mine if row["caught_by"] == HEALTHY),
        }  # fmt: skip
    return out


def figures(raw: Path) -> dict[str, Any]:
    """Everything out of the samples; a verdict that a sample carries along is not believed."""
    per_bed = beds(raw)
    total = {key: sum(bed[key] for bed in per_bed.values()) for key in ("sabotages", "caught", "green_again", "healthy", "false_alarms")}
    rows = guest_rows(raw)
    wrong = [row["case"] for row in rows if verdict(row) not in ("caught", "passed")] + [
        row["case"] for row in text_rows(raw) if not _text_caught(row)
    ]
    return {
        "beds": per_bed,
        "sabotages": total["sabotages"],
        "healthy_variants": total["healthy"],
        "caught_share": round(total["caught"] / total["sabotages"], 4),
        "green_again_share": round(total["green_again"] / total["sabotages"], 4),
        "false_alarms": total["false_alarms"],
        "guest_sabotages": sum(row["caught_by"] != HEALTHY for row in rows),
        "not_right": wrong,
        "longest_case_s": max((row.get("whole_s", 0.0) for row in rows), default=0.0),
    }


def table(raw: Path) -> str:
    """Plain columns: bed, caught/total, green again, false alarms/healthy; then what was not right."""
    lines = [f"{'bed':<8} {'caught':>9} {'green again':>12} {'false alarms':>14}"]
    for name, row in beds(raw).items():
        caught, green = f"{row['caught']}/{row['sabotages']}", f"{row['green_again']}/{row['sabotages']}"
        lines.append(f"{name:<8} {caught:>9} {green:>12} {row['false_alarms']:>7} of {row['healthy']}")
    lines += [
        f"  {row['bed']} {row['number']:02d} {row['case']}: {verdict(row)}" for row in guest_rows(raw) if verdict(row) not in ("caught", "passed")
    ]
    return "\n".join(lines) + "\n"
