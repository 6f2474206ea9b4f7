# SPDX-License-Identifier: Apache-2.0
"""A terminal for operations: a line for what changed or went wrong, rows for the hosts at work; the rest is `--verbose`."""

from __future__ import annotations

from flyops.display.live import Live
from flyops.display.text import details, diff_lines
from flyops.model.event import Event

QUIET = ("ok", "skipped", "unknown")
BAD = ("failed", "refused", "unreachable", "ignored")


class Brief(Live):
    """Live's rows and colors, one line a result, and nothing about what is as it should be."""

    def _on_play(self, event: Event) -> None:
        self.line(event.play, "bold")

    def _on_task(self, event: Event) -> None:
        """No banner: the line of a result names its task."""

    def _on_retry(self, event: Event) -> None:
        """Its row shows that it is at work."""

    def _show(self, event: Event) -> None:
        diffs = diff_lines(event.result)
        if event.status in QUIET and not diffs:
            return
        label = f" ({event.label})" if event.label else ""
        self.line(f"  {event.status:<9} {event.host:<12} {event.task}{label}", event.status)
        for line in diffs:
            self.line(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], ""))
        if event.status in BAD:
            for line in details(event, False):
                self.line(line, event.status)
