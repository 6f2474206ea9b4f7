# SPDX-License-Identifier: Apache-2.0
"""A real agent over a pipe: blobs of all sizes, both streams, what happens when an end goes away."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops.errors import ConnectError
from flyops.loading.blobs import Offer
from flyops.model.target import Target
from flyops.transport import connect, guests
from flyops.transport.connect import Pool, become_prefix, command, prefix
from flyops.transport.session import Lost, Sent, Session
from flyops.transport.streams import PipeStream
from tests.beds.play import OLD_PYTHON

HERE = Target("h")
OLD = str(OLD_PYTHON or "absent")


@pytest.fixture
def pool(xdg: Path) -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def ask(pool: Pool, *calls: Sent, target: Target = HERE) -> list[dict[str, Any]]:
    return [result for _, result, _ in pool.session(target).request(calls, lambda number, text: None)]


def shell(text: str, group: int = 1, **more: Any) -> Sent:
    return Sent("shell", {"cmd": text}, group, **more)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid: int, limit_s: float = 5.0) -> bool:
    deadline = time.monotonic() + limit_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_the_bundle_is_sent_once(xdg: Path) -> None:
    counts = []
    for _ in range(2):
        pool = Pool()
        assert ask(pool, shell("echo hi"))[0]["stdout"] == "hi"
        pool.close()
        counts.append(pool.counts()["h"])
    assert [count.bundles for count in counts] == [1, 0]
    assert counts[1].up_bytes < 1000 < counts[0].up_bytes
    assert [count.turns for count in counts] == [2, 1]
    assert list(xdg.rglob("agent/*/flyops/agent/__pycache__/main*.pyc"))


def test_a_damaged_cache_is_not_used(xdg: Path) -> None:
    pool = Pool()
    ask(pool, shell("true"))
    pool.close()
    next(xdg.rglob("complete")).unlink()
    pool = Pool()
    assert ask(pool, shell("echo hi"))[0]["stdout"] == "hi"
    assert pool.counts()["h"].bundles == 1
    pool.close()


@pytest.mark.parametrize("python", [sys.executable, OLD])
@pytest.mark.parametrize("size", [0, 1, 1_048_577, 64 * 1_048_576])
def test_blobs(pool: Pool, tmp_path: Path, size: int, python: str) -> None:
    if not Path(python).exists():
        pytest.skip("no Python 3.8 here")
    source, dest = tmp_path / 'it\'s a "file"', tmp_path / "de st"
    block = os.urandom(65536)
    source.write_bytes((block * (size // 65536 + 1))[:size])
    sha = hashlib.sha256(source.read_bytes()).hexdigest()
    args = {"src": {"path": str(source), "sha256": sha, "size": size, "mode": 0o644}, "dest": str(dest)}
    call = Sent("copy", args, 1, offers={sha: Offer(sha, size, path=str(source))})
    target = Target("h", python=python)
    first = ask(pool, call, target=target)[0]
    assert first["changed"], first
    assert hashlib.sha256(dest.read_bytes()).hexdigest() == sha
    before = pool.counts()["h"].up_bytes
    assert ask(pool, call, target=target)[0]["changed"] is False
    assert pool.counts()["h"].up_bytes - before < 1000  # an unchanged file is not sent


def test_a_file_that_changes_under_way_is_a_failure(pool: Pool, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_text("now")
    sha = hashlib.sha256(b"before").hexdigest()
    args = {"src": {"path": str(source), "sha256": sha, "size": 6, "mode": 0o644}, "dest": str(tmp_path / "d")}
    result = ask(pool, Sent("copy", args, 1, offers={sha: Offer(sha, 6, path=str(source))}))[0]
    assert result["failed"]
    assert "changed on the controller" in result["msg"]
    assert not (tmp_path / "d").exists()
    missing = ask(pool, Sent("copy", args, 1, offers={sha: Offer(sha, 6, path=str(tmp_path / "gone"))}))[0]
    assert "No such file" in missing["msg"]
    assert ask(pool, shell("echo still here"))[0]["stdout"] == "still here"


def test_five_megabytes_on_both_streams(pool: Pool) -> None:
    result = ask(pool, shell("head -c 5000000 /dev/zero | tr '\\0' a; head -c 5000000 /dev/zero | tr '\\0' b >&2"))[0]
    assert (len(result["stdout"]), len(result["stderr"])) == (5_000_000, 5_000_000)


def test_a_failure_stops_other_groups_not_its_own(pool: Pool) -> None:
    calls = [shell("true", 1), shell("false", 2), shell("echo same", 2), shell("echo never", 3)]
    assert [result["rc"] for result in ask(pool, *calls)] == [0, 1, 0]
    calls = [shell("false", 1, stop=False), shell("echo on", 2)]
    assert [result["rc"] for result in ask(pool, *calls)] == [1, 0]


def test_end_of_stdin_ends_children(pool: Pool, tmp_path: Path) -> None:
    """Closing the pipe in the middle of a task ends the agent, the shell and what the shell started."""
    stream = PipeStream(command(HERE))
    session = Session(stream, "h", 30.0)
    pids = tmp_path / "pids"
    text = f"echo $$ > {pids}; sleep 300 & echo $! >> {pids}; wait"

    def run() -> None:
        with contextlib.suppress(ConnectError):
            list(session.request([shell(text)], lambda number, text: None))

    threading.Thread(target=run, daemon=True).start()
    deadline = time.monotonic() + 10
    while not (pids.exists() and len(pids.read_text().split()) == 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [int(word) for word in pids.read_text().split()]
    assert all(alive(pid) for pid in found)
    assert stream._process.stdin
    stream._process.stdin.close()
    assert all(wait_gone(pid) for pid in found)
    assert wait_gone(stream.pid)


def test_a_killed_controller_leaves_nothing(tmp_path: Path, xdg: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "from flyops.transport.connect import Pool\nfrom flyops.model.target import Target\nfrom flyops.transport.session import Sent\n"
        f"list(Pool().session(Target('h')).request([Sent('shell', {{'cmd': 'echo $$ $PPID > {pids}; sleep 300'}}, 1)], print))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    deadline = time.monotonic() + 10
    while not (pids.exists() and pids.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [int(word) for word in pids.read_text().split()]
    process.kill()
    process.wait()
    assert all(wait_gone(pid) for pid in found)


def test_an_agent_that_dies_under_way(pool: Pool) -> None:
    with pytest.raises(Lost, match="the task may have run"):
        ask(pool, shell("kill -9 $PPID"))
    assert ask(pool, shell("echo again"))[0]["stdout"] == "again"


def test_an_agent_that_falls_silent(pool: Pool) -> None:
    target = Target("h", silence_s=1.0)
    started = time.monotonic()
    with pytest.raises(Lost, match="nothing for 1 s"):
        ask(pool, shell("kill -STOP $PPID"), target=target)
    assert time.monotonic() - started < 10
    session = pool._sessions[target]
    stream = session._stream
    assert isinstance(stream, PipeStream)
    os.kill(stream.pid, signal.SIGCONT)
    pool.forget(target)


def test_a_long_silent_task_is_no_lost_connection(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(pool, shell("sleep 7; echo done"), target=Target("h", silence_s=6.5))[0]["stdout"] == "done"


def test_noise_before_the_agent_is_skipped(xdg: Path) -> None:
    words = command(HERE)
    session = Session(PipeStream(["sh", "-c", 'echo "Welcome"; printf "no newline"; exec "$@"', "x", *words]), "h", 30.0)
    assert [r["stdout"] for _, r, _ in session.request([shell("echo hi")], lambda number, text: None)] == ["hi"]
    session.close()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["sh", "-c", "echo sorry >&2; exit 127"], "sorry (exit code 127)"),
        (["sh", "-c", "exit 1"], "exit code 1"),
        (["sh", "-c", "printf '\\0FLYOPS old 3.6\\n'"], "expected Python 3.8 or newer on the target, found 3.6"),
        (["sh", "-c", "echo 'sudo: a password is required' >&2; exit 1"], "NOPASSWD"),
    ],
)
def test_no_agent(argv: list[str], says: str) -> None:
    session = Session(PipeStream(argv), "h", 5.0)
    with pytest.raises(ConnectError) as caught:
        list(session.request([shell("true")], lambda number, text: None))
    assert says in str(caught.value)
    assert caught.value.exit_code == 4
    session.close()


@pytest.mark.parametrize(
    ("target", "root", "wanted"),
    [
        (Target("h"), True, []),
        (Target("h", become=True), True, []),
        (Target("h", become=True), False, ["sudo", "-n", "-H", "-u", "root", "--"]),
        (Target("h", become=True, become_user="fly"), False, ["sudo", "-n", "-H", "-u", "fly", "--"]),
        (Target("h", become=True, become_user="fly"), True, ["runuser", "-u", "fly", "--"]),
        (Target("h", "ssh", user="root", become=True), False, []),
        (Target("h", "ssh", user="me", become=True), True, ["sudo", "-n", "-H", "-u", "root", "--"]),
    ],
)
def test_become(monkeypatch: pytest.MonkeyPatch, target: Target, root: bool, wanted: list[str]) -> None:
    monkeypatch.setattr(connect.os, "geteuid", lambda: 0 if root else 1000)
    assert become_prefix(target) == wanted


def test_lxc_prefix_leaks_no_environment() -> None:
    words = prefix(Target("g", "lxc", guest="dev 1", lxc_path="/l", become=True, become_user="fly"))
    assert words[:5] == ["lxc-attach", "-n", "dev 1", "-P", "/l"]
    assert "--clear-env" in words
    assert words[words.index("--") :] == ["--", "runuser", "-u", "fly", "--"]


def test_prefixes_of_the_other_managers() -> None:
    words = prefix(Target("g", "incus", guest="dev1", incus_binary="lxc"))
    assert words[:4] == ["lxc", "exec", "dev1", "-T"]
    assert words[-1] == "--"
    assert prefix(Target("g", "incus", guest="dev1"))[0] == "incus"
    words = prefix(Target("g", "pct", guest="101", become=True, become_user="fly"))
    assert words[:6] == ["pct", "exec", "101", "--", "env", "-i"]
    assert words[-5:] == ["LANG=C.UTF-8", "runuser", "-u", "fly", "--"]
    words = prefix(Target("g", "podman", guest="box", become=True, become_user="fly"))
    assert words[:5] == ["podman", "exec", "-i", "--user", "0"]
    assert words[-5:] == ["box", "runuser", "-u", "fly", "--"]


@pytest.mark.parametrize(
    ("guest", "words"),
    [
        (
            Target("g", "incus", guest="dev1", via=Target("h", "ssh", user="me", become=True)),
            ["sudo", "-n", "-H", "-u", "root", "--", "incus", "exec", "dev1"],
        ),
        (Target("g", "podman", guest="box", via=Target("h", "ssh", user="me")), ["podman", "exec", "-i"]),
        (Target("g", "podman", guest="box", via=Target("h", "incus", guest="d", via=Target("n", "ssh", user="root"))), ["incus", "exec", "d", "-T"]),
    ],
)
def test_a_guest_behind_its_host(monkeypatch: pytest.MonkeyPatch, guest: Target, words: list[str]) -> None:
    opened: list[list[str]] = []

    class Link:
        def open(self, argv: list[str]) -> None:
            opened.append(list(argv))
            raise ConnectError("seen enough")

    monkeypatch.setattr(Pool, "_link", lambda self, target: Link())
    with pytest.raises(ConnectError, match="seen enough"):
        Pool().session(guest)
    assert opened[0][: len(words)] == words
    if guest.via and guest.via.via:
        assert opened[0].index("podman") > opened[0].index("incus")


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Error: Instance not found", "ansible_incus_name"),
        ("Configuration file 'nodes/n1/lxc/102.conf' does not exist", "ansible_pct_id"),
        ("container '101' not running!", "pct start ID"),
        ("Error: Instance is not running", "lxc start"),
        ("Get http://unix.socket/1.0: dial unix /var/lib/lxd/unix.socket: connect: no such file or directory", "daemon"),
        ('Error: no container with name or ID "x" found: no such container', "podman ps -a"),
        ("can only create exec sessions on running containers: container state improper", "podman start"),
        ("python3: not found", ""),
    ],
)
def test_what_a_client_says_becomes_what_to_do(said: str, fix: str) -> None:
    found = guests.hint(said)
    assert fix in found if fix else not found


@pytest.mark.root
def test_become_another_user_for_real(xdg: Path) -> None:
    pool = Pool()
    result = ask(pool, shell("id -un; echo $HOME"), target=Target("h", become=True, become_user="nobody"))[0]
    assert result["stdout"].splitlines()[0] == "nobody"
    pool.close()
