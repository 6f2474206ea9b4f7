# SPDX-License-Identifier: Apache-2.0
"""Runs one program: both streams drained together, stdin always closed, a time limit, and no child outlives the agent."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from typing import Any, Dict, Mapping, Sequence

from flyops.model.host import Completed

READ_BYTES = 65536
LINGER_S = 0.5  # a daemon that keeps our pipe open is not waited for once its starter has ended and is silent

_running: set[int] = set()
_lock = threading.Lock()


def end_children() -> None:
    """Kill the process groups of every command that still runs; called when the controller has gone."""
    with _lock:
        groups = list(_running)
    for sig, pause_s in ((signal.SIGTERM, 0.2), (signal.SIGKILL, 0.0)):
        for pgid in groups:
            try:
                os.killpg(pgid, sig)
            except OSError:
                continue
        time.sleep(pause_s if groups else 0.0)


class TimedOut(Exception):
    """The command ran past its limit and was killed; `stdout` and `stderr` hold what it had said."""

    def __init__(self, argv: Sequence[str], timeout: float, stdout: bytes, stderr: bytes) -> None:
        super().__init__(f"{argv[0]!r} ran past its limit of {timeout:g} s and was killed")
        self.stdout = stdout
        self.stderr = stderr


def run(argv: Sequence[str], stdin: bytes, cwd: str | None, env: Mapping[str, str], timeout: float | None) -> Completed:
    """Start, feed, drain, wait. A missing program is an OSError; an end by signal N is rc -N."""
    started = time.monotonic()
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
    )
    with _lock:
        _running.add(process.pid)
    try:
        out, err, ended = _exchange(process, stdin, None if timeout is None else started + timeout)
        if not ended:
            _kill_group(process.pid)
            process.wait()
            raise TimedOut(argv, timeout or 0.0, out, err)
        rc = process.wait()
    finally:
        with _lock:
            _running.discard(process.pid)
    return Completed(tuple(argv), rc, out, err, time.monotonic() - started)


def _kill_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGKILL)
    except OSError:
        return


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, deadline: float | None) -> tuple[bytes, bytes, bool]:
    """Move bytes until both streams end; False when the deadline passed first."""
    kept: Dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    left = memoryview(stdin)
    quiet_since = None
    with selectors.DefaultSelector() as selector:
        for name in kept:
            selector.register(getattr(process, name), selectors.EVENT_READ, name)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        while any(key.data != "stdin" for key in selector.get_map().values()):
            if deadline is not None and time.monotonic() > deadline:
                _close(process)
                return bytes(kept["stdout"]), bytes(kept["stderr"]), False
            events = selector.select(0.1)
            if events:
                quiet_since = None
            elif process.poll() is not None:
                quiet_since = quiet_since or time.monotonic()
                if time.monotonic() - quiet_since > LINGER_S:
                    break
            for key, _ in events:
                left = _move(selector, key.fileobj, key.data, kept, left)
    _close(process)
    return bytes(kept["stdout"]), bytes(kept["stderr"]), _wait_until(process, deadline)


def _wait_until(process: subprocess.Popen[bytes], deadline: float | None) -> bool:
    """A program may close its streams and go on; the limit holds for that, too."""
    try:
        process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            try:
                stream.close()
            except OSError:
                continue


def _move(selector: Any, stream: Any, name: str, kept: dict[str, bytearray], left: memoryview) -> memoryview:
    if name == "stdin":
        try:
            left = left[os.write(stream.fileno(), left[:READ_BYTES]) :]
        except BlockingIOError:
            return left
        except OSError:  # it does not read its stdin: its own business
            left = left[:0]
        if not left:
            selector.unregister(stream)
            stream.close()
        return left
    data = os.read(stream.fileno(), READ_BYTES)
    if data:
        kept[name] += data
    else:
        selector.unregister(stream)
    return left
