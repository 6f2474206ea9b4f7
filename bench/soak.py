# SPDX-License-Identifier: Apache-2.0
"""Deploys and rollbacks that are cut off: at every step of a run once, then at random. Each must end in exactly one of its two states.

Two releases, two settings of threads and partition, one LXC guest (root). A round: a command, a fault (kill -9 of the controller or of the
agent, a connection that falls silent, a full disk) at its moment, a look; then the same command again (or, where it had not come to its end, now and
then the rollback), a look. ROUNDS (200), SEED (1). Rounds are kept as they come: a soak that is stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flyops import places
from flyops.operations import build
from flyops.operations.release import Release
from tests.beds.cutbed import SMALL_DISK, CutBed, identity, lies
from tests.beds.fly import another

GUEST = "soak1"
ROUNDS = int(os.environ.get("ROUNDS", "200"))
SEED = int(os.environ.get("SEED", "1"))
FAULTS = ("controller", "agent", "connection", "disk")
SETTINGS = {"wide": ("rayon_threads=2", "fly_partition_minimum=64"), "narrow": ("rayon_threads=1", "fly_partition_minimum=2")}
KILLED = -9
TRIES = 3  # a machine under load may not hold real time for three seconds: said in the figures
GOALS = {
    "cut": (">=", 200),
    "steps_not_cut": ("==", 0),
    "ends_in_one_of_two_states": ("==", 1.0),
    "receipts_that_lied": ("==", 0),
    "between_without_a_receipt": ("==", 0),
    "healed": ("==", 1.0),
    "ticks_lost_behind_a_checkpoint": ("==", 0),
    "second_runs_that_changed": ("==", 0),
}


class Soak:
    """The bed, its two releases, and what is where."""

    def __init__(self, bed: CutBed, releases: tuple[Release, Release]) -> None:
        self.bed = bed
        self.releases = {release.version: release for release in releases}
        self.known: dict[str, dict[str, Any]] = {}  # `release settings` -> identity, learned from runs that nobody cut
        self.at = ("", "")

    def words(self, kind: str, target: tuple[str, str]) -> list[str]:
        """The command line that leads to a target."""
        if kind == "rollback":
            return ["rollback", "--limit", GUEST, "--json"]
        given = [word for setting in (*SETTINGS[target[1]], "fly_checkpoint_s=1") for word in ("-e", setting)]
        return ["deploy", "--limit", GUEST, "--release", str(self.releases[target[0]].tar), *given, "--json"]

    def target(self, kind: str) -> tuple[str, str]:
        """Where the next command of this kind leads: the other release; a deploy brings the other settings, too."""
        release = next(version for version in self.releases if version != self.at[0])
        other = next(name for name in SETTINGS if name != self.at[1])
        return release, self.at[1] if kind == "rollback" else other

    def where(self, found: dict[str, Any]) -> tuple[str, str] | None:
        """The state that a look shows, when it is exactly one of the known ones."""
        return next((tuple(key.split(" ")) for key, known in self.known.items() if identity(found) == known), None)  # type: ignore[return-value]

    def learn(self) -> dict[str, list[str]]:
        """All four states by runs that nobody cuts, and the steps of both commands."""
        for release in self.releases:  # from here on each has the other one to go back to
            steps = {"first": self._clean("deploy", (release, "wide"))}
        for kind in ("deploy", "rollback", "deploy"):
            steps[kind] = self._clean(kind, self.target(kind))
        if len(self.known) != len(self.releases) * len(SETTINGS):
            raise RuntimeError(f"expected four states, found {sorted(self.known)}")
        return {kind: steps[kind] for kind in ("deploy", "rollback")}

    def _clean(self, kind: str, target: tuple[str, str]) -> list[str]:
        code, said = self.bed.finish(*self.words(kind, target))
        if code:
            raise RuntimeError(f"{kind} to {target} ended with exit code {code}: {said[-2000:]}")
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.known[" ".join(target)] = identity(self.bed.look())
        self.at = target
        return list(dict.fromkeys(_title(event) for event in events if event.get("kind") == "start"))

    # one round

    def cut(self, kind: str, target: tuple[str, str], fault: str, step: str, after_s: float) -> dict[str, Any]:
        """The command, with the fault as soon as it begins the step, or so long after its start."""
        silence = ["-e", "flyops_silence_s=7"] if fault == "connection" else []
        running = self.bed.start(*self.words(kind, target), *silence)
        struck, seen = "", ""
        for event in running.events():
            seen = _title(event) if event.get("kind") == "start" else seen
            if not struck and (seen == step if step else time.monotonic() - running.began >= after_s):
                struck = seen
                self.bed.strike(fault, running)
        return {"struck": struck, "exit": self.bed.settle(running)}

    def heal(self, words: list[str]) -> tuple[int, str]:
        """Run it until it says that it is done; how often that took."""
        said = ""
        for tries in range(1, TRIES + 1):
            self.bed.until(lambda seen: not seen["save_error"], 15)
            code, said = self.bed.finish(*words)
            if code == 0:
                return tries, ""
        failed = [json.loads(line) for line in said.splitlines() if line.startswith("{") and '"failed": true' in line]
        return 0, "; ".join(f"{event.get('task')}: {event['result'].get('msg', '')}" for event in failed)[-1500:] or said[-800:]

    def round(self, number: int, kind: str, fault: str, step: str, after_s: float, second: bool, back: bool) -> dict[str, Any]:
        """One cut, two looks, and what was found."""
        began, old, new = time.monotonic(), self.at, self.target(kind)
        saved = int(self.bed.until(lambda seen: seen["saved"])["saved"] or 0)
        done = self.cut(kind, new, fault, step, after_s)
        cut = self.bed.look()
        whole = self.where(cut) == new and not cut["receipts"]  # it had come to its end: a rollback again would be another one
        back = back and kind == "deploy" and bool(cut["receipts"])
        end = old if back else new
        tries, said = (1, "") if whole and kind == "rollback" else self.heal(self.words("rollback" if back else kind, new))
        healed = self.bed.until(lambda seen: self.where(seen) is not None, 20)
        row = {
            "round": number, "kind": kind, "fault": fault, "step": step, "old": list(old), "new": list(new), **done,
            "after_cut": _place(self.where(cut), old, new), "receipts": sorted(cut["receipts"]), "lies": lies(cut) + lies(healed),
            "healed_by": "rollback" if back else kind, "tries": tries, "said": said, "end": list(self.where(healed) or ()), "wanted": list(end),
            "open_after": sorted(healed["receipts"]), "saved": saved, "tick": healed["status"]["tick"], "set_aside": healed["status"]["set_aside"],
            "left": healed["left"], "digest": _digest(identity(healed)),
        }  # fmt: skip
        self.at = end if row["end"] == row["wanted"] else (self.where(healed) or self.at)
        if second and not back and kind == "deploy":
            code, again = self.bed.finish(*[word for word in self.words(kind, new) if word != "--json"])
            row["second"] = [code, *re.findall(r"changed=(\d+)", again)[-1:]]
        return {**row, "seconds": round(time.monotonic() - began, 1)}


def _title(event: dict[str, Any]) -> str:
    """A task's title as it is in every run: without the release that some of them name."""
    return re.sub(r"0\.1\.0-50a4\w+", "…", event["task"])


