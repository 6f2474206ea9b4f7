# SPDX-License-Identifier: Apache-2.0
"""The verdict on a recorded watch: a healthy three hours pass, and each planted drift is named by its own rule and by no other."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flyops.domain import watch
from flyops.operations import watch as operation
from flyops.operations.options import Target, WatchOptions

HEAD = {
    "host": "dev1",
    "backend": "cuda",
    "release": "1.0+cuda",
    "neurons": 139255,
    "speed": 1.0,
    "ticks_per_s": 10000,
    "every_s": 600,
    "seconds": 10800,
}
Row = dict[str, Any]


def row(n: int, noise: random.Random) -> Row:
    """Sample n of a healthy run on a card: 0.64 host cores, memory that settles within ten minutes, a neighbour that comes and goes on the card."""
    t = n * HEAD["every_s"]
    return {
        "t_s": f"{1.79e9 + t:.3f}", "mono_s": f"{5000 + t:.4f}", "pid": 4711, "start": 90210, "restarts": 0, "backend": "cuda", "release": "1.0+cuda", "threads": 2,
        "tick": int(t * 10_000 * (1 + noise.uniform(-1e-6, 1e-6))) // 18 * 18, "spikes": 278_510 * t, "lag_ms": f"{noise.uniform(0, 0.4):.3f}",
        "cpu_s": f"{0.64 * t + noise.uniform(-3, 3) + 5:.2f}", "rss_kib": 168_680 + (300 if n else 0) + noise.randint(0, 60), "device_bytes": 160 << 20,
        "card_used_bytes": (639 + noise.randint(0, 35)) << 20, "card_util_pct": noise.randint(37, 42), "checkpoint_failures": 0, "error": "",
    }  # fmt: skip


def recorded(plant: Callable[[int, Row], None] | None = None, head: Mapping[str, Any] = HEAD, count: int = 19) -> str:
    """A file of `watch`, with `plant` done to each row."""
    noise, lines = random.Random(783), []
    for n in range(count):
        made = row(n, noise)
        if plant:
            plant(n, made)
        lines.append("\t".join(str(made[name]) for name in watch.COLUMNS) + "\n")
    return watch.render_head(head) + "".join(lines)


def failed(text: str) -> list[str]:
    return [finding.name for finding in watch.judge(watch.parse(text)) if finding.verdict == watch.FAILED]


def leak(n: int, made: Row) -> None:
    made["rss_kib"] += 250 * n  # 1,500 KiB an hour


def creeping_lag(n: int, made: Row) -> None:
    made["lag_ms"] = 0.2 + 3 * n  # 18 ms an hour, 54 ms at the end: each sample alone looks fine


def late(n: int, made: Row) -> None:
    made["lag_ms"] = 140.0 if n == 9 else 0.1


def restarted(n: int, made: Row) -> None:
    if n >= 8:
        made.update(pid=4800, start=111000, restarts=1, cpu_s=0.64 * 600 * (n - 8))


def same_number(n: int, made: Row) -> None:
    if n >= 8:  # the pid was given again; the start time was not
        made.update(start=111000, cpu_s=0.64 * 600 * (n - 8))


def slow(n: int, made: Row) -> None:
    made["tick"] = int(made["tick"] * 0.997) // 18 * 18


def slower_and_slower(n: int, made: Row) -> None:
    made["tick"] -= 2_000 * n * n  # 0.1 % slow after an hour, 1 % at the end


def spinning(n: int, made: Row) -> None:
    if n > 9:
        made["cpu_s"] = float(made["cpu_s"]) + 0.3 * 600 * (n - 9)


def device_leak(n: int, made: Row) -> None:
    made["device_bytes"] += n * 4096


def fell_back(n: int, made: Row) -> None:
    if n > 12:
        made["backend"] = "cpu"


def silent(n: int, made: Row) -> None:
    if n == 5:
        made.update({name: "-" for name in watch.COLUMNS if name not in ("t_s", "mono_s", "error")}, error="http://127.0.0.1:8700/status: timed out")


def unsaved(n: int, made: Row) -> None:
    made["checkpoint_failures"] = 0 if n < 15 else n - 14


def another_release(n: int, made: Row) -> None:
    made["release"] = "1.0+cuda" if n < 10 else "1.1+cuda"


PLANTED: Mapping[str, tuple[Callable[[int, Row], None], list[str]]] = {
    "leak": (leak, ["resident memory"]),
    "creeping lag": (creeping_lag, ["lag drift"]),
    "one late sample": (late, ["lag"]),
    "restart": (restarted, ["pid", "restarts"]),
    "restart under the same pid": (same_number, ["pid"]),
    "slow factor": (slow, ["realtime factor"]),
    "slower and slower": (slower_and_slower, ["realtime factor"]),
    "a core that spins": (spinning, ["host cores"]),
    "device memory grows": (device_leak, ["device_bytes"]),
    "fell back to the CPU": (fell_back, ["backend"]),
    "one answer missing": (silent, ["answered"]),
    "checkpoints fail": (unsaved, ["checkpoints"]),
    "another release": (another_release, ["release"]),
}


def test_a_healthy_three_hours_pass_every_rule():
    findings = watch.judge(watch.parse(recorded()))

    assert [(finding.name, finding.verdict) for finding in findings if finding.verdict != watch.PASSED] == []
    assert watch.verdict(findings) == watch.PASSED


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_drift_is_named_by_its_own_rule_alone(name):
    plant, rules = PLANTED[name]

    assert failed(recorded(plant)) == rules


def test_memory_that_settles_and_a_small_slope_are_no_leak():
    assert failed(recorded(lambda n, made: made.update(rss_kib=160_000 if n == 0 else 169_000 + 20 * n))) == []  # 120 KiB an hour


@pytest.mark.parametrize(("drop", "rule"), [(slice(0, 12), "complete"), (slice(0, 0), "complete")])
def test_a_watch_that_was_cut_off_is_not_passed(drop, rule):
    head, rows = recorded().split("error\n")

    assert rule in failed(head + "error\n" + "".join(line + "\n" for line in rows.split("\n")[drop]))


def test_a_gap_between_samples_is_said():
    assert failed(recorded(lambda n, made: made.update(mono_s=f"{5000 + n * 600 + (400 if n == 7 else 0):.4f}"))) == [
        "complete",
        "realtime factor",
        "host cores",
    ]


@pytest.mark.parametrize("step", [43.0, -3600.0])
def test_a_clock_that_is_set_is_told_and_is_no_drift(step):
    text = recorded(lambda n, made: made.update(t_s=f"{float(made['t_s']) + (step if n > 8 else 0):.3f}"))
    told = {finding.name: finding for finding in watch.judge(watch.parse(text))}["clock"]

    assert failed(text) == []
    assert (told.verdict, f"{step:+.1f} s" in told.seen) == (watch.NOT_JUDGED, True)


def test_what_cannot_be_judged_says_so_and_does_not_fail():
    short = {**HEAD, "every_s": 30, "seconds": 300}

    def quick(n, made):
        made.update(t_s=1.79e9 + 30 * n, mono_s=5000 + 30 * n, tick=300_000 * n, cpu_s=round(0.64 * 30 * n, 2), restarts="-", device_bytes="-")

    findings = {finding.name: finding for finding in watch.judge(watch.parse(recorded(quick, short, 11)))}

    assert {name for name, finding in findings.items() if finding.verdict == watch.NOT_JUDGED} == {
        "restarts",
        "device_bytes",
        "lag drift",
        "resident memory",
    }
    assert watch.verdict(list(findings.values())) == watch.PASSED


def test_a_line_that_was_cut_off_within_itself_is_left_out():
    whole = recorded()

    assert len(watch.parse(whole[:-30]).rows) == 18


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the samples of `watch`"),
        ("hello\n", "missing t_s"),
        (recorded().replace("# every_s: 600\n", ""), "# every_s: NUMBER"),
        (recorded().replace("# every_s: 600\n", "# every_s: 0\n"), "above 0"),
        (recorded().replace("\t4711\t", "\tmany\t", 1), "f.tsv:10: expected a number in pid, found 'many'"),
        (recorded().replace("\t4711\t90210\t", "\t4711\t", 1), "f.tsv:10: expected 18 fields, found 17"),
        (recorded().replace("\t4711\t", "\tnan\t", 1), "expected a number in pid"),
        (recorded().replace("\t4711\t", "\t-\t", 1), "without t_s, mono_s, pid"),
    ],
)
def test_a_file_that_is_no_watch_is_refused_with_its_line(text, said):
    with pytest.raises(watch.WatchError, match=said.replace("[", r"\[")):
        watch.parse(text, "f.tsv")


def test_theil_and_sens_slope():
    assert watch.slope([(0, 1), (1, 3), (2, 5), (3, 700), (4, 9), (5, 11)]) == 2
    assert watch.slope([(0, 1)]) == 0
    assert watch.median([4, 1, 3, 2]) == 2.5


@pytest.mark.parametrize(("plant", "code"), [(None, 0), (leak, 3)])
def test_judging_a_file_draws_it_and_ends_with_the_verdict(tmp_path: Path, capsys, plant, code):
    samples = tmp_path / "soak.tsv"
    samples.write_text(recorded(plant))

    assert operation.run(WatchOptions(judge=str(samples), target=Target())) == code

    said = capsys.readouterr().out
    assert f"verdict: {'failed' if code else 'passed'}" in said
    assert samples.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(samples.with_suffix(".png").read_bytes()) > 20_000
