# SPDX-License-Identifier: Apache-2.0
"""The drift watch: the samples of a long run as TSV, and the verdict on them. Pure: a text in, findings out.

What must not move (pid, restarts, backend, release, threads, device memory) is compared; what may breathe (realtime factor, host cores) has a band;
what may only settle (resident memory, lag) has a slope. Every figure is computed from the raw counters of the file, so a verdict can be had again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

COLUMNS = (
    "t_s", "mono_s", "pid", "start", "restarts", "backend", "release", "threads", "tick", "spikes", "lag_ms", "cpu_s", "rss_kib",
    "device_bytes", "card_used_bytes", "card_util_pct", "checkpoint_failures", "error",
)  # fmt: skip
TEXTS = ("backend", "release", "error")
NEEDED = ("every_s", "seconds", "ticks_per_s", "speed")
CLOCK_STEP_S = 0.5
CLOCK_TICK_S = 0.01  # resolution of the kernel's CPU accounting, the least step that a difference can show

FACTOR_BAND = 0.002
CORES_BAND = 0.20
RSS_SLOPE_KIB_H = 1024.0
LAG_MS = 100.0
LAG_SLOPE_MS_H = 10.0
SETTLE_S = 600.0  # a fresh process still fills its allocator's pools
SLOPE_SPAN_S = 1200.0  # less than this after settling says nothing about a slope per hour

PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"
Row = Mapping[str, Any]


class WatchError(ValueError):
    """A file that holds no watch; the text says in which line, what was expected and what was found."""


@dataclass(frozen=True)
class Recording:
    """A watch as it was written: what was asked for, and a row for each sample."""

    head: Mapping[str, str]
    rows: Tuple[Row, ...]

    def number(self, name: str) -> float:
        """A number of the head (every_s, seconds, speed, ticks_per_s)."""
        return float(self.head[name])

    @property
    def answered(self) -> Tuple[Row, ...]:
        """The samples that flysim answered."""
        return tuple(row for row in self.rows if not row["error"])


@dataclass(frozen=True)
class Finding:
    """One rule and what it found."""

    name: str
    wanted: str
    seen: str
    verdict: str


@dataclass(frozen=True)
class Interval:
    """Between two samples of one process, by the monotonic clock: the middle's time, seconds, realtime factor against the asked speed, host cores."""

    mono_s: float
    seconds: float
    factor: float
    cores: float


def render_head(head: Mapping[str, Any]) -> str:
    """The first lines of a file: what was asked for, and the names of the columns."""
    return "".join(f"# {key}: {value}\n" for key, value in head.items()) + "\t".join(COLUMNS) + "\n"


def parse(text: str, name: str = "watch") -> Recording:
    """Reads a file back. A last line that was cut off within itself is left out; anything else that does not fit is an error with its line."""
    head: Dict[str, str] = {}
    rows: List[Row] = []
    columns: Tuple[str, ...] = ()
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.startswith("#") and not columns:
            key, _, value = line[1:].partition(":")
            head[key.strip()] = value.strip()
        elif not columns and line:
            columns = tuple(line.split("\t"))
            _known(columns, head, f"{name}:{number}")
        elif line and number < len(lines):
            rows.append(_row(columns, line, f"{name}:{number}"))
    if not columns:
        raise WatchError(f"{name}: expected the samples of `watch` (a line of column names after `# key: value`), found {len(lines)} lines without")
    return Recording(head, tuple(rows))


def _known(columns: Sequence[str], head: Mapping[str, str], where: str) -> None:
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise WatchError(f"{where}: expected the columns of `watch`, missing {', '.join(missing)}")
    for key in NEEDED:
        if _number(head.get(key, "")) is None:
            raise WatchError(f"{where}: expected `# {key}: NUMBER` above the columns, found {head.get(key, 'none')!r}")
    for key in ("every_s", "ticks_per_s"):
        if float(head[key]) <= 0:
            raise WatchError(f"{where}: expected # {key} above 0, found {head[key]}")


def _row(columns: Sequence[str], line: str, where: str) -> Row:
    fields = line.split("\t")
    if len(fields) != len(columns):
        raise WatchError(f"{where}: expected {len(columns)} fields, found {len(fields)}")
    row: Dict[str, Any] = {}
    for column, field in zip(columns, fields):
        row[column] = field if column in TEXTS else _number(field)
        if row[column] is None and field not in ("", "-"):
            raise WatchError(f"{where}: expected a number in {column}, found {field!r}")
    if (
        row["t_s"] is None
        or row["mono_s"] is None
        or (not row["error"] and any(row[name] is None for name in ("pid", "start", "tick", "cpu_s", "rss_kib", "lag_ms")))
    ):
        raise WatchError(f"{where}: a sample without t_s, mono_s, pid, start, tick, cpu_s, rss_kib or lag_ms, and without an error")
    return row


