# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyops.domain import cpuset

PARSED = {
    "": (),
    " \n": (),
    "0": (0,),
    "0-3": (0, 1, 2, 3),
    "1,3,5": (1, 3, 5),
    "5,3,1": (5, 3, 1),
    "0-1,4-5\n": (0, 1, 4, 5),
    "0-8:2/4": (0, 1, 4, 5, 8),
    "1-9:1/2": (1, 3, 5, 7, 9),
    "3,3,2-4": (3, 2, 4),
    "7-7": (7,),
    " 1 , 2 ": (1, 2),
    "8191": (8191,),
}


@pytest.mark.parametrize(("text", "cpus"), PARSED.items())
def test_parse(text, cpus):
    assert cpuset.parse(text) == cpus


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "expected a number"),
        ("1,,2", "expected a number"),
        ("1,", "expected a number"),
        ("-1", "expected a number"),
        ("1-", "expected a number"),
        ("7-3", "runs backwards; write 3-7"),
        ("0-8:2", "a stride is FIRST-LAST:USED/GROUP"),
        ("0-8:", "a stride is"),
        ("4:1/2", "a stride is"),
        ("0-8:0/4", "1 <= used <= group"),
        ("0-8:5/4", "1 <= used <= group"),
        ("8192", "above 8191"),
        ("0-99999999999", "above 8191"),
        ("²", "expected a number"),
        ("0x3", "expected a number"),
        ("1 2", "expected a number"),
        ("$(reboot)", "expected a number"),
    ],
)
def test_parse_refuses(text, says):
    with pytest.raises(cpuset.CpusetError, match=says.replace("(", r"\(")):
        cpuset.parse(text)


@pytest.mark.parametrize(("cpus", "text"), [((), ""), ((0, 1), "0-1"), ((8, 2, 0, 1), "0-2,8"), ((1, 3, 5), "1,3,5"), ((13, 14, 15, 9), "9,13-15")])
def test_render(cpus, text):
    assert cpuset.render(cpus) == text


@given(st.lists(st.integers(0, cpuset.MAX_CPU), unique=True))
def test_what_is_rendered_parses_back(cpus):
    assert set(cpuset.parse(cpuset.render(cpus))) == set(cpus)
    assert cpuset.parse(",".join(map(str, cpus))) == tuple(cpus)


@given(st.text(alphabet="0123456789,-:/ ", max_size=20))
def test_any_text_is_parsed_or_refused(text):
    try:
        found = cpuset.parse(text)
    except cpuset.CpusetError:
        return
    assert len(set(found)) == len(found)


TWINS20 = {cpu: (cpu % 20, cpu % 20 + 20) for cpu in range(40)}
WIDE = "1,3,5,7,9,11,13,15,29,31,33,35,17,19,37,39"


@pytest.mark.parametrize(
    ("cpus", "sim", "encoder", "expected"),
    [
        ("1,3,5,7,9,11,13,15,17,19", 4, 3, "1,3,5,7|9,11,13|15,17,19"),
        ("1,3,5,7,9,11,13,15", 4, 2, "1,3,5,7|9,11|13,15"),
        ("0,2,4,6,8,10,12,14", 2, 2, "0,2|4,6,8,10|12,14"),
        ("0-7", 4, 0, "0-3|4-7|"),
        ("0-7", 4, 2, "0-3|4-5|6-7"),
        ("0-3", 3, 0, "0-2|3|"),
        (WIDE, 4, 4, "1,3,5,7|9,11,13,15,29,31,33,35|17,19,37,39"),
        ("7,6,5,4", 1, 1, "7|5-6|4"),
    ],
    ids=["lint-10", "lint-8-odd", "lint-8-even", "lint-range-0-7", "range-encoder", "four", "lint-16", "typed-order"],
)
def test_partition(cpus, sim, encoder, expected):
    found = cpuset.partition(cpuset.parse(cpus), sim, encoder)
    assert "|".join(map(cpuset.render, (found.sim, found.page, found.encoder))) == expected
    assert found.divided


