# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import confine


def one(pid: int, parent: int = 1, name: str = "x", cgroup: str = "/system.slice/x.service", cpus: str = "0-15", memory: str = "VmSize:\t1 kB\n"):
    return confine.process(f"Name:\t{name}\nPid:\t{pid}\nPPid:\t{parent}\n{memory}Cpus_allowed_list:\t{cpus}\n", f"0::{cgroup}\n")


SIM = (1, 3, 5, 7)


@pytest.mark.parametrize(
    ("cgroup", "wrong"),
    [
        ("/flysim.slice", False),
        ("/flysim.slice/flysim.service", False),
        ("/system.slice/flysim.service", True),
        ("/flysim.slice2/x", True),
        ("/", True),
        ("", True),
    ],
)
def test_the_simulator_must_be_in_its_own_slice(cgroup, wrong):
    text = confine.outside(cgroup, "flysim.slice")
    assert bool(text) is wrong
    assert not wrong or "/flysim.slice" in text


def test_a_process_that_ended_is_none():
    assert confine.process("", "") is None
    assert confine.process("Name:\tx\n", "0::/\n") is None


def test_trespassers():
    hog = one(40, name="hog")
    kernel = one(9, parent=2, name="kworker/1:0", cgroup="/", memory="")
    sim = one(30, name="flysim", cgroup="/flysim.slice/flysim.service", cpus="1,3,5,7")
    off = one(31, name="page", cpus="9,11,13-15")
    found, ours = confine.trespassers([hog, kernel, sim, off], SIM, "flysim.slice")
    assert (found, ours) == ([hog], [])
    assert confine.describe(hog, SIM) == "hog (pid 40, /system.slice/x.service) may run on cpus 1,3,5,7 of the simulator"


def test_our_own_chain_is_noted_a_stranger_beside_it_is_not():
    attach = "/.lxc"
    chain = {pid: one(pid, parent, "python3", attach) for pid, parent in ((22, 21), (21, 20), (20, 1))}
    stranger = one(50, 1, "tar", attach)
    own = confine.chain(chain, 22)
    assert own == (22, 21, 20)
    found, ours = confine.trespassers([*chain.values(), stranger], SIM, "flysim.slice", own)
    assert found == [stranger] and len(ours) == 3


def test_a_chain_ends_even_in_a_circle():
    assert confine.chain({5: one(5, 6), 6: one(6, 5)}, 5) == (5, 6)


def test_differing_compares_sets_not_texts():
    assert confine.differing({"a": "9,11,13-15", "b": "9,11,13,14,15", "c": "", "d": "0-15"}, (9, 11, 13, 14, 15)) == ("c", "d")