def _number(field: str) -> Any:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def intervals(recording: Recording) -> List[Interval]:
    """Between neighbouring samples of the same process. A restart or a missing answer leaves a gap: other rules speak of those."""
    speed, per_s, out = recording.number("speed") or 1.0, recording.number("ticks_per_s"), []
    for a, b in _pairs(recording.rows):
        seconds = b["mono_s"] - a["mono_s"]
        if a["error"] or b["error"] or seconds <= 0 or (a["pid"], a["start"]) != (b["pid"], b["start"]):
            continue
        factor = (b["tick"] - a["tick"]) / per_s / speed / seconds
        out.append(Interval((a["mono_s"] + b["mono_s"]) / 2, seconds, factor, (b["cpu_s"] - a["cpu_s"]) / seconds))
    return out


def _pairs(rows: Sequence[Row]) -> Iterable[Tuple[Row, Row]]:
    return ((rows[n], rows[n + 1]) for n in range(len(rows) - 1))  # itertools.pairwise is newer than what runs on targets


def slope(points: Sequence[Tuple[float, float]]) -> float:
    """Theil and Sen's: the median of the slopes of all pairs, per unit of x; one wild sample does not move it. 0 for fewer than two points."""
    slopes = [(y2 - y1) / (x2 - x1) for n, (x1, y1) in enumerate(points) for x2, y2 in points[n + 1 :] if x2 != x1]
    return median(slopes) if slopes else 0.0


