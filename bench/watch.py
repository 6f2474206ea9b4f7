# SPDX-License-Identifier: Apache-2.0
"""An hour of `./fly watch` on this machine's own flysim (668 neurons, CPU, real time), and its verdict. FLY_WATCH_HOURS and FLY_WATCH_EVERY change its length."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from flyops.domain import watch
from tests.beds.fly import Fly

GOALS = {
    "rules_failed": ("==", 0),
    "hours": (">=", 1.0),
    "samples_missing": ("==", 0),
}


def measure(raw: Path) -> None:
    """A deploy with folders and ports of its own, the watch, its samples and plot."""
    hours, every = os.environ.get("FLY_WATCH_HOURS", "1"), os.environ.get("FLY_WATCH_EVERY", "2")
    with tempfile.TemporaryDirectory(prefix="fly-", dir="/tmp") as name:
        fly = Fly(Path(name))
        try:
            print(fly("deploy"), end="")
            words = fly.argv("watch", "--every", every, "--hours", hours, "--out", str(Path(name) / "out"))
            done = subprocess.run(words, env=fly.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/")
            said = (done.stdout + done.stderr).replace(name, "FOLDER")
            print(said, end="")
            (raw / "transcript.txt").write_text(said)
            for path in (Path(name) / "out").iterdir():
                shutil.copy(path, raw / f"watch{path.suffix}")
        finally:
            fly.close()
    if not (raw / "watch.tsv").exists():
        sys.stderr.write("the watch left no samples\n")


def figures(raw: Path) -> dict[str, Any]:
    """All from the samples alone."""
    recording = watch.parse((raw / "watch.tsv").read_text(), "watch.tsv")
    findings = watch.judge(recording)
    between, rows = watch.intervals(recording), recording.answered
    settled = [(row["mono_s"] / 3600, row["rss_kib"]) for row in rows if row["mono_s"] - rows[0]["mono_s"] >= watch.SETTLE_S]
    return {
        "rules_failed": sum(finding.verdict == watch.FAILED for finding in findings),
        "rules_judged": sum(finding.verdict != watch.NOT_JUDGED for finding in findings),
        "failed": ", ".join(finding.name for finding in findings if finding.verdict == watch.FAILED),
        "clock_steps": sum(abs(b["t_s"] - a["t_s"] - b["mono_s"] + a["mono_s"]) > watch.CLOCK_STEP_S for a, b in itertools.pairwise(rows)),
        "hours": round((rows[-1]["mono_s"] - rows[0]["mono_s"]) / 3600, 3),
        "samples": len(rows),
        "samples_missing": watch.expected(recording) - len(rows),
        "factor_min": round(min(i.factor for i in between), 5),
        "factor_max": round(max(i.factor for i in between), 5),
        "cores_median": round(watch.median([i.cores for i in between]), 4),
        "rss_slope_kib_per_h": round(watch.slope(settled), 2),
        "lag_max_ms": round(max(row["lag_ms"] for row in rows), 3),
    }
