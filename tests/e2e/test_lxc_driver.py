# SPDX-License-Identifier: Apache-2.0
"""nvidia_driver in a real guest: a made-up installer, made-up packages in a repository of our own, libraries bound read-only. No card, no NVIDIA file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops import places
from flyops.transport.bundle import bundle
from tests.beds import fakecard, fakerun, lxc
from tests.beds.fly import Fly, changed
from tests.beds.lxc import Guest

pytestmark = [pytest.mark.lxc, pytest.mark.root]
OLD, NEW = "570.148.06", "570.148.08"
BANNER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jan  1 00:00:00 UTC 2026\n"


class Driver:
    """The module at the end of lxc-attach; `proc` in the guest says which module is loaded."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.put("/srv/agent.b64", base64.b64encode(bundle()[1]).decode())
        self.sh("base64 -d /srv/agent.b64 > /srv/agent.pyz; mkdir -p /srv/proc")

    def put(self, path: str, text: str) -> None:
        """A file in the guest."""
        self.guest.run("sh", "-c", f"cat > '{path}'", stdin=text)

    def sh(self, script: str, *words: str, check: bool = True) -> str:
        """A script in the guest: its output."""
        return self.guest.run("sh", "-c", script, "sh", *words, check=check).stdout.strip()

    def loaded(self, version: str) -> None:
        """The host boots another module."""
        self.put("/srv/proc/version", BANNER.format(version))

    def __call__(self, says: str = "", **args: Any) -> dict[str, Any]:
        done = self.guest.run("python3", "/srv/agent.pyz", "--module", "nvidia_driver", "--args", "-", check=False,
                              stdin=json.dumps({"proc_driver": "/srv/proc", "dev": "/srv/nodes", **args}))  # fmt: skip
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert bool(result["failed"]) is bool(says), result
        assert says in result.get("msg", ""), result
        return result


@pytest.fixture(scope="module")
def guests(lxc_base: str) -> Any:
    """One guest for this file."""
    name = lxc.free_name()
    made = lxc.converge(name=name, rootfs=lxc_base, network="none", memory="1G")
    assert not made["failed"], made["msg"]
    yield Driver(Guest(name, made))
    assert not lxc.converge(name=name, state="absent", stop_wait=20)["failed"]


@pytest.fixture
def driver(guests: Driver) -> Any:
    """The guest, and afterwards nothing of a driver in it."""
    guests.loaded(OLD)
    yield guests
    guests.sh(
        "umount -q /usr/local/nvidia/lib64/* /usr/local/nvidia/lib64; nvidia-uninstall 2>/dev/null; rm -rf /usr/local/nvidia /srv/lib /srv/nodes; true"
    )


