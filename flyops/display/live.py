# SPDX-License-Identifier: Apache-2.0
"""A live terminal: colored lines scroll by, and below them a row for each host at work, with the time it has taken so far."""

from __future__ import annotations

import time
from typing import Any

from flyops.display.plain import Plain
from flyops.display.text import COLORS
from flyops.model.event import Event

ROWS_MAX = 12


class Live(Plain):
    """Plain's lines in color, above rows that move."""

    def __init__(self, *, verbose: bool = False, stats: bool = False) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        super().__init__(verbose=verbose, stats=stats)
        self._console = Console(highlight=False, soft_wrap=True)
        self._at_work: dict[str, tuple[str, float, str]] = {}
        self._started = time.monotonic()
        self._live: Any = RichLive(get_renderable=self._rows, console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def line(self, text: str, style: str = "") -> None:
        """One colored line above the rows."""
        from rich.text import Text

        self._console.print(Text(text, COLORS.get(style, style)))

    def handle(self, event: Event) -> None:
        """Take one event."""
        if event.kind == "start":
            self._at_work[event.host] = (event.task, time.monotonic(), "")
        elif event.kind == "note":
            task, since, _ = self._at_work.get(event.host, (event.task, time.monotonic(), ""))
            self._at_work[event.host] = (task, since, event.text)
            return
        elif event.kind in ("result", "unreachable"):
            self._at_work.pop(event.host, None)
        elif event.kind == "stats":
            self._live.stop()
        super().handle(event)

    def close(self) -> None:
        """The rows go."""
        self._live.stop()
        super().close()

    def _rows(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for host, (task, since, note) in list(self._at_work.items())[:ROWS_MAX]:
            table.add_row(Text(host, "bold"), Text(task), Text(f"{now - since:5.1f} s"), Text(note))
        if len(self._at_work) > ROWS_MAX:
            table.add_row(f"and {len(self._at_work) - ROWS_MAX} more")
        return table
