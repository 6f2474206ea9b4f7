# SPDX-License-Identifier: Apache-2.0
"""Cpus of Incus and LXD instances: what their scheduler would drop is refused, a count becomes whole cores of one node, and stays."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.domain.cpuset import CpusetError, parse
from flyops.domain.incuscpu import Machine, explicit, limit, machine, pick, pinned


def resources(cpus: int, *, twin: int = 0, node: Any = lambda cpu: 0, offline: str = "", isolated: str = "") -> dict[str, Any]:
    """`/1.0/resources` of a made-up machine: cpu N and N + twin are one core."""

    def thread(cpu: int) -> dict[str, Any]:
        return {"id": cpu, "numa_node": node(cpu), "online": cpu not in parse(offline), "isolated": cpu in parse(isolated), "thread": 0}

    cores = [{"core": c, "threads": [thread(t) for t in ([c, c + twin] if twin else [c])]} for c in range(twin or cpus)]
    return {"cpu": {"sockets": [{"socket": 0, "cores": cores}], "total": cpus}}


TWO_SOCKETS = machine(resources(40, twin=20, node=lambda cpu: cpu % 2))


def test_case_59_offline_cpus_are_refused_by_number() -> None:
    here = machine(resources(8, offline="6-7"))
    with pytest.raises(CpusetError, match=r"cpus 4-7: 6-7 are offline or not there; .* Ask for cpus of 0-5"):
        explicit(parse("4-7"), here)
    assert explicit(parse("4-5"), here) == ((4, 5), ())


def test_case_60_isolated_cpus_which_the_daemon_would_drop_are_refused_and_never_chosen() -> None:
    here = machine(resources(18, isolated="4,5,12-17"))
    with pytest.raises(CpusetError, match=r"4-5 are isolated .*without a word"):
        explicit(parse("2-5"), here)
    with pytest.raises(CpusetError, match="12-17 are isolated"):
        explicit(parse("12-17"), here)
    assert explicit(parse("2-3"), here) == ((2, 3), ())
    assert pick(6, here)[0] == (0, 1, 2, 3, 6, 7)


def test_every_kind_of_dropped_cpu_is_told_at_once() -> None:
    here = machine(resources(8, offline="7", isolated="5"), allowed="0-5")
    with pytest.raises(CpusetError) as caught:
        explicit(parse("4-7,9"), here)
    text = str(caught.value)
    assert "7,9 are offline or not there" in text
    assert "5 is isolated" in text
    assert "6 is outside the daemon's own set" in text
    assert "Ask for cpus of 0-4" in text


def test_case_64_twins_and_two_sockets() -> None:
    with pytest.raises(CpusetError, match=r"span nodes \(node 0: 6,20,26,36, node 1: 3,13,15,23\)"):
        explicit(parse("3,6,13,15,20,23,26,36"), TWO_SOCKETS)
    _, notes = explicit(parse("3,6,13,15,20,23,26,36"), TWO_SOCKETS, nodes=(0, 1))
    assert "cpus 3,23 are one physical core" in notes
    assert "cpus 6,26 are one physical core" in notes
    assert "cpu 13 shares its physical core with 33, which others may use" in notes
    whole, notes = explicit(parse("0,20,2,22"), TWO_SOCKETS)
    assert set(whole) == {0, 2, 20, 22}
    assert not any("shares" in note for note in notes)


def test_case_64_a_count_becomes_whole_cores_of_one_node() -> None:
    cpus, notes = pick(4, TWO_SOCKETS)
    assert (cpus, notes) == ((0, 2, 20, 22), ())
    cpus, notes = pick(3, TWO_SOCKETS)
    assert len(cpus) == 4
    assert "4 cpus in place of 3" in notes[0]
    assert pick(4, TWO_SOCKETS, nodes=(1,))[0] == (1, 3, 21, 23)


def test_case_64_what_others_are_pinned_to_comes_last_and_what_it_has_stays() -> None:
    assert pick(4, TWO_SOCKETS, taken=(0, 20))[0] == (2, 4, 22, 24)
    full = tuple(range(0, 40, 2))
    assert pick(4, TWO_SOCKETS, taken=full)[0] == (1, 3, 21, 23)
    cpus, notes = pick(4, TWO_SOCKETS, taken=tuple(range(40)))
    assert "pinned to other instances" in notes[0]
    assert len(cpus) == 4
    assert pick(4, TWO_SOCKETS, now=(5, 7, 25, 27), taken=())[0] == (5, 7, 25, 27)
    assert pick(4, TWO_SOCKETS, now=(3, 6, 13, 15))[0] == (0, 2, 20, 22)
    assert pick(2, TWO_SOCKETS, now=(5, 7, 25, 27))[0] == (0, 20)


def test_case_65_a_node_that_is_too_small_is_refused_or_spanned_when_told() -> None:
    here = machine(resources(64, node=lambda cpu: cpu // 32))
    with pytest.raises(CpusetError, match=r"48 cpus were asked for, and no node has as many; found node 0: 32 \(0-31\), node 1: 32"):
        pick(48, here)
    with pytest.raises(CpusetError, match="no node has as many"):
        pick(48, here, nodes=(0,))
    assert len(pick(48, here, nodes=(0, 1))[0]) == 48
    assert pick(32, here)[0] == tuple(range(32))


@pytest.mark.parametrize(("cpus", "text"), [((1,), "1-1"), ((0, 1), "0-1"), ((0, 2, 3), "0,2-3")])
def test_one_cpu_is_never_a_count(cpus: tuple[int, ...], text: str) -> None:
    assert limit(cpus) == text
    assert pinned(text) == cpus


@pytest.mark.parametrize("value", ["", "4", "x"])
def test_what_is_no_list_pins_nothing(value: str) -> None:
    assert pinned(value) == ()


def test_a_daemon_that_tells_nothing() -> None:
    assert machine({}) == Machine(())
    with pytest.raises(CpusetError, match="found none"):
        pick(1, machine({}))
