# SPDX-License-Identifier: Apache-2.0
"""Hosts run ahead; a person reads task by task. Holds events back until no host can bring an earlier one."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from flyops.model.event import Event

Order = tuple[int, ...]
END: Order = (1 << 60,)


class Sequencer:
    """For the hosts of one stretch between two meetings."""

    def __init__(self, emit: Callable[[Event], None], hosts: Iterable[str]) -> None:
        self._emit = emit
        self._at: dict[str, Order] = dict.fromkeys(hosts, ())
        self._held: list[tuple[Order, int, Event]] = []
        self._number = itertools.count()
        self._banner: Order | None = None
        self._lock = threading.Lock()

    def add(self, order: Order, event: Event) -> None:
        """An event of a host that has come to `order`."""
        with self._lock:
            heapq.heappush(self._held, (order, next(self._number), event))
            self._at[event.host] = max(order, self._at.get(event.host, ()))
            self._release()

    def done(self, host: str) -> None:
        """That host brings no more."""
        with self._lock:
            self._at[host] = END
            self._release()

    def _release(self) -> None:
        bound = min(self._at.values(), default=END)
        while self._held and self._held[0][0] <= bound:
            order, _, event = heapq.heappop(self._held)
            if order != self._banner:
                self._banner = order
                self._emit(replace(event, kind="task", host="", status="", result={}, label="", seconds=0.0, text=""))
            self._emit(event)
