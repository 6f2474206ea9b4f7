# SPDX-License-Identifier: Apache-2.0
"""Plain lines, for pipes and logs."""

from __future__ import annotations

import sys
from typing import TextIO

from flyops.display.text import details, diff_lines, headline, recap
from flyops.model.event import Event

WIDTH = 78


class Plain:
    """Writes a banner for each task and a line for each host."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False, stats: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._verbose = verbose
        self._stats = stats
        self._lost: list[str] = []

    def line(self, text: str, style: str = "") -> None:
        """One line; `style` is for the display that has colors."""
        self._stream.write(text + "\n")

    def handle(self, event: Event) -> None:
        """Take one event."""
        method = getattr(self, f"_on_{event.kind}", None)
        if method is not None:
            method(event)
            self._stream.flush()

    def close(self) -> None:
        """The run is over."""
        self._stream.flush()

    def _banner(self, text: str) -> None:
        self.line("")
        self.line(f"{text} ".ljust(WIDTH, "*"), "bold")

    def _on_play(self, event: Event) -> None:
        self._banner(f"PLAY [{event.play}]")

    def _on_task(self, event: Event) -> None:
        self._banner(f"{'RUNNING HANDLER' if event.handler else 'TASK'} [{event.task}]")

    def _on_result(self, event: Event) -> None:
        if event.text == "looped" and event.status != "skipped":
            if event.status == "ignored":
                self.line("...ignoring", event.status)
            return
        self._show(event)

    def _on_item(self, event: Event) -> None:
        self._show(event)

    def _on_unreachable(self, event: Event) -> None:
        self._show(event)

    def _on_retry(self, event: Event) -> None:
        self._show(event)

    def _show(self, event: Event) -> None:
        for line in diff_lines(event.result):
            self.line(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], ""))
        self.line(headline(event), event.status)
        for line in details(event, self._verbose):
            self.line(line, event.status if event.status in ("failed", "refused", "unreachable") else "")

    def _on_note(self, event: Event) -> None:
        self.line(f"  {event.host}: {event.text}")

    def _on_warning(self, event: Event) -> None:
        host = f"{event.host}: " if event.host else ""
        self.line(f"warning: {host}{event.text}", "changed")

    def _on_lost(self, event: Event) -> None:
        self._lost.append(f"{event.host}: {event.text}")

    def _on_stats(self, event: Event) -> None:
        self._banner("RECAP")
        for line, (_, numbers) in zip(recap(event.result), event.result.items(), strict=True):
            bad = numbers["failed"] or numbers["unreachable"]
            self.line(line, "failed" if bad else "changed" if numbers["changed"] else "ok")
        for text in self._lost:
            self.line(f"lost notifications: {text}", "failed")
        if self._stats:
            self.line(f"stats: {event.text}")
