# SPDX-License-Identifier: Apache-2.0
"""A byte stream to a running command. Every wait has an end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any, Protocol

READ_BYTES = 256 * 1024
STDERR_BYTES = 16 * 1024
END_S = 3.0


class Silence(OSError):
    """Nothing came, or nothing was taken, for as long as we are willing to wait."""


class Stream(Protocol):
    """What a session needs of a connection."""

    def read(self, timeout_s: float) -> bytes:
        """Some bytes; empty at the end; Silence when none came in time."""

    def write(self, data: bytes, timeout_s: float) -> None:
        """All bytes; Silence when they were not taken in time, OSError when the other side is gone."""

    def close(self) -> None:
        """End the command: its stdin ends, and it is given a moment."""

    def complaint(self) -> str:
        """What the command said on stderr, and how it ended."""


class PipeStream:
    """A command on this machine."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the stream
        # A session of its own: Ctrl-C is for us; the agent ends because its stdin does.
        self._process = subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True)
        assert self._process.stdin
        assert self._process.stdout
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._process.pid

    def read(self, timeout_s: float) -> bytes:
        """Some bytes."""
        if not select.select([self._out], [], [], timeout_s)[0]:
            raise Silence(f"nothing for {timeout_s:g} s")
        return os.read(self._out, READ_BYTES)

    def write(self, data: bytes, timeout_s: float) -> None:
        """All bytes."""
        left = memoryview(data)
        while left:
            if not select.select([], [self._in], [], timeout_s)[1]:
                raise Silence(f"nothing taken for {timeout_s:g} s")
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                continue

    def close(self) -> None:
        """End of stdin, a moment, then the end."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Only now: a thread that waits for it is woken by the command's end, not by our closing.
        with contextlib.suppress(OSError):
            self._process.stdout.close()
        self._stderr.close()

    def complaint(self) -> str:
        """Stderr and exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._stderr.seek(0)
        text = self._stderr.read(STDERR_BYTES).decode("utf-8", "replace").strip()
        rc = self._process.poll()
        return text if rc is None else f"{text} (exit code {rc})".strip()


class ChannelStream:
    """A command behind an ssh channel (paramiko's, duck-typed so that nothing is imported here)."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def read(self, timeout_s: float) -> bytes:
        """Some bytes."""
        self._channel.settimeout(timeout_s)
        try:
            data: bytes = self._channel.recv(READ_BYTES)
        except TimeoutError as err:
            raise Silence(f"nothing for {timeout_s:g} s") from err
        return data

    def write(self, data: bytes, timeout_s: float) -> None:
        """All bytes."""
        self._channel.settimeout(timeout_s)
        try:
            self._channel.sendall(data)
        except TimeoutError as err:
            raise Silence(f"nothing taken for {timeout_s:g} s") from err

    def close(self) -> None:
        """End of stdin; the channel closes."""
        try:
            self._channel.shutdown_write()
            self._channel.close()
        except (OSError, EOFError):
            return

    def complaint(self) -> str:
        """Stderr and exit code."""
        deadline = time.monotonic() + 2.0
        while not self._channel.exit_status_ready() and time.monotonic() < deadline:
            time.sleep(0.02)
        text = b""
        while self._channel.recv_stderr_ready() and len(text) < STDERR_BYTES:
            text += self._channel.recv_stderr(STDERR_BYTES)
        said = text.decode("utf-8", "replace").strip()
        return f"{said} (exit code {self._channel.recv_exit_status()})".strip() if self._channel.exit_status_ready() else said
