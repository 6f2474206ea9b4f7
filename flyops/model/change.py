# SPDX-License-Identifier: Apache-2.0
"""What one module would do on one host, decided before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union


@dataclass(frozen=True)
class Diff:
    """One piece of a diff: text before and after, headed by what it is about (a path, `mode of /x`)."""

    header: str
    before: str
    after: str


@dataclass(frozen=True)
class Change:
    """Something to do. `before`/`after` are the module's own values for `apply`; `diff` is for people; `values` for the result."""

    before: Any = None
    after: Any = None
    diff: tuple[Diff, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Same:
    """Nothing to do, with values for the result (what `stat` saw, what `uri` got)."""

    values: dict[str, Any] = field(default_factory=dict)
    skipped: bool = False
    msg: str = ""


Decision = Union[Change, Same, None]
