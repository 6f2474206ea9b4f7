# SPDX-License-Identifier: Apache-2.0
"""What a check asks of processes, on real ones: an impostor at the port, a child that burns a core, the environment and program of what answers."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.run import run_module
from flyops.domain import checks, probes
from flyops.modules import flysim_check


@pytest.fixture
def service() -> Iterator[tuple[str, dict[str, Any]]]:
    """A /status that says what the test puts into it; ticks grow with every answer."""
    status: dict[str, Any] = {"tick": 0, "pid": 1, "backend": "cuda", "neurons": 10, "spikes": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status["tick"] += 30_000
            body = json.dumps(status).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/status", status
    server.shutdown()
    server.server_close()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a busy child and settings of its own."""
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    started = subprocess.Popen([sys.executable, "-c", busy], env={**os.environ, "RAYON_NUM_THREADS": "8"}, start_new_session=True)
    yield started
    os.killpg(started.pid, 9)
    started.wait()


def probe(name: str, **asked: Any) -> dict[str, Any]:
    """A probe as a module runs it."""
    host = RealHost()
    return probes.answer(host.run(probes.argv(name, asked, host), query=True, stdin=probes.text(name), timeout=60))


def test_an_impostor_that_answers_at_the_port_is_not_ours(service: tuple[str, dict[str, Any]], other: subprocess.Popen[bytes]) -> None:
    url, status = service
    found = probe("await", url=url, pid=other.pid, wait_s=0.5)
    assert found["status"] is None and "another program holds the port" in found["error"]
    status["pid"] = other.pid
    assert probe("await", url=url, pid=other.pid, wait_s=0.5)["status"]["pid"] == other.pid
    status["pid"] = 1
    rows = probe("sample", url=url, pid=other.pid, warmup_s=0, window_s=0.5, interval_s=0.5)
    window = checks.summarise(rows)
    assert window["stranger"] == 1
    assert any("not the process that was measured" in text for text in checks._window_problems("GPU", "cuda", window))


def test_a_child_that_burns_a_core_costs(service: tuple[str, dict[str, Any]], other: subprocess.Popen[bytes]) -> None:
    url, status = service
    status["pid"] = other.pid
    rows = probe("sample", url=url, pid=other.pid, warmup_s=0.5, window_s=1, interval_s=1)["rows"]
    assert rows[-1]["cpu_s"] - rows[0]["cpu_s"] > 0.05  # the parent itself sleeps
    assert checks.summarise({"rows": rows})["stranger"] == 0


def test_the_process_is_asked_not_the_files(service: tuple[str, dict[str, Any]], other: subprocess.Popen[bytes], tmp_path: Path) -> None:
    url, status = service
    status["pid"] = other.pid
    (tmp_path / "releases/v").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/v")
    args = {"check": "health", "url": url, "backend": "cuda", "gap": 0.1, "min_factor": 0, "fail": False}
    wrong = run_module(flysim_check, {**args, "env": {"RAYON_NUM_THREADS": 2}, "home": str(tmp_path)}, RealHost())
    assert "RAYON_NUM_THREADS=8, expected 2" in wrong["seen"] and f"expected one below {tmp_path}/releases/v" in wrong["seen"]
    (tmp_path / "current").unlink()
    home = Path(os.readlink(f"/proc/{other.pid}/exe")).parent
    right = run_module(flysim_check, {**args, "env": {"RAYON_NUM_THREADS": 8}, "home": str(home)}, RealHost())
    assert right["verdict"] == "passed", right


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_double_builds_without_a_warning(tmp_path: Path) -> None:
    from tests.beds import doublecard

    doublecard.build(tmp_path)
    assert (tmp_path / "card").stat().st_mode & 0o111
