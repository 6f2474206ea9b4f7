# SPDX-License-Identifier: Apache-2.0
"""From the CPU to the GPU through the five checks and back by receipt, again and again (root, LXC, a card): two states, and nothing between them.

CPU_RELEASE and CUDA_RELEASE name the releases, ROOTFS a root file system; SWITCHES (30), FLY_BRAIN, THREADS (8), CPUS (0-15). It ends after SWITCHES_BUDGET_S
(420) and goes on where an earlier one ended when that one's records/switches/ was brought along as .lab/switches/ or SWITCHES_KEPT. Below
`python -m tests.beds.doublecard` it is a rehearsal on a small brain.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from flyops import places
from tests.beds import doublecard
from tests.beds.cutbed import LOOK, identity, lies
from tests.beds.job import Job, release_words

GUEST = "switch1"
DOUBLE = bool(os.environ.get("DOUBLECARD_INSIDE"))
SWITCHES = int(os.environ.get("SWITCHES", "30"))
BUDGET_S = float(os.environ.get("SWITCHES_BUDGET_S", "420"))
BRAIN = os.environ.get("FLY_BRAIN", "synth:4000:80000" if DOUBLE else "synth:139255:2700513")
THREADS, GPU_THREADS = int(os.environ.get("THREADS", "2" if DOUBLE else "8")), 1
CPUS = os.environ.get("CPUS", "" if DOUBLE else "0-15")
TRIES = 6 if DOUBLE else 1
KEPT = Path(os.environ.get("SWITCHES_KEPT", places.REPOSITORY / ".lab/switches"))
# Short windows: what is proved here is that each switch ends where it should, not what it costs.
SHORT = ("check_warmup_s=1", "check_window_s=5", "check_ticks=1000", "check_thirds_ticks=1003", "fly_checkpoint_s=2")
GOALS = {
    "switches": (">=", 30),
    "cpu_states": ("==", 1),
    "gpu_states": ("==", 1),
    "five_checks_passed": ("==", 1.0),
    "backends_as_wanted": ("==", 1.0),
    "receipts_as_wanted": ("==", 1.0),
    "receipts_that_lied": ("==", 0),
    "ticks_never_went_back": ("==", True),
}


def look(job: Job) -> dict[str, Any]:
    """One state: its digest, and what tells whether it is the right one."""
    found: dict[str, Any] = json.loads(job.inside("python3", "-I", "-c", LOOK).splitlines()[-1])
    state = hashlib.sha256(json.dumps(identity(found), sort_keys=True).encode()).hexdigest()[:16]
    return {"state": state, "receipts": sorted(found["receipts"]), "lies": lies(found), **found["status"], "cpus": found["sim"].get("cpus")}


def verdicts(folder: Path) -> list[str]:
    """Of the newest report: the five checks in their order."""
    rows = {row["check"]: row["verdict"] for row in json.loads(max(folder.glob("*.json")).read_text())["checks"]}
    return [rows.get(name, "") for name in ("feature", "card", "ptx", "bitexact", "cost")]


def measure(raw: Path) -> None:
    """Switches until there are enough, or the time is spent."""
    began = time.monotonic()
    rows = raw / "switches.jsonl"
    rows.write_bytes((KEPT / rows.name).read_bytes() if (KEPT / rows.name).exists() else b"")
    job = Job(raw, GUEST)
    given = [
        word for text in (f"fly_connectome={BRAIN}", f"rayon_threads={THREADS}", f"rayon_threads_gpu={GPU_THREADS}", *SHORT) for word in ("-e", text)
    ]
    limits = ["--network", "none", "--memory", "2G" if DOUBLE else "16G", *(["--cpus", CPUS] if CPUS else [])]
    rootfs = ["--rootfs", os.environ["ROOTFS"]] if os.environ.get("ROOTFS") else []
    try:
        job.fly("provision", GUEST, *rootfs, *limits, "--gpu")
        if DOUBLE:
            doublecard.into_guest(GUEST)
        # Both releases first, so that every state after them has the same one to go back to.
        job.fly("deploy", "--limit", GUEST, *given, *release_words("CPU_RELEASE"))
        job.fly("deploy", "--limit", GUEST, *given, *release_words("CUDA_RELEASE"))
        done = len(rows.read_text().splitlines())
        for number in range(done, SWITCHES):
            if time.monotonic() - began > BUDGET_S:
                break
            report = raw / "reports" / f"{number:02}"
            words = ["deploy", "--gpu", "--limit", GUEST, *given, *release_words("CUDA_RELEASE"), "--record", str(report)]
            # A machine that others use may not hold real time for five seconds: a rehearsal asks again, a proof does not.
            tries = next(tries for tries in range(1, TRIES + 1) if job.fly(*words, code=None if tries < TRIES else 0) and job.code == 0)
            gpu_s, gpu, five = job.seconds, look(job), verdicts(report)
            job.fly("rollback-cpu", "--limit", GUEST, *given)
            row = {"number": number, "five": five, "tries": tries, "gpu_s": gpu_s, "gpu": gpu, "cpu_s": job.seconds, "cpu": look(job)}
            with rows.open("a") as stream:
                stream.write(json.dumps(row, sort_keys=True) + "\n")
    finally:
        job.fly("retire", GUEST, code=None)


def figures(raw: Path) -> dict[str, Any]:
    """Out of the rows alone."""
    rows = [json.loads(line) for line in (raw / "switches.jsonl").read_text().splitlines()]
    count = max(len(rows), 1)
    return {
        "switches": len(rows),
        "cpu_states": len({row["cpu"]["state"] for row in rows}),
        "gpu_states": len({row["gpu"]["state"] for row in rows}),
        "five_checks_passed": sum(row["five"] == ["passed"] * 5 for row in rows) / count,
        "backends_as_wanted": sum((row["gpu"]["backend"], row["cpu"]["backend"]) == ("cuda", "cpu") for row in rows) / count,
        "receipts_as_wanted": sum((row["gpu"]["receipts"], row["cpu"]["receipts"]) == (["gpu.json"], []) for row in rows) / count,
        "refused_on_the_way": sum(row["tries"] - 1 for row in rows),
        "receipts_that_lied": sum(len(row["gpu"]["lies"]) + len(row["cpu"]["lies"]) for row in rows),
        # A fresh guest begins a brain of its own: within a row the state goes on.
        "ticks_never_went_back": bool(rows) and all(0 < row["gpu"]["tick"] < row["cpu"]["tick"] for row in rows),
        "median_gpu_s": sorted(row["gpu_s"] for row in rows)[len(rows) // 2] if rows else 0.0,
    }
