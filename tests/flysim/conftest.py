# SPDX-License-Identifier: Apache-2.0
"""The flysim binary and the real circuit: of this checkout, or the ones that FLYSIM_BIN and FLY_CIRCUIT668 name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyops.operations import connectome
from flyops.operations.release import Release


def _given(name: str) -> Path | None:
    value = os.environ.get(name)
    if value and not Path(value).is_file():
        pytest.fail(f"{name}={value}: no such file")
    return Path(value) if value else None


@pytest.fixture(scope="session")
def flysim_bin(flysim_release: Release) -> Path:
    """The flysim program under test."""
    return _given("FLYSIM_BIN") or flysim_release.binary


@pytest.fixture(scope="session")
def circuit668(flysim_bin: Path) -> Path:
    """The 668-neuron circuit as .fly."""
    return _given("FLY_CIRCUIT668") or connectome.make("circuit668", flysim_bin).path
