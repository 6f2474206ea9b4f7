# SPDX-License-Identifier: Apache-2.0
"""A card's lines in a config: what is bound and what never is, whose each line is, and limits written for the wrong cgroup version."""

from __future__ import annotations

import pytest

from flyops.domain import lxcconf
from flyops.domain.lxcconf import Device

CARD = (
    Device("/dev/nvidia1", 195, 1), Device("/dev/nvidiactl", 195, 255), Device("/dev/nvidia-uvm", 511, 0),
    Device("/dev/nvidia-caps/nvidia-cap12", 236, 12),
)  # fmt: skip
V1 = "c /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\nm /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"


def test_case_52_the_hosts_run_is_never_bound() -> None:
    lines = lxcconf.gpu_lines(CARD, (("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib64", "dir"),), "v2")
    targets = [found.split()[1] for key, found in lines if key == "lxc.mount.entry"]
    assert targets
    assert not [target for target in targets if target.split("/")[0] in ("run", "var")]


def test_some_cards_are_their_nodes_one_by_one_and_no_other_can_be_made() -> None:
    lines = lxcconf.gpu_lines(CARD, (), "v2", some=True)
    assert lxcconf.NO_MKNOD in lines
    assert ("lxc.mount.entry", "/dev/nvidia-caps/nvidia-cap12 dev/nvidia-caps/nvidia-cap12 none bind,optional,create=file") in lines
    assert lxcconf.NO_MKNOD not in lxcconf.gpu_lines(CARD, (), "v2")


@pytest.mark.parametrize(
    ("key", "found", "ours"),
    [
        ("lxc.cap.drop", "mknod", True),
        ("lxc.cap.drop", "mknod sys_nice", False),
        ("lxc.hook.pre-start", "/var/lib/lxc/dev1/mount-disk", True),
        ("lxc.hook.pre-start", "/opt/theirs", False),
        ("lxc.cgroup2.cpuset.mems", "0", True),
        ("lxc.cgroup2.cpu.weight", "100", False),
        ("lxc.idmap", "u 0 100000 65536", True),
    ],
)
def test_whose_a_line_is(key: str, found: str, ours: bool) -> None:
    assert lxcconf.owned({})(key, found) is ours


@pytest.mark.parametrize(
    ("line", "mounts", "dead"),
    [
        ("lxc.cgroup2.cpuset.cpus = 0", V1, "lxc.cgroup2.cpuset.cpus = 0 is dead: cpuset is on cgroup v1 here"),
        ("lxc.cgroup.cpu.shares = 5", V1, "lxc.cgroup.cpu.shares = 5 is dead: cpu is on cgroup v2 here"),
        ("lxc.cgroup.cpuset.cpus = 0", V1, ""),
        ("lxc.cgroup2.io.weight = 5", V1, ""),
        ("lxc.cgroup2.devices.allow = c 195:* rwm", "d /d cgroup rw,devices 0 0\n", ""),
        ("lxc.cgroup.devices.allow = c 195:* rwm", "u /u cgroup2 rw 0 0\n", "devices is on cgroup v2 here"),
        ("lxc.cgroup.dir = flies", V1, ""),
        ("[snap]\nlxc.cgroup.cpu.shares = 5", V1, ""),
    ],
)
def test_limits_for_the_other_cgroup_version_are_told(line: str, mounts: str, dead: str) -> None:
    found = lxcconf.dead(line + "\n", mounts)
    assert (found[0] if found else "").endswith(dead)
    assert bool(found) is bool(dead)
