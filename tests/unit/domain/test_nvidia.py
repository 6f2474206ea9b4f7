# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import nvidia
from flyops.model.host import Stat


def devices(*lines: str) -> str:
    return "Character devices:\n" + "".join(f"{line}\n" for line in lines) + "\nBlock devices:\n  7 loop\n511 nvidia-uvm\n259 blkext\n"


POST = devices(
    "  1 mem",
    "195 nvidia",
    "195 nvidia-modeset",
    "195 nvidiactl",
    "226 drm",
    "236 nvidia-caps",
    "509 mei",
    "510 nvidia-uvm",
    "237 nvidia-caps-imex-channels",
)
PRE = devices("195 nvidia-frontend", "235 nvidia-caps", "510 nvidia-uvm", "511 nvidia-nvswitch")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (POST, {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-caps": 236, "nvidia-uvm": 510, "nvidia-caps-imex-channels": 237}),
        (PRE, {"nvidia": 195, "nvidia-caps": 235, "nvidia-uvm": 510, "nvidia-nvswitch": 511}),
        (devices("195 not-nvidia-frontend"), {}),
        ("Not a valid line:\n", {}),
        ("", {}),
        ("195 nvidia\n", {}),  # no section
        ("Block devices:\n511 nvidia-uvm\n", {}),
        (devices("195 nvidia", "garbage", "x nvidia-uvm", "510"), {"nvidia": 195}),
        ("Character devices:\n195 nvidia-frontend\n510 nvidia-uvm", {"nvidia": 195, "nvidia-uvm": 510}),  # last line without an end
        (devices("195 nvidia-frontend", "195 nvidia"), {"nvidia": 195}),
    ],
)
def test_live_majors(text, expected):
    assert nvidia.live_majors(text) == expected


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  510.54  Wed Apr  1 20:04:33 UTC 2020", "510.54"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  565.77  Release Build  (user@host)  Sun Feb  9 11:08:26 UTC 2025", "565.77"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build  (nixbld@)", "580.65.06"),
        ("NVIDIA UNIX aarch64 Kernel Module 470.63.01", "470.63.01"),
        ("NVIDIA UNIX x86_64 Kernel Module", ""),
    ],
)
def test_module_version(line, version):
    assert nvidia.module_version(f"NVRM version: {line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n") == version


def test_module_not_loaded():
    assert nvidia.module_version("") == ""


def test_wanted_nodes():
    nodes = nvidia.wanted_nodes(
        nvidia.live_majors(POST), [1, 0, 1], caps=[nvidia.Cap("config", 1, 0o400), nvidia.Cap("monitor", 2, 0o444)], modeset=True
    )
    assert [(n.path, n.major, n.minor, n.mode) for n in nodes] == [
        ("/dev/nvidiactl", 195, 255, 0o666),
        ("/dev/nvidia0", 195, 0, 0o666),
        ("/dev/nvidia1", 195, 1, 0o666),
        ("/dev/nvidia-modeset", 195, 254, 0o666),
        ("/dev/nvidia-uvm", 510, 0, 0o666),
        ("/dev/nvidia-uvm-tools", 510, 1, 0o666),
        ("/dev/nvidia-caps/nvidia-cap1", 236, 1, 0o400),
        ("/dev/nvidia-caps/nvidia-cap2", 236, 2, 0o444),
    ]


@pytest.mark.parametrize(
    ("majors", "caps", "says"),
    [
        ({}, [], "module nvidia is not loaded"),
        ({"nvidia": 195}, [], "modprobe nvidia-uvm"),
        ({"nvidia": 195, "nvidia-uvm": 510}, [nvidia.Cap("config", 1, 0o400)], "nodes of config .* 'nvidia-caps'"),
    ],
)
def test_wanted_nodes_name_the_module(majors, caps, says):
    with pytest.raises(nvidia.NvidiaError, match=says):
        nvidia.wanted_nodes(majors, [0], caps=caps)


def seen(kind="char", rdev=(510, 0), mode=0o666, size=0):
    return Stat(kind, mode, 0, 0, size, 0.0, rdev=rdev)


UVM = nvidia.Node("/dev/nvidia-uvm", 510, 0)


