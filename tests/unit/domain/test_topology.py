# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import cpuset, topology
from flyops.domain.topology import Topology

# 8 fast cores with twins (two favoured ones reach 5.8 GHz), 16 slow ones.
HYBRID = {cpu: 5_800_000 if 8 <= cpu <= 11 else 5_500_000 if cpu < 16 else 4_300_000 for cpu in range(32)}
SOCKETS = {cpu: cpu % 2 for cpu in range(40)}  # even = node 0
TWINS = {cpu: (cpu % 20, cpu % 20 + 20) for cpu in range(40)}
RANDOM = "3,6,13,15,20,23,26,36"


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        (HYBRID, "0-15|16-31"),
        ({0: 1024, 1: 871, 2: 871, 3: 326}, "0-2|3"),
        ({0: 1024, 1: 650, 2: 326}, "0|1|2"),
        ({0: 3000, 1: 2560}, "0-1"),
        ({0: 3000, 1: 2540}, "0|1"),
        (dict.fromkeys(range(4), 1024), "0-3"),
        ({}, "0-3"),
        ({0: 100, 1: 0, 2: 100}, "0-2"),
    ],
    ids=["case-62-favoured-cores", "arm-three-kinds", "three-bands", "on-the-edge", "below-it", "one-kind", "no-table", "half-a-table"],
)
def test_bands(speed, expected):
    cpus = sorted(speed) or [0, 1, 2, 3]
    assert "|".join(map(cpuset.render, topology.bands(cpus, speed))) == expected


def test_case_62_capacity_before_frequency():
    """muvm#43: a small core may be clocked as high as a large one."""
    capacity, frequency = {0: 459, 1: 1024}, {0: 3_200_000, 1: 3_200_000}
    assert topology.speeds(capacity, frequency) == capacity
    assert topology.speeds({}, frequency) == frequency
    assert topology.speeds({0: 0, 1: 0}, frequency) == frequency


def test_case_62_an_automatic_plan_takes_the_fast_band_first_and_all_of_it():
    order, notes = topology.choose(tuple(range(31, -1, -1)), 9, Topology(speed=HYBRID))
    assert set(order[:16]) == set(range(16)) and not notes
    plan = cpuset.partition(order, 8)
    assert not topology.remarks(plan.sim, Topology(speed=HYBRID))


def test_case_62_named_cpus_of_two_kinds_are_taken_and_said():
    assert "15 and 16" in topology.remarks((15, 16), Topology(speed=HYBRID))[0]
    assert not topology.remarks((8, 0), Topology(speed=HYBRID))


def test_case_64_a_random_set_shares_cores_and_nodes():
    found = cpuset.parse(RANDOM)
    assert cpuset.shared_cores((found[:4], found[4:]), TWINS) == ["cpus 3 and 23 are one physical core", "cpus 6 and 26 are one physical core"]
    assert "nodes 0-1" in topology.remarks(found, Topology(nodes=SOCKETS))[0]


def test_case_64_an_automatic_plan_stays_in_one_node_on_whole_cores():
    order, notes = topology.choose(tuple(range(40)), 9, Topology(TWINS, SOCKETS))
    assert set(order) == set(range(0, 40, 2)) and "cpus of node 0 only" in notes[0]
    plan = cpuset.partition(order, 8, 0, TWINS)
    assert not cpuset.shared_cores((plan.sim, plan.page), TWINS) and not topology.remarks(plan.sim, Topology(TWINS, SOCKETS))


def test_the_largest_node_is_taken():
    nodes = {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}
    assert topology.choose((0, 1, 2, 3, 4), 2, Topology(nodes=nodes))[0] == (2, 3, 4)
    assert topology.choose((0, 1, 2, 3), 2, Topology(nodes=nodes))[0] == (0, 1)  # of equal ones the first


def test_case_65_a_node_that_is_too_small_is_spanned_and_said():
    order, notes = topology.choose(tuple(range(40)), 48, Topology(TWINS, SOCKETS))
    assert set(order) == set(range(40))
    assert "no node has the 48 cpus that are needed (node 0: 0,2,4" in notes[0] and "spans nodes" in notes[0]


@pytest.mark.parametrize(
    ("cpus", "nodes", "expected"),
    [((0, 2), SOCKETS, (0,)), ((1, 3), SOCKETS, (1,)), ((0, 1), SOCKETS, (0, 1)), ((0, 1), {0: 0, 1: 0}, ()), ((0, 1), {}, ())],
    ids=["case-67-node-0", "case-67-node-1", "both", "case-67-one-node", "no-table"],
)
def test_mems_follow_the_cpus(cpus, nodes, expected):
    assert topology.mems(cpus, nodes) == expected


@pytest.mark.parametrize(
    ("allowed", "cpus", "wrong"),
    [((0, 1), (0, 2), False), ((1,), (0, 2), True), ((0,), (0, 2), False), ((), (0, 2), False), ((0,), (0, 1), True)],
    ids=["both-allowed", "case-67-other-node", "same-node", "unknown", "case-67-half"],
)
def test_memory_of_another_node_is_named(allowed, cpus, wrong):
    text = topology.remote(allowed, cpus, SOCKETS)
    assert bool(text) is wrong
    assert not wrong or ("memory may come from" in text and cpuset.render(cpus) in text)


def test_one_node_is_never_remote():
    assert not topology.remote((1,), (0, 1), {0: 0, 1: 0})
