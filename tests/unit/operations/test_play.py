# SPDX-License-Identifier: Apache-2.0
"""`invoke play FILE`: what is typed, what is only looked at, exit codes."""

from __future__ import annotations

import io
import os
import re
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
    options = PlayOptions(files[0], Target(inventory=(files[1],)), syntax_check=True, list_hosts=True, list_tasks=True)
    assert operation.run(options) == 0
    assert "1 plays, no error" in capsys.readouterr().out
    assert not (tmp_path / "made").exists()


def test_step_asks_before_each_task_once_and_after_the_one_before(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, bool]] = []

    class Terminal(io.StringIO):
        """Answers each question by what was written last."""

        def readline(self, size: int | None = -1, /) -> str:
            text = capsys.readouterr().out.splitlines()[-1]
            asked.append((text, (tmp_path / "one").exists()))
            return "n\n" if "second" in text else "\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    book = tmp_path / "step.yml"
    lines = [
        f"    - {{name: {name}, command: touch {tmp_path}/{file}}}\n" for name, file in (("first", "one"), ("second", "two"), ("third", "three"))
    ]
    book.write_text("- hosts: w1\n  gather_facts: false\n  tasks:\n" + "".join(lines))

    assert operation.run(PlayOptions(str(book), Target(inventory=(files[1],)), step=True)) == 0

    assert asked == [("w1: first? (Y/n) ", False), ("w1: second? (Y/n) ", True), ("w1: third? (Y/n) ", True)]
    assert [(tmp_path / name).exists() for name in ("one", "two", "three")] == [True, False, True]


def test_step_without_anyone_to_ask_is_a_usage_error(files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UsageError, match="nobody answers"):
        operation.run(PlayOptions(files[0], Target(inventory=(files[1],)), step=True))
    assert not (tmp_path / "made").exists()


def test_stats_are_shown_when_asked(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert operation.run(PlayOptions(files[0], Target(inventory=(files[1],)))) == 0
    assert "round trips" not in capsys.readouterr().out
    assert operation.run(PlayOptions(files[0], Target(inventory=(files[1],)), stats=True)) == 0
    assert "round trips" in capsys.readouterr().out


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


def test_hosts_that_cannot_be_rendered_are_a_usage_error(files: tuple[str, str], tmp_path: Path) -> None:
    book = write(tmp_path, BOOK.replace("FOLDER", str(tmp_path)) + "- hosts: '{{ where }}'\n  tasks: []\n", "two.yml")
    with pytest.raises(LoadError, match="'where' is undefined") as caught:
        operation.run(PlayOptions(str(book), Target(inventory=(files[1],))))
    assert f"{book}:8:10" in str(caught.value)
    assert not (tmp_path / "made").exists()
    assert operation.run(PlayOptions(str(book), Target(inventory=(files[1],), extra=("where=w1",)))) == 0


def test_a_real_terminal_shows_hosts_at_work(files: tuple[str, str], tmp_path: Path) -> None:
    """Under a pseudo terminal: rows with the task and its time while it runs, no markup of ours in what is shown."""
    import pty
    import subprocess
    import sys

    book = write(tmp_path, "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: 'sleeps [x]', command: sleep 1}\n", "slow.yml")
    code = f"from flyops.operations.play import run_playbook; run_playbook({str(book)!r}, inventory={files[1]!r})"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, env={"TERM": "xterm", "PATH": "/usr/bin:/bin"}, cwd=Path(__file__).parents[3]
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # how a pseudo terminal says that the other side is gone
        pass
    assert process.wait() == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert re.search(r"w1  +sleeps \[x\]  +0\.[5-9] s", text)
    assert "[bold]" not in text
    assert "changed: [w2]" in text
