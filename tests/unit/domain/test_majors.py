# SPDX-License-Identifier: Apache-2.0
"""Which device rules a managed guest's config should have; both styles of config, and what nobody may lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyops.domain import lxcplan, majors
from flyops.domain.majors import Conf, Machine, MajorsError

REGISTERED = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-caps": 236, "nvidia-uvm": 511, "mei": 509, "drm": 226}
LIVE = {"nvidia": 195, "nvidia-modeset": 195, "nvidia-caps": 236, "nvidia-uvm": 511}
V2 = Machine(REGISTERED, LIVE, "v2")
V1 = Machine(REGISTERED, LIVE, "v1")
UVM = "lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
RIGHT = f"{UVM}lxc.cgroup2.devices.allow = c 511:* rwm\n"


def conf(text: str | None, *, pve: bool = False, named: bool = True) -> Conf:
    return Conf("101" if pve else "dev1", "/x", text, pve, named)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("dev/nvidia0", "nvidia"),
        ("/dev/nvidia15", "nvidia"),
        ("dev/nvidiactl", "nvidia"),
        ("dev/nvidia-modeset", "nvidia"),
        ("dev/nvidia-uvm", "nvidia-uvm"),
        ("dev/nvidia-uvm-tools", "nvidia-uvm"),
        ("dev/nvidia-caps", "nvidia-caps"),
        ("dev/nvidia-caps/nvidia-cap12", "nvidia-caps"),
        ("dev/nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels"),
        ("dev/nvidia-nvswitchctl", "nvidia-nvswitch"),
        ("dev/nvidia-nvlink", "nvidia-nvlink"),
        ("dev/nvidia-fs12", "nvidia-fs"),
        ("dev/nvidia0x", ""),
        ("dev/dri/card0", ""),
        ("usr/local/nvidia/lib64", ""),
        ("nvidia0", ""),
    ],
)
def test_kind_of_a_node(target: str, found: str) -> None:
    assert majors.kind(target) == found


@pytest.mark.parametrize(
    ("names", "pve", "says"),
    [
        (["dev1", "101", "a.b_c-d", "A"], True, ""),
        (["7"], False, ""),  # an LXC guest may be called so
        (["7"], True, "'7'"),
        (["0101"], True, "'0101'"),
        (["../x", "ok", "a b", "", "-a"], False, "'../x', 'a b', '', '-a'"),
    ],
)
def test_names(names: list[str], pve: bool, says: str) -> None:
    found = majors.check_names(names, pve)
    assert bool(found) is bool(says)
    assert says in found


@pytest.mark.parametrize(
    ("machine", "pve", "line"),
    [
        (V2, False, "lxc.cgroup2.devices.allow = c 511:* rwm\n"),
        (V1, False, "lxc.cgroup.devices.allow = c 511:* rwm\n"),
        (V2, True, "lxc.cgroup2.devices.allow: c 511:* rwm\n"),
    ],
)
def test_a_rule_is_written_in_the_files_own_style_under_the_key_that_counts(machine: Machine, pve: bool, line: str) -> None:
    text = UVM.replace(" = ", ": ") if pve else UVM
    found = majors.converge(conf(text, pve=pve), machine)
    assert (found.status, found.text) == ("changed", text + line)
    assert majors.converge(conf(found.text, pve=pve), machine).status == "unchanged"


@pytest.mark.parametrize(
    "kept",
    [
        "lxc.cgroup2.devices.allow = c 509:* rwm",  # registered to another device
        "lxc.cgroup2.devices.allow = c 226:* rwm",  # outside the moving numbers
        "lxc.cgroup2.devices.allow = c 511:0 rw",  # not the form that is ours
        "lxc.cgroup2.devices.allow = c 508:* rw",
        "lxc.cgroup2.devices.allow = b 508:* rwm",
        "lxc.cgroup2.devices.deny = c 508:* rwm",
        "lxc.cgroup.devices.allow = c 508:* rwm",  # the dead key: reported, not deleted
        "lxc.mount.entry = /dev/nvidia-modeset dev/nvidia-modeset none bind,optional,create=file\nlxc.cgroup2.devices.allow = c 195:* rwm",
        "# lxc.cgroup2.devices.allow = c 508:* rwm",
    ],
)
def test_what_is_not_ours_stays(kept: str) -> None:
    found = majors.converge(conf(f"{kept}\n{RIGHT}"), V2)
    assert (found.status, found.text) == ("unchanged", f"{kept}\n{RIGHT}")


@pytest.mark.parametrize("number", [234, 254, 384, 508, 510, 236, 195])
def test_what_is_ours_and_unwanted_goes(number: int) -> None:
    """Numbers of nobody in the range where the driver's come from, and numbers of the driver that this guest has no node of."""
    found = majors.converge(conf(f"lxc.cgroup2.devices.allow = c {number}:* rwm\n{RIGHT}"), V2)
    assert (found.status, found.text) == ("changed", RIGHT)
    assert f"has lxc.cgroup2.devices.allow c {number}:* rwm" in found.drift


@pytest.mark.parametrize("number", [233, 255, 383, 512])
def test_just_outside_the_moving_numbers_nothing_is_ours(number: int) -> None:
    text = f"lxc.cgroup2.devices.allow = c {number}:* rwm\n{RIGHT}"
    assert majors.converge(conf(text), V2).status == "unchanged"


