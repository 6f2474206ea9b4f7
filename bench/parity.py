# SPDX-License-Identifier: Apache-2.0
"""Bit-exactness on a card: state hashes inside the production window, equal on 1, 2, 3, 7 threads and CUDA; thirds across backends.

Needs a card, and a release with the cuda feature: FLY_RELEASE names its tar (else it is built). Figures are counts and 0/1 flags.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from flyops.operations import build, connectome
from flyops.operations import release as releases

SYNTH = "synth:139255:2700513"
RUNS = {
    "circuit_every_tick": (
        "circuit668",
        ["--ticks", "10000", "--every", "1", "--threads", "1,2,3,7", "--min-spikes", "10000", "--min-undriven", "3000"],
    ),
    "synth_every_tick": (SYNTH, ["--ticks", "1000", "--every", "1", "--threads", "1,2,3,7"]),
    "synth_every_window": (SYNTH, ["--ticks", "10000", "--every", "18", "--threads", "2,7"]),
}
GOALS = {
    **{f"{name}_equal": ("==", True) for name in RUNS},
    "circuit_every_tick_spikes": (">=", 10_000),
    "circuit_every_tick_undriven": (">=", 3_000),
    "thirds_equal": ("==", True),
    "thirds_least_spikes": (">=", 1),
}


def measure(raw: Path) -> None:
    """Runs flysim compare and flysim thirds; keeps what they print."""
    given = os.environ.get("FLY_RELEASE", "")
    release = releases.open_tar(given) if given else build.build(cuda=True)
    flysim = str(release.binary)
    for name, (brain, words) in RUNS.items():
        file = str(connectome.make(os.environ.get(f"FLY_BRAIN_{brain.split(':')[0].upper()}", brain), release.binary).path)
        _keep(raw / f"{name}.txt", [flysim, "compare", file, "--cuda", *words])
        if brain == "circuit668":
            _keep(raw / "thirds.txt", [flysim, "thirds", file, "--ticks", "3001", "--backends", "cpu,cuda,cpu"])
    (raw / "version.txt").write_text(subprocess.run([flysim, "--version"], capture_output=True, text=True, check=True).stdout)


def _keep(path: Path, command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    path.write_text(f"{done.stdout.rstrip()}\n")
    print(f"{path.stem}: exit {done.returncode}\n{done.stdout}", flush=True)


def _last(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text().strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return found


def figures(raw: Path) -> dict[str, Any]:
    """Flags and counts out of the last line of each run."""
    out: dict[str, Any] = {}
    for name in RUNS:
        seen = _last(raw / f"{name}.txt")
        runs = seen.get("runs", [])
        out[f"{name}_equal"] = bool(seen.get("ok")) and not seen.get("differences") and "cuda" in [run.get("backend") for run in runs]
        out[f"{name}_spikes"] = seen.get("spikes", 0)
        out[f"{name}_undriven"] = seen.get("undriven_spikes", 0)
        out[f"{name}_threads"] = [run.get("threads") for run in runs if run.get("backend") == "cpu"]
    thirds = _last(raw / "thirds.txt")
    parts = thirds.get("parts", [])
    out["thirds_equal"] = (
        bool(thirds.get("ok")) and all(part["inside_window"] for part in parts[:2]) and [part["backend"] for part in parts] == ["cpu", "cuda", "cpu"]
    )
    out["thirds_least_spikes"] = min((part["spikes"] for part in parts), default=0)
    return out
