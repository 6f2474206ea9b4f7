# SPDX-License-Identifier: Apache-2.0
"""`invoke watch`: a sampler on each host (playbooks/watch.yml), its samples shown as they come, then TSV, plot and verdict here.

The sampler goes on without us: the same command, typed again, finds it (or what it left) and goes on from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flyops import bootstrap, places
from flyops.domain import watch
from flyops.errors import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, UsageError
from flyops.operations import hosts
from flyops.operations.options import WatchOptions

LOOK_S = 15.0  # between two looks at the hosts, at most
PATIENCE_S = 600.0  # a host that cannot be read for so long past the end of its watch is given up; its samples stay there


def run(options: WatchOptions) -> int:
    """0: every watch passed; 3: one failed; 1: one could not be read."""
    if options.judge:
        return judge(options, Path(options.judge))
    if options.every * 60 < 1 or options.hours * 60 < options.every:
        raise UsageError(f"--every {options.every:g} (minutes) must be within 1 s and --hours {options.hours:g}")
    chosen = hosts.find(options.target)
    asked: dict[str, Any] = {"watch_every_s": options.every * 60, "watch_seconds": options.hours * 3600}
    if options.stop:
        return hosts.play(chosen, "watch", watch_state="stopped", **asked).exit_code
    begun = hosts.play(chosen, "watch", watch_state="started", **asked)
    if begun.exit_code != EXIT_OK or options.target.check:
        return begun.exit_code
    if options.detach:
        print("the samples go on there; the same command without --detach shows them and judges")
        return EXIT_OK
    try:
        texts = follow(options, chosen, asked)
    except KeyboardInterrupt:
        sys.stderr.write("\nthe watch goes on on the hosts: the same command finds it again; with --stop it ends\n")
        raise
    codes = [collect(options, name, text) for name, text in texts.items()]
    hosts.play(chosen, "watch", display="none", watch_state="collected", **asked)
    return max(codes, default=EXIT_FAILED) if len(texts) == len(chosen.names) else EXIT_FAILED


def follow(options: WatchOptions, chosen: hosts.Hosts, asked: Mapping[str, Any]) -> dict[str, str]:
    """Shows each sample as it comes; host -> its whole text when no sampler lives any more."""
    shown: dict[str, int] = {}
    texts: dict[str, str] = {}
    end = time.monotonic() + float(asked["watch_seconds"]) + PATIENCE_S
    while time.monotonic() < end:
        found = hosts.play(chosen, "watch", display="none", look=True, watch_state="read", **asked)
        for name in chosen.names:
            now = found.hosts[name].vars.get("watch_now", {}) if name in found.hosts else {}
            if now.get("text"):
                shown[name] = show_new(options, name, now, shown.get(name, 0))
            if now.get("waiting"):
                texts[name] = now["text"]
        if len(texts) == len(chosen.names):
            break
        time.sleep(min(LOOK_S, float(asked["watch_every_s"])))
    return texts


def show_new(options: WatchOptions, name: str, now: Mapping[str, Any], shown: int) -> int:
    """One line a new sample; how many were shown in all."""
    rows = watch.parse(now["text"], name).rows
    for number, row in enumerate(rows[shown:], shown + 1):
        if options.target.json:
            print(json.dumps({"kind": "sample", "host": name, **row}))
        else:
            print(f"{name}  {number}/{now['expected']}  {sample_line(row)}")
    sys.stdout.flush()
    return len(rows)


def sample_line(row: Mapping[str, Any]) -> str:
    """A sample as a person reads it."""
    clock = time.strftime("%H:%M:%SZ", time.gmtime(row["t_s"]))
    if row["error"]:
        return f"{clock}  {row['error']}"
    card = f", card {row['card_used_bytes'] / 2**20:.0f} MiB" if row["card_used_bytes"] is not None else ""
    return (
        f"{clock}  {row['backend']}, pid {row['pid']:.0f}, tick {row['tick']:.0f}, lag {row['lag_ms']:.2f} ms, {row['rss_kib'] / 1024:.1f} MiB{card}"
    )


def collect(options: WatchOptions, name: str, text: str) -> int:
    """Writes the samples where they were asked for, then judges that file."""
    folder = Path(options.out) if options.out else places.state("watch")
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(watch.parse(text, name).rows[0]["t_s"]))
    path = folder / f"{name}-{stamp}.tsv"
    path.write_text(text)
    return judge(replace(options, out=""), path)


def judge(options: WatchOptions, path: Path) -> int:
    """The verdict on a recorded watch, and its plot beside it (or in --out)."""
    try:
        recording = watch.parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except watch.WatchError as error:
        raise UsageError(str(error), fix="name a file that `invoke watch` wrote") from error
    findings = watch.judge(recording)
    answer = watch.verdict(findings)
    picture = plot(path, Path(options.out) / f"{path.stem}.png" if options.out else path.with_suffix(".png")) if options.plot else ""
    if options.target.json:
        rows = [finding.__dict__ for finding in findings]
        print(
            json.dumps(
                {"kind": "watch", "host": recording.head.get("host", ""), "verdict": answer, "findings": rows, "tsv": str(path), "plot": picture}
            )
        )
    else:
        print(table(recording, findings), end="")
        print(f"verdict: {answer}\nsamples: {path}" + (f"\nplot:    {picture}" if picture else ""))
    return EXIT_OK if answer == watch.PASSED else EXIT_REFUSED


def table(recording: watch.Recording, findings: Sequence[watch.Finding]) -> str:
    """The findings, a line each."""
    head = recording.head
    hours = (recording.rows[-1]["t_s"] - recording.rows[0]["t_s"]) / 3600 if recording.rows else 0
    title = f"\n{head.get('host', '')}, release {head.get('release', '')}, {head.get('backend', '')} backend, {len(recording.rows)} samples over {hours:.2f} h\n"
    width = max(len(finding.name) for finding in findings)
    lines = (f"  {finding.verdict:<10}  {finding.name:<{width}}  {finding.seen}  (wanted: {finding.wanted})\n" for finding in findings)
    return title + "".join(lines)


def plot(samples: Path, picture: Path) -> str:
    """The path of the PNG; empty, with the reason on stderr, when it could not be drawn. matplotlib has an environment of its own."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    try:
        python = bootstrap.environment("plot")
    except (bootstrap.BootstrapError, SystemExit) as error:
        sys.stderr.write(f"no plot: {error}\n")
        return ""
    program = places.REPOSITORY / "flyops" / "operations" / "plot_watch.py"
    done = subprocess.run(
        [str(python), str(program), str(samples), str(picture)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(f"no plot: {done.stderr.strip()[-500:]}\n")
        return ""
    return str(picture)
