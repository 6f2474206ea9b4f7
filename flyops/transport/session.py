# SPDX-License-Identifier: Apache-2.0
"""Speaks frames with one agent, counts bytes and round trips, and says plainly what is known when the line is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyops.agent.frames import CHUNK_BYTES, FrameError, decode, encode
from flyops.errors import ConnectError
from flyops.transport.bundle import bundle
from flyops.transport.guests import hint
from flyops.transport.streams import Silence, Stream

MARK = b"\0FLYOPS "
NOISE_BYTES = 256 * 1024


@dataclass
class Count:
    """What a host cost: bytes both ways and waits for an answer."""

    up_bytes: int = 0
    down_bytes: int = 0
    turns: int = 0
    bundles: int = 0
    connects: int = 0

    def add(self, other: Count) -> None:
        """Sum."""
        for name in ("up_bytes", "down_bytes", "turns", "bundles", "connects"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Lost(ConnectError):
    """The line went away while tasks were on their way: `started` of them may have run."""

    def __init__(self, message: str, *, where: str, sent: bool) -> None:
        fix = "look at the host; the task may have run" if sent else ""
        super().__init__(message, where=where, fix=fix)
        self.sent = sent


@dataclass(frozen=True)
class Sent:
    """One call of a request, as it travels. Calls of the same group are items of one loop."""

    module: str
    args: Any
    group: int
    check: str = ""
    diff: bool = False
    env: Any = None
    stop: bool = True
    offers: Any = field(default_factory=dict)
    paths: Any = None  # where it may write; None: anywhere

    def header(self, number: int) -> dict[str, Any]:
        """Its JSON form."""
        out = {"id": number, "module": self.module, "args": self.args, "group": self.group}
        extra = {"check": self.check, "diff": self.diff, "env": self.env}
        out |= {key: value for key, value in extra.items() if value}
        out |= {} if self.paths is None else {"paths": list(self.paths)}
        return out if self.stop else {**out, "stop": False}


class Session:
    """One agent. One caller at a time (`lock`)."""

    def __init__(self, stream: Stream, name: str, silence_s: float) -> None:
        self._stream = stream
        self._name = name
        self._silence_s = silence_s
        self._buffer = bytearray()
        self._greeted = False
        self._wrote = False
        self.count = Count(connects=1)
        self.lock = threading.Lock()
        self.broken = False

    # bytes

    def _write(self, data: bytes) -> None:
        self.count.up_bytes += len(data)
        self._wrote = True
        self._stream.write(data, self._silence_s)

    def _fill(self) -> bool:
        """More bytes into the buffer; False at the end of the stream."""
        if self._wrote:
            self.count.turns += 1
            self._wrote = False
        data = self._stream.read(self._silence_s)
        self.count.down_bytes += len(data)
        self._buffer += data
        return bool(data)

    def _read_exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not self._fill():
                return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    # the first answer

    def _greet(self) -> None:
        """Find the agent's first word behind whatever a login shell prints, and give it the bundle if it asks."""
        while MARK not in self._buffer or b"\n" not in self._buffer[self._buffer.index(MARK) :]:
            if len(self._buffer) > NOISE_BYTES:
                raise ConnectError("expected an agent, found only other output", where=self._name, fix=self._noise())
            if not self._fill():
                raise ConnectError(f"no agent started: {self._complaint()}", where=self._name, fix=self._hint())
        start = self._buffer.index(MARK)
        end = self._buffer.index(b"\n", start)
        word = bytes(self._buffer[start + len(MARK) : end]).decode()
        del self._buffer[: end + 1]
        if word.startswith("old"):
            raise ConnectError(
                f"expected Python 3.8 or newer on the target, found {word[4:]}", where=self._name, fix="set ansible_python_interpreter to a newer one"
            )
        if word not in ("have", "need"):
            raise ConnectError(f"the agent's loader said {word!r}", where=self._name, fix="run the same command again")
        if word == "need":
            self._write(encode({"t": "bundle"}, bundle()[1]))
            self.count.bundles += 1
        self._greeted = True

    def _last_words(self, err: BaseException) -> None:
        try:
            self._greet()
        except OSError as other:
            if isinstance(other, ConnectError):
                raise
            raise ConnectError(f"no agent started: {self._complaint()}", where=self._name, fix=self._hint()) from err

    def _noise(self) -> str:
        return f"the login prints: {bytes(self._buffer[:200]).decode('utf-8', 'replace').strip()!r}"

    def _complaint(self) -> str:
        noise = bytes(self._buffer[-400:]).decode("utf-8", "replace").strip()
        return " ".join(part for part in (noise, self._stream.complaint()) if part) or "it ended without a word"

    def _hint(self) -> str:
        said = self._complaint().lower()
        if hint(said):
            return hint(said)
        if "sudo" in said or "password" in said:
            return "allow this user to become the other one without a password (sudoers: NOPASSWD), or set become: false"
        if "not found" in said or "127" in said:
            return "install python3 (3.8 or newer) on the target, or set ansible_python_interpreter"
        return "try the connection by hand"

    # requests

    def request(self, calls: Sequence[Sent], on_note: Callable[[int, str], None]) -> Iterator[tuple[int, dict[str, Any], float]]:
        """Send calls in one frame; (number, result, seconds) of each as it comes. Fewer come when one fails."""
        offers = {sha: offer for call in calls for sha, offer in call.offers.items()}
        sent = False
        try:
            self._write(encode({"t": "run", "tasks": [call.header(number) for number, call in enumerate(calls)]}))
            if not self._greeted:
                self._greet()
            sent = True
            yield from self._answers(offers, on_note)
        except Silence as err:
            self.broken = True
            raise Lost(f"connection lost: {err}", where=self._name, sent=sent) from err
        except ConnectError:
            self.broken = True
            raise
        except (OSError, EOFError) as err:
            self.broken = True
            if not self._greeted:  # it did not take our request; its last words say why
                self._last_words(err)
            raise Lost(f"connection lost: {str(err) or type(err).__name__}", where=self._name, sent=sent) from err

    def _answers(self, offers: dict[str, Any], on_note: Callable[[int, str], None]) -> Iterator[tuple[int, dict[str, Any], float]]:
        while True:
            try:
                frame = decode(self._read_exactly)
            except FrameError as err:
                self.broken = True
                raise Lost(f"connection lost: {err}", where=self._name, sent=True) from err
            if frame is None:
                self.broken = True
                raise Lost(f"connection lost: the agent ended ({self._stream.complaint() or 'without a word'})", where=self._name, sent=True)
            header = frame[0]
            kind = header.get("t")
            if kind == "result":
                yield header["id"], header["result"], header["s"]
                if header.get("end"):
                    return
            elif kind == "need":
                self._give(offers.get(header["sha256"]), header["sha256"])
            elif kind == "note":
                on_note(header["id"], header["text"])
            elif kind == "stopped":
                return

    def _give(self, offer: Any, sha256: str) -> None:
        """Send a file in pieces; one that cannot be read is told, so that the task fails and not the connection."""
        if offer is None:
            self._write(encode({"t": "blob", "sha256": sha256, "last": True, "error": f"file {sha256} was not offered with this task"}))
            return
        if not offer.path:
            self._write(encode({"t": "blob", "sha256": sha256, "last": True}, offer.data))
            return
        try:
            with Path(offer.path).open("rb") as stream:
                piece = stream.read(CHUNK_BYTES)
                while True:
                    following = stream.read(CHUNK_BYTES) if piece else b""
                    self._write(encode({"t": "blob", "sha256": sha256, "last": not following}, piece))
                    if not following:
                        return
                    piece = following
        except FileNotFoundError as err:
            self._write(encode({"t": "blob", "sha256": sha256, "last": True, "error": f"{offer.path}: {err.strerror}"}))

    def close(self) -> None:
        """The agent ends with its stdin."""
        self._stream.close()
