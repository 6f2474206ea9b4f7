# SPDX-License-Identifier: Apache-2.0
"""Proxmox configs: what counts, what is ours, what comes and goes. The double's re-emission is the second opinion."""

from __future__ import annotations

import random

import pytest

from flyops.domain import lxcconf, majors, nvidia, pveconf
from flyops.domain.pveconf import Dev, Ownership, PveConfError, Wanted
from tests.beds.pct.reemit import reemit

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
506 blkext
"""
MAJORS = nvidia.char_majors(DEVICES)
OURS = Ownership(card=True, majors=MAJORS)
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
DEV = Wanted(tuple(Dev(path, 0o666) for path in NODES))
NUMBERS = ((195, 0), (195, 255), (511, 0), (511, 1))
RAW = Wanted(
    (),
    lxcconf.gpu_lines(
        [
            *(lxcconf.Device(path, *number) for path, number in zip(NODES, NUMBERS, strict=True)),
            lxcconf.Device("/dev/nvidia-caps/nvidia-cap1", 236, 1),
        ],
        (),
        "v2",
    ),
)
CONF = """arch: amd64
cores: 8
dev0: /dev/ttyUSB0,gid=20
features: nesting=1
hostname: dev1
memory: 4096
net0: name=eth0,bridge=vmbr9,hwaddr=02:00:00:00:00:01,ip=dhcp,type=veth
onboot: 1
ostype: debian
parent: snapA
rootfs: pool:subvol-900-disk-0,size=8G
swap: 0
unprivileged: 1
lxc.mount.entry: /srv/x srv/x none bind 0 0
lxc.cgroup2.devices.allow: c 226:* rwm

[pve:pending]
delete: mp1
dev1: /dev/ttyUSB1

