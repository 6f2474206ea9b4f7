# SPDX-License-Identifier: Apache-2.0
"""`invoke cost`: host cores over one window, GPU against the CPU kernel in the same container (playbooks/cost.yml), as a table and as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyops.domain import checks
from flyops.operations import hosts
from flyops.operations.options import CostOptions


def run(options: CostOptions) -> int:
    """The exit code of the play: 0 when there are figures, whatever they say (`verify` judges)."""
    result = hosts.play(hosts.find(options.target), "cost", look=True, run_wait=options.wait_s, cost_window_s=options.window)
    for name, host in result.hosts.items():
        if host.vars.get("live_window", {}).get("window"):
            found = compare(name, host.vars)
            print(json.dumps({"kind": "cost", **found}) if options.target.json else table(found), end="\n" if options.target.json else "")
            if options.record:
                write(options.record, found)
    return result.exit_code


def compare(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The windows there are, with their raw rows, and the GPU's share of the CPU kernel's host cores when there are both."""
    live = found["live"]["json"]
    measured = {live["backend"]: found["live_window"]}
    other = "cpu" if live["backend"] == "cuda" else "cuda"
    trial = found.get("cpu_window" if other == "cpu" else "gpu_window") or {}
    if trial.get("window"):
        measured[other] = trial
    windows = {backend: {**one["window"], "pidstat_cores": pidstat_cores(one.get("pidstat", ""))} for backend, one in measured.items()}
    why = "" if other in windows else str(found.get("other_missing") or f"this release has no {other} backend")
    both = "cpu" in windows and "cuda" in windows
    return {
        "host": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "release": found["release_now"]["current"],
        "neurons": live["neurons"],
        "live": live["backend"],
        "windows": windows,
        "share": round(windows["cuda"]["cores"] / windows["cpu"]["cores"], 4) if both and windows["cpu"]["cores"] else None,
        "missing": why,
        "samples": {backend: one.get("samples", []) for backend, one in measured.items()},
        "pidstat": {backend: one.get("pidstat", "") for backend, one in measured.items()},
    }


def pidstat_cores(text: str) -> float | None:
    """Host cores by pidstat's own average line (%CPU of one cpu); None where there is no pidstat."""
    lines = [line.split() for line in text.splitlines()]
    header = next((words for words in lines if "%CPU" in words), None)
    average = next((words for words in lines if words and words[0] == "Average:"), None)
    if header is None or average is None:
        return None
    # The average line has no clock; its columns are counted from the right, where both end with CPU and Command.
    return round(float(average[header.index("%CPU") - len(header)]) / 100, 4)


def table(found: Mapping[str, Any]) -> str:
    """The windows, a line each, and the ratio."""
    lines = [
        f"\n{found['host']}, release {found['release']}, {found['neurons']} neurons, {found['live']} is live",
        f"  {'backend':<8}{'threads':>8}{'cores':>9}{'pidstat':>9}{'realtime':>10}{'Hz':>8}{'machine':>9}{'window':>9}",
    ]
    for backend, one in sorted(found["windows"].items()):
        if one.get("error"):
            lines.append(f"  {backend:<8}  {one['error']}")
            continue
        said = f"{one['pidstat_cores']:.3f}" if one["pidstat_cores"] is not None else "-"
        short = "" if one["factor"] >= checks.MIN_FACTOR else "  below real time"
        lines.append(
            f"  {backend:<8}{one['threads']:>8}{one['cores']:>9.3f}{said:>9}{one['factor']:>10.4f}{one['hz']:>8.2f}{one['utilisation']:>9.0%}{one['seconds']:>8.1f}s{short}"
        )
    if found["share"] is not None:
        lines.append(f"  the GPU run takes {found['share']:.3f} of the CPU kernel's host cores")
    if found["missing"]:
        lines.append(f"  nothing to compare with: {found['missing']}")
    return "\n".join(lines) + "\n"


def write(folder: str, found: Mapping[str, Any]) -> None:
    """The dated JSON, raw rows included."""
    path = Path(folder) / f"{found['date'].replace(':', '')}-{found['host']}-cost.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    sys.stderr.write(f"record: {path}\n")
