# SPDX-License-Identifier: Apache-2.0
"""Where things live on this machine: the checkout, and this user's cache, state and configuration folders (XDG)."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def _xdg(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification: a relative path is to be ignored.
    base = Path(value) if os.path.isabs(value) else Path.home() / fallback
    return base / "flyops"


def cache(*parts: str) -> Path:
    """A folder of `$XDG_CACHE_HOME/flyops`: anything in it may be deleted and is made again."""
    return _xdg("XDG_CACHE_HOME", ".cache").joinpath(*parts)


def state(*parts: str) -> Path:
    """A folder of `$XDG_STATE_HOME/flyops`: releases, connectomes and state of the embedded service."""
    return _xdg("XDG_STATE_HOME", ".local/state").joinpath(*parts)


def config(*parts: str) -> Path:
    """A folder of `$XDG_CONFIG_HOME/flyops`: settings of the embedded service."""
    return _xdg("XDG_CONFIG_HOME", ".config").joinpath(*parts)