[snapA]
#text%3A of a person
arch: amd64
cores: 4
snaptime: 1790000000
lxc.cgroup2.devices.allow: c 508:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
"""


def converge(text: str, wanted: Wanted, owned: Ownership = OURS) -> lxcconf.Converged:
    """Twice, and past a re-emission by the double: nothing is left to do, and Proxmox would write the very same bytes."""
    first = pveconf.converge(text, wanted, owned)
    assert pveconf.converge(first.text, wanted, owned) == lxcconf.Converged(first.text, (), ())
    again = pveconf.converge(reemit(first.text), wanted, owned)
    assert (again.changed, again.text) == (False, reemit(first.text))
    return first


@pytest.mark.parametrize("wanted", [DEV, RAW], ids=["dev", "raw"])
def test_the_card_comes_and_goes(wanted: Wanted) -> None:
    assert reemit(CONF) == CONF  # the fixture is as Proxmox writes it
    given = converge(CONF, wanted)
    assert (len(given.added), given.removed) == (len(wanted.devs) + len(wanted.raw), ())
    assert reemit(given.text) == given.text
    taken = converge(given.text, Wanted())
    assert taken.text == CONF


def test_devn_takes_free_numbers_at_their_place() -> None:
    lines = converge(CONF, DEV).text.splitlines()
    assert lines[2:8] == [
        "dev0: /dev/ttyUSB0,gid=20",
        "dev2: /dev/nvidia0,mode=0666",  # dev1 waits in [pve:pending]
        "dev3: /dev/nvidiactl,mode=0666",
        "dev4: /dev/nvidia-uvm,mode=0666",
        "dev5: /dev/nvidia-uvm-tools,mode=0666",
        "features: nesting=1",
    ]


def test_devn_numbers_past_nine_stand_where_proxmox_sorts_them() -> None:
    text = "arch: amd64\n" + "".join(f"dev{number}: /dev/tty{number}\n" for number in range(9)) + "hostname: a\n"
    given = converge(text, DEV)
    assert reemit(given.text) == given.text
    assert [key for key, _ in given.added] == ["dev9", "dev10", "dev11", "dev12"]


def test_all_numbers_taken_is_told() -> None:
    text = "".join(f"dev{number}: /dev/tty{number}\n" for number in range(256))
    with pytest.raises(PveConfError, match="dev0 to dev255 are taken"):
        pveconf.converge(text, DEV, OURS)


def test_an_entry_with_other_options_keeps_its_number_and_a_second_one_goes() -> None:
    text = "arch: amd64\ndev3: path=/dev/nvidia0,gid=44\ndev5: /dev/nvidia0\ndev6: mode=0666,path=/dev/nvidiactl\ndev7: /dev/nvidia1\n"
    found = converge(text, Wanted(DEV.devs[:2]))
    assert found.text == "arch: amd64\ndev3: /dev/nvidia0,mode=0666\ndev6: mode=0666,path=/dev/nvidiactl\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/dev/nvidia0,mode=0666", Dev("/dev/nvidia0", 0o666)),
        ("path=/dev/nvidia0", Dev("/dev/nvidia0")),
        ("/dev/x,deny-write=1,gid=44,mode=0640,uid=7", Dev("/dev/x", 0o640, 7, 44, True)),
        ("/dev/nvidia0,mode=666", None),
        ("/dev/nvidia0,mode=0999", None),
        ("/dev/nvidia0,gid=video", None),
        ("/dev/nvidia0,gid=1,gid=2", None),
        ("/dev/../etc/passwd", None),
        ("/dev/./x", None),
        ("/etc/passwd", None),
        ("/dev/", None),
        ("", None),
        ("/dev/x,colour=red", None),
    ],
)
def test_a_device_entry(text: str, wanted: Dev | None) -> None:
    assert pveconf.parse_dev(text) == wanted
    if wanted:
        assert pveconf.parse_dev(str(wanted)) == wanted


@pytest.mark.parametrize("path", ["/dev/x", "/dev/dri/card0", "/dev/a.b"])
def test_a_path_below_dev(path: str) -> None:
    assert pveconf.check_path(path) == ""


@pytest.mark.parametrize(
    "path", ["/dev", "/dev/", "/dev/a/../b", "/dev/a/.", "/dev//x", "/dev/a,b", "/dev/a b", "/dev/a\nlxc.hook.start: /evil", "dev/x"]
)
def test_a_path_that_is_none(path: str) -> None:
    assert "below /dev" in pveconf.check_path(path)


@pytest.mark.parametrize(
    ("asked", "installed", "wanted"),
    [
        ("auto", "pve-container: 5.0.6", "raw"),
        ("auto", "pve-container: 5.0.7", "dev"),
        ("auto", "proxmox-ve: 9.0.0\npve-container: 6.1.10\nlxc-pve: 6", "dev"),
        ("auto", "pve-container: 5.0.10-1", "dev"),
        ("auto", "lxc-pve: 6", "raw"),
        ("raw", "pve-container: 6.1.10", "raw"),
    ],
)
def test_the_style_follows_the_version(asked: str, installed: str, wanted: str) -> None:
    assert pveconf.style(asked, pveconf.version(installed)) == wanted


def test_devn_asked_of_a_host_that_is_too_old() -> None:
    with pytest.raises(PveConfError, match=r"need pve-container 5\.0\.7 or newer, this host's is 4\.4\.3"):
        pveconf.style("dev", (4, 4, 3))


def test_case_32_a_key_of_cgroup_v1_is_dead_and_rewritten() -> None:
    text = "arch: amd64\nlxc.cgroup.devices.allow: c 195:* rwm\nlxc.cgroup.devices.allow: c 226:* rwm\n"
    assert pveconf.dead(text, "v2") == (
        "lxc.cgroup.devices.allow: c 195:* rwm is dead: this host's controllers are on cgroup v2, which reads lxc.cgroup2.devices.allow",
        "lxc.cgroup.devices.allow: c 226:* rwm is dead: this host's controllers are on cgroup v2, which reads lxc.cgroup2.devices.allow",
    )
    assert pveconf.dead(text, "v1") == ()
    assert "is dead: this host's controllers are on cgroup v1" in pveconf.dead("lxc.cgroup2.devices.allow: c 195:* rwm\n", "v1")[0]
    found = converge(text, RAW)
    assert ("lxc.cgroup.devices.allow", "c 195:* rwm") in found.removed
    assert ("lxc.cgroup2.devices.allow", "c 195:* rwm") in found.added
    assert "lxc.cgroup.devices.allow: c 226:* rwm" in found.text  # somebody's own: told, not touched


def test_case_43_a_gid_of_the_host_in_an_entry_is_told() -> None:
    text = "dev0: /dev/dri/renderD128,gid=100104\nunprivileged: 1\n"
    assert pveconf.host_ids(text) == ("dev0: /dev/dri/renderD128,gid=100104 has a gid of the host: inside the guest it is 104",)
    assert pveconf.host_ids(text.replace("100104", "104")) == ()
    assert pveconf.host_ids(text.replace("unprivileged: 1", "unprivileged: 0")) == ()  # no map: the number is what it says


def test_case_43_a_map_of_ones_own_says_which_ids_there_are() -> None:
    text = "arch: amd64\nlxc.idmap: u 0 100000 65536\nlxc.idmap: g 0 100000 44\nlxc.idmap: g 44 44 1\nlxc.idmap: g 45 100045 65491\n"
    assert pveconf.unprivileged(text)
    assert pveconf.is_guests_id(text, "g", 44)
    assert not pveconf.is_guests_id(text, "g", 70000)
    assert pveconf.is_guests_id("lxc.idmap: g 0 100000 200000\n", "g", 70000)


def test_case_43_majors_in_hex_are_told() -> None:
    text = "lxc.cgroup2.devices.allow: c c3:* rwm\nlxc.cgroup2.devices.allow: c 195:* rwm\n"
    assert pveconf.strays(text, MAJORS) == (
        "lxc.cgroup2.devices.allow: c c3:* rwm names a number in hex, as `stat -c %t` prints it; majors are decimal here (c3 is 195)",
    )


def test_case_46_nodes_for_computing_are_everybodys() -> None:
    """Proxmox' default is root:root 0660: root sees the card, a user `No devices were found`."""
    assert str(Dev("/dev/nvidia0", 0o666)) == "/dev/nvidia0,mode=0666"
    found = converge("dev0: /dev/nvidia0\n", Wanted(DEV.devs[:1]))
    assert (found.text, found.removed) == ("dev0: /dev/nvidia0,mode=0666\n", (("dev0", "/dev/nvidia0"),))


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/dev/dri/card0", "video"),
        ("/dev/dri/renderD128", "render"),
        ("/dev/kfd", "render"),
        ("/dev/nvidia0", ""),
        ("/dev/nvidia-uvm", ""),
        ("/dev/nvidia-caps/nvidia-cap1", ""),
        ("/dev/dri/by-path/x", ""),
    ],
)
def test_case_47_a_group_for_each_class_of_node(path: str, group: str) -> None:
    assert pveconf.group_of(path) == group