@pytest.mark.parametrize(
    ("found", "state", "says"),
    [
        (seen(), "right", "510:0"),
        (None, "missing", "is missing"),
        (seen(rdev=(239, 0)), "stale", "is 239:0, the loaded module's number is 510:0"),
        (seen(rdev=(510, 1)), "stale", "510:1"),
        (seen(kind="file", mode=0o755), "regular", "the bind's source was missing at start"),
        (seen(kind="file", size=3), "regular", "size 3"),
        (seen(kind="dir"), "folder", "is a dir"),
        (seen(kind="block"), "other", "is a block"),
        (seen(mode=0o660), "mode", "has mode 0660, expected 0666"),
    ],
)
def test_judge_node(found, state, says):
    verdict = nvidia.judge_node(UVM, found)
    assert (verdict.state, verdict.right) == (state, state == "right")
    assert says in verdict.text


@pytest.mark.parametrize(("owner", "state"), [(None, "right"), ((0, 0), "right"), ((0, 44), "mode")])
def test_judge_node_by_its_owner(owner, state):
    verdict = nvidia.judge_node(nvidia.Node("/dev/nvidia-uvm", 510, 0, owner=owner), seen())
    assert verdict.state == state
    assert state == "right" or verdict.text == "/dev/nvidia-uvm has owner 0:0, expected 0:44"
    assert nvidia.judge_node(nvidia.Node("/dev/nvidia-uvm", 510, 0, owner=owner), seen(), check_mode=False).right


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia0", (195, 0)), ("nvidia15", (195, 15)), ("nvidiactl", (195, 255)), ("nvidia-modeset", (195, 254)), ("nvidia-uvm", (510, 0)),
        ("nvidia-uvm-tools", (510, 1)), ("nvidia-caps/nvidia-cap2", (236, 2)), ("nvidia-nvswitch0", None), ("nvidia0x", None), ("nvidia", None),
    ],
)  # fmt: skip
def test_expected_device(name, expected):
    assert nvidia.expected_device(name, nvidia.live_majors(POST)) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("config", "", nvidia.Cap("config", 1, 0o400)),
        ("monitor", "", nvidia.Cap("monitor", 2, 0o444)),
        ("config", "DeviceFileMinor: 1\nDeviceFileMode: 384\nDeviceFileModify: 1\n", nvidia.Cap("config", 1, 0o600)),  # decimal
        ("gpu0/gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: 292\n", nvidia.Cap("gpu0/gi1/access", 12, 0o444)),
        ("gpu0/gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: ?\n", nvidia.Cap("gpu0/gi1/access", 12, 0o444)),
        ("gpu0/gi1/ci0/access", "", nvidia.Cap("gpu0/gi1/ci0/access", 13, 0o444)),  # by the table
        ("gpu0/gi7/access", "", None),
    ],
)
def test_capability(name, text, expected):
    assert nvidia.cap(name, text, {"gpu0/gi1/access": 12, "gpu0/gi1/ci0/access": 13}) == expected


@pytest.mark.parametrize(
    ("name", "path"),
    [("config", "mig/config"), ("gpu3/gi1/access", "gpu3/mig/gi1/access"), ("gpu3/gi1/ci0/access", "gpu3/mig/gi1/ci0/access")],
)
def test_capability_file(name, path):
    assert nvidia.cap_file(name) == path


def test_a_mig_instance_needs_both_capabilities_and_its_parent():
    assert nvidia.instance_caps("gpu2/gi7/ci1") == (2, ("gpu2/gi7/access", "gpu2/gi7/ci1/access"))
    for wrong in ("gpu2/gi7", "2:7:1", "gpu2/gi7/ci1/access", "gpu2/gi7/../x", ""):
        with pytest.raises(nvidia.NvidiaError, match="gpu0/gi1/ci0"):
            nvidia.instance_caps(wrong)


@pytest.mark.parametrize(("params", "may"), [("ModifyDeviceFiles: 0\n", False), ("ModifyDeviceFiles: 1\n", True), ("", True)])
def test_modifies(params, may):
    assert nvidia.modifies(params) is may


MIG = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\nrubbish\n"


def test_mig_minors_information_params():
    assert nvidia.mig_minors(MIG) == {"config": 1, "monitor": 2, "gpu0/gi1/access": 12, "gpu0/gi1/ci0/access": 13}
    assert nvidia.information("Model: \t\tMade Up 9000\nGPU UUID: \tGPU-????\nDevice Minor: \t 3\n")["Device Minor"] == "3"
    assert nvidia.params_mode("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n") == (0o660, 0, 44)
    assert nvidia.params_mode("") == (0o666, 0, 0)
