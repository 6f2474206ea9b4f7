# SPDX-License-Identifier: Apache-2.0
"""What happened in a run, for those who listen. Values are masked before an event is made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, Protocol


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    kind: play, task (its banner), start (a host begins it), result, item, note, retry, unreachable, warning, lost (notifications), stats.
    status of a result: ok, changed, skipped, failed, refused, ignored, rescued, unknown (check mode could not tell).
    """

    kind: str
    play: str = ""
    task: str = ""
    host: str = ""
    status: str = ""
    result: Dict[str, Any] = field(default_factory=dict)
    label: str = ""  # of a loop item
    seconds: float = 0.0
    handler: bool = False
    module: str = ""
    where: str = ""
    text: str = ""

    def as_json(self) -> Dict[str, Any]:
        """Without what is empty."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {key: value for key, value in out.items() if value not in ("", {}, 0.0, False)}


class Listener(Protocol):
    """A display, a recorder: gets every event, in the order that a person should see."""

    def handle(self, event: Event) -> None:
        """Take one event; never raise."""

    def close(self) -> None:
        """The run is over."""
