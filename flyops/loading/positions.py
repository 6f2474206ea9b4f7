# SPDX-License-Identifier: Apache-2.0
"""Where a value stands in a file, values that know it, and the collector of everything that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple, Self

from flyops.errors import LoadError


class Pos(NamedTuple):
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Pos("", 0, 0)


class Text(str):
    """A text that someone wrote in a file we loaded: only such a text is a template. What hosts return never is."""

    __slots__ = ("pos",)
    pos: Pos

    def __new__(cls, value: str, pos: Pos = NOWHERE) -> Self:
        made = super().__new__(cls, value)
        made.pos = pos
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class Unsafe(str):
    """`!unsafe`: a text whose braces mean nothing."""

    __slots__ = ()


class Map(dict[Any, Any]):
    """A mapping with its place, and for each key the place of the key, of the value, and the value's source text (of plain scalars)."""

    def __init__(self, pos: Pos = NOWHERE) -> None:
        super().__init__()
        self.pos = pos
        self.key_pos: dict[Any, Pos] = {}
        self.value_pos: dict[Any, Pos] = {}
        self.source: dict[Any, str] = {}

    def at(self, key: Any) -> Pos:
        """Where a key stands."""
        return self.key_pos.get(key, self.pos)

    def value_at(self, key: Any) -> Pos:
        """Where a key's value stands."""
        return self.value_pos.get(key, self.pos)


class Seq(list[Any]):
    """A list with its place and the places of its items."""

    def __init__(self, pos: Pos = NOWHERE) -> None:
        super().__init__()
        self.pos = pos
        self.item_pos: list[Pos] = []

    def at(self, index: int) -> Pos:
        """Where an item stands."""
        return self.item_pos[index] if index < len(self.item_pos) else self.pos


def nearest(word: object, known: Iterable[str]) -> str:
    """`did you mean X?`, or the list of what is allowed."""
    words = sorted(known)
    close = get_close_matches(str(word), words, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"allowed: {', '.join(words)}" if len(words) <= 40 else ""


class Problems:
    """Collects errors, so that all of them are shown together and nothing runs."""

    def __init__(self) -> None:
        self.found: list[LoadError] = []

    def add(self, message: str, pos: Pos, fix: str = "") -> None:
        """One more; the same one at the same place counts once."""
        error = LoadError(message, where=str(pos) if pos.file else "", fix=fix)
        if str(error) not in {str(other) for other in self.found}:
            self.found.append(error)

    def take(self, error: LoadError) -> None:
        """One that was raised."""
        self.found.append(error)

    def stop(self) -> None:
        """Raise what was found, as one error, in the order of the files."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            files = list(dict.fromkeys(_place(error)[0] for error in self.found))
            ordered = sorted(self.found, key=lambda error: (files.index(_place(error)[0]), *_place(error)[1:]))
            raise LoadError("\n".join(str(error) for error in ordered) + f"\n{len(ordered)} errors; nothing was run")


def _place(error: LoadError) -> tuple[str, int, int]:
    parts = error.where.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return parts[0], int(parts[1]), int(parts[2])
    return error.where, 0, 0
