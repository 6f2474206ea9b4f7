# SPDX-License-Identifier: Apache-2.0
"""Where the flysim binary and the real circuit are. Both come from outside: nothing here may be skipped in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _path(name: str, advice: str) -> Path:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f'{name} is not set: {advice}')
    path = Path(value)
    if not path.is_file():
        pytest.fail(f'{name}={value}: no such file; {advice}')
    return path


@pytest.fixture(scope='session')
def flysim_bin() -> Path:
    """The flysim program under test."""
    return _path('FLYSIM_BIN', 'build it with `cargo build --release -p flysim` and give its path')


@pytest.fixture(scope='session')
def circuit668() -> Path:
    """The 668-neuron circuit as .fly."""
    return _path('FLY_CIRCUIT668', 'make it with `flysim import flywire-seed .../circuit.seed.json OUT.fly`')
