# SPDX-License-Identifier: Apache-2.0
"""A machine with a double of an NVIDIA card, for as long as one command runs: `python -m tests.beds.doublecard COMMAND [ARG...]`.

Unlike tests.beds.fakecard it computes: libcuda's double (double/libcuda.cpp) hands every launch to a process (double/card.cpp) that runs the kernel's arithmetic,
so a real flysim with the cuda feature attaches, replays and is measured. Nodes have the numbers of the real ones, and cgroup rules, modes and
owners decide for real who may open them. What it says of a card's speed or its driver's own faults is worth nothing: that is the GPU machine's part.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.beds import digest
from tests.beds.fakecard import overlay

VERSION = "570.148.08"
ARCH = "sm_80"
UVM_MAJOR = 511
NODES = (("nvidiactl", 195, 255), ("nvidia0", 195, 0), ("nvidia-uvm", UVM_MAJOR, 0), ("nvidia-uvm-tools", UVM_MAJOR, 1))
BANNER = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Thu Jan  1 00:00:00 UTC 2026\nGCC version:\n"
SMI = f"#!/bin/sh\ncase \"$*\" in *--query-gpu=*) echo 'Double, 8.0, {VERSION}';; *) echo 'GPU 0: Double (UUID: GPU-dbdbdbdb)';; esac\n"
HERE = Path(__file__).parent / "double"
KERNELS = Path(__file__).parents[2] / "flysim/crates/cuda/kernels"
FLAGS = ("-O2", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-function", f"-I{KERNELS}")
MOUNTED = Path("/mnt")
UNIT = "[Unit]\nDescription=The double of a card\nDefaultDependencies=no\n[Service]\nExecStart=/opt/double/card\nRestart=always\nRestartSec=5\n"


def build(folder: Path) -> None:
    """The library and the program, below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    library = ["-shared", "-fPIC", "-fno-exceptions", "-fno-rtti", "-static-libgcc", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["g++", *FLAGS, "-static", "-o", str(folder / "card"), str(HERE / "card.cpp")], check=True)
    subprocess.run(["g++", *FLAGS, *library, "-o", str(folder / f"libcuda.so.{VERSION}"), str(HERE / "libcuda.cpp")], check=True)


def user_part(folder: Path) -> None:
    """The driver's user part as a folder of its own: libraries with their links, and nvidia-smi."""
    libraries, tools = folder / "lib64", folder / "bin"
    for path in (libraries, tools):
        path.mkdir(parents=True, exist_ok=True)
    shutil.copy(MOUNTED / f"libcuda.so.{VERSION}", libraries)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-xc", "/dev/null", "-o", str(libraries / f"libnvidia-ml.so.{VERSION}")],
        check=True,
    )
    for name in ("libcuda", "libnvidia-ml"):
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    for smi in (tools / "nvidia-smi", Path("/usr/local/bin/nvidia-smi")):
        smi.write_text(SMI)
        smi.chmod(0o755)


def furnish() -> None:
    """Make it all; only this mount namespace sees it."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(MOUNTED)], check=True)
    build(MOUNTED)
    for name in ("pts", "shm"):  # mounts below /dev come back on top of the overlay
        (MOUNTED / name).mkdir()
        if os.path.ismount(f"/dev/{name}"):
            subprocess.run(["mount", "--rbind", f"/dev/{name}", str(MOUNTED / name)], check=True)
    for target in ("/dev", "/usr/local"):
        overlay(target, MOUNTED)
    for name in ("pts", "shm"):
        if os.path.ismount(MOUNTED / name):
            subprocess.run(["mount", "--rbind", str(MOUNTED / name), f"/dev/{name}"], check=True)
    for name, major, minor in NODES:
        os.mknod(f"/dev/{name}", 0o020666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/proc/driver"], check=True)
    Path("/proc/driver/nvidia").mkdir()
    Path("/proc/driver/nvidia/version").write_text(BANNER)
    added = f"Character devices:\n195 nvidia\n{UVM_MAJOR} nvidia-uvm"
    (MOUNTED / "devices").write_text(Path("/proc/devices").read_text().replace("Character devices:", added, 1))
    subprocess.run(["mount", "--bind", str(MOUNTED / "devices"), "/proc/devices"], check=True)
    user_part(Path("/usr/local/nvidia"))


def into_guest(name: str) -> None:
    """What the kernel itself would show a guest, and the card's process: a guest's /proc is its own, so it is told there again."""
    devices = Path("/proc/devices").read_text()
    digest.inside(name, "sh", "-c", "mkdir -p /opt/double /run/double && cat >/opt/double/devices", stdin=devices)
    digest.inside(name, "sh", "-c", "cat >/etc/systemd/system/double.service", stdin=UNIT)
    with (MOUNTED / "card").open("rb") as program:
        words = [
            "lxc-attach",
            "-n",
            name,
            "--clear-env",
            "-v",
            digest.GUEST_PATH,
            "--",
            "sh",
            "-c",
            "cat >/opt/double/card && chmod 755 /opt/double/card",
        ]
        subprocess.run(words, stdin=program, check=True)
    script = (
        "mountpoint -q /proc/driver || { mount -t tmpfs tmpfs /proc/driver && mkdir /proc/driver/nvidia; }\n"
        "cat >/proc/driver/nvidia/version\n"
        "mountpoint -q /proc/devices || mount --bind /opt/double/devices /proc/devices\n"
        "systemctl daemon-reload && systemctl start double\n"
    )
    digest.inside(name, "sh", "-c", script, stdin=BANNER)


def main(words: list[str]) -> int:
    """Furnish, then the command; the namespace and what is in it end with it."""
    if not os.environ.get("DOUBLECARD_INSIDE"):
        env = {**os.environ, "DOUBLECARD_INSIDE": "1"}
        return subprocess.run(
            ["unshare", "-m", "--propagation", "private", sys.executable, "-m", "tests.beds.doublecard", *words], env=env, check=False
        ).returncode
    furnish()
    return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
