# SPDX-License-Identifier: Apache-2.0
"""Masks secrets by value, wherever they turn up."""

from __future__ import annotations

import re
import threading
from typing import Any, Optional, Pattern, Set

MASK = "********"
SHORTEST = 3  # a shorter value would mask half of every line
CENSORED = "the output has been hidden: 'no_log: true' was set for this task"


class Masker:
    """Learns secret values, replaces them in any text, list or mapping. Safe to use from several threads."""

    def __init__(self) -> None:
        self._values: Set[str] = set()
        self._pattern: Optional[Pattern[str]] = None
        self._lock = threading.Lock()

    def add(self, value: Any) -> None:
        """A secret: a text, or everything inside a list or mapping."""
        found = {text for text in _texts(value) if len(text.strip()) >= SHORTEST}
        found |= {line.strip() for text in found if "\n" in text for line in text.splitlines() if len(line.strip()) >= 8}
        if found - self._values:
            with self._lock:
                self._values |= found
                self._pattern = re.compile("|".join(re.escape(v) for v in sorted(self._values, key=len, reverse=True)))

    def text(self, value: str) -> str:
        """The text with every secret in it masked."""
        return self._pattern.sub(MASK, value) if self._pattern else str(value)

    def mask(self, value: Any) -> Any:
        """The same shape, masked."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.mask(key): self.mask(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mask(item) for item in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) in self._values:
            return MASK
        return value


def _texts(value: Any) -> Set[str]:
    if isinstance(value, str):
        return {value, value.strip()}
    if isinstance(value, dict):
        return {text for item in value.values() for text in _texts(item)}
    if isinstance(value, (list, tuple)):
        return {text for item in value for text in _texts(item)}
    return {str(value)} if isinstance(value, (int, float)) and not isinstance(value, bool) else set()
