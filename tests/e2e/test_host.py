# SPDX-License-Identifier: Apache-2.0
"""`invoke host` on a host under systemd: a guest that plays one, with a driver and guests made of files that its variables name."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flyops.operations.deploy import bundle_file
from tests.beds.fly import Fly, changed
from tests.beds.lxc import Guest, converge, free_name

pytestmark = [pytest.mark.lxc, pytest.mark.root]

BED = "/opt/bed"
FILES = {
    "dev": f"{BED}/dev",
    "proc_devices": f"{BED}/devices",
    "proc_modules": f"{BED}/modules",
    "proc_driver": f"{BED}/driver",
    "lxc_path": f"{BED}/lxc",
    "pve_dir": f"{BED}/pve",
    "udev_dir": f"{BED}/rules",
}
BINDS = "lxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\nlxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
# Stands where the real one would: what it sees of our guest's config is what a guest would start with.
LXC_SERVICE = f"""[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/cp {BED}/lxc/ours/config {BED}/pve/101.conf {BED}/seen/
[Install]
WantedBy=multi-user.target
"""
# The driver's modules come late at boot, with other numbers.
LATE = f"""[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh -c 'sleep 3; mv {BED}/devices.next {BED}/devices'
[Install]
WantedBy=sysinit.target
"""


def devices(uvm: int) -> str:
    return f"Character devices:\n195 nvidia\n236 nvidia-caps\n{uvm} nvidia-uvm\n509 mei\n\nBlock devices:\n"


class Bed:
    """The guest as the host `box`."""

    def __init__(self, folder: Path, guest: Guest) -> None:
        self.guest = guest
        hosts = folder / "hosts.yml"
        variables = {
            "ansible_connection": "lxc",
            "ansible_lxc_name": guest.name,
            "container_host": True,
            "managed_guests": [101, "gone"],
            **{f"host_{name}": path for name, path in FILES.items()},
        }
        hosts.write_text(yaml.safe_dump({"all": {"hosts": {"box": variables}}}))
        self.fly = Fly(folder, extra=())
        # One bundle for all runs: somebody who edits the sources meanwhile would make a second run change the agent's file.
        self.words = ("host", "--inventory", str(hosts), "--limit", "box", "-e", f"agent_bundle={bundle_file()}")

    def host(self, *words: str, code: int = 0) -> str:
        return self.fly(*self.words, *words, code=code)

    def sh(self, script: str, check: bool = True) -> str:
        return self.guest.run("sh", "-c", script, check=check).stdout.strip()

    def put(self, path: str, text: str) -> None:
        self.guest.run("sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1"', "sh", path, stdin=text)

    def text(self, path: str) -> str:
        return self.guest.run("cat", path).stdout

    def unit(self, name: str, what: str = "ActiveState") -> str:
        return self.sh(f"systemctl show -p {what} --value {name}")

    def digest(self) -> str:
        """All files that a removal must leave as they were."""
        return self.sh(f"cd / && find {BED} etc/systemd etc/apt -path {BED}/dev -prune -o -type f -print0 | sort -z | xargs -0 sha256sum")

    def reboot(self) -> None:
        before = self.guest.pid()
        subprocess.run(["lxc-stop", "-n", self.guest.name, "-r", "-t", "60"], check=True)
        end = time.monotonic() + 90
        while self.guest.pid() in ("", before) or self.sh("systemctl is-system-running || true", check=False) not in ("running", "degraded"):
            assert time.monotonic() < end, "the guest did not come up again"
            time.sleep(0.3)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, lxc_base: str) -> Iterator[Bed]:
    name = free_name()
    made = converge(name=name, rootfs=lxc_base, network="none", memory="1G")
    try:
        assert not made["failed"], made["msg"]
        bed = Bed(tmp_path_factory.mktemp("host"), Guest(name, made))
        bed.sh(f"mkdir -p {BED}/dev {BED}/rules {BED}/seen {BED}/nodes/n1/lxc && ln -s nodes/n1/lxc {BED}/pve")  # a link, as in /etc/pve
        bed.put(f"{BED}/devices", devices(511))
        bed.put(f"{BED}/driver/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Wed\n")
        bed.put(f"{BED}/driver/gpus/0000:01:00.0/information", "Device Minor: \t 0\n")
        bed.put(f"{BED}/lxc/ours/flyops.json", '{"owner": "flyops", "name": "ours"}\n')
        bed.put(f"{BED}/lxc/ours/config", f"lxc.uts.name = ours\nlxc.cgroup.devices.allow = c 508:* rwm\n{BINDS}")
        bed.put(f"{BED}/lxc/neighbour/config", f"lxc.uts.name = neighbour\nlxc.cgroup.devices.allow = c 508:* rwm\n{BINDS}")
        bed.put(f"{BED}/pve/101.conf", "arch: amd64\nhostname: made-up\n\n[snapA]\nlxc.cgroup.devices.allow: c 508:* rwm\n")
        bed.put(f"{BED}/pve/102.conf", "arch: amd64\nlxc.cgroup.devices.allow: c 508:* rwm\n")
        bed.put("/etc/systemd/system/lxc.service", LXC_SERVICE)
        bed.sh("systemctl -q enable lxc.service")
        yield bed
    finally:
        converge(name=name, state="absent", stop_wait=20)


def rules(text: str) -> list[str]:
    return [line.replace(" = ", ": ").partition("allow: ")[2] for line in text.partition("[snapA]")[0].splitlines() if "devices.allow" in line]


def test_a_host_is_put_right_and_stays_right_after_a_boot(bed: Bed) -> None:
    """Now, at each boot before the guests (case-4, case-9, case-13), under the timer; twice is nothing; gone again, all is as it was."""
    was = bed.digest()
    neighbours = [bed.text(path) for path in (f"{BED}/lxc/neighbour/config", f"{BED}/pve/102.conf")]

    planned = bed.host("--check", "--diff")
    assert "c 511:* rwm" in planned
    assert bed.digest() == was

    inode = bed.sh(f"stat -c '%i %a' {BED}/pve/101.conf")
    said = bed.host("--hold-driver")
    assert "guests: 101 changed (in force at its next start), gone missing, ours changed" in said
    assert bed.sh(f"stat -c '%i %a' {BED}/pve/101.conf") == inode
    assert 'Unattended-Upgrade::Package-Blacklist:: "libnvidia-.*";' in bed.sh("apt-config dump")
    assert rules(bed.text(f"{BED}/lxc/ours/config")) == ["c 195:* rwm", "c 511:* rwm"]
    assert rules(bed.text(f"{BED}/pve/101.conf")) == ["c 195:* rwm", "c 236:* rwm", "c 511:* rwm"]
    assert bed.sh(f"stat -c '%F %t:%T %a' {BED}/dev/nvidia-uvm") == "character special file 1ff:0 666"
    assert bed.unit("flyops-majors.service") == "active"

    # The next boot: the driver is not there at first, then with other numbers; one node is stale.
    bed.put(f"{BED}/devices.next", devices(505))
    bed.put("/etc/systemd/system/late.service", LATE)
    bed.sh(f"rm {BED}/devices && systemctl -q enable late.service")
    bed.reboot()
    assert bed.unit("lxc.service") == "active"
    for seen in ("config", "101.conf"):
        assert rules(bed.text(f"{BED}/seen/{seen}"))[-1] == "c 505:* rwm", f"{seen}: guests started before the unit had ended"
    assert bed.sh(f"stat -c '%t:%T' {BED}/dev/nvidia-uvm") == "1f9:0"
    assert [bed.text(path) for path in (f"{BED}/lxc/neighbour/config", f"{BED}/pve/102.conf")] == neighbours
    assert "lxc.cgroup.devices.allow: c 508:* rwm" in bed.text(f"{BED}/pve/101.conf").partition("[snapA]")[2]
    assert changed(bed.host(), "box") == 0

    # Drift: green while all is right; red, with words, when it is not; and it changes nothing.
    assert bed.unit("flyops-majors-drift.timer") == "active"
    bed.sh("systemctl start flyops-majors-drift.service")
    bed.put(f"{BED}/devices", devices(500))
    before = bed.digest()
    assert bed.guest.run("systemctl", "start", "flyops-majors-drift.service", check=False).returncode != 0
    assert bed.digest() == before
    log = bed.sh("journalctl -o cat --no-pager -p err -u flyops-majors-drift.service")
    assert "101: lacks lxc.cgroup.devices.allow c 500:* rwm" in log
    assert "nvidia-uvm is 505:0, the loaded module's number is 500:0" in log
    bed.sh("systemctl restart flyops-majors.service && systemctl start flyops-majors-drift.service")
    assert rules(bed.text(f"{BED}/lxc/ours/config")) == ["c 195:* rwm", "c 500:* rwm"]

    removed = bed.host("--remove")
    assert changed(removed, "box") > 0
    assert bed.sh("ls /etc/systemd/system /opt/bed/rules /var/lib/flyops | grep majors || true") == ""
    assert bed.sh("systemctl list-unit-files --no-legend 'flyops-majors*'", check=False) == ""
    bed.sh("systemctl -q disable late.service; rm /etc/systemd/system/late.service /opt/bed/seen/*")
    now = bed.digest()
    own = {line.split()[1] for line in was.splitlines()}
    assert {line.split()[1] for line in now.splitlines()} == own
    kept = [line for line in was.splitlines() if "ours/config" not in line and not line.endswith("/devices")]
    assert [line for line in now.splitlines() if "ours/config" not in line and not line.endswith("/devices")] == kept
    assert changed(bed.host("--remove"), "box") == 0


def test_nouveau_refuses_before_anything_changes(bed: Bed) -> None:
    """case-25: exit 3, and not one file."""
    bed.put(f"{BED}/modules", "nouveau 1 0 - Live 0x0\n")
    was = bed.digest()
    assert "module nouveau is loaded" in bed.host(code=3)
    assert bed.digest() == was
    bed.sh(f"rm {BED}/modules")


MODPROBE = f"""#!/bin/sh
echo "$1" >>{BED}/loaded
case "$1" in
  nvidia) printf 'Character devices:\\n195 nvidia\\n236 nvidia-caps\\n' >{BED}/devices ;;
  nvidia-uvm) echo '504 nvidia-uvm' >>{BED}/devices ;;