def run_file(driver: Driver, folder: Path, version: str, kernel: str = "--no-kernel-modules") -> dict[str, str]:
    """A made-up installer in the guest, and the arguments that name it."""
    path = f"/srv/NVIDIA-Linux-{os.uname().machine}-{version}.run"
    text = fakerun.installer(folder, version, kernel)
    driver.put(path, text)
    return {"strategy": "runfile", "runfile": path, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def files(driver: Driver) -> str:
    return driver.sh(f"ls {fakerun.FOLDER} 2>/dev/null | tr '\\n' ' '")


def test_an_installer_brings_the_loaded_version_and_only_that(driver: Driver, tmp_path: Path) -> None:
    old = run_file(driver, tmp_path, OLD, "--no-kernel-module")  # an older installer's spelling

    assert driver(**old)["verdict"] == f"in lockstep with {OLD}"
    assert files(driver) == f"libcuda.so.1 libcuda.so.{OLD} libnvidia-ml.so.1 libnvidia-ml.so.{OLD}"
    assert driver(**old)["changed"] is False
    assert driver(state="verified")["found"] == [OLD]

    driver.loaded(NEW)  # the host moved: every guest is out of step, by the last part of the version
    assert driver("", **run_file(driver, tmp_path, NEW))["found"] == [NEW]
    assert driver.sh("python3 -c \"import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))\"") == "42"
    driver(f"asked for driver {OLD}, the loaded module is {NEW}", version=OLD, **old)

    assert driver(strategy="runfile", state="absent")["changed"] is True
    assert driver(strategy="runfile", state="absent")["changed"] is False
    assert files(driver) == ""


def test_an_installer_that_fails_is_told_by_its_log(driver: Driver, tmp_path: Path) -> None:
    args = run_file(driver, tmp_path, OLD)
    driver.sh("touch /srv/disk-is-full")

    driver(f"Unable to write '{fakerun.FOLDER}/libcuda.so.{OLD}' (No space left on device) (the disk of the guest is full", **args)
    driver.sh("rm /srv/disk-is-full")
    assert driver.sh(f"sh {args['runfile']} --silent; tail -n 2 /var/log/nvidia-installer.log | head -1") != ""  # its kernel part would fail here
    assert "appears to already be loaded" in driver.sh("cat /var/log/nvidia-installer.log")
    driver.sh(f"echo more >> {args['runfile']}")
    driver("it is not run", **args)
    assert files(driver) == ""


def apt(driver: Driver, *packages: str) -> None:
    """The repository has these, and the guest has read its list."""
    driver.guest.run("sh", "-c", fakerun.REPOSITORY, "sh", *packages)
    driver.sh(
        "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*; echo 'deb [trusted=yes] file:/srv/repo ./' > /etc/apt/sources.list; apt-get -q update"
    )


def branch(version: str) -> list[str]:
    """libcuda1 needs its sibling in exactly its own version, as Debian's does."""
    full = f"{version}-1"
    return ["libcuda1", full, f"libnvidia-ptxjitcompiler1 (= {full})", "libcuda", "libnvidia-ptxjitcompiler1", full, "", "libnvidia-ptxjitcompiler",
            "libnvidia-ml1", full, "", "libnvidia-ml", "nvidia-smi", full, f"libnvidia-ml1 (= {full})", ""]  # fmt: skip


def test_packages_in_the_exact_version_held(driver: Driver) -> None:
    args = {"strategy": "package", "lib_dirs": ["/usr/lib/made-up-apt"]}
    apt(driver, *branch("580.95.05"))
    driver("no packages of driver 570.148.06 are offered here; offered: libcuda1 580.95.05-1", **args)
    apt(driver, *branch(OLD))

    assert driver(**args)["verdict"] == f"in lockstep with {OLD}"
    assert driver.sh("apt-mark showhold | tr '\\n' ' '") == "libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 nvidia-smi"
    assert driver(**args)["changed"] is False
    assert "Inst" not in driver.sh("apt-get -s dist-upgrade | grep Inst || true")  # 580.95.05 lies there, and the hold keeps
    ours = "$(apt-mark showhold)"
    moves = driver.sh(f'held="{ours}"; apt-mark unhold $held >/dev/null; apt-get -s dist-upgrade | grep Inst; apt-mark hold $held >/dev/null')
    assert "libcuda1 [570.148.06-1] (580.95.05-1" in moves  # without the hold it would go

    apt(driver, *branch("590.1.1"))  # a still newer one appears
    assert driver(**args)["changed"] is False

    driver.loaded(NEW)
    apt(driver, *branch(NEW))
    driver.sh("apt-mark unhold nvidia-smi")  # somebody meddled
    moved = driver(**args)
    assert (moved["found"], moved["leftovers"]) == ([NEW], [])
    assert driver.sh("apt-mark showhold | wc -l") == "4"
    assert driver.sh("dpkg-query -W -f '${Version} ' libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 nvidia-smi").split() == [f"{NEW}-1"] * 4

    assert driver(strategy="package", state="absent")["changed"] is True
    assert driver(strategy="package", state="absent")["changed"] is False
    assert (
        driver.sh("apt-mark showhold; dpkg-query -W -f '${db:Status-Status}\\n' 'libcuda1*' 'nvidia-smi*' 2>/dev/null | grep -c '^installed' || true")
        == "0"
    )


def bound(driver: Driver, tmp_path: Path, version: str) -> None:
    """Files as the guest's config would bind them, one by one and read-only."""
    driver.put("/srv/cuda.b64", fakerun.text(tmp_path, "libcuda"))
    driver.put("/srv/ml.b64", fakerun.text(tmp_path, "libnvidia-ml"))
    driver.sh(
        "set -e; mkdir -p /srv/lib /usr/local/nvidia/lib64 /usr/local/nvidia/bin\n"
        'base64 -d /srv/cuda.b64 > "/srv/lib/libcuda.so.$1"; base64 -d /srv/ml.b64 > "/srv/lib/libnvidia-ml.so.$1"\n'
        'for f in /srv/lib/*.so."$1"; do t="/usr/local/nvidia/lib64/${f##*/}"; touch "$t"; mount --bind "$f" "$t"; mount -o remount,bind,ro "$t"; done\n'
        "printf '#!/bin/sh\\necho made up\\n' > /usr/local/nvidia/bin/nvidia-smi; chmod 755 /usr/local/nvidia/bin/nvidia-smi",
        version,
    )


def test_bound_libraries_and_mounts_that_predate_an_upgrade(driver: Driver, tmp_path: Path) -> None:
    driver("found none", strategy="bind")
    bound(driver, tmp_path, OLD)

    assert driver(strategy="bind")["verdict"] == f"in lockstep with {OLD}"
    assert driver(strategy="bind")["changed"] is False
    assert driver.sh("ldconfig -p | grep -c /usr/local/nvidia/lib64/libcuda.so.1; nvidia-smi") == "1\nmade up"
    assert driver(state="verified")["problems"] == []

    # Case 17: the host's files are replaced under the running guest. All is well now, and the next start has nothing to bind.
    driver.sh(f"rm /srv/lib/libcuda.so.{OLD}")
    assert driver.sh("python3 -c \"import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))\"") == "42"
    driver("do not restart this guest before its host has booted", state="verified")

    # That start: the bind is gone, its target is the empty file that was made for it (case 50).
    driver.sh(f"umount /usr/local/nvidia/lib64/libcuda.so.{OLD}")
    driver("is an empty file: the source of its bind was missing at start", state="verified")
    driver(f"the source of the bind was missing at start: /usr/local/nvidia/lib64/libcuda.so.{OLD}", strategy="bind")

    # The host boots the new module and binds its libraries: bind converges, the old target goes.
    driver.loaded(NEW)
    driver.sh(f"umount /usr/local/nvidia/lib64/libnvidia-ml.so.{OLD}")
    bound(driver, tmp_path, NEW)
    assert driver(strategy="bind")["verdict"] == f"in lockstep with {NEW}"
    assert OLD not in driver.sh("ls /usr/local/nvidia/lib64")

    assert driver(strategy="bind", state="absent")["changed"] is True
    assert driver(strategy="bind", state="absent")["changed"] is False
    assert driver.sh("ldconfig -p | grep -c libcuda || true; ls /usr/local/bin | grep -c nvidia || true") == "0\n0"


UNITS = """[Service]
ExecStart=sleep 600
DevicePolicy=closed
"""


def test_case_27_and_34_rules_that_are_only_injected_go_with_a_daemon_reload(driver: Driver) -> None:
    # A guest may open fuse's number (10:229); under systemd's `closed` a unit may not, until it is told so.
    driver.sh("mknod -m 666 /dev/nvidia0 c 10 229")
    driver.put("/run/systemd/system/bare.service", UNITS)
    driver.put("/run/systemd/system/told.service", f"{UNITS}DeviceAllow=/dev/nvidia0 rw\n")
    driver.sh("systemctl daemon-reload; systemctl start bare told")
    asked = {"state": "verified", "version": OLD, "lib_dirs": ["/srv/none"], "dev": "/dev"}

    def problems(unit: str) -> list[str]:
        return [text for text in driver("libcuda.so: expected", unit=unit, **asked)["problems"] if "/dev/nvidia0" in text]

    assert problems("told") == []
    assert problems("bare") == ["/dev/nvidia0: not open: bare's own config allows nothing, and a daemon-reload leaves only that"]
    path = driver.sh("grep :devices: /proc/$(systemctl show -p MainPID --value bare)/cgroup | cut -d: -f3", check=False)
    if path:  # cgroup v1: a rule can be injected, as container runtimes do it
        rules = f"/sys/fs/cgroup/devices{path}/devices.list"
        driver.sh(f"echo 'c 10:229 rw' > /sys/fs/cgroup/devices{path}/devices.allow")
        assert "open now, by a rule that was only injected" in problems("bare")[0]
        driver.sh("systemctl daemon-reload")
        assert "10:229" not in driver.sh(f"cat {rules}")
        assert "10:229" in driver.sh(f"cat {rules.replace('bare', 'told')}")
    assert problems("told") == []


def test_case_34_a_bind_alone_does_not_open_a_node(driver: Driver) -> None:
    # Nodes by the number of a device that a guest may not open, and by one that it may.
    driver.sh("mkdir -p /srv/nodes; mknod -m 666 /srv/nodes/nvidia0 c 10 237; mknod -m 666 /srv/nodes/nvidiactl c 1 3")
    result = driver("/srv/nodes/nvidia0", state="verified", version=OLD, lib_dirs=["/srv/none"])
    told = [problem for problem in result["problems"] if "/srv/nodes" in problem]
    assert len(told) == 1, told
    assert "device rule" in told[0]


def box(driver: Driver, folder: Path) -> Fly:
    """The guest as `box` of an inventory of its own; where the driver tells its version is a made-up folder."""
    variables = {"ansible_connection": "lxc", "ansible_lxc_name": driver.guest.name, "driver_proc": "/srv/proc", "driver_dev": "/srv/nodes",
                 "ansible_python_interpreter": "/usr/bin/python3"}  # fmt: skip
    hosts = folder / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {"box": variables}}}))
    return Fly(folder, port=8700, page_port=8701, extra=("--inventory", str(hosts), "--limit", "box"))


