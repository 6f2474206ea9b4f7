# SPDX-License-Identifier: Apache-2.0
"""CDI specs before a real podman, and agents inside its containers.

The card is fake (nodes that are /dev/null and the terminal, texts in the place of /proc, a library that is a word); podman, its CDI reader,
crun and what a container sees are real.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.domain import symptoms
from flyops.modules import cdi_spec
from tests.beds.play import LOCAL, inventory, tasks
from tests.beds.podman import Podman

pytestmark = [pytest.mark.lxc, pytest.mark.root]
UUID = "GPU-11111111-2222-3333-4444-555555555555"
LOOK = ("sh", "-c", "stat -c '%n %t:%T' /dev/nvidia*; cat $LIB/libcuda.so.1; env; echo x > /dev/nvidia3 && echo open")


class Card:
    """A host's fake card: a null device as /dev/nvidia3, and a driver of one version."""

    def __init__(self, folder: Path, podman: Podman) -> None:
        self.folder, self.podman, self.spec = folder, podman, podman.cdi / "flyops-nvidia.json"
        for name in ("dev", "lib", "proc/gpus/0000:0f:00.0"):
            (folder / name).mkdir(parents=True)
        (folder / "devices").write_text("Character devices:\n  1 nvidia\n  5 nvidia-uvm\n")
        (folder / "proc/gpus/0000:0f:00.0/information").write_text(f"GPU UUID: \t {UUID}\nDevice Minor: \t 3\n")
        for name, major, minor in (("nvidiactl", 1, 255), ("nvidia3", 1, 3), ("nvidia-uvm", 5, 0), ("nvidia-uvm-tools", 5, 1)):
            os.mknod(folder / "dev" / name, 0o020666, os.makedev(major, minor))
            (folder / "dev" / name).chmod(0o666)
        self.driver("580.95.05")

    def driver(self, version: str) -> None:
        """This version is loaded, and its libraries are the only ones."""
        (self.folder / "proc/version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed\n")
        for old in (self.folder / "lib").iterdir():
            old.unlink()
        (self.folder / f"lib/libcuda.so.{version}").write_text(f"library {version}\n")

    def converge(self, state: str = "present", check: bool = False) -> dict[str, Any]:
        """The module."""
        here = {"dev": str(self.folder / "dev"), "proc_devices": str(self.folder / "devices"), "proc_driver": str(self.folder / "proc")}
        args = {"state": state, "path": str(self.spec), "spec_dirs": [str(self.podman.cdi)], "libraries": [str(self.folder / "lib")], **here}
        host = RealHost()
        found: dict[str, Any] = run_module(cdi_spec, args, OverlayHost(host) if check else host, diff=True)
        return found

    def inside(self, name: str = "0") -> subprocess.CompletedProcess[str]:
        """A container with that device."""
        return self.podman.start("--device", f"nvidia.com/gpu={name}", "--env", f"LIB={self.folder / 'lib'}", command=LOOK)


@pytest.fixture
def card(tmp_path: Path, podman: Podman) -> Card:
    for old in podman.cdi.iterdir():
        old.unlink()
    return Card(tmp_path, podman)


@pytest.mark.parametrize("name", ["0", "gpu0", UUID, "all"])
def test_a_container_gets_nodes_libraries_and_environment_by_every_name(card: Card, name: str) -> None:
    assert card.converge(check=True)["changed"]
    assert not card.spec.exists()
    made = card.converge()
    assert made["changed"], made
    assert not card.converge()["changed"]
    assert card.converge("verified")["faults"] == []
    seen = card.inside(name)
    assert seen.returncode == 0, seen.stderr
    lines = seen.stdout.splitlines()
    assert {"/dev/nvidia3 1:3", "/dev/nvidiactl 1:ff", "/dev/nvidia-uvm 5:0", "/dev/nvidia-uvm-tools 5:1"} <= set(lines)
    assert {"library 580.95.05", "NVIDIA_VISIBLE_DEVICES=void", "open"} <= set(lines)