@pytest.mark.parametrize(
    ("cpus", "sim", "encoder", "says"),
    [
        ("1,3", 2, 2, "no cpus left over"),
        ("1,3,5,7", 2, 2, "not enough for ENCODER_CORES"),
        ("0-7", 8, 0, "no cpus left over"),
        ("0-7", 0, 0, "at least 1 cpu"),
        ("0-7", 4, -1, "none or more"),
        ("", 1, 0, "no cpus left over"),
    ],
)
def test_partition_refuses(cpus, sim, encoder, says):
    with pytest.raises(cpuset.CpusetError, match=says):
        cpuset.partition(cpuset.parse(cpus), sim, encoder)


PAIRS = {0: (0, 4), 4: (0, 4), 1: (1, 5), 5: (1, 5), 2: (2, 6), 6: (2, 6), 3: (3, 7), 7: (3, 7)}


def test_case_64_whole_cores_stay_together():
    found = cpuset.partition(cpuset.parse("0-7"), 4, 0, PAIRS)
    assert (cpuset.render(found.sim), cpuset.render(found.page)) == ("0-1,4-5", "2-3,6-7")
    assert found.notes == ()
    assert not cpuset.shared_cores((found.sim, found.page), PAIRS)


def test_a_cut_core_is_rounded_up_and_said():
    found = cpuset.partition(cpuset.parse("0-7"), 3, 1, PAIRS)
    assert cpuset.render(found.sim) == "0-1,4-5"
    assert cpuset.render(found.encoder) == "3,7"
    assert cpuset.render(found.page) == "2,6"
    assert len(found.notes) == 2
    assert "4 cpus in place of 3" in found.notes[0]


def test_whole_cores_that_leave_nothing_are_refused():
    with pytest.raises(cpuset.CpusetError, match="whole physical cores"):
        cpuset.partition((0, 1, 4, 5), 3, 0, PAIRS)


def test_case_64_two_sockets_with_twins_n_and_n_plus_20():
    found = cpuset.partition(cpuset.parse(WIDE), 4, 4, TWINS20)
    assert cpuset.render(found.sim) == "1,3,5,7"
    assert not cpuset.shared_cores((found.sim, found.page, found.encoder), TWINS20)


def test_shared_cores_are_named():
    assert cpuset.shared_cores(((0,), (4,)), PAIRS) == ["cpus 0 and 4 are one physical core"]


