# SPDX-License-Identifier: Apache-2.0
"""provision --manager pve and retire, on the double of pct (tests/beds/pct: not a real Proxmox VE)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops import places
from flyops.errors import UsageError
from flyops.loading.inventory import Inventory, load_inventory
from flyops.operations import guests, pve
from flyops.operations.options import ProvisionOptions, RetireOptions
from tests.beds.pct import bed as pct_bed
from tests.beds.pct.bed import PveBed

pytestmark = pytest.mark.root
play = guests.play


class Node:
    """A double as a node of an inventory of the test's own, with the repository's variables."""

    def __init__(self, bed: PveBed, hosts: Path) -> None:
        self.bed = bed
        self.hosts = hosts
        self.said = ""

    def inventory(self) -> Inventory:
        own = self.bed.args
        variables = {
            "ansible_connection": "local",
            "host_pve_dir": own["conf_dir"],
            "host_dir": str(self.bed.folder / "var"),
            "pve_lock_dir": own["lock_dir"],
            **{f"host_{name}": own[name] for name in ("dev", "proc_devices", "proc_driver", "mig_minors", "proc_mounts")},
            "host_cpus_online": own["online"],
        }
        made = Inventory()
        made.under(str(places.REPOSITORY / "inventory"))
        made.add_host("node1", [], variables)
        if self.hosts.exists():
            for path in sorted(self.hosts.iterdir()):
                found = yaml.safe_load(path.read_text())["containers"]["hosts"]
                for name in found:
                    made.add_host(name, ["containers"], found[name])
        return made

    def provision(self, **words: Any) -> int:
        options = ProvisionOptions(**{"name": "dev1", "manager": "pve", "id": "101", "on": "node1", **words})
        inventory = self.inventory()
        assert pve.wanted(options, inventory)
        return pve.provision(options, inventory, words.get("gpu", guests.variables(inventory, "dev1").get("container_gpu", False)))


@pytest.fixture
def node(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    bed = pct_bed.make(open_folder / "pve")
    monkeypatch.setenv("PATH", bed.environment["PATH"])
    monkeypatch.setattr(guests, "inventory_file", lambda name: open_folder / "hosts.d" / f"{name}.yml")
    yield Node(bed, open_folder / "hosts.d")
    bed.close()


def test_provision_plan_again_change_and_retire(node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    node.bed.install("570.148.08")
    assert node.provision(plan=True, gpu=True, cpus="0-3") == 0
    assert "nothing was changed, this is a plan" in capsys.readouterr().out
    assert not node.hosts.exists()
    assert not list((node.bed.folder / "conf").iterdir())

    assert node.provision(gpu=True, cpus="0-3", memory="2G", disk="32G", autostart="yes") == 0
    assert "dev1: guest 101 on node1, cpus 0-3, memory 2G, GPU by devN entries" in capsys.readouterr().out
    conf = node.bed.conf()
    for line in ("cores: 4", "memory: 2048", "tags: flyops", "onboot: 1", "lxc.cgroup2.cpuset.cpus: 0-3", "rootfs: local-lvm:vm-101-disk-0,size=32G"):
        assert line in conf.splitlines()
    assert "status: running" in node.bed.pct("status", "101").stdout
    assert set(node.bed.started()["nodes"]) >= {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm"}

    linked = node.bed.pct("exec", "101", "--", "/sbin/ldconfig", "-p").stdout
    assert "libcuda.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libcuda.so.1" in linked
    assert "570.148.08" in node.bed.pct("exec", "101", "--", "readlink", "/usr/local/nvidia/lib64/libcuda.so.1").stdout

    before = len(node.bed.calls())
    ran: list[Any] = []
    monkeypatch.setattr(guests, "play", lambda *words: ran.append(play(*words)) or ran[-1])
    assert node.provision() == 0  # what is not typed stays as the inventory has it
    assert [host.changed for host in ran[0].hosts.values()] == [0] * len(ran[0].hosts)
    assert node.bed.conf() == conf
    changing = ("pct create", "pct set", "pct start", "pct shutdown", "pct stop")
    assert [call for call in node.bed.calls()[before:] if call.startswith(changing)] == []

    assert node.provision(gpu=False, cpus="all") == 0  # a guest of ours is restarted for it, gently
    assert "dev0" not in node.bed.conf()
    assert "lxc.mount.entry" not in node.bed.conf()
    assert node.bed.pct("exec", "101", "--", "ls", "/etc/ld.so.conf.d").stdout.count("flyops") == 0
    assert "cpuset" not in node.bed.conf()
    assert node.bed.started()["nodes"] == {}
    assert not [call for call in node.bed.calls() if call.startswith("pct stop")]

    node.bed.pct("exec", "101", "--", "sh", "-c", "mkdir -p /var/lib/fly && echo state > /var/lib/fly/checkpoint")
    inventory = node.inventory()
    capsys.readouterr()
    archive = node.bed.folder / "archive" / "dev1.tar.gz"
    assert pve.retire(RetireOptions("dev1", plan=True), inventory, guests.variables(inventory, "dev1"), str(archive)) == 0
    assert "101.conf" in [path.name for path in (node.bed.folder / "conf").iterdir()]
    (node.bed.folder / "run" / "101" / "stubborn").touch()
    node.bed.pct("stop", "101")  # so that it starts as one that will not go down
    node.bed.pct("start", "101")
    stubborn = {**guests.variables(inventory, "dev1")}
    monkeypatch.setattr(pve, "STOP_WAIT_S", 1)
    assert pve.retire(RetireOptions("dev1"), inventory, stubborn, str(archive)) == 1
    assert (len(list(node.hosts.iterdir())), archive.exists()) == (1, False)  # it is still there, and known
    node.bed.pct("stop", "101")
    assert pve.retire(RetireOptions("dev1"), inventory, guests.variables(inventory, "dev1"), str(archive)) == 0
    assert f"dev1: gone; state in {archive} on node1" in capsys.readouterr().out
    assert archive.stat().st_size > 0
    assert not list((node.bed.folder / "conf").iterdir())
    assert not list(node.hosts.iterdir())


def test_without_a_card_no_guest_is_made(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.bed.folder / "dev" / "nvidia-uvm").unlink()
    for plan in (True, False):
        assert node.provision(gpu=True, plan=plan) == 1
        assert "nvidia-uvm is missing. To do: ./fly host --limit node1" in " ".join(capsys.readouterr().out.split())
    assert not list((node.bed.folder / "conf").iterdir())
    node.bed.settle(511)
    node.bed.install("570.148.08")
    assert node.provision(gpu=True, cpus="0-9") == 3  # ten cpus asked of eight
    assert node.hosts.joinpath("dev1.yml").exists()  # so that it can be put right, or retired
    assert node.provision(cpus="0-3") == 0
    assert "status: running" in node.bed.pct("status", "101").stdout


def test_a_number_of_somebody_else_is_left_alone(node: Node) -> None:
    node.bed.write("arch: amd64\nhostname: theirs\n")
    assert node.provision(gpu=True) == 3
    assert node.bed.conf() == "arch: amd64\nhostname: theirs\n"
    assert not node.hosts.exists()


def test_no_template_says_what_to_type_and_makes_nothing(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.bed.folder / "templates.json").write_text("[]")
    assert node.provision() == 3
    assert "pveam download local NAME" in capsys.readouterr().out
    assert not list((node.bed.folder / "conf").iterdir())
    assert not node.hosts.exists()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ({"id": ""}, "a Proxmox guest needs a number"),
        ({"id": "7"}, "from 100 up; found '7'"),
        ({"rootfs": "x.tar", "network": "none"}, "--rootfs, --network mean nothing for a Proxmox guest"),
        ({"cpus": "x"}, "--cpus: "),
        ({"autostart": "maybe"}, "--autostart: expected yes or no"),
        ({"disk": "8T"}, "--disk: expected GiB as 32G"),
        ({"on": "nowhere"}, "no host 'nowhere' in the inventory"),
    ],
)
def test_words_that_cannot_be(node: Node, words: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        node.provision(**words)


def test_a_guest_does_not_change_its_manager() -> None:
    inventory = load_inventory([guests.INVENTORY])
    inventory.add_host("dev1", [], {"ansible_connection": "lxc"})
    with pytest.raises(UsageError, match="dev1 is a guest of lxc, found --manager pve"):
        pve.wanted(ProvisionOptions("dev1", manager="pve"), inventory)
    assert not pve.wanted(ProvisionOptions("dev1"), inventory)
    assert not pve.wanted(ProvisionOptions("dev2"), inventory)
    inventory.add_host("dev3", [], {"container_manager": "pve", "ansible_pct_id": 103})
    assert pve.wanted(ProvisionOptions("dev3"), inventory)
    with pytest.raises(UsageError, match="number 103 is that of dev3"):
        pve.choose(ProvisionOptions("dev4", manager="pve", id="103"), inventory, gpu=False)
