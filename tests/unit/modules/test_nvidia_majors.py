# SPDX-License-Identifier: Apache-2.0
"""What fixtures cannot show of nvidia_majors: time, somebody else's hand, a run that is cut off, the way of writing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from flyops.errors import ModuleError
from flyops.model.change import Change
from flyops.model.host import Host
from flyops.modules import nvidia_majors, nvidia_nodes
from flyops.spec import validate
from flyops.testing.fakehost import FakeHost

CONF = "/etc/pve/lxc/101.conf"
DEVICES = "Character devices:\n195 nvidia\n236 nvidia-caps\n511 nvidia-uvm\n"


def asked(module: Any, **values: Any) -> dict[str, Any]:
    found, errors = validate(module.SPEC, {"state": "present", **values})
    assert errors == []
    return found


def fake(devices: str = DEVICES) -> FakeHost:
    host = FakeHost()
    host.add_file("/proc/devices", devices.encode())
    host.add_file(CONF, b"arch: amd64\n", 0o640, gid=33)
    host.add_dir("/var/lib/flyops")
    host.add_dir("/dev")
    return host


def planned(host: FakeHost, args: dict[str, Any]) -> Change:
    decision = nvidia_majors.plan(args, nvidia_majors.read(args, cast("Host", host)))
    assert isinstance(decision, Change)
    return decision


def test_a_config_of_proxmox_keeps_its_inode_and_one_of_lxc_appears_by_rename() -> None:
    host = fake()
    host.add_file("/var/lib/lxc/dev1/config", b"a = b\n")
    before = {path: host.nodes[path].inode for path in (CONF, "/var/lib/lxc/dev1/config")}
    args = asked(nvidia_majors, guests=["101", "dev1"])

    nvidia_majors.apply(args, planned(host, args), cast("Host", host))

    after = {path: host.nodes[path].inode for path in before}
    assert after[CONF] == before[CONF]
    assert (host.nodes[CONF].mode, host.nodes[CONF].gid) == (0o640, 33)
    assert after["/var/lib/lxc/dev1/config"] != before["/var/lib/lxc/dev1/config"]


def test_a_config_that_somebody_wrote_meanwhile_is_left_to_them() -> None:
    host = fake()
    args = asked(nvidia_majors, guests=["101"])
    decision = planned(host, args)
    host.add_file(CONF, b"arch: amd64\ncores: 2\n")

    with pytest.raises(ModuleError, match="was changed by somebody else while it was looked at"):
        nvidia_majors.apply(args, decision, cast("Host", host))
    assert host.read_text(CONF) == "arch: amd64\ncores: 2\n"


def test_a_run_that_is_cut_off_knows_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    host = fake()
    args = asked(nvidia_majors, guests=["101"], record="/var/lib/flyops/given.json")
    decision = planned(host, args)
    monkeypatch.setattr(host, "write_through", lambda *_: (_ for _ in ()).throw(OSError(5, "cut off")))

    with pytest.raises(OSError, match="cut off"):
        nvidia_majors.apply(args, decision, cast("Host", host))
    assert host.read_text("/var/lib/flyops/given.json") == '["101"]\n'


@pytest.mark.parametrize("module", [nvidia_majors, nvidia_nodes])
def test_case_13_majors_that_are_on_their_way_are_waited_for(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the run: a unit that fails and is tried again no longer holds back the guests."""
    host = fake("Character devices:\n")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            host.add_file("/proc/devices", DEVICES.encode())

    monkeypatch.setattr("time.sleep", sleep)
    more = {"guests": ["101"]} if module is nvidia_majors else {"gpus": [0]}
    args = asked(module, wait=30, **more)

    assert isinstance(module.plan(args, module.read(args, cast("Host", host))), Change)
    assert len(slept) == 3


@pytest.mark.parametrize("module", [nvidia_majors, nvidia_nodes])
def test_and_not_for_ever(module: Any) -> None:
    host = fake("Character devices:\n195 nvidia\n")
    more = {"guests": ["101"]} if module is nvidia_majors else {"gpus": [0]}
    args = asked(module, wait=0, **more)

    with pytest.raises(ModuleError, match="nvidia-uvm"):
        module.plan(args, module.read(args, cast("Host", host)))