def test_the_operators_command(driver: Driver, tmp_path: Path) -> None:
    fly = box(driver, tmp_path)
    name = f"NVIDIA-Linux-{os.uname().machine}-{OLD}.run"
    file = tmp_path / name
    file.write_text(fakerun.installer(tmp_path, OLD))

    assert "libcuda.so: expected 570.148.06, found none" in fly("driver", "--verify", code=3)
    assert "it is not sent" in fly("driver", "--runfile", str(file), "--sha256", "0" * 64, code=3)
    assert "installer" in fly("driver", "--runfile", str(file), "--check", "--diff")
    assert files(driver) == ""
    assert f"in lockstep with {OLD} (module {OLD}, found {OLD})" in fly("driver", "--runfile", str(file))
    assert driver.sh("ls /var/tmp/*.run 2>/dev/null || true") == ""
    assert "changed=0" in fly("driver", "--runfile", str(file), "--verbose")
    assert f"in lockstep with {OLD}" in fly("driver", "--verify")

    driver.loaded(NEW)
    assert f"expected {NEW}" in fly("driver", "--verify", code=3)
    assert "is the driver" in fly("driver", "--runfile", str(file), code=3)
    assert "taken away; libraries that are left: none" in fly("driver", "--strategy", "runfile", "--remove")
    assert files(driver) == ""


