# SPDX-License-Identifier: Apache-2.0
"""A frame that stopped at a failure leaves nothing behind: the tasks of `always` and `rescue` get their own answers."""

from __future__ import annotations

from pathlib import Path

from tests.beds.play import tasks

BODY = """
- block:
    - command: "true"
    - name: stops
      command: "false"
    - command: "true"
  {kind}:
    - name: after
      command: touch {folder}/after
    - name: last
      command: touch {folder}/last
"""


def test_always_runs_and_is_told(tmp_path: Path) -> None:
    played = tasks(tmp_path, BODY.format(kind="always", folder=tmp_path))

    assert played.seen.order()[1:] == ["stops:failed", "after:changed", "last:changed"]
    assert (tmp_path / "after").exists() and (tmp_path / "last").exists()


def test_rescue_runs_and_is_told(tmp_path: Path) -> None:
    played = tasks(tmp_path, BODY.format(kind="rescue", folder=tmp_path))

    assert played.seen.order()[1:] == ["stops:failed", "after:changed", "last:changed"]
    assert played.result.exit_code == 0
