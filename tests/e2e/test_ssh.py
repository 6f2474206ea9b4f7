# SPDX-License-Identifier: Apache-2.0
"""Through a real sshd on the loopback: keys are checked, a converged play is a handful of round trips, a lost line is told as such."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops.operations.play import run_playbook
from tests.beds.play import OLD_PYTHON, Played, Recorder, inventory, play, tasks, write
from tests.beds.ssh import Sshd, know, make_key, sshd

PYTHON = str(OLD_PYTHON or "python3")
pytestmark = pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="needs openssh-server")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd", {"XDG_CACHE_HOME": str(tmp_path / "cache")}) as made:
        yield made


def run(server: Sshd, folder: Path, text: str, *, more: dict[str, Any] | None = None, **options: Any) -> Played:
    hosts = inventory({"s1": server.host_vars(**{"ansible_python_interpreter": PYTHON, **(more or {})})})
    return tasks(folder, text, hosts=hosts, **options)


def test_a_converged_play_is_a_handful_of_round_trips(server: Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "\n".join(
        f"- file: {{path: {tmp_path}/d{n}, state: directory, mode: '0750'}}\n- file: {{path: {tmp_path}/d{n}/l, src: ../d0, state: link}}\n- copy: {{content: 'x{n}', dest: {tmp_path}/d{n}/f, mode: '0640'}}"
        for n in range(10)
    )
    first = run(server, tmp_path, body)
    second = run(server, tmp_path, body)
    third = run(server, tmp_path, body, check=True)
    assert first.stats("s1") == {"ok": 30, "changed": 30}
    assert second.stats("s1") == third.stats("s1") == {"ok": 30}
    count = second.result.hosts["s1"].count
    with capsys.disabled():
        print(f"\n30 tasks over ssh: first {first.result.stats_line()}; converged {second.result.stats_line()}; --check {third.result.stats_line()}")
    assert (count.bundles, count.connects) == (0, 1)
    assert count.turns <= 3
    assert count.up_bytes < 10_000
    assert count.down_bytes < 20_000
    assert second.result.seconds < 10


def test_facts_join_the_first_frame(server: Sshd, tmp_path: Path) -> None:
    text = "- hosts: all\n  tasks:\n    - command: 'true'\n    - set_fact: {d: '{{ ansible_facts.system }}'}\n"
    hosts = inventory({"s1": server.host_vars(ansible_python_interpreter=PYTHON)})
    play(tmp_path, text, hosts=hosts)
    found = play(tmp_path, text, hosts=hosts)
    assert found.vars("s1")["d"] == "Linux"
    assert found.result.hosts["s1"].count.turns == 1


def test_an_unknown_key_is_refused(server: Sshd, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    found = run(server, tmp_path, f"- command: touch {tmp_path}/never\n", more={"ansible_ssh_known_hosts_file": str(empty)})
    said = found.seen.result("command")["msg"]
    assert found.result.exit_code == 4
    for part in ("is unknown", str(empty), "SHA256:", f"ssh-keyscan -p {server.port} 127.0.0.1 >> {empty}"):
        assert part in said
    assert not (tmp_path / "never").exists()


def test_a_changed_key_is_refused(server: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    wrong = know(tmp_path, server.port, tmp_path / "other.pub", "wrong_hosts")
    found = run(server, tmp_path, f"- command: touch {tmp_path}/never\n", more={"ansible_ssh_known_hosts_file": str(wrong)})
    said = found.seen.result("command")["msg"]
    assert found.result.exit_code == 4
    for part in ("has CHANGED", str(wrong), f"ssh-keygen -f {wrong} -R", f"[127.0.0.1]:{server.port}"):
        assert part in said
    assert not (tmp_path / "never").exists()


def test_a_new_key_is_taken_when_asked_and_a_changed_one_never(server: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "new" / "known_hosts"
    more = {"ansible_ssh_known_hosts_file": str(known), "flyops_ssh_accept_new": True}
    assert run(server, tmp_path, "- command: 'true'\n", more=more).result.exit_code == 0
    assert known.read_text() == server.known_hosts.read_text()
    assert run(server, tmp_path, "- command: 'true'\n", more={"ansible_ssh_known_hosts_file": str(known)}).result.exit_code == 0
    make_key(tmp_path / "other")
    know(tmp_path / "new", server.port, tmp_path / "other.pub")
    found = run(server, tmp_path, "- command: 'true'\n", more=more)
    assert found.result.exit_code == 4
    assert "has CHANGED" in found.seen.result("command")["msg"]


def test_a_key_that_the_server_does_not_know(server: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    found = run(server, tmp_path, "- command: 'true'\n", more={"ansible_ssh_private_key_file": str(tmp_path / "stranger")})
    assert found.result.exit_code == 4
    assert "ansible_ssh_private_key_file" in found.seen.result("command")["msg"]


def test_no_python_on_the_target(server: Sshd, tmp_path: Path) -> None:
    found = run(server, tmp_path, "- command: 'true'\n", more={"ansible_python_interpreter": "/absent/python3"})
    assert found.result.exit_code == 4
    assert "install python3 (3.8 or newer)" in found.seen.result("command")["msg"]


@pytest.mark.parametrize("size", [0, 1_048_577, 64 * 1_048_576])
def test_files_of_all_sizes(server: Sshd, tmp_path: Path, size: int) -> None:
    source = tmp_path / 'it\'s a "file"'
    source.write_bytes((os.urandom(65536) * (size // 65536 + 1))[:size])
    name = f'{tmp_path}/to it\'s "here"'
    text = "- copy: {src: '{{ from }}', dest: '{{ to }}'}\n  register: r\n- stat: {path: '{{ to }}', checksum_algorithm: sha256}\n  register: s\n"
    found = run(server, tmp_path, text, extra_vars={"from": str(source), "to": name})
    assert found.result.exit_code == 0, found.seen.events
    assert Path(name).stat().st_size == size
    assert hashlib.sha256(Path(name).read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()


def test_five_megabytes_on_both_streams(server: Sshd, tmp_path: Path) -> None:
    found = run(server, tmp_path, "- shell: head -c 5000000 /dev/zero | tr '\\0' a; head -c 5000000 /dev/zero | tr '\\0' b >&2\n  register: r\n")
    result = found.vars("s1")["r"]
    assert (len(result["stdout"]), len(result["stderr"])) == (5_000_000, 5_000_000)


def test_arguments_arrive_verbatim(server: Sshd, tmp_path: Path) -> None:
    text = "- command:\n    argv: [printf, '[%s]', \"it's \\\"q\\\" `id` é\", '', '{{ 5 }}']\n  register: r\n"
    assert run(server, tmp_path, text).vars("s1")["r"]["stdout"] == '[it\'s "q" `id` é][][5]'


def _when_running(marker: Path, act: Any) -> threading.Thread:
    def wait() -> None:
        deadline = time.monotonic() + 20
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_server_that_stops_answering(server: Sshd, tmp_path: Path) -> None:
    """The line does not break, it only falls silent: unreachable within the limit, and the task may have run."""
    marker = tmp_path / "running"
    thread = _when_running(
        marker, lambda: [os.kill(pid, signal.SIGSTOP) for pid in server.children() if "sshd" in Path(f"/proc/{pid}/comm").read_text()]
    )
    started = time.monotonic()
    found = run(server, tmp_path, f"- shell: touch {marker}; sleep 60\n", more={"flyops_silence_s": 7})
    thread.join()
    assert found.result.exit_code == 4
    assert "the task may have run" in found.seen.result("shell")["msg"]
    assert time.monotonic() - started < 30


def test_a_server_that_goes_away_under_a_task(server: Sshd, tmp_path: Path) -> None:
    marker = tmp_path / "running"
    thread = _when_running(
        marker, lambda: [os.kill(pid, signal.SIGKILL) for pid in server.children() if "sshd" in Path(f"/proc/{pid}/comm").read_text()]
    )
    found = run(server, tmp_path, f"- shell: echo $$ > {marker}.pid; touch {marker}; sleep 60\n- command: 'true'\n")
    thread.join()
    assert found.seen.order() == ["shell:unreachable"]
    assert "the task may have run" in found.seen.result("shell")["msg"]
    pid = int(Path(f"{marker}.pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()  # the agent ended what it had started


def test_ten_hosts_at_once(server: Sshd, tmp_path: Path) -> None:
    hosts = inventory({f"s{n}": server.host_vars(ansible_python_interpreter=PYTHON) for n in range(10)})
    book = write(tmp_path, "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: echo {{ inventory_hostname }}\n      register: r\n")
    found = run_playbook(book, inventory=hosts, display=[Recorder()])
    assert [found.hosts[name].vars["r"]["stdout"] for name in found.hosts] == list(found.hosts)
    assert found.exit_code == 0
