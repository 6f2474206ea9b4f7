# SPDX-License-Identifier: Apache-2.0
"""container_gpu on a real LXC guest: cpus that the kernel enforces after a gentle restart, and a config that comes back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.run import run_module
from flyops.modules import container_gpu
from tests.beds.lxc import Guest

pytestmark = [pytest.mark.lxc, pytest.mark.root]


def test_cpus_come_and_go(lxc_guest: Guest, tmp_path: Path) -> None:
    before, pid = lxc_guest.config, lxc_guest.pid()

    def converge(**args: Any) -> dict[str, Any]:
        found: dict[str, Any] = run_module(container_gpu, {"manager": "lxc", "guest": lxc_guest.name, "state_dir": str(tmp_path), **args}, RealHost())
        assert not found["failed"], found["msg"]
        return found

    given = converge(cpus="0")
    assert (given["changed"], given["restart_needed"], lxc_guest.pid()) == (True, True, pid)
    restarted = converge(cpus="0", restart=True)  # the guest is ours: flyops made it
    assert (restarted["restarted"], restarted["cpus_effective"], restarted["restart_needed"]) == (True, "0", False)
    assert lxc_guest.pid() != pid
    assert lxc_guest.run("grep", "Cpus_allowed_list", "/proc/1/status").stdout.split() == ["Cpus_allowed_list:", "0"]
    again = converge(cpus="0", restart=True)
    assert (again["changed"], again["cpus_wrong"]) == (False, "")
    assert converge(cpus="")["changed"]
    assert lxc_guest.config == before
