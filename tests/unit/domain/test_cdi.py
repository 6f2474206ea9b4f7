# SPDX-License-Identifier: Apache-2.0
"""CDI documents: what is made of a host's parts, the least version, strict form, who wins, and what is wrong on a host."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.domain import cdi
from flyops.domain.nvidia import Node
from flyops.model.host import Stat

CTL, UVM = Node("/dev/nvidiactl", 195, 255), Node("/dev/nvidia-uvm", 507, 0)
GPU0, CAP = Node("/dev/nvidia0", 195, 0), Node("/dev/nvidia-caps/nvidia-cap12", 240, 12, 0o444)
LIBS = ("/l/libcuda.so.580.95.05", "/l/libnvidia-ml.so.580.95.05")


def parts(**more: Any) -> cdi.Parts:
    base = {"cards": (cdi.Card(("0", "gpu0"), (GPU0,)), cdi.Card(("0:0",), (GPU0, CAP))), "shared": (CTL, UVM), "libraries": LIBS}
    return cdi.Parts(**{**base, **more})


def spec(**more: Any) -> dict[str, Any]:
    device = {"name": "gpu0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    return {"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [device], **more}


def test_a_document_names_every_card_every_way_and_all_of_them() -> None:
    made = cdi.document(parts(tools=("/usr/bin/nvidia-smi",), sockets=("/run/nvidia-persistenced/socket",)))
    assert cdi.names(made) == ("0", "gpu0", "0:0", "all")
    paths = {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in made["devices"]}
    assert paths["0:0"] == paths["all"] == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"]
    assert paths["0"] == ["/dev/nvidia0"]
    shared = made["containerEdits"]
    assert [(n["path"], n["major"], n["minor"]) for n in shared["deviceNodes"]] == [("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", 507, 0)]
    assert shared["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert cdi.form(made) == []
    options = {m["containerPath"]: m["options"] for m in shared["mounts"]}
    assert "ro" in options["/usr/bin/nvidia-smi"]
    assert "ro" not in options["/run/nvidia-persistenced/socket"]


def test_without_a_hook_a_library_stands_under_its_soname_too() -> None:
    edits = cdi.document(parts())["containerEdits"]
    assert "hooks" not in edits
    targets = [(m["hostPath"], m["containerPath"]) for m in edits["mounts"]]
    assert (LIBS[0], "/l/libcuda.so.1") in targets
    assert (LIBS[1], "/l/libnvidia-ml.so.1") in targets


@pytest.mark.parametrize(("hook", "first"), [("/usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook"]), ("/usr/bin/nvidia-ctk", ["nvidia-ctk", "hook"])])
def test_with_a_hook_it_makes_the_links(hook: str, first: list[str]) -> None:
    edits = cdi.document(parts(hook=hook))["containerEdits"]
    assert [m["containerPath"] for m in edits["mounts"]] == list(LIBS)
    assert [h["args"] for h in edits["hooks"]] == [
        [*first, "create-symlinks", "--link", "libcuda.so.1::/l/libcuda.so"],
        [*first, "update-ldcache", "--folder", "/l"],
        [*first, "disable-device-node-modification"],
    ]
    assert {h["path"] for h in edits["hooks"]} == {hook}


def test_nodes_that_are_elsewhere_here_are_in_dev_there() -> None:
    made = cdi.document(parts(cards=(cdi.Card(("gpu0",), (Node("/x/nvidia0", 195, 0),)),), shared=(), dev="/x"))
    assert made["devices"][0]["containerEdits"]["deviceNodes"][0] == {
        "path": "/dev/nvidia0", "hostPath": "/x/nvidia0", "type": "c", "major": 195, "minor": 0, "permissions": "rw",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "least"),
    [
        ({}, "0.3.0"),
        ({"containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}}, "0.4.0"),
        ({"devices": [{"name": "0"}]}, "0.5.0"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/x", "hostPath": "/y"}]}}, "0.5.0"),
        ({"annotations": {"a": "b"}}, "0.6.0"),
        ({"kind": "nvidia.com/gpu.x"}, "0.6.0"),
        ({"containerEdits": {"additionalGids": [44]}}, "0.7.0"),
        ({"containerEdits": {"intelRdt": {"closID": "x"}}}, "0.7.0"),
        ({"containerEdits": {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}}, "1.1.0"),
        ({"annotations": None}, "0.3.0"),
    ],
)
def test_case_57_the_least_version_that_the_used_fields_need(change: dict[str, Any], least: str) -> None:
    made = spec(**change)
    assert cdi.least_version(made) == least
    assert cdi.form({**made, "cdiVersion": least}, reader=least) == []


def test_a_document_goes_up_only_for_what_it_uses() -> None:
    assert cdi.document(parts(cards=(cdi.Card(("gpu0",), (GPU0,)),)))["cdiVersion"] == "0.3.0"
    assert cdi.document(parts())["cdiVersion"] == "0.5.0"
    assert cdi.document(parts(gids=(44,)))["cdiVersion"] == "0.7.0"


@pytest.mark.parametrize(
    ("made", "reader", "says"),
    [
        (spec(colour="red"), "", "top level: unknown field 'colour' (spec)"),
        (
            spec(devices=[{"name": "a", "containerEdits": {"hooks": [{"hookName": "x", "run": "y"}]}}]),
            "",
            "containerEdits.hooks[0]: unknown field 'run'",
        ),
        (spec(devices="all"), "", "expected fields of a device"),
        (spec(containerEdits=["x"]), "", "containerEdits: expected fields of a edits, found ['x']"),
        (spec(cdiVersion="0.6.0"), "0.5.0", "newer than the reader knows (0.5.0); its fields need no more than 0.3.0"),
        (spec(cdiVersion="0.3.0", annotations={"a": "b"}), "", "below what its fields need (0.6.0)"),
        (spec(cdiVersion="1"), "", "expected three numbers, found '1'"),
        (spec(kind="gpu"), "", "expected VENDOR.DOMAIN/CLASS"),
        (spec(devices=[{"name": "a"}, {"name": "a"}]), "", "device 'a' stands there twice"),
        (["x"], "", "no mapping"),
    ],
)
def test_case_57_a_strict_reader_refuses(made: Any, reader: str, says: str) -> None:
    assert any(says in text for text in cdi.form(made, reader)), cdi.form(made, reader)


def test_the_later_folder_wins_and_two_in_one_are_a_conflict() -> None:
    def file(path: str, *names: str) -> cdi.File:
        return cdi.File(path, 0o644, {"kind": cdi.KIND, "devices": [{"name": n} for n in names]})

    taken, conflicts = cdi.winners(
        [[file("/etc/a", "0", "1"), file("/etc/b", "1", "2", "2")], [file("/run/a", "0"), cdi.File("/run/x", 0o644, {"kind": "x/y"})]]
    )
    assert taken == {"0": "/run/a", "2": "/etc/b"}
    assert conflicts == {"1": ("/etc/a", "/etc/b")}
    taken, conflicts = cdi.winners([[file("/etc/a", "1"), file("/etc/b", "1")], [file("/run/a", "1")]])
    assert (taken, conflicts) == ({"1": "/run/a"}, {})


def char(major: int, minor: int) -> Stat:
    return Stat("char", 0o666, 0, 0, 0, 0.0, rdev=(major, minor))


MAJORS = {"nvidia": 195, "nvidia-uvm": 509, "nvidia-caps": 240}


@pytest.mark.parametrize(
    ("node", "seen", "says"),
    [
        ({"path": "/dev/nvidia-uvm", "major": 509}, char(509, 0), []),
        ({"path": "/dev/nvidia-uvm"}, char(509, 0), []),
        ({"path": "/dev/nvidia-uvm", "major": 507}, char(509, 0), ["/dev/nvidia-uvm: major 507 (written here), the loaded module's is 509"]),
        ({"path": "/dev/nvidia-uvm"}, char(507, 0), ["/dev/nvidia-uvm: major 507 (the node's own), the loaded module's is 509"]),
        ({"path": "/dev/nvidia1", "major": 195, "minor": 0}, char(195, 1), ["/dev/nvidia1: minor 0 (written here), the node's own is 1"]),
        ({"path": "/dev/nvidia0"}, Stat("file", 0o644, 0, 0, 0, 0.0), ["/dev/nvidia0 is a file, expected a device node"]),
        ({"path": "/dev/nvidia0"}, None, ["/dev/nvidia0 is not on this host"]),
        ({"path": "/dev/nvidia0", "hostPath": "/x/n0", "major": 200}, char(200, 0), 2),
        ({"path": "/dev/dri/card0", "major": 226}, char(226, 0), []),
    ],
)
def test_nodes_are_the_loaded_modules(node: dict[str, Any], seen: Stat | None, says: Any) -> None:
    path = node.get("hostPath", node["path"])
    made = spec(devices=[{"name": "a", "containerEdits": {"deviceNodes": [node]}}], cdiVersion="0.5.0")
    found = cdi.faults(cdi.File("/run/cdi/a", 0o644, made), cdi.World("580.95.05", MAJORS, {path: seen}))
    assert len(found) == says if isinstance(says, int) else found == says


@pytest.mark.parametrize(
    ("said", "fault"), [("podman version 4.3.1", ""), ("podman version 4.0.9", "4.1.0 or newer"), ("podman version 3.4.4", "3.4.4"), ("", "")]
)
def test_case_56_a_podman_that_knows_cdi(said: str, fault: str) -> None:
    assert fault in cdi.engine_fault(said) if fault else not cdi.engine_fault(said)


def test_case_56_mode() -> None:
    world = cdi.World("580.95.05", MAJORS, {"/dev/nvidia0": char(195, 0)})
    assert cdi.faults(cdi.File("/x", 0o644, spec()), world) == []
    assert "mode 0600" in cdi.faults(cdi.File("/x", 0o600, spec()), world)[0]
