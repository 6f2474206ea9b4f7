# SPDX-License-Identifier: Apache-2.0
"""Every fixture under tests/modules is a test: the case itself, check mode, and the second run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyops.testing.fixtures import Case, check_case, load_cases

CASES = list(load_cases(Path(__file__).parents[2] / "modules"))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Case) -> None:
    """The case holds, check mode predicts it and writes nothing, a second run changes nothing."""
    check_case(case)
