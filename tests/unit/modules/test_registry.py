# SPDX-License-Identifier: Apache-2.0
"""What every module owes: documented arguments, examples that hold, fixtures, hostile values, and code that may travel."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops.agent import registry
from flyops.spec import Spec, validate
from flyops.spec.arguments import CONVERT
from flyops.testing.fixtures import load_cases

ROOT = Path(__file__).parents[3]
NAMES = registry.names()
CASES = list(load_cases(ROOT / "tests" / "modules"))
MAX_LINES = 500
REACHES_A_COMMAND = re.compile(r"\bhost\.run\(|\brunning\.|\bdebian\.|\bsystemd\.look")


def source_of(name: str) -> Path:
    """The file of a module."""
    return Path(registry.find(name).__file__)


def test_names_are_unique_with_those_of_the_controller() -> None:
    """A name means one module."""
    both = set(NAMES) & set(registry.names("flyops.planning.actions"))

    assert not both


@pytest.mark.parametrize("name", NAMES)
def test_shape(name: str) -> None:
    """SPEC, read, plan and apply; a docstring for the file, a sentence for the module, help for each argument."""
    module = registry.find(name)
    spec = module.SPEC

    assert isinstance(spec, Spec)
    assert module.__doc__
    assert spec.doc.endswith(".")
    assert all(callable(getattr(module, part)) for part in ("read", "plan", "apply"))
    assert [arg for arg, what in spec.args.items() if not what.help] == []
    assert [arg for arg, what in spec.args.items() if what.kind not in CONVERT] == []


@pytest.mark.parametrize("name", NAMES)
def test_arguments_make_sense(name: str) -> None:
    """Aliases collide with nothing, defaults are among the choices, nothing required has a default, relations name arguments."""
    spec = registry.find(name).SPEC
    spoken = [word for arg, what in spec.args.items() for word in (arg, *what.aliases)]
    related = [n for group in (*spec.exclusive, *spec.required_one_of) for n in group] + [
        n for arg, _, needs in spec.required_if for n in (arg, *needs)
    ]

    assert sorted(spoken) == sorted(set(spoken))
    assert set(related) <= set(spec.args)
    assert not spec.free_form or spec.free_form in spec.args
    for arg, what in spec.args.items():
        assert not (what.required and what.default is not None), arg
        assert what.default is None or not what.choices or what.default in what.choices or what.kind == "list", arg


def example_calls(name: str) -> list[Any]:
    """The arguments of each task in a module's examples that calls this module."""
    tasks = yaml.safe_load(registry.find(name).SPEC.examples or "[]")
    return [task[name] for task in tasks if name in task]


@pytest.mark.parametrize("name", NAMES)
def test_examples_hold(name: str) -> None:
    """There is an example, and each one is accepted by the module's own declaration."""
    spec = registry.find(name).SPEC
    calls = example_calls(name)

    assert calls
    for call in calls:
        args = {spec.free_form: call} if isinstance(call, str) else dict(call or {})
        typed = {key: value for key, value in args.items() if "{{" not in str(value)}
        errors = validate(spec, typed)[1]
        wrong = errors if len(typed) == len(args) else [error for error in errors if "missing" not in error and "required" not in error]
        assert wrong == [], call


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_argument_is_refused_with_the_nearest_word(name: str) -> None:
    """A slip of the pen is told."""
    spec = registry.find(name).SPEC
    known = max(spec.args, key=len)

    errors = validate(spec, {f"{known}x": "1"})[1]

    assert any("unknown argument" in error for error in errors)


@pytest.mark.parametrize("name", NAMES)
def test_has_fixtures_from_both_sides(name: str) -> None:
    """At least one case that is accepted and one that is refused or fails; one that changes unless the module never does."""
    cases = [case.data["expect"] for case in CASES if case.module == name]

    assert any("fails" not in e and "refused" not in e for e in cases), "no case that succeeds"
    assert any("fails" in e or "refused" in e for e in cases), "no case that fails"


@pytest.mark.parametrize("name", [n for n in NAMES if REACHES_A_COMMAND.search(source_of(n).read_text(encoding="utf-8"))])
def test_hostile_values_have_a_case(name: str) -> None:
    """A module that reaches a command or a shell has a fixture with a value that wants to be more than a value."""
    assert any(case.data.get("hostile") or "hostile" in case.source for case in CASES if case.module == name)


def test_every_folder_of_fixtures_belongs_to_a_module() -> None:
    """A fixture without a module would never run."""
    assert {case.module for case in CASES} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_is_small_and_travels(name: str) -> None:
    """At most 500 lines; nothing but the standard library and the rooms below; no other module."""
    path = source_of(name)
    text = path.read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    roots = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    roots |= {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
    ours = {root for root in roots if root.startswith("flyops")}

    assert len(text.splitlines()) <= MAX_LINES
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert {root.split(".")[0] for root in roots - ours} <= set(sys.stdlib_module_names)
    assert all(root.split(".")[1] in ("domain", "spec", "model", "errors") for root in ours), ours


def test_this_file_can_fail() -> None:
    """The pattern that finds modules which reach a command does find them, and not the others."""
    assert REACHES_A_COMMAND.search(source_of("user").read_text(encoding="utf-8"))
    assert not REACHES_A_COMMAND.search(source_of("slurp").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_is_written_for_the_oldest_python(name: str) -> None:
    """The syntax is that of Python 3.8."""
    ast.parse(source_of(name).read_text(encoding="utf-8"), feature_version=(3, 8))


OLD = shutil.which("python3.8", path=os.environ.get("FLYOPS_OLD_PYTHON_DIR") or os.environ.get("PATH"))
IMPORT_ALL = "import sys, importlib; sys.path.insert(0, sys.argv[1]); [importlib.import_module('flyops.modules.' + n) for n in sys.argv[2:]]"


@pytest.mark.skipif(OLD is None or subprocess.run([OLD, "-c", ""], capture_output=True, check=False).returncode != 0, reason="no Python 3.8 here")
def test_is_imported_by_the_oldest_python() -> None:
    """Python 3.8 without site-packages loads every module."""
    files = [source_of(name).stem for name in NAMES]

    done = subprocess.run([str(OLD), "-I", "-S", "-c", IMPORT_ALL, str(ROOT), *files], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
