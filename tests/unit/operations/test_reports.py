# SPDX-License-Identifier: Apache-2.0
"""What a report has beside its checks: the write log, the neighbours' configs, the card; and a neighbour that we touched is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyops.executor.run import HostResult
from flyops.operations import reports
from flyops.operations.options import Target

CONFIG = "/var/lib/lxc/dev2/config"


def host(moved: dict[str, str], *writes: str, **found: Any) -> HostResult:
    entries = tuple({"task": "T", "on": "dev1", "kind": "write", "path": path} for path in writes)
    return HostResult("dev1", writes=entries, vars={"neighbours": {"digests": {CONFIG: "00"}, "moved": moved}, **found})


def test_a_config_that_somebody_else_moved_is_reported_and_not_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    seen = host({CONFIG: "changed"}, "/opt/fly/current")
    assert "by someone else" in reports.beside(seen)["neighbours"]["said"][0]
    assert reports.touched({"dev1": seen}) == 0
    assert capsys.readouterr().err == ""


def test_one_that_this_run_wrote_is_a_failure_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    seen = host({CONFIG: "changed"}, CONFIG)
    assert "written by this run" in reports.beside(seen)["neighbours"]["said"][0]
    assert reports.touched({"dev1": seen}) == 1
    assert f"dev1: this run changed a neighbour's config: {CONFIG}" in capsys.readouterr().err


def test_quiet_neighbours_none_at_all_and_those_that_cannot_be_read() -> None:
    assert reports.beside(host({}))["neighbours"]["said"] == ["1 neighbouring config file, all as before"]
    assert reports.beside(HostResult("h", vars={"neighbours": {"skipped": True}})) == {"writes": []}
    unread = HostResult("h", vars={"neighbours": {"msg": "Permission denied: /var/lib/lxc"}})
    assert reports.beside(unread)["neighbours"]["said"] == ["their configs could not be read: Permission denied: /var/lib/lxc"]
    assert reports.touched({"h": unread}) == 0


def test_the_record_has_the_writes_the_neighbours_and_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = {"readable": True, "cards": [{"busy_pct": 7}], "neighbours": [{"pid": 9, "name": "train", "guest": "dev2", "mib": 5}]}
    seen = host({}, "/opt/fly/current", "/etc/fly/a|b", card_before=card, card_after={"readable": False, "why": "no driver"})
    reports.show(Target(), [], host="dev1", release="v", backend="cuda", record=str(tmp_path), more=reports.beside(seen))
    out = capsys.readouterr().out
    assert "card before" in out and "pid 9 train in dev2 (5 MiB); the card 7 % busy" in out and "writes        2" in out
    found = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert [entry["path"] for entry in found["writes"]] == ["/opt/fly/current", "/etc/fly/a|b"]
    assert found["neighbours"]["looked_at"] == {CONFIG: "00"} and found["card"]["before"]["neighbours"][0]["pid"] == 9
    text = next(tmp_path.glob("*.md")).read_text()
    assert "## Writes (2)" in text and "| T | dev1 | write | /etc/fly/a\\|b |" in text and "not readable here: no driver" in text
