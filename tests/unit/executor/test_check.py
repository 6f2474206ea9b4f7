# SPDX-License-Identifier: Apache-2.0
"""--check and --diff: nothing reaches the disk, later tasks see what earlier ones would have made, secrets never show."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flyops.display.jsonlines import JsonLines
from flyops.display.plain import Plain
from flyops.operations.play import run_playbook
from tests.beds.play import inventory, play, tasks, write


def tree(folder: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.lstat().st_mode, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))]


CHAIN = """
- file: {path: "%(d)s/new/sub", state: directory, mode: '0750'}
- copy: {content: "one\\n", dest: "%(d)s/new/sub/f"}
- lineinfile: {path: "%(d)s/new/sub/f", line: two}
- file: {src: f, dest: "%(d)s/new/sub/link", state: link}
- copy: {src: "%(d)s/new/sub/f", remote_src: true, dest: "%(d)s/new/copy"}
- stat: {path: "%(d)s/new/sub/link", follow: true}
  register: s
- slurp: {src: "%(d)s/new/copy"}
  register: c
- template: {src: t.j2, dest: "%(d)s/new/t"}
- file: {path: "%(d)s/new/t", mode: '0600'}
- file: {path: "%(d)s/there", state: absent}
"""


def test_the_first_check_predicts_the_real_run(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "there").write_text("x")
    write(tmp_path, "v={{ c.content | b64decode }}", "templates/t.j2")
    before = tree(place)
    checked = tasks(tmp_path, CHAIN % {"d": place}, check=True, diff=True)
    assert checked.result.exit_code == 0, [event.result for event in checked.seen.of("result")]
    assert tree(place) == before
    real = tasks(tmp_path, CHAIN % {"d": place})
    assert checked.seen.order() == real.seen.order()
    assert checked.vars()["s"]["stat"]["size"] == real.vars()["s"]["stat"]["size"] == 8
    assert checked.vars()["c"]["content"] == real.vars()["c"]["content"]
    assert (place / "new" / "t").read_text() == "v=one\ntwo\n"
    assert not (place / "there").exists()


def test_a_second_run_changes_nothing_but_what_is_undone(tmp_path: Path) -> None:
    body = f"- file: {{path: {tmp_path}/d, state: directory}}\n- copy: {{content: x, dest: {tmp_path}/d/f}}\n"
    assert tasks(tmp_path, body).stats() == {"ok": 2, "changed": 2}
    assert tasks(tmp_path, body).stats() == {"ok": 2}
    assert tasks(tmp_path, body, check=True).stats() == {"ok": 2}


def test_commands_in_check_mode(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    found = tasks(
        tmp_path,
        f"""
        - command: touch {tmp_path}/never
          register: a
          changed_when: nope_not_evaluated.x
          failed_when: nope_not_evaluated.x
          vars: {{nope_not_evaluated: 1}}
        - command: touch {tmp_path}/never
          args: {{creates: {tmp_path}/absent}}
          register: b
        - command: touch {tmp_path}/never
          args: {{creates: {tmp_path}/there}}
          register: c
        - command: touch {tmp_path}/made
          check_mode: false
        """,
        check=True,
    )
    a, b, c = (found.vars()[name] for name in "abc")
    assert (a["skipped"], a["rc"], a["stdout"]) == (True, 0, "")
    assert (b["changed"], b.get("skipped", False)) == (True, False)
    assert (c["changed"], c["failed"]) == (False, False)
    assert not (tmp_path / "never").exists()
    assert (tmp_path / "made").exists()


def test_a_checked_task_in_a_real_run(tmp_path: Path) -> None:
    found = tasks(tmp_path, f"- copy: {{content: x, dest: {tmp_path}/f}}\n  check_mode: true\n- stat: {{path: {tmp_path}/f}}\n  register: s\n")
    assert found.seen.order() == ["copy:changed", "stat:ok"]
    assert found.vars()["s"]["stat"]["exists"] is False
    assert not (tmp_path / "f").exists()


def test_diffs_are_shown_and_say_a_missing_newline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text("a\nb")
    book = write(
        tmp_path, f"- hosts: all\n  gather_facts: false\n  tasks:\n    - copy: {{content: 'a\n\n        c', dest: {tmp_path}/f, mode: '0600'}}\n"
    )
    run_playbook(book, inventory=inventory(), diff=True, check=True, display="plain")
    out = capsys.readouterr().out
    assert "-b\n\\ No newline at end of file\n" in out
    assert "+c\n\\ No newline at end of file\n" in out
    assert "0600" in out


SECRET = "hunter2-and-more"


def leaks(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], **options: object) -> str:
    """All that the displays say of a run."""
    book = write(tmp_path, text)
    shown = ""
    for display in ([Plain(verbose=True)], [JsonLines()]):
        run_playbook(book, inventory=inventory(), display=display, diff=True, verbose=True, **options)  # type: ignore[arg-type]
        shown += capsys.readouterr().out
    return shown


def test_secrets_are_masked_by_value_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"""
    - hosts: all
      gather_facts: false
      secret_vars: [password, derived]
      vars:
        password: {SECRET}
        derived: "x-{{{{ password }}}}-y"
      tasks:
        - name: said {{{{ password }}}}
          debug: {{msg: "it is {{{{ password }}}}"}}
        - command: echo {{{{ password }}}}
          register: r
        - debug: {{var: r}}
        - copy: {{content: "a {{{{ password }}}}\\n", dest: {tmp_path}/f}}
        - copy: {{content: "b {{{{ derived }}}}\\n", dest: {tmp_path}/f}}
        - command: echo {{{{ item }}}}
          loop: ["{{{{ password }}}}"]
        - fail: {{msg: "no {{{{ password }}}}"}}
    """
    shown = leaks(tmp_path, text, capsys)
    assert SECRET not in shown
    assert shown.count("********") > 10
    assert SECRET in (tmp_path / "f").read_text()


def test_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"""
    - hosts: all
      gather_facts: false
      tasks:
        - command: echo {SECRET}
          no_log: true
          register: r
        - command: echo {{{{ item }}}}
          loop: ["{SECRET}"]
          no_log: true
        - debug: {{msg: "again {{{{ r.stdout }}}}"}}
        - command: test {{{{ r.stdout }}}} = {SECRET}
          register: t
        - copy: {{content: "{SECRET}", dest: {tmp_path}/f}}
          no_log: true
        - command: sh -c 'echo {SECRET}; exit 1'
          no_log: true
          ignore_errors: true
    """
    shown = leaks(tmp_path, text, capsys)
    shown_lines = [line for line in shown.splitlines() if SECRET in line]
    assert not shown_lines
    assert "(item=(censored due to no_log))" in shown
    assert "no_log: true" in shown
    found = play(tmp_path, text)
    assert found.vars()["r"]["stdout"] == SECRET  # the registered value stays usable
    assert found.vars()["t"]["rc"] == 0


def test_secret_arguments_are_masked(tmp_path: Path) -> None:
    """An argument that the module declares secret: uri's password."""
    found = tasks(
        tmp_path,
        f"- uri: {{url: 'http://127.0.0.1:1/', url_username: me, url_password: {SECRET}}}\n  ignore_errors: true\n- debug: {{msg: 'is {SECRET}'}}\n",
    )
    assert found.seen.result("debug")["msg"] == "is ********"


