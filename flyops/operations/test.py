# SPDX-License-Identifier: Apache-2.0
"""All tests: cargo's, then pytest's; counts the ones that ran in a real guest and fails below the committed minimum."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from flyops import places
from flyops.operations import needs
from flyops.operations.lint import developer_python
from flyops.operations.options import TestOptions

COUNTS = "FLY_TEST_COUNTS"  # tests/conftest.py writes how many tests of each marker ran into this file
QUICK = "not slow and not lxc and not root and not gpu and not network"


def run(options: TestOptions) -> int:
    """`invoke test`."""
    failed = []
    ran: dict[str, int] = {}
    if options.rust and not cargo_tests():
        failed.append("cargo test")
    if options.python:
        ok, ran = python_tests(options)
        if not ok:
            failed.append("pytest")
    if failed:
        print(f"test: failed: {', '.join(failed)}")
    # One line for people and for machines; what cargo counted stands above.
    print(f"tests: {ran.get('passed', 0)} passed, {max(ran.get('failed', 0), len(failed))} failed, {ran.get('skipped', 0)} skipped", flush=True)
    return 1 if failed else 0


def cargo_tests() -> bool:
    """Both builds of the workspace."""
    cargo = needs.program("cargo", "test flysim")
    command = [cargo, "test", "--workspace", "--locked", "--quiet"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(places.cache("builds", "target"))}
    folder = places.REPOSITORY / "flysim"
    results = []
    for features in ([], ["--features", "flysim/cuda"]):
        print(f"== {' '.join(command[:3] + features)}", flush=True)
        results.append(subprocess.run([*command, *features], cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0)
    return all(results)


def python_tests(options: TestOptions) -> tuple[bool, dict[str, int]]:
    """pytest over tests/, then the minimums; what ran, by outcome and by marker."""
    python = developer_python()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        command = [str(python), "-m", "pytest", *(["-m", QUICK] if options.quick else []), *(["-k", options.only] if options.only else [])]
        print(f"== {' '.join(['pytest', *command[3:]])}", flush=True)
        code = subprocess.run(
            command, cwd=places.REPOSITORY, env={**os.environ, COUNTS: str(counts)}, stdin=subprocess.DEVNULL, check=False
        ).returncode
        ran = json.loads(counts.read_text()) if counts.exists() else {}
    enough = options.quick or bool(options.only) or report_minimums(ran)
    return code == 0 and enough, ran


def report_minimums(ran: dict[str, int]) -> bool:
    """Prints how many tests of each kind ran; whether that is enough. Where a kind cannot run, the line says so and does not count."""
    wanted = tomllib.loads((places.REPOSITORY / "tests" / "minimums.toml").read_text())
    enough = True
    for kind, minimum in wanted.items():
        here = os.geteuid() == 0 and shutil.which("lxc-start") is not None
        verdict = "ok" if ran.get(kind, 0) >= minimum else "TOO FEW" if here else "not possible here: needs root and lxc"
        print(f"{kind} tests that ran: {ran.get(kind, 0)} (minimum {minimum}): {verdict}", flush=True)
        enough = enough and verdict != "TOO FEW"
    return enough
