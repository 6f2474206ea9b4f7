# SPDX-License-Identifier: Apache-2.0
"""Case 70: no code path writes under /sys/devices/system/cpu/*/cpufreq. The speed of a machine is its owner's; we print the governor at most."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"cpufreq|scaling_|cpupower|governor", re.IGNORECASE)
WRITES = {
    "write_text",
    "write_bytes",
    "run",
    "symlink",
    "link",
    "rename",
    "remove",
    "mknod",
    "chmod",
    "open",
    "write",
    "system",
    "Popen",
    "call",
    "check_call",
}
# Where the tables of a module's own documentation and its results may say the word.
DATA = [
    *(ROOT / "playbooks").rglob("*.yml"),
    *(ROOT / "templates").iterdir(),
    *(ROOT / "flysim" / "crates").rglob("*.rs"),
    ROOT / "fly",
    ROOT / "tasks.py",
]


def writers(source: str) -> list[str]:
    """Functions of a Python text that name the frequency files and also call something that can write."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str) and n is not _docstring(node)]
            calls = {_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
            if any(NAMED.search(text) for text in texts) and calls & WRITES:
                found.append(node.name)
    return found


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    first = node.body[0]
    return first.value if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def test_case_70_no_function_writes_a_frequency_file():
    assert {path.name: writers(path.read_text()) for path in (ROOT / "flyops").rglob("*.py") if writers(path.read_text())} == {}


def test_case_70_no_playbook_template_or_program_names_one():
    assert [str(path) for path in DATA if path.is_file() and re.search(r"cpufreq|scaling_governor|cpupower", path.read_text())] == []


def test_case_70_reading_is_where_it_should_be():
    """Two-sided: the module that prints the governor is seen by the pattern, so a writer there would be, too."""
    assert [path.name for path in (ROOT / "flyops").rglob("*.py") if "cpufreq" in path.read_text()] == ["cpuset.py"]


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("def f(host):\n    host.write_text('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor', 'performance')\n", ["f"]),
        ("def f(host):\n    host.run(['tee', f'{root}/cpufreq/scaling_max_freq'], stdin=b'1')\n", ["f"]),
        ("def f(host):\n    host.run(['cpupower', 'frequency-set'])\n", ["f"]),
        ("def f(host):\n    return host.read_text('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor')\n", []),
        ("def f(host):\n    '''Never cpufreq.'''\n    host.run(['ls'])\n", []),
    ],
    ids=["write", "tee", "cpupower", "read", "docstring"],
)
def test_a_writer_would_be_seen(source, caught):
    assert writers(source) == caught
