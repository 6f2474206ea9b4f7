# SPDX-License-Identifier: Apache-2.0
"""`invoke play FILE`: what is typed, what is only looked at, exit codes."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from flyops.errors import LoadError, UsageError
from flyops.operations import play as operation
from flyops.operations.options import PlayOptions, Target
from tests.beds.play import write

BOOK = """
- name: first
  hosts: web
  gather_facts: false
  tasks:
    - {name: a, debug: {msg: "{{ v | default('none') }}"}, tags: x}
    - {name: b, command: touch FOLDER/made}
"""
HOSTS = "web: {hosts: {w1: {ansible_connection: local}, w2: {ansible_connection: local}}}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return str(write(tmp_path, BOOK.replace("FOLDER", str(tmp_path)))), str(write(tmp_path, HOSTS, "hosts.yml"))


def test_a_run(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = PlayOptions(files[0], Target(inventory=(files[1],), limit="w2", extra=("v=typed",)))
    assert operation.run(options) == 0
    out = capsys.readouterr().out
    assert "PLAY [first]" in out
    assert "ok: [w2]\n  typed\n" in out
    assert "w2 : ok=2    changed=1    unreachable=0    failed=0" in out
    assert "w1" not in out
    assert (tmp_path / "made").exists()


def test_tags_check_and_json(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert operation.run(PlayOptions(files[0], Target(inventory=(files[1],), json=True), tags="x")) == 0
    assert operation.run(PlayOptions(files[0], Target(inventory=(files[1],), check=True), skip_tags="x", start_at_task="b")) == 0
    assert not (tmp_path / "made").exists()
    assert '"kind": "stats"' in capsys.readouterr().out


def test_looks_change_nothing(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    playbook, _ = operation.load_playbook(files[0], operation.as_inventory(files[1]), {})
    assert operation.list_tasks(playbook) == ["play #1 (first)", "  a  TAGS: [x]", "  b"]
    assert operation.list_tasks(playbook, ["x"]) == ["play #1 (first)", "  a  TAGS: [x]"]
    assert operation.list_hosts(playbook, operation.as_inventory(files[1]), "w1", {}) == ["play #1 (first): 1 hosts", "  w1"]
    options = types.SimpleNamespace(
        file=files[0], target=Target(inventory=(files[1],)), tags="", skip_tags="", start_at_task="", syntax_check=True, list_hosts=True, list_tasks=True
    )
    assert operation.run(options) == 0  # type: ignore[arg-type]
    assert "1 plays, no error" in capsys.readouterr().out
    assert not (tmp_path / "made").exists()


def test_usage_errors(files: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such playbook"):
        operation.run(PlayOptions(str(tmp_path / "absent.yml"), Target(inventory=(files[1],))))
    with pytest.raises(UsageError, match="leaves no hosts"):
        operation.run(PlayOptions(files[0], Target(inventory=(files[1],), limit="nope")))
    with pytest.raises(UsageError, match="-e"):
        operation.run(PlayOptions(files[0], Target(inventory=(files[1],), extra=("x",))))
    assert not (tmp_path / "made").exists()


def test_the_live_display_shows_the_same_words(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    operation.run_playbook(files[0], inventory=files[1], display="live")
    out = capsys.readouterr().out
    for part in ("TASK [a]", "changed: [w2]", "RECAP"):
        assert part in out