def test_another_node_of_the_driver_has_its_rule_too() -> None:
    """GPUDirect Storage, say: provision binds all that the driver has, so a rule of its must not be taken for one out of date."""
    host = Machine({**REGISTERED, "nvidia-fs": 505}, {**LIVE, "nvidia-fs": 505}, "v2")
    text = f"{RIGHT}lxc.mount.entry = /dev/nvidia-fs0 dev/nvidia-fs0 none bind,optional,create=file\n"
    found = majors.converge(conf(text), host)
    assert found.text == f"{text}lxc.cgroup2.devices.allow = c 505:* rwm\n"
    gone = majors.converge(conf(text), V2)
    assert (gone.status, gone.notes) == ("unchanged", ("dev1 binds nodes of nvidia-fs, which /proc/devices does not have",))


def test_case_11_a_reused_number_opens_a_foreign_device() -> None:
    found = majors.converge(conf(f"lxc.cgroup2.devices.allow = c 509:* rwm\n{RIGHT}"), V2)
    assert found.strays == ("dev1: lxc.cgroup2.devices.allow = c 509:* rwm opens mei",)
    assert "509" in found.text


def test_the_dead_key_is_named_with_the_one_that_counts() -> None:
    found = majors.converge(conf(f"lxc.cgroup.devices.allow = c 195:* rwm\n{RIGHT}"), V2)
    assert found.dead == (
        "dev1: lxc.cgroup.devices.allow c 195:* rwm has no effect: devices are on cgroup v2 here, whose key is lxc.cgroup2.devices.allow",
    )
    assert majors.converge(conf(RIGHT.replace("cgroup2", "cgroup")), V1).dead == ()


def test_a_guest_that_was_not_named_and_has_no_card_gets_none() -> None:
    assert majors.converge(conf("a = b\n", named=False), V2).status == "unchanged"
    assert majors.converge(conf("a = b\n"), V2).status == "changed"
    assert majors.converge(conf(None), V2).status == "missing"


def test_every_missing_major_is_named_at_once_with_who_needs_it() -> None:
    host = Machine({"nvidia": 195}, {"nvidia": 195}, "v2")
    confs = [conf(UVM), Conf("dev2", "/y", "a = b\n"), Conf("dev3", "/z", UVM.replace("-uvm", "0"), named=False)]
    with pytest.raises(MajorsError, match=r"no number for nvidia-uvm, nvidia-caps \(needed by dev1, dev2\); found nvidia 195: no config was written"):
        majors.check_majors(confs, host)
    majors.check_majors(confs[2:], host)


def test_a_lock_of_proxmox_only_matters_where_something_is_to_change() -> None:
    locked = "lock: backup\n" + RIGHT.replace(" = ", ": ")
    assert majors.converge(conf(locked, pve=True), V2).status == "unchanged"
    found = majors.converge(conf(locked.replace("511", "508"), pve=True), V2)
    assert found.status == "locked"
    assert "pct unlock 101" in found.notes[0]


def test_giving_and_taking_away_leave_the_text_as_it_was() -> None:
    for text in ("arch: amd64\n\n[snapA]\nlxc.cgroup2.devices.allow: c 511:* rwm\n", "arch: amd64\n"):
        given = majors.converge(conf(text, pve=True), V2)
        assert given.status == "changed"
        assert majors.take_away(conf(given.text, pve=True), V2).text == text


def test_majors_that_moved_at_boot_are_no_reason_to_restart_a_guest() -> None:
    """The boot unit wrote them before the guest started; a later provision must not think that the guest runs with older lines."""
    bind = ("lxc.mount.entry", "/dev/nvidia0 dev/nvidia0 none bind,optional,create=file")
    digests = {lxcplan._digest((bind, ("lxc.cgroup2.devices.allow", f"c {number}:* rwm"))) for number in (511, 505)}
    assert len(digests) == 1
    assert lxcplan._digest((bind,)) in digests
    assert lxcplan._digest(()) not in digests


LINES = st.lists(
    st.sampled_from(
        [
            "arch: amd64", "", "# text", "lxc.cgroup2.devices.allow: c 511:* rwm", "lxc.cgroup2.devices.allow: c 508:* rwm",
            "lxc.cgroup2.devices.allow: c 509:* rwm", "lxc.cgroup2.devices.allow: c 195:* rwm", "lxc.cgroup.devices.allow: c 511:* rwm",
            "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file",
            "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file", "dev0: /dev/nvidia0", "[snapA]", "[pve:pending]",
        ]
    ),
    max_size=14,
)  # fmt: skip


@given(lines=LINES, named=st.booleans())
def test_any_config_is_converged_once_and_loses_nothing_of_others(lines: list[str], named: bool) -> None:
    text = "".join(f"{line}\n" for line in lines)
    first = majors.converge(conf(text, pve=True, named=named), V2)
    again = majors.converge(conf(first.text, pve=True, named=named), V2)

    assert again.text == first.text
    assert again.status == "unchanged"
    cut = min((lines.index(head) for head in ("[snapA]", "[pve:pending]") if head in lines), default=len(lines))
    assert first.text.endswith("".join(f"{line}\n" for line in lines[cut:]))
    kept = [line for line in lines[:cut] if "devices.allow: c 5" not in line and "c 195" not in line and "mount.entry" not in line]
    assert [line for line in first.text.splitlines() if line in kept][: len(kept)] == kept
    assert first.text.splitlines().count("lxc.cgroup2.devices.allow: c 509:* rwm") == lines.count("lxc.cgroup2.devices.allow: c 509:* rwm")
