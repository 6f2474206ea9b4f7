# SPDX-License-Identifier: Apache-2.0
"""File modes: the symbolic language against chmod itself, and what is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyops.domain import modes
from flyops.spec.arguments import to_mode


@pytest.mark.parametrize(
    ("mode", "present", "directory", "wanted"),
    [
        (0o644, 0, False, 0o644),
        ("u=rw,g=r,o=", 0o777, False, 0o640),
        ("u=rwX,g=rX,o=", 0o644, False, 0o640),
        ("u=rwX,g=rX,o=", 0o644, True, 0o750),
        ("a+X", 0o744, False, 0o755),
        ("u+s,g-rx", 0o755, False, 0o4705),
        ("g+s", 0o755, True, 0o2755),
        ("+t", 0o777, True, 0o1777),
        ("g=u", 0o750, False, 0o770),
        ("o=g-w", 0o660, False, 0o664),
        ("u-x+w", 0o555, False, 0o655),
        ("+x", 0o644, False, 0o755),
        ("+w", 0o444, False, 0o644),
        ("a=r", 0o7777, False, 0o444),
        ("o=", 0o1777, True, 0o770),
    ],
)
def test_resolve(mode: int | str, present: int, directory: bool, wanted: int) -> None:
    """As chmod with umask 022 has it."""
    assert f"{modes.resolve(mode, present, directory=directory):04o}" == f"{wanted:04o}"


@pytest.mark.parametrize("mode", ["u=q", "x", "u", "644u", "u=rw;g=r", "", "u=rw,,g=r", "ug", "0888"])
def test_refused(mode: str) -> None:
    """A clause that is none is named."""
    with pytest.raises(ValueError, match="octal or symbolic"):
        modes.check(mode)


def test_numbers_have_limits() -> None:
    """More than four octal digits are no mode."""
    assert modes.resolve(0o7777, 0) == 0o7777
    with pytest.raises(ValueError, match="between 0 and 07777"):
        modes.check(0o10000)


@pytest.mark.parametrize(("bits", "text"), [(0o644, "0644"), (0o1777, "01777"), (0, "0000")])
def test_text(bits: int, text: str) -> None:
    """A zero in front."""
    assert modes.text(bits) == text


@pytest.mark.parametrize(("typed", "bits"), [("0644", 0o644), ("644", 0o644), ("0o644", 0o644), (420, 0o644), ("01777", 0o1777)])
def test_what_yaml_makes_of_a_mode(typed: str | int, bits: int) -> None:
    """Every way to write 0644; the unquoted decimal 644 is refused where the source is read (loading)."""
    assert to_mode(typed) == bits


WHO = st.sampled_from(["u", "g", "o", "a", "ug", "go", "uo"])
PERMS = st.sets(st.sampled_from("rwxX")).map(lambda chosen: "".join(sorted(chosen)))
CLAUSE = st.tuples(WHO, st.sampled_from("+-="), PERMS).map("".join)


@pytest.mark.slow
@given(st.lists(CLAUSE, min_size=1, max_size=3).map(",".join), st.integers(0, 0o777))
def test_same_as_chmod(tmp_path_factory: pytest.TempPathFactory, mode: str, present: int) -> None:
    """The system's own program is the judge."""
    path = Path(tmp_path_factory.getbasetemp()) / "chmod-judge"
    path.touch()
    path.chmod(present)

    subprocess.run(["chmod", mode, str(path)], check=True, env={**os.environ, "LC_ALL": "C"})

    assert path.stat().st_mode & 0o7777 == modes.resolve(mode, present)
