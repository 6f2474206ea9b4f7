# SPDX-License-Identifier: Apache-2.0
"""What OnFailure=flyops-restore.service is under systemd, for the embedded supervisor: a program of its own, copied to the target's state folder.

supervisord starts it and tells it of each program that ended. When flysim lost its card (exit 75), or was given up (exit 78, FATAL), and the receipt of the CPU
settings is there, the receipt is replayed by the agent's bundle and flysim starts again, on the CPU, from its newest checkpoint.
Standard library only, and nothing of flyops: the checkout and its environment may be gone when it is needed.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
import xmlrpc.client
from pathlib import Path
from typing import Any

# 75: the card is lost; 78: these settings cannot run. After either, supervisord starts nothing again by itself (exitcodes in its configuration).
GIVEN_UP = {75, 78}
SERVICES = ("flysim", "flypage")


class _Transport(xmlrpc.client.Transport):
    """XML-RPC over supervisord's unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=120)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(120)
        connection.sock.connect(self._path)
        return connection


def main() -> int:
    """The listener's protocol: READY, one header line, its payload, RESULT."""
    state, path = Path(sys.argv[1]), os.environ["SUPERVISOR_SERVER_URL"].partition("://")[2]
    while True:
        _out("READY\n")
        header = sys.stdin.readline()
        if not header:
            return 0
        words = dict(word.split(":", 1) for word in header.split())
        payload = dict(word.split(":", 1) for word in sys.stdin.read(int(words["len"])).split())
        try:
            if payload.get("processname") == "flysim":
                handle(words["eventname"], state, xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=_Transport(path)))
        except Exception as error:  # the listener must live on: it is asked again at the next event
            _log(f"not restored: {type(error).__name__}: {error}")
        _out("RESULT 2\nOK")


def handle(event: str, state: Path, server: Any) -> None:
    """Restores when flysim lost its card or was given up, and there is something to put back."""
    ended = server.supervisor.getProcessInfo("flysim")
    lost = event.endswith("_FATAL") or (event.endswith("_EXITED") and ended["exitstatus"] in GIVEN_UP)
    if not lost or not (state / "receipts" / "gpu.json").exists():
        return
    _log(f"flysim is {ended['statename']} (exit {ended['exitstatus']}): the CPU settings come back by receipt")
    command = [sys.executable, "-I", "-S", str(state / "restore.pyz"), "--module", "settings_receipt", "--args", str(state / "restore.json")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    _log(f"receipt: exit {done.returncode}: {done.stdout.strip()[-500:]}{done.stderr.strip()[-500:]}")
    if done.returncode == 0:
        for name in SERVICES:
            _restart(server.supervisor, name)


def _restart(supervisor: Any, name: str) -> None:
    if supervisor.getProcessInfo(name)["statename"] in {"RUNNING", "STARTING"}:
        supervisor.stopProcess(name)
    supervisor.startProcess(name)
    _log(f"{name} is {supervisor.getProcessInfo(name)['statename']}")


def _out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} flyops-restore: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
