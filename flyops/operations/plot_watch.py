# SPDX-License-Identifier: Apache-2.0
"""Draws a recorded watch as a PNG. Run by its path in the environment of requirements/plot.txt: `python plot_watch.py SAMPLES.tsv PICTURE.png`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: this environment has matplotlib and nothing of ours

import matplotlib as mpl  # type: ignore[import-not-found]

from flyops.domain import watch

mpl.use("Agg")

from matplotlib import pyplot as plt

INK, BAND, BAD = "#1f5fa8", "#1f5fa822", "#b3261e"


def main(samples: str, picture: str) -> int:
    """Four panels over the time of the watch; a missed answer or a restart is a red line across all."""
    recording = watch.parse(Path(samples).read_text(), samples)
    findings = watch.judge(recording)
    begun = recording.rows[0]["mono_s"] if recording.rows else 0.0
    figure, axes = plt.subplots(4, 1, figsize=(10, 9), sharex=True, layout="constrained")
    head = recording.head
    title = f"{head.get('host', '')}, release {head.get('release', '')}, {head.get('backend', '')}: {watch.verdict(findings)}"
    failed = [finding.name for finding in findings if finding.verdict == watch.FAILED]
    figure.suptitle(title + (f" ({', '.join(failed)})" if failed else ""), color=BAD if failed else "black", wrap=True)
    between = watch.intervals(recording)
    unit, name = (3600, "hours") if recording.number("seconds") >= 3600 else (60, "minutes")
    at = [(interval.mono_s - begun) / unit for interval in between]
    _banded(axes[0], at, [i.factor for i in between], 1.0, watch.FACTOR_BAND, "realtime factor")
    cores = [i.cores for i in between]
    middle = watch.median(cores) if cores else 0.0
    _banded(axes[1], at, cores, middle, watch.CORES_BAND * middle, "host cores")
    rows = recording.answered
    times = [(row["mono_s"] - begun) / unit for row in rows]
    _line(axes[2], times, [row["rss_kib"] / 1024 for row in rows], "resident memory, MiB")
    if any(row["card_used_bytes"] is not None for row in rows):
        beside = axes[2].twinx()
        beside.plot(times, [(row["card_used_bytes"] or 0) / 2**20 for row in rows], color="#7a7a7a", lw=1, ls="--")
        beside.set_ylabel("whole card, MiB", color="#7a7a7a")
    _line(axes[3], times, [row["lag_ms"] for row in rows], "lag, ms")
    axes[3].set_xlabel(name)
    for moment in _breaks(recording):
        for axis in axes:
            axis.axvline((moment - begun) / unit, color=BAD, lw=1)
    figure.savefig(picture, dpi=110)
    return 0


def _line(axis: Any, x: Sequence[float], y: Sequence[float], name: str) -> None:
    axis.plot(x, y, color=INK, lw=1.2, marker="." if len(x) < 200 else None)
    axis.set_ylabel(name)
    axis.ticklabel_format(useOffset=False)
    axis.grid(alpha=0.3)


def _banded(axis: Any, x: Sequence[float], y: Sequence[float], middle: float, half: float, name: str) -> None:
    axis.axhspan(middle - half, middle + half, color=BAND, lw=0)
    _line(axis, x, y, name)
    outside = [(a, b) for a, b in zip(x, y, strict=True) if abs(b - middle) > half]
    axis.plot([a for a, _ in outside], [b for _, b in outside], "o", color=BAD, ms=5)


def _breaks(recording: watch.Recording) -> list[float]:
    """Moments at which an answer is missing or another process answers."""
    out = [row["mono_s"] for row in recording.rows if row["error"]]
    rows = recording.answered
    out += [b["mono_s"] for a, b in itertools.pairwise(rows) if (a["pid"], a["start"]) != (b["pid"], b["start"])]
    return out


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
