# SPDX-License-Identifier: Apache-2.0
"""SPECs of all modules: those of hosts (flyops/modules) and those of the controller (flyops/planning/actions)."""

from __future__ import annotations

import functools
from typing import Any

from flyops.agent import registry
from flyops.spec import Spec

ACTIONS = "flyops.planning.actions"


@functools.cache
def find_action(name: str) -> Any:
    """The controller module of that name, or None."""
    return registry.find(name, ACTIONS)


@functools.cache
def find_spec(name: str) -> Spec | None:
    """The surface of a module, or None when there is no such module."""
    module = find_action(name) or registry.find(name)
    spec = getattr(module, "SPEC", None)
    return spec if isinstance(spec, Spec) else None


@functools.cache
def names() -> tuple[str, ...]:
    """All module names."""
    return tuple(sorted({*registry.names(), *registry.names(ACTIONS), "import_tasks"}))
