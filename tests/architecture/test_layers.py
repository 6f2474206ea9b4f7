# SPDX-License-Identifier: Apache-2.0
"""The arrows of ARCHITECTURE.md: kept now, and each contract fails when its rule is broken."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).parent / "lint-imports"
TRAVELS = ("agent", "modules", "domain", "spec", "model")
TRAVELLING = [ROOT / "flyops/errors.py", *(path for room in TRAVELS for path in sorted((ROOT / "flyops" / room).rglob("*.py")))]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT), "--no-cache", "--config", str(folder / "pyproject.toml")], cwd=folder, capture_output=True, text=True, check=False
    )


def test_contracts_are_kept():
    done = lint(ROOT)

    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("model/host.py", "import flyops.executor", "one direction only"),
        ("modules/stat.py", "import yaml", "standard library only"),
        ("domain/ptx.py", "import subprocess", "no input or output"),
        ("modules/stat.py", "import flyops.modules.copy", "never imports another"),
        ("transport/__init__.py", "import flyops.operations.build", "knows no operation"),
    ],
)
def test_a_contract_fails_when_its_rule_is_broken(tmp_path, file, line, contract):
    shutil.copytree(ROOT / "flyops", tmp_path / "flyops", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    broken = tmp_path / "flyops" / file
    broken.write_text(f"{broken.read_text()}\n{line}\n")

    done = lint(tmp_path)

    assert done.returncode != 0
    assert any(contract in text and "BROKEN" in text for text in done.stdout.splitlines()), done.stdout


@pytest.mark.parametrize("path", TRAVELLING, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_travels_reads_on_python_3_8_and_imports_the_standard_library_only(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))

    for node in ast.walk(tree):
        names = (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
        for name in names:
            top = name.partition(".")[0]
            assert top == "flyops" or top in sys.stdlib_module_names, f"{path.name}: imports {name}"


def old_pythons() -> list[str]:
    """Interpreters that targets may have, as far as this machine has them beside its own."""
    return [str(path) for minor in (8, 9, 10) for path in Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3")]


@pytest.mark.skipif(not old_pythons(), reason="no older Python here")
@pytest.mark.parametrize("python", old_pythons())
def test_what_travels_imports_on_the_oldest_pythons(python):
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TRAVELLING if path.stem not in {"__init__", "__main__"}]
    code = f"import sys, importlib; sys.path.insert(0, {str(ROOT)!r})\nfor name in {names!r}: importlib.import_module(name)"

    done = subprocess.run([python, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
