# SPDX-License-Identifier: Apache-2.0
"""One JSON object a line for each event."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from flyops.model.event import Event


class JsonLines:
    """For programs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def handle(self, event: Event) -> None:
        """Take one event."""
        self._stream.write(json.dumps(event.as_json(), default=str) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """The run is over."""
        self._stream.flush()
