# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of a run: it ends soon, and nothing that it started goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.beds.play import write


@pytest.mark.parametrize("hosts", ["h1", "h1 h2 h3"])
def test_interrupt(tmp_path: Path, hosts: str) -> None:
    book = write(
        tmp_path, f"- hosts: all\n  gather_facts: false\n  tasks:\n    - shell: echo $$ > {tmp_path}/{{{{ inventory_hostname }}}}.pid; sleep 300\n"
    )
    code = (
        "from tests.beds.play import inventory\nfrom flyops.operations.play import run_playbook\n"
        f"run_playbook({str(book)!r}, inventory=inventory({hosts!r}), display='plain')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    files = [tmp_path / f"{name}.pid" for name in hosts.split()]
    deadline = time.monotonic() + 20
    while not all(path.exists() and path.read_text().strip() for path in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(path.read_text()) for path in files]
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in said
    assert process.returncode != 0
    assert time.monotonic() - started < 10
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
