# SPDX-License-Identifier: Apache-2.0
"""Finds modules by name: one file in flyops/modules is one module. There is no other registration."""

from __future__ import annotations

import importlib
import keyword
import pkgutil
from typing import Any

PREFIXES = ("ansible.builtin.", "ansible.legacy.", "flyops.builtin.")


def short_name(name: str) -> str:
    """`ansible.builtin.copy` is `copy`."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def names(package: str = "flyops.modules") -> list[str]:
    """All module names of a package, sorted."""
    try:
        paths = importlib.import_module(package).__path__
    except ImportError:
        return []
    return sorted(info.name.rstrip("_") for info in pkgutil.iter_modules(paths) if not info.name.startswith("_"))


def find(name: str, package: str = "flyops.modules") -> Any:
    """The module of that name, or None. `assert` lives in `assert_.py`."""
    short = short_name(name)
    if not short.isidentifier() or short.startswith("_"):
        return None
    full = f"{package}.{short}_" if keyword.iskeyword(short) else f"{package}.{short}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as err:
        if err.name in (full, package):
            return None
        raise
