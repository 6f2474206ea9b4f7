# SPDX-License-Identifier: Apache-2.0
"""The service module against a real supervisord on a unix socket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.modules import service

pytest.importorskip("supervisor")

CONFIG = """
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}

[unix_http_server]
file={folder}/s.sock

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[include]
files = {folder}/*.ini
"""
PROGRAM = "[program:{name}]\ncommand={command}\nautostart={autostart}\nstartsecs=1\nstartretries=0\nstopwaitsecs=3\n"


class Supervisor:
    """A supervisord in a folder, and the module asked about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "supervisord.conf").write_text(CONFIG.format(folder=folder))
        argv = [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", str(folder / "supervisord.conf")]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not (folder / "s.sock").exists():
            assert time.monotonic() < deadline, "supervisord did not come up"
            time.sleep(0.05)

    def end(self) -> None:
        """Stop it and its programs."""
        self.process.terminate()
        self.process.wait(20)

    def program(self, name: str, command: str = "sleep 300", autostart: str = "false") -> None:
        """Write (or change) a program's section; nothing is told to supervisord."""
        (self.folder / f"{name}.ini").write_text(PROGRAM.format(name=name, command=command, autostart=autostart))

    def ask(self, *, check: bool = False, **args: Any) -> dict[str, Any]:
        """Run the module."""
        host = RealHost()
        args = {"manager": "supervisor", "socket": str(self.folder / "s.sock"), "timeout": 10, **args}
        return run_module(service, args, OverlayHost(host) if check else host, diff=True)


@pytest.fixture
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    """A running supervisord; the folder's name is short, as a socket's path must be."""
    running = Supervisor(tmp_path_factory.mktemp("sv"))
    yield running
    running.end()


def test_new_section_is_taken_over_and_started(supervisor: Supervisor) -> None:
    """A program that supervisord has never heard of runs after one task, and the second task finds nothing to do."""
    supervisor.program("a")

    first = supervisor.ask(name="a", state="started")
    second = supervisor.ask(name="a", state="started")

    assert (first["changed"], first["config_changed"], first["failed"]) == (True, True, False)
    os.kill(first["pids"]["a:a"], 0)
    assert (second["changed"], second["config_changed"]) == (False, False)


def test_stopped_and_started_again(supervisor: Supervisor) -> None:
    """Both directions change once."""
    supervisor.program("a")
    supervisor.ask(name="a", state="started")

    changes = [supervisor.ask(name="a", state=state)["changed"] for state in ("stopped", "stopped", "started", "started")]

    assert changes == [True, False, True, False]


def test_restart_gives_a_new_pid_and_reload_does_not(supervisor: Supervisor) -> None:
    """Restarted is another process; reloaded is a signal to the same one."""
    supervisor.program("a", "bash -c 'trap : HUP; while :; do sleep 0.1; done'")
    before = supervisor.ask(name="a", state="started")["pids"]["a:a"]

    reloaded = supervisor.ask(name="a", state="reloaded")
    restarted = supervisor.ask(name="a", state="restarted")

    assert (reloaded["changed"], reloaded["pids"]["a:a"]) == (True, before)
    assert restarted["changed"]
    assert restarted["pids"]["a:a"] != before


def test_changed_section_takes_effect_and_leaves_the_others_alone(supervisor: Supervisor) -> None:
    """Started with a changed command line means the new one runs; another program keeps its process."""
    supervisor.program("a")
    supervisor.program("b")
    first = supervisor.ask(name="a", state="started")["pids"]["a:a"]
    other = supervisor.ask(name="b", state="started")["pids"]["b:b"]
    supervisor.program("a", "sleep 301")
    supervisor.program("b", "sleep 302")

    result = supervisor.ask(name="a", state="started")

    assert (result["changed"], result["config_changed"]) == (True, True)
    pid = result["pids"]["a:a"]
    assert pid != first
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00301\x00"
    os.kill(other, 0)
    assert supervisor.ask(name="a", state="started")["changed"] is False


def test_changed_section_with_restart_restarts_once(supervisor: Supervisor) -> None:
    """The update is the restart: the program is not started twice."""
    supervisor.program("a", autostart="true")
    supervisor.ask(name="a", state="started")
    supervisor.program("a", "bash -c 'echo up; sleep 300'", autostart="true")

    result = supervisor.ask(name="a", state="restarted")
    time.sleep(0.5)

    assert result["changed"]
    logs = "".join(path.read_text() for path in supervisor.folder.glob("a-stdout*"))
    assert logs.count("up") == 1


def test_section_removed_from_the_config(supervisor: Supervisor) -> None:
    """The error says what is gone."""
    supervisor.program("a")
    supervisor.ask(name="a", state="started")
    (supervisor.folder / "a.ini").unlink()

    assert "its section is gone" in supervisor.ask(name="a", state="started")["msg"]


def test_program_that_ends_at_once_fails_with_its_words(supervisor: Supervisor) -> None:
    """The result has what the program said."""
    supervisor.program("a", "bash -c 'echo no feature >&2; exit 78'")

    result = supervisor.ask(name="a", state="started")

    assert result["failed"]
    assert "expected RUNNING" in result["msg"]
    assert "no feature" in result["stderr"]


def test_unknown_program_and_broken_config(supervisor: Supervisor) -> None:
    """Both are failures with a reason."""
    assert "no such program or group" in supervisor.ask(name="nope", state="started")["msg"]
    (supervisor.folder / "x.ini").write_text("[program:x]\nautostart=true\n")
    assert "supervisor cannot read its config" in supervisor.ask(name="nope", state="started")["msg"]


def test_check_mode_predicts_and_touches_nothing(supervisor: Supervisor) -> None:
    """Check mode on a stopped, a running and an unknown program."""
    supervisor.program("a")
    supervisor.ask(name="a", state="started")
    pid = supervisor.ask(name="a", state="started", check=True)
    assert pid["changed"] is False

    would = supervisor.ask(name="a", state="stopped", check=True)
    unknown = supervisor.ask(name="later", state="started", check=True)

    assert would["changed"]
    assert unknown["changed"]
    assert supervisor.ask(name="a", state="started")["changed"] is False


def test_no_supervisor_there(tmp_path: Path) -> None:
    """Without a socket the task fails with what to do; check mode takes it that an earlier task would start it."""
    args = {"name": "a", "state": "started", "manager": "supervisor", "socket": str(tmp_path / "none.sock")}

    real = run_module(service, args, RealHost())
    check = run_module(service, args, OverlayHost(RealHost()))

    assert "supervisor does not answer" in real["msg"]
    assert check["changed"]