def median(values: Sequence[float]) -> float:
    """The middle one; of an even number, the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def judge(recording: Recording) -> Tuple[Finding, ...]:
    """Every rule in turn."""
    rules: Tuple[Callable[[Recording], Finding], ...] = (
        _complete, _clock, _answered, _one_process, _restarts, _same("backend"), _same("release"), _same("threads"), _same("device_bytes"), _checkpoints,
        _factor, _cores, _lag, _lag_slope, _rss_slope,
    )  # fmt: skip
    return tuple(rule(recording) for rule in rules)


def verdict(findings: Sequence[Finding]) -> str:
    """`failed` when any rule failed; else `passed`."""
    return FAILED if any(finding.verdict == FAILED for finding in findings) else PASSED


def _finding(name: str, wanted: str, seen: str, ok: bool) -> Finding:
    return Finding(name, wanted, seen, PASSED if ok else FAILED)


def expected(recording: Recording) -> int:
    """How many samples a whole watch of this length has: one at its begin, one at the end of each interval."""
    return int(recording.number("seconds") / recording.number("every_s") + 1e-9) + 1


def _complete(recording: Recording) -> Finding:
    every, wanted, rows = recording.number("every_s"), expected(recording), recording.rows
    late = [b for a, b in _pairs(rows) if not 0.5 * every <= b["mono_s"] - a["mono_s"] <= 1.5 * every]
    seen = f"{len(rows)} samples" + (f", {len(late)} of them not {every:g} s after the one before" if late else "")
    return _finding("complete", f"{wanted} samples, one every {every:g} s", seen, len(rows) == wanted and not late)


def _clock(recording: Recording) -> Finding:
    """A wall clock that is set, or a virtual machine that stands still, is no drift of flysim: told, and the rest is judged by the monotonic clock."""
    steps = [b["t_s"] - a["t_s"] - (b["mono_s"] - a["mono_s"]) for a, b in _pairs(recording.rows)]
    stepped = [step for step in steps if abs(step) > CLOCK_STEP_S]
    wanted = f"wall and monotonic clock go together within {CLOCK_STEP_S:g} s an interval"
    if stepped:
        seen = f"the wall clock stepped by {', '.join(f'{step:+.1f} s' for step in stepped)}: it was set, or the machine stood still"
        return Finding("clock", wanted, seen, NOT_JUDGED)
    return _finding("clock", wanted, f"at most {max(map(abs, steps), default=0.0):.3f} s apart", ok=True)


def _answered(recording: Recording) -> Finding:
    silent = [row for row in recording.rows if row["error"]]
    seen = f"{len(silent)} without an answer: {silent[0]['error']}" if silent else f"{len(recording.rows)} of {len(recording.rows)}"
    return _finding("answered", "every sample", seen, not silent and bool(recording.rows))


def _one_process(recording: Recording) -> Finding:
    found = list(dict.fromkeys((int(row["pid"]), int(row["start"])) for row in recording.answered))
    seen = ", then ".join(f"pid {pid}" for pid, _ in found) or "none"
    return _finding("pid", "one process from the first sample to the last", seen, len(found) == 1)


def _restarts(recording: Recording) -> Finding:
    found = sorted({row["restarts"] for row in recording.answered if row["restarts"] is not None})
    if not found:
        return Finding("restarts", "as at the begin", "no service manager that counts them", NOT_JUDGED)
    return _finding("restarts", "as at the begin", f"{found[0]:g}" + (f" to {found[-1]:g}" if len(found) > 1 else ""), len(found) == 1)


def _same(column: str) -> Callable[[Recording], Finding]:
    def rule(recording: Recording) -> Finding:
        found = list(dict.fromkeys(row[column] for row in recording.answered if row[column] not in (None, "")))
        if not found:
            return Finding(column, "constant", "not readable there", NOT_JUDGED)
        shown = [value if isinstance(value, str) else f"{value:.0f}" for value in found]
        return _finding(
            column, "constant", shown[0] if len(shown) == 1 else f"{len(shown)} values, {shown[0]} first, {shown[-1]} last", len(shown) == 1
        )

    return rule


def _checkpoints(recording: Recording) -> Finding:
    found = [row["checkpoint_failures"] for row in recording.answered if row["checkpoint_failures"] is not None]
    return _finding("checkpoints", "none failed", f"{max(found):g} failed" if found else "not told", bool(found) and max(found) == found[0])


def _factor(recording: Recording) -> Finding:
    wanted = f"within {FACTOR_BAND:.1%} of the asked speed in every interval"
    if recording.number("speed") == 0:
        return Finding("realtime factor", wanted, "unthrottled: it has no real time to hold", NOT_JUDGED)
    found = [interval.factor for interval in intervals(recording)]
    if not found:
        return Finding("realtime factor", wanted, "no interval", FAILED)
    return _finding("realtime factor", wanted, f"{min(found):.5f} to {max(found):.5f}", all(abs(factor - 1) <= FACTOR_BAND for factor in found))


def _cores(recording: Recording) -> Finding:
    wanted = f"within {CORES_BAND:.0%} of their median in every interval, and from the first third to the last"
    found = intervals(recording)
    if not found:
        return Finding("host cores", wanted, "no interval", FAILED)
    middle = median([interval.cores for interval in found])
    off = [i for i in found if abs(i.cores - middle) > CORES_BAND * middle + 2 * CLOCK_TICK_S / i.seconds]
    # A step in the middle of the watch moves the median between both levels, and each level then lies within the band.
    third = max(1, len(found) // 3)
    first, last = (median([i.cores for i in part]) for part in (found[:third], found[-third:]))
    stepped = abs(last - first) > CORES_BAND * middle + 2 * CLOCK_TICK_S / found[0].seconds
    seen = f"{min(i.cores for i in found):.3f} to {max(i.cores for i in found):.3f}, median {middle:.3f}"
    seen += (f", {len(off)} outside" if off else "") + (f", {first:.3f} in the first third and {last:.3f} in the last" if stepped else "")
    return _finding("host cores", wanted, seen, not off and not stepped)


def _lag(recording: Recording) -> Finding:
    found = [row["lag_ms"] for row in recording.answered]
    return _finding(
        "lag", f"below {LAG_MS:g} ms at every sample", f"at most {max(found):.2f} ms" if found else "none", bool(found) and max(found) < LAG_MS
    )


def _settled(recording: Recording, column: str) -> List[Tuple[float, float]]:
    """(hours, value) of the samples after the settling time."""
    rows = recording.answered
    return [(row["mono_s"] / 3600, row[column]) for row in rows if row["mono_s"] - rows[0]["mono_s"] >= SETTLE_S]


def _slope_finding(recording: Recording, name: str, column: str, limit: float, unit: str) -> Finding:
    wanted = f"grows by less than {limit:g} {unit} an hour after the first {SETTLE_S / 60:g} minutes"
    points = _settled(recording, column)
    if len(points) < 3 or (points[-1][0] - points[0][0]) * 3600 < SLOPE_SPAN_S:
        return Finding(name, wanted, f"less than {SLOPE_SPAN_S / 60:g} minutes after settling", NOT_JUDGED)
    found = slope(points)
    return _finding(name, wanted, f"{found:+.2f} {unit}/h, from {points[0][1]:.0f} to {points[-1][1]:.0f}", found < limit)


def _lag_slope(recording: Recording) -> Finding:
    return _slope_finding(recording, "lag drift", "lag_ms", LAG_SLOPE_MS_H, "ms")


def _rss_slope(recording: Recording) -> Finding:
    return _slope_finding(recording, "resident memory", "rss_kib", RSS_SLOPE_KIB_H, "KiB")
