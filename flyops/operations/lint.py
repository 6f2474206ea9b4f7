# SPDX-License-Identifier: Apache-2.0
"""Style, types, layers and tidiness, of Python and Rust; the same as CI runs. Each fault with the command that mends it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from flyops import bootstrap, places
from flyops.errors import UsageError
from flyops.operations import needs
from flyops.operations.options import LintOptions


def run(options: LintOptions) -> int:
    """`invoke lint`: every check runs, then the ones that failed are named."""
    steps = [*(_python(fix=options.fix) if options.python else []), *(_rust(fix=options.fix) if options.rust else [])]
    failed = []
    # One target folder for all clones: the second one compiles only what is ours.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(places.cache("builds", "target"))}
    for name, command, folder in steps:
        print(f"== {name}", flush=True)
        if subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False).returncode:
            failed.append(name)
    print(f"lint: {len(steps) - len(failed)} of {len(steps)} checks passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def developer_python() -> Path:
    """The interpreter of the developers' environment, made on first use."""
    try:
        return bootstrap.environment("dev")
    except bootstrap.BootstrapError as error:
        raise UsageError(str(error)) from error


def _python(*, fix: bool) -> list[tuple[str, list[str], Path]]:
    root, tools = places.REPOSITORY, developer_python().parent
    python = str(tools / "python")
    return [
        ("ruff check", [str(tools / "ruff"), "check", "--quiet", *(["--fix"] if fix else [])], root),
        ("ruff format", [str(tools / "ruff"), "format", "--quiet", *([] if fix else ["--check"])], root),
        ("mypy --strict", [str(tools / "mypy")], root),
        ("import-linter", [str(tools / "lint-imports"), "--no-cache"], root),
        ("tidy", [python, "tools/tidy.py"], root),
        ("docs", [python, "tools/docs.py", *([] if fix else ["--check"])], root),
    ]


def _rust(*, fix: bool) -> list[tuple[str, list[str], Path]]:
    cargo = needs.program("cargo", "lint flysim")
    folder = places.REPOSITORY / "flysim"
    clippy = [cargo, "clippy", "--workspace", "--all-targets", "--locked", "--quiet"]
    return [
        ("cargo fmt", [cargo, "fmt", "--all", *([] if fix else ["--check"])], folder),
        ("cargo clippy", [*clippy, "--", "-D", "warnings"], folder),
        ("cargo clippy, cuda", [*clippy, "--features", "flysim/cuda", "--", "-D", "warnings"], folder),
    ]
