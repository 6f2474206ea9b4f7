# SPDX-License-Identifier: Apache-2.0
"""LXC configs: lines converge, what others wrote stays, sections below the main one are never touched."""

from __future__ import annotations

import pytest

from flyops.domain import lxcconf
from flyops.domain.lxcconf import Controllers, Device, Guest, LxcConfError

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
236 nvidia-caps
226 drm
509 mei
511 nvidia-uvm

Block devices:
  8 sd
240 blkext
"""
MAJORS = lxcconf.registered(DEVICES)
CARD = (
    Device("/dev/nvidia0", 195, 0),
    Device("/dev/nvidiactl", 195, 255),
    Device("/dev/nvidia-uvm", 511, 0),
    Device("/dev/nvidia-caps/nvidia-cap1", 236, 1),
)
FOLDERS = (("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib64", "dir"),)


def guest(**more: object) -> Guest:
    values: dict[str, object] = {
        "name": "dev1",
        "base": "/b",
        "upper": "/var/lib/lxc/dev1/up",
        "cpus": "0-1",
        "memory_bytes": 1 << 30,
        "controllers": Controllers("v2", "v2", "v2"),
    }
    return Guest(**{**values, **more})  # type: ignore[arg-type]


def test_two_converges_are_one() -> None:
    wanted = lxcconf.wanted(guest(gpu=lxcconf.gpu_lines(CARD, FOLDERS, "v2")))
    first = lxcconf.converge("", wanted, lxcconf.owned(MAJORS))
    assert lxcconf.parse(first.text) == wanted
    second = lxcconf.converge(first.text, wanted, lxcconf.owned(MAJORS))
    assert (second.changed, second.text) == (False, first.text)


def test_a_line_twice_becomes_one_and_an_old_value_goes() -> None:
    wanted = (("lxc.uts.name", "dev1"),)
    found = lxcconf.converge("lxc.uts.name = dev1\nlxc.uts.name=dev1\nlxc.uts.name = old\n", wanted, lxcconf.owned({}))
    assert found.text == "lxc.uts.name = dev1\n"
    assert found.removed == (("lxc.uts.name", "dev1"), ("lxc.uts.name", "old"))


def test_what_is_not_ours_stays_in_place() -> None:
    text = "# theirs\n\nlxc.environment = A=1\nlxc.net.1.type = veth\nlxc.mount.entry = /data data none bind 0 0\nlxc.cgroup2.devices.allow = c 226:* rwm\n"
    found = lxcconf.converge(text, (), lxcconf.owned(MAJORS))
    assert (found.changed, found.text) == (False, text)


def test_only_the_main_section_counts_and_changes() -> None:
    rest = "[pve:pending]\ndelete: mp1\n[snapA]\nlxc.uts.name: dev1\nlxc.cgroup2.devices.allow: c 509:* rwm\n"
    assert lxcconf.value("lxc.uts.name = a\n" + rest, "lxc.uts.name") == "a"
    found = lxcconf.converge("arch: amd64\n" + rest, (("lxc.uts.name", "dev1"),), lxcconf.owned(MAJORS))
    assert found.text == "arch: amd64\nlxc.uts.name = dev1\n" + rest
    again = lxcconf.converge(found.text.replace("lxc.uts.name = ", "lxc.uts.name: ", 1), (("lxc.uts.name", "dev1"),), lxcconf.owned(MAJORS))
    assert again.changed is False


def test_the_card_comes_and_goes() -> None:
    owned = lxcconf.owned(MAJORS)
    with_card = lxcconf.converge("", lxcconf.wanted(guest(gpu=lxcconf.gpu_lines(CARD, FOLDERS, "v2"))), owned)
    without = lxcconf.converge(with_card.text, lxcconf.wanted(guest()), owned)
    assert "nvidia" not in without.text
    assert "devices.allow" not in without.text
    assert without.restart is True
    assert lxcconf.converge(without.text, lxcconf.wanted(guest()), owned).changed is False


def test_lines_of_the_card() -> None:
    assert lxcconf.gpu_lines(CARD, FOLDERS, "v1") == (
        ("lxc.cgroup.devices.allow", "c 195:* rwm"),
        ("lxc.cgroup.devices.allow", "c 236:* rwm"),
        ("lxc.cgroup.devices.allow", "c 511:* rwm"),
        ("lxc.mount.entry", "/dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir"),
        ("lxc.mount.entry", "/dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file"),
        ("lxc.mount.entry", "/dev/nvidia0 dev/nvidia0 none bind,optional,create=file"),
        ("lxc.mount.entry", "/dev/nvidiactl dev/nvidiactl none bind,optional,create=file"),
        ("lxc.mount.entry", "/usr/local/nvidia/lib64 usr/local/nvidia/lib64 none bind,ro,create=dir"),
    )


def test_a_path_with_a_blank_is_one_field() -> None:
    (line,) = lxcconf.gpu_lines((), (("/opt/my driver/lib", "/usr/local/nvidia/lib64", "dir"),), "v2")
    assert line[1].split() == ["/opt/my\\040driver/lib", "usr/local/nvidia/lib64", "none", "bind,ro,create=dir"]


@pytest.mark.parametrize(
    ("rule", "ours"),
    [
        ("c 195:* rwm", True),
        ("c 511:* rwm", True),  # nvidia-uvm
        ("c 508:* rwm", True),  # nobody's, in the range of dynamic majors: a stale one of ours
        ("c 509:* rwm", False),  # mei: the number was reused
        ("c 226:* rwm", False),  # drm
        ("c 300:* rwm", False),  # nobody's, and never the driver's
        ("c 195:0 rwm", False),  # one minor: someone else's style
        ("b 511:* rwm", False),
        ("c *:* m", False),
        ("a", False),
    ],
)
def test_whose_a_device_rule_is(rule: str, ours: bool) -> None:
    assert lxcconf.owned_rule(rule, MAJORS) is ours


def test_a_reused_number_is_reported() -> None:
    assert lxcconf.strays("lxc.cgroup2.devices.allow = c 509:* rwm\nlxc.cgroup2.devices.allow = c 226:* rwm\n", MAJORS) == (
        "lxc.cgroup2.devices.allow = c 509:* rwm opens mei",
    )
    assert lxcconf.strays("lxc.cgroup2.devices.allow = c 511:* rwm\n", MAJORS) == ()


def test_which_changes_need_a_restart() -> None:
    base = lxcconf.converge("", lxcconf.wanted(guest()), lxcconf.owned({})).text

    def restarts(**more: object) -> bool:
        found = lxcconf.converge(base, lxcconf.wanted(guest(**more)), lxcconf.owned({}))
        assert found.changed
        return found.restart

    assert restarts(cpus="0") is False
    assert restarts(memory_bytes=1 << 29) is False
    assert restarts(autostart=True) is False
    assert restarts(network="bridge", bridge="b0", address="10.0.0.2/24") is True
    assert restarts(gpu=(("lxc.mount.entry", "/dev/nvidia0 dev/nvidia0 none bind"),)) is True


@pytest.mark.parametrize(
    ("mounts", "listed", "found"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "cpuset cpu memory\n", Controllers("v2", "v2", "v2")),
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "cpu memory\n", Controllers("", "v2", "v2")),
        (
            "cgroup /c cgroup rw,cpuset 0 0\ncgroup /m cgroup rw,relatime,memory 0 0\ncgroup /d cgroup rw,devices 0 0\n",
            "",
            Controllers("v1", "v1", "v1"),
        ),
        ("cgroup /c cgroup rw,cpuset 0 0\ncgroup2 /u cgroup2 rw 0 0\n", "memory", Controllers("v1", "v2", "v2")),
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n", "", Controllers()),
    ],
)
def test_where_controllers_are(mounts: str, listed: str, found: Controllers) -> None:
    assert lxcconf.controllers(mounts, listed) == found


@pytest.mark.parametrize(("text", "size"), [("4G", 4 << 30), ("512M", 512 << 20), ("512MiB", 512 << 20), ("1t", 1 << 40), ("134217728", 128 << 20)])
def test_sizes(text: str, size: int) -> None:
    assert lxcconf.memory_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "4X", "-1G", "4G; rm", "1.5G", "32M", "0"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(LxcConfError):
        lxcconf.memory_bytes(text)


def test_a_memory_limit_is_the_same_but_for_its_page() -> None:
    assert lxcconf.same_memory((1 << 30) + 100, str(1 << 30))
    assert not lxcconf.same_memory(1 << 30, str(1 << 29))
    assert not lxcconf.same_memory(1 << 30, "max")
    assert not lxcconf.same_memory(1 << 30, "")


@pytest.mark.parametrize(("name", "good"), [("dev1", True), ("a", True), ("a-b", True), ("-a", False), ("a-", False), ("A", False), ("a/b", False), ("..", False), ("", False), ("a" * 64, False)])  # fmt: skip
def test_names(name: str, good: bool) -> None:
    assert (lxcconf.check_name(name) == "") is good


def test_a_value_cannot_bring_a_line_of_its_own() -> None:
    with pytest.raises(LxcConfError, match="control character"):
        lxcconf.wanted(guest(base="/b\nlxc.hook.start = /evil"))
