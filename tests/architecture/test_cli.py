# SPDX-License-Identifier: Apache-2.0
"""Exit codes and words of the command line, from `./fly` and from plain `invoke`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyops import bootstrap, cli, errors

ROOT = Path(__file__).resolve().parents[2]


def fly(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "fly"), *words], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def test_no_words_list_the_tasks_from_any_folder(tmp_path):
    done = fly(cwd=tmp_path)

    assert done.returncode == 0
    assert "rollback-cpu" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["nosuch"],
        ["deploy", "--nosuch"],
        ["status", "--forks", "many"],
        ["logs", "--lines", "-1"],
        ["provision"],
        ["--nosuch"],
        ["play", "--help", "nosuch"],
    ],
)
def test_usage_errors_are_2_without_a_traceback(words):
    done = fly(*words)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


@pytest.mark.parametrize("words", [["play", "--help"], ["provision", "--help"], ["play", "site.yml", "--help"], ["--help", "play"]])
def test_help_of_a_task_is_help_and_not_its_first_word(words):
    done = fly(*words)

    assert done.returncode == 0, done.stderr
    assert f"{'provision' if 'provision' in words else 'play'} [--options]" in done.stdout


def test_plain_invoke_keeps_its_own_code_for_an_unknown_task():
    invoke = bootstrap.environment("run").parent / "invoke"

    assert subprocess.run([str(invoke), "nosuch"], cwd=ROOT, capture_output=True, check=False).returncode == 1
    assert subprocess.run([str(invoke), "ptx", "--arch", "nonsense"], cwd=ROOT, capture_output=True, check=False).returncode == 2
    assert subprocess.run([str(invoke), "lint", "--nosuch"], cwd=ROOT, capture_output=True, check=False).returncode == 1
    assert subprocess.run([str(invoke), "--list"], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_an_operation_of_a_bad_word_is_2_with_what_to_do():
    done = fly("ptx", "--arch", "nonsense")

    assert done.returncode == 2
    assert done.stderr.startswith("error: an arch is written sm_90")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.LoadError("x", where="a.yml:1:2"), 2),
        (errors.Refused("x"), 3),
        (errors.ConnectError("x"), 4),
        (errors.ModuleError("x"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_what_an_operation_raises_becomes_its_code(monkeypatch, capsys, xdg, raised, code):
    def broken(options):
        raise raised

    monkeypatch.setattr(cli, "_find", lambda _: broken)

    from invoke.exceptions import Exit

    with pytest.raises(Exit) as caught:
        cli.operation("lint", "LintOptions", {})

    assert caught.value.code == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if isinstance(raised, ZeroDivisionError):
        crash = next((xdg / "state").rglob("*-lint-*.txt"))
        assert str(crash) in said
        assert "ZeroDivisionError" in crash.read_text()


def test_an_operation_that_is_not_there_says_so(monkeypatch, capsys):
    from invoke.exceptions import Exit

    with pytest.raises(Exit) as caught:
        cli.operation("no_such_operation", "LintOptions", {})

    assert caught.value.code == 2
    assert "not built yet" in capsys.readouterr().err


def test_a_closed_pipe_is_no_failure():
    command = f"'{sys.executable}' fly --list | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env={**os.environ}, check=False)

    assert (done.returncode, done.stderr) == (0, "")
