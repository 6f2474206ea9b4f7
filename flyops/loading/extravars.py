# SPDX-License-Identifier: Apache-2.0
"""`-e`: k=v pairs, JSON or YAML, or @file; later ones win."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from flyops.errors import LoadError, UsageError
from flyops.loading.inventory import load_vars
from flyops.loading.positions import Text
from flyops.loading.yamlfile import parse_yaml


def parse_extra(items: Iterable[str]) -> dict[str, Any]:
    """Variables of the command line. Values of k=v are texts, as in Ansible; JSON and files keep their types."""
    out: dict[str, Any] = {}
    for item in items:
        text = item.strip()
        if text.startswith("@"):
            try:
                out.update(load_vars(text[1:]))
            except LoadError as err:
                raise UsageError(f"-e {item}: {err}") from err
        elif text.startswith(("{", "[")):
            value = parse_yaml(text, "-e")
            if not isinstance(value, dict):
                raise UsageError(f"-e {item}: expected a mapping")
            out.update(value)
        else:
            out.update(_pairs(text))
    return out


def _pairs(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as err:
        raise UsageError(f"-e {text}: {err}") from err
    out = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"-e {text}: expected name=value, JSON or @file, found {word!r}")
        out[name] = Text(value)
    return out