def _place(found: tuple[str, str] | None, old: tuple[str, str], new: tuple[str, str]) -> str:
    return "old" if found == old else "new" if found == new else "between"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plan(steps: dict[str, list[str]], rounds: int) -> list[dict[str, Any]]:
    """Deploy and rollback in turn: every step of both once, the faults in rotation; then random moments and faults."""
    choose = random.Random(SEED)  # noqa: S311 - moments, not secrets
    left = {kind: list(steps[kind]) for kind in ("deploy", "rollback")}
    out: list[dict[str, Any]] = []
    for number in range(rounds):
        kind = "rollback" if number % 2 else "deploy"
        step = left[kind].pop(0) if left[kind] else ""
        fault = FAULTS[(number // 2) % 4] if step else choose.choice(FAULTS)
        out.append({"number": number, "kind": kind, "fault": fault, "step": step, "after_s": choose.uniform(0.2, 9.0 if kind == "deploy" else 7.0)})
    return [{**row, "second": row["number"] % 10 == 0, "back": row["number"] % 6 == 4} for row in out]


def releases(folder: Path) -> tuple[Release, Release]:
    """This checkout's flysim under two versions."""
    base = build.build()
    made = [another(base, folder / "releases", f"0.1.0-50a4{letter * 6}") for letter in "ab"]
    return replace(made[0], fresh=False), replace(made[1], fresh=False)


def measure(raw: Path) -> None:
    """All rounds that are still to be done, one line each."""
    folder = places.cache("soak", f"{SEED}-{_commit()}")
    folder.mkdir(parents=True, exist_ok=True)
    bed = CutBed(GUEST, folder)
    rows = folder / "rounds.jsonl"
    try:
        soak = Soak(bed, releases(folder))
        bed.finish("retire", GUEST)
        code, said = bed.finish("provision", GUEST, "--network", "none", "--memory", "2G")
        if code:
            raise RuntimeError(f"provision: exit {code}: {said[-800:]}")
        bed.inside(SMALL_DISK)
        steps = soak.learn()
        (folder / "steps.json").write_text(json.dumps(steps, indent=1) + "\n")
        done = len(rows.read_text().splitlines()) if rows.exists() else 0
        for row in plan(steps, ROUNDS)[done:]:
            found = soak.round(**row)
            with rows.open("a") as stream:
                stream.write(json.dumps(found, sort_keys=True) + "\n")
            print(
                f"{row['number'] + 1}/{ROUNDS} {found['kind']} {found['fault']} at {found['struck']!r}: {found['after_cut']}, then {found['end']}",
                flush=True,
            )
    finally:
        bed.finish("retire", GUEST)
    for name in ("rounds.jsonl", "steps.json"):
        (raw / name).write_bytes((folder / name).read_bytes())


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=places.REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def figures(raw: Path) -> dict[str, Any]:
    """Out of the rounds alone."""
    rows = [json.loads(line) for line in (raw / "rounds.jsonl").read_text().splitlines()]
    steps = json.loads((raw / "steps.json").read_text())
    cut = {(row["kind"], row["step"]) for row in rows if row["step"] and row["struck"]}
    wanted = {(kind, step) for kind, names in steps.items() for step in names}
    count = max(len(rows), 1)
    between = [row for row in rows if row["after_cut"] == "between"]
    return {
        "rounds": len(rows),
        "cut": sum(
            bool(row["struck"]) or row["exit"] == KILLED for row in rows
        ),  # a random moment may lie behind the run's end: such a round is none
        "faults": {fault: sum(row["fault"] == fault and bool(row["struck"]) for row in rows) for fault in FAULTS},
        "after_cut": {place: sum(row["after_cut"] == place for row in rows) for place in ("old", "new", "between")},
        "steps": len(wanted),
        "steps_not_cut": len(wanted - cut),
        "ends_in_one_of_two_states": sum(row["end"] in (row["old"], row["new"]) for row in rows) / count,
        "healed": sum(row["end"] == row["wanted"] and not row["open_after"] for row in rows) / count,
        "healed_at_once": sum(row["tries"] == 1 for row in rows) / count,
        "receipts_that_lied": sum(bool(row["lies"]) for row in rows),
        "between_without_a_receipt": sum("deploy.json" not in row["receipts"] for row in between),
        "ticks_lost_behind_a_checkpoint": sum((row["tick"] or 0) < row["saved"] or bool(row["set_aside"]) for row in rows),
        "second_runs_that_changed": sum(row["second"] != [0, "0"] for row in rows if "second" in row),
        "left_behind_at_the_end": len(rows[-1]["left"]) if rows else 0,
        "median_round_s": sorted(row["seconds"] for row in rows)[len(rows) // 2] if rows else 0.0,
    }
