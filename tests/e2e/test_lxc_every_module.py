# SPDX-License-Identifier: Apache-2.0
"""Every generic module in a real guest: a first --check predicts, the run changes, the second run changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flyops.loading.inventory import Inventory
from flyops.operations.play import run_playbook
from tests.beds import digest
from tests.beds.play import Played, Recorder

PLAYBOOK = Path(__file__).with_name("every_module.yml")
pytestmark = [pytest.mark.lxc, pytest.mark.root, pytest.mark.slow]


def played(name: str, *, check: bool = False, **extra: Any) -> Played:
    """Run the playbook in a guest."""
    made = Inventory()
    made.add_host(name, [], {"ansible_connection": "lxc"})
    seen = Recorder()
    return Played(run_playbook(PLAYBOOK, inventory=made, display=[seen], check=check, diff=True, extra_vars=extra), seen)


def changed(run: Played) -> list[str]:
    """Tasks that said changed, in order."""
    return [order.rpartition(":")[0] for order in run.seen.order() if order.endswith(":changed")]


def test_every_module(lxc_guest: Any) -> None:
    """On one guest: check, run, run, check; and a digest of the whole guest between them."""
    name = lxc_guest.name
    clean = digest.digest(name)

    predicted = played(name, check=True)
    assert predicted.result.exit_code == 0, predicted.seen.order()
    assert digest.differences(clean, digest.digest(name)) == []
    first = played(name)
    assert first.result.exit_code == 0, [event.result for event in first.seen.of("result") if event.status == "failed"]
    made = digest.digest(name)
    again = played(name)
    checked = played(name, check=True)

    assert changed(predicted) == changed(first)
    assert len(changed(first)) >= 23
    assert (again.result.exit_code, changed(again)) == (0, [])
    assert (checked.result.exit_code, changed(checked)) == (0, [])
    assert digest.differences(made, digest.digest(name)) == []
    assert lxc_guest.run("id", "-un", "everymod").stdout.strip() == "everymod"
    assert lxc_guest.run("systemctl", "is-active", "everymod").stdout.strip() == "active"
