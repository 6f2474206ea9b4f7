# SPDX-License-Identifier: Apache-2.0
"""Layers of variables, highest first, read lazily: a value is rendered when it is asked for, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Names that look like facts and never come from them.
NO_FACTS = frozenset(
    {
        "ansible_connection",
        "ansible_host",
        "ansible_port",
        "ansible_user",
        "ansible_python_interpreter",
        "ansible_via",
        "ansible_timeout",
        "ansible_password",
        "ansible_verbosity",
    }
)
NO_FACT_PREFIXES = (
    "ansible_become",
    "ansible_ssh_",
    "ansible_private_key",
    "ansible_lxc_",
    "ansible_pct_",
    "ansible_loop",
    "ansible_index_var",
    "ansible_failed_",
    "ansible_check_mode",
    "ansible_diff_mode",
)

Layers = tuple[Mapping[str, Any], ...]


class PendingResult(BaseException):
    """A value that a task still on its way will bring. Not an Exception: no filter may swallow it."""


class Recursion(ValueError):
    """A variable that needs itself."""


def _forget(value: Any) -> None:
    """Nobody masks."""


class Scope:
    """What one task of one host can see.

    `render` turns a raw value into a ready one. `pending` names cannot be read yet; `pending_facts` covers `ansible_*`.
    """

    def __init__(self, layers: Layers, render: Callable[[Any, Scope], Any]) -> None:
        self._layers = layers
        self._render = render
        self._ready: dict[str, Any] = {}
        self._busy: list[str] = []
        self.pending: frozenset[str] = frozenset()
        self.pending_facts = False
        self.pending_files = False  # a task on its way may write files of this machine: no look-up may read one yet
        self.folders: tuple[str, ...] = ()  # where relative files are looked for
        self.on_secret: Callable[[Any], None] = _forget
        self.secret_names: frozenset[str] = frozenset()

    def arrived(self) -> None:
        """What was on its way is there, as far as this scope's task is concerned: every task before it has its result."""
        self.pending, self.pending_facts, self.pending_files = frozenset(), False, False

    def raw(self, name: str) -> Any:
        """The value as it was written; KeyError when there is none."""
        for layer in self._layers:
            if name in layer:
                return layer[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        self._wait_for(str(name))
        return any(name in layer for layer in self._layers)

    def __getitem__(self, name: str) -> Any:
        if name in self._ready:
            return self._ready[name]
        self._wait_for(name)
        raw = self.raw(name)
        if name in self._busy:
            raise Recursion(f"variable {name!r} needs itself: {' -> '.join([*self._busy, name])}")
        self._busy.append(name)
        try:
            value = self._render(raw, self)
        finally:
            self._busy.pop()
        self._ready[name] = value
        if name in self.secret_names:
            self.on_secret(value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The ready value, or the default."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def _wait_for(self, name: str) -> None:
        if name in self.pending or (self.pending_facts and name.startswith("ansible_") and not self._is_own(name)):
            raise PendingResult(name)

    def _is_own(self, name: str) -> bool:
        """Connection and magic variables are known before the facts are."""
        if name in NO_FACTS or name.startswith(NO_FACT_PREFIXES):
            return True
        return name != "ansible_facts" and any(name in layer for layer in self._layers)

    def names(self) -> Iterator[str]:
        """All names, each once."""
        seen: set[str] = set()
        for layer in self._layers:
            for name in layer:
                if name not in seen:
                    seen.add(name)
                    yield name

    def child(self, *layers: Mapping[str, Any]) -> Scope:
        """The same with layers on top."""
        made = Scope((*layers, *self._layers), self._render)
        for name in ("pending", "pending_facts", "pending_files", "folders", "on_secret", "secret_names"):
            setattr(made, name, getattr(self, name))
        return made

    def layer(self) -> Mapping[str, Any]:
        """The highest layer: of an item's scope, its loop variables."""
        return self._layers[0]
