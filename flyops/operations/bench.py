# SPDX-License-Identifier: Apache-2.0
"""`invoke bench NAME` measures and writes a record; `invoke records` recomputes every figure of every record from its raw samples.

A bench is one file, bench/NAME.py: `GOALS` (figure -> (comparison, value)), `measure(raw)` writes raw samples into a folder, `figures(raw)`
computes the figures from that folder alone. Only benches write records, so nobody can type one in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import operator
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from flyops import __version__, places
from flyops.errors import EXIT_FAILED, EXIT_OK, UsageError
from flyops.operations import card
from flyops.operations.options import BenchOptions
from flyops.operations.release import scratch

FOLDER = places.REPOSITORY / "bench"
RECORDS = FOLDER / "records"
COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">=": operator.ge, ">": operator.gt}


def names() -> list[str]:
    """The benches there are."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def load(name: str) -> ModuleType:
    """The bench of that name."""
    if name not in names():
        raise UsageError(f"no bench is called {name!r}", fix=f"there are: {', '.join(names())}")
    spec = importlib.util.spec_from_file_location(f"flyops_bench_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge(figures: dict[str, Any], goals: dict[str, Any]) -> dict[str, bool]:
    """Whether each goal is met by its figure; a figure that is missing meets nothing."""
    return {name: name in figures and COMPARISONS[how](figures[name], wanted) for name, (how, wanted) in goals.items()}


def machine() -> dict[str, Any]:
    """What it was measured on, in words that say nothing of where it stands."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.machine(),
    )
    here = card.this_machine()
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    found: dict[str, Any] = {"cpu": model, "cpus": os.cpu_count(), "memory_gib": round(memory / (1 << 20)), "kernel": platform.release()}
    return {**found, "card": here.name, "driver": here.driver} if here else found


def commit() -> str:
    """The commit that was measured; FLYOPS_COMMIT where the history did not travel along."""
    given = os.environ.get("FLYOPS_COMMIT", "")
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=places.REPOSITORY, capture_output=True, text=True, check=False)
    return given or done.stdout.strip() or "unknown"


def run(options: BenchOptions) -> int:
    """Measures, writes bench/records/NAME.json with the raw samples beside it; the last line is one JSON object."""
    module = load(options.name)
    out = Path(options.out) if options.out else RECORDS
    out.mkdir(parents=True, exist_ok=True)
    with scratch(out / options.name) as raw:
        module.measure(raw)
        record = describe(options.name, module, raw)
        shutil.rmtree(out / options.name, ignore_errors=True)
        shutil.copytree(raw, out / options.name)
    (out / f"{options.name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    line = {name: record[name] for name in ("name", "machine", "figures", "goals", "met")}
    print(json.dumps(line), flush=True)
    return EXIT_OK if all(record["met"].values()) else EXIT_FAILED


def describe(name: str, module: ModuleType, raw: Path) -> dict[str, Any]:
    """The record of a folder of raw samples."""
    figures = module.figures(raw)
    files = {path.relative_to(raw).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(raw.rglob("*")) if path.is_file()}
    versions = {"flyops": __version__, "python": platform.python_version(), **getattr(module, "versions", dict)()}
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    goals = {key: list(goal) for key, goal in module.GOALS.items()}
    return {
        "name": name, "date": date, "commit": commit(), "versions": versions, "machine": machine(),
        "figures": figures, "goals": goals, "met": judge(figures, module.GOALS), "raw": files,
    }  # fmt: skip


def check(record_file: Path) -> list[str]:
    """What is wrong with a record; empty when raw samples, figures and verdicts agree."""
    record = json.loads(record_file.read_text())
    raw = record_file.parent / record_file.stem
    problems = []
    for path, wanted in record["raw"].items():
        found = hashlib.sha256((raw / path).read_bytes()).hexdigest() if (raw / path).is_file() else "nothing"
        if found != wanted:
            problems.append(f"{raw / path}: expected sha256 {wanted}, found {found}")
    if problems:
        return problems
    module = load(record["name"])
    figures = json.loads(json.dumps(module.figures(raw)))
    problems += [
        f"{record_file}: {name}: the record says {record['figures'].get(name)}, the raw samples {figures.get(name)}"
        for name in sorted({*figures, *record["figures"]})
        if figures.get(name) != record["figures"].get(name)
    ]
    if judge(figures, module.GOALS) != record["met"]:
        problems.append(f"{record_file}: met: the record says {record['met']}, the figures {judge(figures, module.GOALS)}")
    return problems


def run_records() -> int:
    """`invoke records`: one line a record."""
    code = EXIT_OK
    for path in sorted(RECORDS.glob("*.json")):
        problems = check(path)
        met = json.loads(path.read_text())["met"]
        print(f"{path.stem}: {'figures agree with their raw samples' if not problems else 'WRONG'}, goals met {sum(met.values())} of {len(met)}")
        for problem in problems:
            sys.stderr.write(f"  {problem}\n")
            code = EXIT_FAILED
    return code