def test_a_refusal_is_exit_code_three(tmp_path: Path) -> None:
    """The lock of another run is a gate: refused, and not a failure like any other."""
    import subprocess
    import sys

    lock = tmp_path / "lock"
    code = f"from flyops.agent.host import RealHost; import sys; h = RealHost(); h.hold_lock({str(lock)!r}, 'other run', 0); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert holder.stdout
    assert holder.stdin
    try:
        assert holder.stdout.readline() == b"held\n"
        body = f"- lock: {{path: {lock}, holder: mine}}\n  changed_when: false\n- command: touch {tmp_path}/never\n"
        found = tasks(tmp_path, body)
        assert found.result.exit_code == 3
        assert found.stats() == {"failed": 1, "refused": 1}
        assert "other run" in found.result.hosts["h1"].message
        assert not (tmp_path / "never").exists()
        holder.stdin.close()
        holder.wait()
        assert tasks(tmp_path, body).result.exit_code == 0
    finally:
        holder.kill()
        holder.wait()


def test_the_lock_is_held_for_the_whole_play(tmp_path: Path) -> None:
    """The agent lives as long as the play, and the lock with it."""
    body = f"- lock: {{path: {tmp_path}/lock, holder: mine}}\n- command: cat {tmp_path}/lock\n  register: r\n- command: flock -n {tmp_path}/lock true\n  register: f\n  failed_when: f.rc == 0\n"
    found = tasks(tmp_path, body)
    assert found.result.exit_code == 0, found.seen.order()
    assert found.vars()["r"]["stdout"] == "mine"
    assert os.system(f"flock -n {tmp_path}/lock true") == 0


def test_json_events_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = write(tmp_path, "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: t\n      command: echo\n")
    run_playbook(book, inventory=inventory(), display="json")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["kind"] for event in events] == ["play", "start", "task", "result", "stats"]
    assert events[3]["host"] == "h1"
    assert events[3]["status"] == "changed"
    assert events[3]["where"].endswith("play.yml:4:7")
    assert events[-1]["result"]["h1"]["changed"] == 1


def test_non_utf8_output_is_no_failure(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- shell: printf 'a\\377b\\n'\n  register: r\n")
    assert found.result.exit_code == 0
    assert found.vars()["r"]["rc"] == 0
    assert found.vars()["r"]["stdout"].startswith("a")