CASE_48 = """arch: amd64
cores: 4
hostname: dev1
unprivileged: 1
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 506:* rwm
lxc.cgroup2.devices.allow: c 509:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidiactl dev/nvidiactl none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-modeset dev/nvidia-modeset none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir
"""


def test_case_48_three_majors_and_none_says_which() -> None:
    found = converge(CASE_48, RAW)
    assert found.removed == (("lxc.cgroup2.devices.allow", "c 506:* rwm"),)  # nobody's, in the range of dynamic majors: an old one of the driver
    assert {value for _, value in found.added} == {
        "c 236:* rwm",
        "c 511:* rwm",
        "/dev/nvidia-uvm-tools dev/nvidia-uvm-tools none bind,optional,create=file",
    }
    assert pveconf.strays(CASE_48, MAJORS) == ("lxc.cgroup2.devices.allow = c 509:* rwm opens mei",)
    assert "c 509:* rwm" in found.text
    assert "/dev/nvidia-modeset" in found.text


def test_case_48_becomes_devn_in_one_step() -> None:
    found = converge(CASE_48, DEV)
    assert "lxc.mount.entry: /dev/nvidia0" not in found.text
    assert len([key for key, _ in found.added if key.startswith("dev")]) == 4


def test_case_71_what_proxmox_does_to_a_file() -> None:
    text = "hostname: a\nfoo bar\n\n# BEGIN x: y\narch: amd64\nlxc.mount.entry = /srv/x srv/x none bind 0 0\n"
    assert reemit(text) == "# BEGIN x%3A y\narch: amd64\nhostname: a\nlxc.mount.entry: /srv/x srv/x none bind 0 0\n"
    assert reemit(reemit(text)) == reemit(text)
    assert reemit("#größe%3A\n") == "#gr%C3%B6%C3%9Fe%3A\n"
    assert pveconf.unreadable(text) == ("foo bar",)
    assert pveconf.parse(text) == (("hostname", "a"), ("arch", "amd64"), ("lxc.mount.entry", "/srv/x srv/x none bind 0 0"))


@pytest.mark.parametrize("wanted", [DEV, RAW], ids=["dev", "raw"])
def test_case_71_a_file_that_is_not_as_proxmox_writes_it(wanted: Wanted) -> None:
    text = "hostname: a\n# BEGIN x: y\n\nlxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\narch: amd64\n\n\n[snap1]\narch: amd64\n"
    found = converge(text, wanted)
    for line in ("hostname: a", "# BEGIN x: y", "arch: amd64"):
        assert line in found.text.splitlines()
    assert found.text.endswith("\n\n\n[snap1]\narch: amd64\n")
    assert converge(reemit(text), wanted).text.endswith("\n\n[snap1]\narch: amd64\n")