def test_case_55_a_stale_spec_fails_in_podman_is_found_and_made_again(card: Card) -> None:
    card.converge()
    card.driver("590.10.02")
    stale = card.inside()
    assert stale.returncode != 0
    assert "580.95.05" in stale.stderr
    found = card.converge("verified")
    assert found["failed"]
    assert f"{card.folder}/lib/libcuda.so.580.95.05 is not on this host" in found["msg"]
    assert symptoms.find(stale.stderr), stale.stderr
    again = card.converge()
    assert again["changed"]
    assert any("580.95.05" in text for text in again["faults"])
    assert "library 590.10.02" in card.inside().stdout
    assert not card.converge()["changed"]


def test_case_56_anybody_may_read_it(card: Card) -> None:
    def readable() -> bool:
        # Of the folder's parents pytest lets only their owner in; what counts is the file's own mode.
        read = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"]
        with card.spec.open() as stream:
            return (
                subprocess.run([*read, f"/proc/self/fd/{stream.fileno()}"], pass_fds=[stream.fileno()], capture_output=True, check=False).returncode
                == 0
            )

    card.converge()
    assert readable()
    card.spec.chmod(0o600)
    assert not readable()
    assert "mode 0600" in card.converge("verified")["msg"]
    assert card.converge()["changed"]
    assert readable()


@pytest.mark.parametrize("change", [{"colour": "red"}, {"cdiVersion": "9.9.0"}, {"cdiVersion": "0.7.0"}])
def test_case_57_what_a_strict_reader_refuses_we_refuse_too(card: Card, change: dict[str, Any]) -> None:
    card.converge()
    whole = json.loads(card.spec.read_text())
    card.spec.write_text(json.dumps({**whole, **change}))
    refused = card.inside()
    assert refused.returncode != 0
    assert "unresolvable CDI devices" in refused.stderr
    assert "unresolvable" in (symptoms.find(refused.stderr) or symptoms.SYMPTOMS[0]).says
    host = RealHost()
    args = {"state": "verified", "spec_dirs": [str(card.podman.cdi)], "reader_version": "0.5.0"}
    found = run_module(cdi_spec, args, host)["msg"]
    assert "unknown field 'colour'" in found if "colour" in change else "newer than the reader knows" in found


def test_two_specs_of_one_name_in_a_folder_are_refused_by_podman_and_by_us(card: Card) -> None:
    card.converge()
    assert card.inside().returncode == 0
    (card.podman.cdi / "other.json").write_text(card.spec.read_text())
    refused = card.inside()
    assert "conflict" in refused.stderr or "unresolvable" in refused.stderr, refused.stderr
    assert "an engine takes neither" in card.converge("verified")["msg"]
    assert card.converge()["refused"]
    (card.podman.cdi / "other.json").unlink()
    assert not card.converge()["changed"]
    gone = card.converge("absent")
    assert gone["changed"]
    assert not card.spec.exists()
    assert not card.converge("absent")["changed"]


def test_an_agent_in_a_container(podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{podman.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET_OF_THE_CONTROLLER", "x")
    started = podman.start(command=("sleep", "infinity"), name="box")
    assert started.returncode == 0, started.stderr
    text = """
- shell: id -un; env; head -c 3000000 /dev/zero | wc -c
  register: seen
- command: id -un
  become: true
  become_user: nobody
  register: who
"""
    hosts = inventory({"box": {"ansible_connection": "podman"}, "absent": {"ansible_connection": "podman"}, "h1": LOCAL})
    found = tasks(tmp_path, text, hosts=hosts, limit="box")
    assert found.result.exit_code == 0, [event.result for event in found.seen.of("result")]
    seen = found.vars("box")
    assert seen["seen"]["stdout"].splitlines()[0] == "root"
    assert "3000000" in seen["seen"]["stdout"]
    assert "SECRET_OF_THE_CONTROLLER" not in seen["seen"]["stdout"]
    assert seen["who"]["stdout"] == "nobody"
    lost = tasks(tmp_path, "- command: 'true'\n", hosts=hosts, limit="absent,h1")
    assert lost.result.exit_code == 4
    assert lost.stats("absent") == {"unreachable": 1}
    assert lost.stats("h1") == {"ok": 1, "changed": 1}