esac
"""


def test_case_41_and_5_modules_are_loaded_first_then_nodes_are_made(bed: Bed) -> None:
    """With the driver on disk only: a check run loads nothing and says so, a run loads what lacks a number, the next has nothing to load."""
    bed.put(f"{BED}/devices", "Character devices:\n")
    bed.put("/usr/local/sbin/modprobe", MODPROBE)
    bed.put("/usr/local/sbin/modinfo", "#!/bin/sh\necho 570.148.08\n")
    bed.sh(f"chmod 755 /usr/local/sbin/mod*; rm -rf {BED}/dev/*")

    assert "skipping: [box] => (item=nvidia-uvm)" in bed.host("--check")
    assert bed.sh(f"cat {BED}/loaded || true") == ""

    bed.host()
    assert bed.sh(f"cat {BED}/loaded").split() == ["nvidia", "nvidia-uvm"]
    assert bed.sh(f"stat -c '%t:%T' {BED}/dev/nvidia-uvm {BED}/dev/nvidia-uvm-tools {BED}/dev/nvidia-caps/nvidia-cap1").split() == [
        "1f8:0",
        "1f8:1",
        "ec:1",
    ]
    assert rules(bed.text(f"{BED}/lxc/ours/config")) == ["c 195:* rwm", "c 504:* rwm"]
    assert changed(bed.host(), "box") == 0
