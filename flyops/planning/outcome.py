# SPDX-License-Identifier: Apache-2.0
"""What a controller module decided: a result, and effects for the executor to carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Include:
    """Tasks of a file to run next."""

    file: str
    vars: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """`facts` join the host's set facts, `variables` its included variables; the others ask the executor for something."""

    result: dict[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    include: Include | None = None
    meta: str = ""
    new_host: tuple[str, tuple[str, ...], Mapping[str, Any]] | None = None
    pause_s: float | None = None
    prompt: str = ""
    hidden: bool = False  # not shown (debug above the verbosity)