@pytest.mark.parametrize("section", ["[snap1]", "[pve:pending]", "[PVE:Pending]", "[Snap_1-a]"])
def test_case_72_lines_below_the_main_section_do_not_count(section: str) -> None:
    given = pveconf.converge("arch: amd64\n", RAW, OURS).text
    below = f"arch: amd64\n\n{section}\n{given}"
    assert pveconf.parse(below) == (("arch", "amd64"),)
    found = pveconf.converge(below, RAW, OURS)
    assert len(found.added) == len(RAW.raw)
    assert found.text.endswith(f"\n{section}\n{given}")


def test_case_72_the_same_lines_above_and_below_are_unchanged() -> None:
    given = pveconf.converge("arch: amd64\n", RAW, OURS).text
    both = f"{given}\n[pve:pending]\ndelete: mp1\n\n[snap1]\n{given}snaptime: 1790000000\n"
    assert pveconf.converge(both, RAW, OURS) == lxcconf.Converged(both, (), ())
    taken = pveconf.converge(both, Wanted(), OURS)
    assert taken.text == f"arch: amd64\n\n[pve:pending]\ndelete: mp1\n\n[snap1]\n{given}snaptime: 1790000000\n"
    assert pveconf.sections(both) == {"pve:pending": "delete: mp1\n\n", "snap1": f"{given}snaptime: 1790000000\n\n"}


def test_case_72_a_bracket_that_is_no_section_bounds_nothing() -> None:
    assert pveconf.parse("[9bad]\narch: amd64\n[not a section]\ncores: 2\n") == (("arch", "amd64"), ("cores", "2"))


def test_case_73_a_rollback_brings_old_majors_back() -> None:
    old = RAW.raw[:2]
    main = "arch: amd64\nparent: snap1\n"
    stale = "lxc.cgroup2.devices.allow: c 508:* rwm\n"
    text = f"{main}{''.join(f'{key}: {value}{chr(10)}' for key, value in old)}{stale}\n[snap1]\narch: amd64\n{stale}"
    found = converge(text, RAW)
    assert found.removed == (("lxc.cgroup2.devices.allow", "c 508:* rwm"),)
    assert "a rollback to snap1 brought its lines back" in pveconf.why(text, found.removed, found.added, ())
    assert pveconf.why(text.replace("parent: snap1\n", ""), found.removed, found.added, ()) == ""


def test_case_73_a_restore_that_lost_the_raw_keys_is_told() -> None:
    text = "arch: amd64\nunprivileged: 1\n"
    found = converge(text, RAW)
    assert pveconf.why(text, found.removed, found.added, RAW.raw).startswith("restore lost raw keys: 8 lines that stood here are gone")
    assert pveconf.why(text, found.removed, found.added, ()) == ""  # never written here: a first run
    kept = text + "lxc.mount.entry: /srv/x srv/x none bind 0 0\n"
    assert pveconf.why(kept, (), found.added, RAW.raw) == ""  # other raw keys are there, so no restore took them


def test_cpuset_lines_come_and_go() -> None:
    keys = ("lxc.cgroup2.cpuset.cpus", "lxc.cgroup.cpuset.cpus", "lxc.cgroup2.cpuset.mems")
    owned = Ownership(keys=keys)
    given = converge(CONF, Wanted((), pveconf.cpuset_lines({"cpus": "0,2, 4", "mems": "0"}, CONF, "v2")), owned)
    assert given.added == (("lxc.cgroup2.cpuset.cpus", "0,2,4"), ("lxc.cgroup2.cpuset.mems", "0"))
    assert converge(given.text, Wanted((), pveconf.cpuset_lines({"cpus": "", "mems": ""}, given.text, "v2")), owned).text == CONF


def test_the_same_cpus_in_other_words_are_the_same() -> None:
    text = "lxc.cgroup2.cpuset.cpus: 0-3\n"
    lines = pveconf.cpuset_lines({"cpus": "3,2,1,0"}, text, "v2")
    assert converge(text, Wanted((), lines), Ownership(keys=("lxc.cgroup2.cpuset.cpus",))).changed is False


def test_a_card_and_cpus_are_apart() -> None:
    text = "lxc.cgroup2.cpuset.cpus: 0-3\n" + CASE_48
    assert "lxc.cgroup2.cpuset.cpus: 0-3" in converge(text, Wanted()).text
    assert converge(text, Wanted(), Ownership(keys=("lxc.cgroup2.cpuset.cpus",))).text == CASE_48