def each(folder: Path, code: int = 0) -> str:
    """The tasks that `verify` runs each time for a service that is on the card."""
    play = folder / "each.yml"
    variables = {"service_manager": "systemd", "host_proc_driver": "/proc/driver/nvidia"}
    tasks = [{"import_tasks": str(places.REPOSITORY / "playbooks/tasks/driver_verify.yml")}]
    play.write_text(yaml.safe_dump([{"hosts": "box", "gather_facts": False, "vars": variables, "tasks": tasks}]))
    return Fly(folder)("play", str(play), "--inventory", str(folder / "hosts.yml"), code=code)


def scenario(base: str, name: str, folder: Path) -> dict[str, Any]:
    """Runs where a made-up card is: a guest that got it, judged as an operator judges it, beside its host."""
    made = lxc.converge(name=name, rootfs=base, network="none", memory="1G", gpu=True)
    try:
        driver = Driver(Guest(name, made))
        driver.loaded(fakecard.VERSION)
        fly = box(driver, folder)
        host = Path(fakecard.PLACES["folder"][0])
        seen = {"bind": fly("driver"), "verify": fly("driver", "--verify")}
        (host / "libcuda.so.570.148.06").write_text("the host keeps an older one")
        seen["host"] = fly("driver", "--verify", code=1)
        (host / "libcuda.so.570.148.06").unlink()
        seen["each"] = each(folder)
        Path("/proc/driver/nvidia/version").write_text(BANNER.format("570.999"))  # the host has booted another module, or has not booted the new one
        seen["each_moved"] = each(folder, code=1)
        Path("/proc/driver/nvidia/version").write_text(fakecard.BANNER)
        driver.sh("rm /usr/local/bin/nvidia-smi /etc/ld.so.conf.d/00-flyops-nvidia.conf; ldconfig")
        seen["mended"] = fly("driver")
    finally:
        assert not lxc.converge(name=name, state="absent", stop_wait=20)["failed"]
    return seen


def test_a_provisioned_guest_is_in_lockstep_and_its_host_is_looked_at(lxc_base: str, tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a real card")
    words = [
        sys.executable,
        "-m",
        "tests.beds.fakecard",
        "folder",
        sys.executable,
        "-m",
        "tests.e2e.test_lxc_driver",
        lxc_base,
        lxc.free_name(),
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=places.REPOSITORY)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    version = fakecard.VERSION
    assert changed(seen["bind"], "box") == 0, seen["bind"]  # `container` has told the linker what nvidia_driver would
    assert f"box: in lockstep with {version}" in seen["verify"]
    assert f"leftovers of 570.148.06 beside {version}" in seen["host"]
    assert "Look at the host" in seen["host"]
    assert changed(seen["each"], "box") == 0
    assert "driver/library version mismatch: module 570.999, libraries 570.148.08" in seen["each_moved"]
    assert changed(seen["mended"], "box") == 1
    assert f"in lockstep with {version}" in seen["mended"]


if __name__ == "__main__":
    os.environ.pop("FAKECARD_INSIDE", None)
    print(json.dumps(scenario(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
