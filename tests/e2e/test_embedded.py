# SPDX-License-Identifier: Apache-2.0
"""The embedded supervisor with the real flysim: adopted, restarted after a fault, not after wrong settings, no orphan, no root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor.xmlrpc import Faults

from flyops.errors import UsageError
from flyops.operations import connectome, embedded
from flyops.operations.embedded import Embedded
from flyops.transport.bundle import bundle

pytestmark = [pytest.mark.slow, pytest.mark.network]


def wait_for(what, seconds=20.0):
    """The first true answer of `what`, or a failure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = what()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"nothing within {seconds} s: {what}")


class Bench:
    """A supervisord of its own with flysim's settings in place."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.variables = {name: str(folder / name[-4:]) for name in embedded.PLACES}
        self.now: Embedded = embedded.ensure(self.variables)

    def again(self) -> Embedded:
        self.now = embedded.ensure(self.variables)
        return self.now

    def call(self, name: str, *words: Any) -> Any:
        return getattr(embedded._call(self.now.socket), name)(*words)

    def start_doomed(self) -> None:
        """Starts a flysim that will end at once. One that ended before supervisord looked is a spawn error of the call, and tried again all the same."""
        try:
            self.call("startProcess", "flysim", False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != Faults.SPAWN_ERROR:
                raise

    def flysim(self) -> dict[str, Any]:
        return next(row for row in embedded.processes(self.now.socket) if row["name"] == "flysim")

    def status(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=2) as answer:
                return json.load(answer)
        except OSError:
            return None


@pytest.fixture
def bench(tmp_path, flysim_release, free_port) -> Iterator[Bench]:
    brain = connectome.make("circuit668", flysim_release.binary)
    made = Bench(tmp_path, free_port)
    home, etc = Path(made.variables["fly_home"]), Path(made.variables["fly_etc"])
    home.mkdir()
    (home / "current").symlink_to(flysim_release.folder)
    (tmp_path / "state").mkdir()
    settings = {
        "FLY_CONNECTOME": brain.path,
        "FLY_STATE_DIR": tmp_path / "state",
        "FLY_LISTEN": f"127.0.0.1:{free_port}",
        "FLY_DRIVE": brain.default_drive,
        "FLY_SEED": 783,
        "FLY_FEED": f"{made.variables['fly_run']}/feed.sock",
        "FLY_CHECKPOINT_S": 30,
    }
    (etc / "flysim.env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (etc / "backend.env").write_text("FLY_LIF_CUDA=0\nRAYON_NUM_THREADS=1\n")
    yield made
    embedded.shutdown(made.now.socket)


def test_it_is_started_once_then_adopted(bench):
    bench.call("startProcess", "flysim")
    first = wait_for(bench.status)

    second = bench.again()

    assert (second.started, second.changed, second.pid) == (False, False, bench.now.pid)
    assert bench.flysim()["pid"] > 0
    assert first["neurons"] == 668


def test_a_killed_flysim_is_started_again_and_a_stopped_one_is_not(bench):
    bench.call("startProcess", "flysim")
    wait_for(bench.status)
    pid = bench.flysim()["pid"]
    time.sleep(1.2)  # past startsecs: running, not starting
    os.kill(pid, signal.SIGKILL)

    wait_for(lambda: bench.flysim()["statename"] == "RUNNING" and bench.flysim()["pid"] not in {0, pid})
    bench.call("stopProcess", "flysim")

    assert bench.flysim()["statename"] == "STOPPED"
    assert list(Path(bench.variables["fly_home"]).parent.glob("state/**/*")), "SIGTERM wrote no checkpoint"


def test_wrong_settings_are_given_up_after_a_few_tries(bench):
    (Path(bench.variables["fly_etc"]) / "backend.env").write_text("FLY_LIF_CUDA=1\n")  # a CPU build: exit 78

    bench.start_doomed()

    # Supervisor tries anything again that ends within startsecs, whatever its exit code: three times, then it is over. On a busy
    # machine it may end later than that, and 78 is then the end at once.
    wait_for(lambda: given_up(bench), 30)
    log = (Path(bench.variables["flyops_state"]) / "log/flysim.log").read_text()
    assert 1 <= log.count("FLY_LIF_CUDA=1") <= 4
    assert "cuda" in log


def given_up(bench: Bench) -> bool:
    """Supervisord will not start flysim again by itself."""
    now = bench.flysim()
    return now["statename"] == "FATAL" or (now["statename"] == "EXITED" and now["exitstatus"] == 78)


def test_a_killed_supervisord_leaves_no_second_simulator(bench):
    bench.call("startProcess", "flysim")
    wait_for(bench.status)
    orphan, old = bench.flysim()["pid"], bench.now.pid
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: embedded.running(bench.now.socket) is None)

    again = bench.again()

    assert again.started
    assert again.pid != old
    assert not Path(f"/proc/{orphan}").exists()
    bench.call("startProcess", "flysim")
    assert wait_for(bench.status)["neurons"] == 668


def test_a_changed_section_is_taken_over_without_touching_the_others(bench, monkeypatch):
    bench.call("startProcess", "flysim")
    wait_for(bench.status)
    pid = bench.flysim()["pid"]
    whole = embedded.render
    monkeypatch.setattr(embedded, "render", lambda variables: whole(variables).replace("stopwaitsecs=10", "stopwaitsecs=11"))

    again = bench.again()

    assert (again.changed, again.started, bench.flysim()["pid"]) == (True, False, pid)
    assert bench.again().changed is False


def module(bench: Bench, args: dict[str, Any]) -> dict[str, Any]:
    """Runs settings_receipt on this machine through the agent's bundle, as the restore does."""
    state = Path(bench.variables["flyops_state"])
    (state / "restore.pyz").write_bytes(bundle()[1])
    (state / "args.json").write_text(json.dumps(args))
    command = [sys.executable, "-I", "-S", str(state / "restore.pyz"), "--module", "settings_receipt", "--args", str(state / "args.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def slow_to_start(bench: Bench, release: Path) -> None:
    """flysim as on a machine so busy that it is past startsecs before it has read its settings."""
    home = Path(bench.variables["fly_home"])
    slow = home / "slow/bin/flysim"
    slow.parent.mkdir(parents=True)
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec "{release}/bin/flysim" "$@"\n')
    slow.chmod(0o755)
    (home / "current").unlink()
    (home / "current").symlink_to(slow.parent.parent)


@pytest.mark.parametrize(("receipt", "slow"), [(True, False), (True, True), (False, False)], ids=["with-receipt", "with-receipt-slow", "without"])
def test_a_backend_that_does_not_come_up_gives_way_to_the_cpu_by_receipt(bench, flysim_release, receipt, slow):
    """A CPU build told to use a card ends at once; with the receipt of the CPU settings it must be back on the CPU by itself."""
    state, backend = Path(bench.variables["flyops_state"]), Path(bench.variables["fly_etc"]) / "backend.env"
    before = backend.read_text()
    shared = {"dir": str(state / "receipts"), "name": "gpu"}
    (state / "receipts").mkdir()
    if slow:
        slow_to_start(bench, flysim_release.folder)
    if receipt:
        module(bench, {**shared, "state": "applied", "files": {str(backend): {"content": "FLY_LIF_CUDA=1\nRAYON_NUM_THREADS=1\n", "mode": "0644"}}})
    else:
        backend.write_text("FLY_LIF_CUDA=1\nRAYON_NUM_THREADS=1\n")
    (state / "restore.json").write_text(json.dumps({**shared, "state": "restored", "force": True}))
    (Path(bench.variables["fly_etc"]) / "flypage.env").write_text("FLY_PAGE_LISTEN=127.0.0.1:0\n")

    bench.start_doomed()

    if receipt:
        assert wait_for(bench.status, 40)["backend"] == "cpu"
        assert backend.read_text() == before
        log = (state / "log/restore.log").read_text()
        assert "come back by receipt" in log
    else:
        wait_for(lambda: given_up(bench), 30)
        time.sleep(2)
        assert given_up(bench)
        assert "FLY_LIF_CUDA=1" in backend.read_text()


def test_the_operators_environment_does_not_reach_the_simulator(bench, monkeypatch):
    embedded.shutdown(bench.now.socket)
    monkeypatch.setenv("FLY_LIF_CUDA", "1")
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    bench.again()

    bench.call("startProcess", "flysim")
    wait_for(bench.status)
    environment = Path(f"/proc/{bench.flysim()['pid']}/environ").read_text()

    assert "FLY_LIF_CUDA" not in environment
    assert "RAYON" not in environment


@pytest.mark.parametrize("bad", ["/tmp/a%b", "/tmp/a;b", '/tmp/a"b'])
def test_a_path_that_the_configuration_cannot_hold_is_refused(bad):
    with pytest.raises(UsageError, match="cannot hold a path"):
        embedded.ensure(dict.fromkeys(embedded.PLACES, bad))


def test_a_socket_path_that_is_too_long_and_a_missing_place_are_refused(tmp_path):
    with pytest.raises(UsageError, match="longer than"):
        embedded.ensure(dict.fromkeys(embedded.PLACES, f"/tmp/{'x' * 90}"))
    with pytest.raises(UsageError, match="fly_run"):
        embedded.ensure({"fly_home": "/tmp/x", "fly_etc": "/tmp/x", "flyops_state": "/tmp/x"})
