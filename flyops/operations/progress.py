# SPDX-License-Identifier: Apache-2.0
"""One line that says what a long step is doing: rewritten in place on a terminal, now and then a plain line elsewhere. On standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

PLAIN_EVERY_S = 15.0


class Progress:
    """`with Progress("building flysim") as progress: progress.show("12 crates")`; says at the end how long it took."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._last_plain = self._started
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        if not self._terminal:
            self._write(f"{self._title} …\n")
        return self

    def show(self, text: str) -> None:
        """What is being done now."""
        now = time.monotonic()
        line = f"{self._title}: {text}, {now - self._started:.0f} s"
        if self._terminal:
            self._write(f"\r\033[K{line[:100]}")
        elif now - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = now
            self._write(f"{line}\n")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        seconds = time.monotonic() - self._started
        end = "done in" if error is None else "stopped after"
        start = "\r\033[K" if self._terminal else ""
        self._write(f"{start}{self._title}: {end} {seconds:.1f} s\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