@given(st.sets(st.integers(0, 63), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 10), st.booleans())
def test_a_partition_loses_and_shares_nothing(cpus, sim, encoder, twins):
    siblings = {cpu: (cpu // 2 * 2, cpu // 2 * 2 + 1) for cpu in range(64)} if twins else {}
    try:
        found = cpuset.partition(tuple(sorted(cpus)), sim, encoder, siblings)
    except cpuset.CpusetError:
        assert len(cpus) - sim - encoder < 1 or twins
        return
    parts = [*found.sim, *found.page, *found.encoder]
    assert sorted(parts) == sorted(cpus)
    assert len(found.sim) >= sim
    assert len(found.encoder) >= encoder
    assert found.page
    assert not cpuset.shared_cores((found.sim, found.page, found.encoder), siblings)


@pytest.mark.parametrize(
    ("count", "minimum", "force", "divided"),
    [(2, 4, False, False), (3, 4, False, False), (4, 4, False, True), (2, 4, True, True), (2, 2, False, True)],
)
def test_no_partition_below_the_minimum_unless_forced(count, minimum, force, divided):
    found = cpuset.divide(tuple(range(count)), 1, minimum=minimum, force=force)
    assert found.divided is divided
    assert (found.sim == found.page == found.cpus) is not divided
    assert bool(found.notes) is not divided


@pytest.mark.parametrize(
    ("asked", "online", "allowed", "isolated", "expected"),
    [
        ("", "0-5", "0-7", "", "0-5"),
        ("", "0-7", "0-7", "4,5", "0-3,6-7"),
        ("", "", "2-3", "", "2-3"),
        ("4-5", "0-7", "0-7", "4,5,12-17", "4-5"),
        ("1,3", "0-7", "0-7", "", "1,3"),
        ("", "0-19", "0-19", "4,5,12-17", "0-3,6-11,18-19"),
    ],
    ids=["automatic-online", "case-60-automatic", "no-online-file", "case-60-explicit", "explicit", "case-60-wide"],
)
def test_usable(asked, online, allowed, isolated, expected):
    found, notes = cpuset.usable(*(cpuset.parse(asked),), online=cpuset.parse(online), allowed=cpuset.parse(allowed), isolated=cpuset.parse(isolated))
    assert cpuset.render(found) == expected
    assert bool(notes) is bool(asked and isolated)


@pytest.mark.parametrize(
    ("asked", "online", "allowed", "isolated", "says"),
    [
        ("4-7", "0-5", "0-7", "", "cpus 6-7 are offline"),
        ("0-3", "0-7", "2-5", "", "cpus 0-1 are outside"),
        ("", "0-1", "0-1", "0-1", "no cpu is left"),
    ],
    ids=["case-59", "outside", "all-isolated"],
)
def test_usable_refuses_by_number(asked, online, allowed, isolated, says):
    with pytest.raises(cpuset.CpusetError, match=says):
        cpuset.usable(cpuset.parse(asked), online=cpuset.parse(online), allowed=cpuset.parse(allowed), isolated=cpuset.parse(isolated))


@pytest.mark.parametrize(
    ("want", "found", "says"),
    [
        ("0-3", "0-3", ""),
        ("3,2,1,0", "0-3", ""),
        ("", "0-7", ""),
        ("0-3", "0-7", "parent's whole set"),
        ("0-3", "0-1", "cpus 2-3 are not within"),
        ("0-3", "8-9", "none of the asked"),
        ("0-3", "2-5", "expected cpus 0-3, found 2-5"),
        ("0-3", "", "found none"),
    ],
)
def test_mismatch(want, found, says):
    text = cpuset.mismatch(cpuset.parse(want), cpuset.parse(found))
    assert says in text
    assert bool(text) is bool(says)


UNITS = {"flysim.slice": "sim", "flysim.service": "sim", "flypage.service": "page"}
PEER = [(WIDE, 4, 4), ("1,3,5,7,9,11,13,15,17,19", 4, 3), ("1,3,5,7,9,11,13,15", 4, 2), ("0,2,4,6,8,10,12,14", 2, 2)]


def of(text: str, unit: str) -> tuple[str, cpuset.Cpus]:
    """Section and cpus of a drop-in's text."""
    head = next(line for line in text.splitlines() if line.startswith("["))
    return head, cpuset.parse([line for line in text.splitlines() if line.startswith("AllowedCPUs=")][-1].partition("=")[2])


@pytest.mark.parametrize(("cpus", "sim", "encoder"), PEER, ids=["lint-dropin-16", "lint-dropin-10", "lint-dropin-8-odd", "lint-dropin-8-even"])
def test_lint_dropin_plan(cpus, sim, encoder):
    """sim list == slice list == the sim unit's; every other unit disjoint from it; sim + other == CPUSET; each in its own section."""
    parts = cpuset.partition(cpuset.parse(cpus), sim, encoder)
    sets = cpuset.sets(parts, parts.cpus)
    units = {**UNITS, "enc.service": "encoder", "system.slice": "other", "user.slice": "other", "init.scope": "other"}
    found = {unit: of(cpuset.dropins(sets, units, "v2")[cpuset.dropin_path(unit)], unit) for unit in units}

    assert found["flysim.slice"] == ("[Slice]", parts.sim)
    assert found["flysim.service"] == ("[Service]", parts.sim)
    assert found["init.scope"][0] == "[Scope]"
    for unit, role in units.items():
        assert role == "sim" or not set(found[unit][1]) & set(parts.sim), unit
    assert sorted([*sets["sim"], *sets["other"]]) == sorted(cpuset.parse(cpus))
    assert sorted([*parts.page, *parts.encoder]) == sorted(sets["other"])


def test_other_is_everything_that_the_guest_has_beside_the_simulator():
    parts = cpuset.partition((2, 3, 4, 5), 2)
    assert cpuset.render(cpuset.sets(parts, tuple(range(8)))["other"]) == "0-1,4-7"


def test_lint_ranges_are_expanded_first():
    """The peer's plan refuses `0-7`, 4 for a wrong reason; the same set is the same plan, however it is written."""
    spelled = cpuset.partition(cpuset.parse("0,1,2,3,4,5,6,7"), 4)
    assert cpuset.partition(cpuset.parse("0-7"), 4) == spelled
    assert cpuset.partition(cpuset.parse("0-8:4/4"), 4).sim == spelled.sim


def test_dropins_v2_and_v1():
    sets = cpuset.sets(cpuset.partition(cpuset.parse("0-7"), 4), ())
    two, one = cpuset.dropins(sets, UNITS, "v2"), cpuset.dropins(sets, UNITS, "v1")
    sim = "/etc/systemd/system/flysim.service.d/50-flyops-cpus.conf"
    assert set(two) == {sim, sim.replace("flysim", "flypage"), sim.replace("flysim.service", "flysim.slice")}
    assert set(one) == {sim, sim.replace("flysim", "flypage")}  # a slice has no cpus on v1
    assert two[sim].endswith("[Service]\nAllowedCPUs=\nAllowedCPUs=0-3\n")
    assert one[sim].endswith("[Service]\nCPUAffinity=\nCPUAffinity=0-3\n")
    assert cpuset.dropin("a.service", (1, 3), "v1").endswith("CPUAffinity=1 3\n")
    assert cpuset.dropin("brain.slice", (1, 3), "v2").endswith("[Slice]\nAllowedCPUs=\nAllowedCPUs=1,3\n")


def test_case_67_memory_nodes_stand_beside_the_cpus():
    assert cpuset.dropin("a.service", (1,), "v2", (0,)).endswith("AllowedCPUs=1\nAllowedMemoryNodes=\nAllowedMemoryNodes=0\n")
    assert cpuset.dropin("a.service", (1,), "v1", (0, 1)).endswith("CPUAffinity=1\nNUMAPolicy=bind\nNUMAMask=0-1\n")
    assert "Memory" not in cpuset.dropin("a.service", (1,), "v2") and "NUMA" not in cpuset.dropin("a.service", (1,), "v1")


@pytest.mark.parametrize(
    ("unit", "cpus", "cgroup", "says"),
    [
        ("a-b.slice", (1,), "v2", "nests it under a.slice"),
        ("a.slice", (1,), "v1", "only a service"),
        ("flysim", (1,), "v2", "expected a unit"),
        (".service", (1,), "v2", "expected a unit"),
        ("flysim.service", (), "v2", "empty set"),
        ("flysim.service", (1,), "v3", "expected cgroup"),
    ],
)
def test_dropin_refuses(unit, cpus, cgroup, says):
    with pytest.raises(cpuset.CpusetError, match=says):
        cpuset.dropin(unit, cpus, cgroup)


@pytest.mark.parametrize(("role", "says"), [("brain", "expected a role"), ("encoder", "that set is empty")])
def test_dropins_refuse_a_role(role, says):
    with pytest.raises(cpuset.CpusetError, match=says):
        cpuset.dropins(cpuset.sets(cpuset.partition((0, 1, 2, 3), 1), ()), {"x.service": role}, "v2")


def test_taskset():
    assert cpuset.taskset((0, 1, 3)) == "taskset --cpu-list 0-1,3"
    assert cpuset.taskset(()) == ""


def test_allowed_list_and_cgroup():
    assert cpuset.allowed_list("Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-1,4\n") == (0, 1, 4)
    with pytest.raises(cpuset.CpusetError):
        cpuset.allowed_list("Name:\tx\n")
    assert cpuset.cpuset_cgroup("4:cpu,cpuset:/guest\n0::/x\n") == ("v1", "/guest")
    assert cpuset.cpuset_cgroup("3:cpuacct:/no\n0::/system.slice/a.service\n") == ("v2", "/system.slice/a.service")