@pytest.mark.parametrize(
    ("seen", "cut"),
    [
        ("", True),
        ("arch: am", True),
        ("arch: amd64\n", False),  # a whole line: somebody may have removed the rest
        ("arch: amd64\ncores: 2\n", False),  # as before
        ("arch: amd64\ncores: 2\ndev0: /dev/x\n", False),  # as wanted
        ("hostname: a", False),
    ],
)
def test_what_a_cut_write_leaves(seen: str, cut: bool) -> None:
    assert pveconf.torn(seen, "arch: amd64\ncores: 2\n", "arch: amd64\ncores: 2\ndev0: /dev/x\n") is cut


def test_any_config_comes_back_as_it_was() -> None:
    """Many made-up configs: given, written again by the double, unchanged; taken away, the bytes as before; below the main section not a byte moves."""
    draw = random.Random(4)
    keys = ["arch: amd64", "cores: 2", "hostname: a", "memory: 512", "mp0: p:v,mp=/x", "net0: name=eth0", "tags: x", "unprivileged: 1", "zz9 junk"]
    raws = [
        "lxc.mount.entry: /srv/a srv/a none bind 0 0",
        "lxc.cgroup2.devices.allow: c 509:* rwm",
        "lxc.apparmor.profile: unconfined",
        "lxc.idmap: u 0 1 2",
    ]
    devs = [f"dev{number}: /dev/tty{number}" for number in range(12)]
    for _ in range(300):
        lines = draw.sample([*keys, *raws, *devs, "# a: b", ""], draw.randint(0, 14))
        below = draw.choice(["", "\n[pve:pending]\ndev0: /dev/x\n", "\n[s1]\nlxc.cgroup2.devices.allow: c 511:* rwm\ndev1: /dev/nvidia0\n"])
        text = draw.choice([lambda made: made, reemit])("".join(f"{line}\n" for line in lines) + below)
        wanted = draw.choice([DEV, RAW, Wanted(DEV.devs[:2], RAW.raw[:3])])
        given = converge(text, wanted)
        assert given.text.endswith(pveconf.split(text)[1])
        assert converge(given.text, Wanted()).text == text
        if reemit(text) == text:
            assert reemit(given.text) == given.text


def test_the_boot_unit_and_this_agree_on_raw_keys() -> None:
    """nvidia_majors runs at every boot over the same file: it finds nothing to do, and after its new numbers there is nothing to do here."""
    machine = majors.Machine(MAJORS, nvidia.live_majors(DEVICES), "v2")
    given = converge("arch: amd64\nhostname: a\n\n[snap1]\narch: amd64\n", RAW).text
    assert majors.converge(majors.Conf("101", "/etc/pve/lxc/101.conf", given, pve=True), machine).status == "unchanged"
    moved = {**MAJORS, "nvidia-uvm": 507}
    after = majors.converge(
        majors.Conf("101", "/etc/pve/lxc/101.conf", given, pve=True), majors.Machine(moved, {**machine.live, "nvidia-uvm": 507}, "v2")
    )
    assert after.status == "changed"
    wanted = Wanted((), tuple((key, value.replace("c 511:", "c 507:")) for key, value in RAW.raw))
    assert not pveconf.converge(after.text, wanted, Ownership(card=True, majors=moved)).changed
    by_dev = converge("arch: amd64\n", DEV).text
    assert majors.converge(majors.Conf("101", "/etc/pve/lxc/101.conf", by_dev, pve=True), machine).status == "unchanged"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lxc.idmap: u 0 100000 65536\nlxc.idmap: g 0 100000 65536\n", ""),
        ("lxc.idmap: b 0 100000 65536\n", ""),
        ("lxc.idmap: u 0 100000 65536\n", "lines for u only"),
        ("lxc.idmap: u 0 100000 65536\nlxc.idmap: g 0 100000 45\nlxc.idmap: g 44 44 1\n", "the g lines that begin at 0 and 44 overlap"),
        ("lxc.idmap: u 0 100000 65536\nlxc.idmap: g 0 100000 44\nlxc.idmap: g 44 44 1\n", ""),
        ("features: nesting=1\n", ""),
        ("features: nesting=1\nlxc.apparmor.profile: unconfined\n", "turns off the rules of features: nesting=1"),
    ],
)
def test_what_stops_a_start_or_changes_it_silently(text: str, wanted: str) -> None:
    found = " ".join(pveconf.hazards(text))
    assert wanted in found if wanted else not found
