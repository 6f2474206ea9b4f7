# SPDX-License-Identifier: Apache-2.0
"""A machine that looks as if it had an NVIDIA card, for as long as one command runs: nodes, majors, driver version, user libraries.

Runs in a private mount namespace (`unshare -m`), so the machine itself stays as it is: python -m tests.beds.fakecard folder|files COMMAND [ARG...]
The nodes are those of /dev/loop-control, which a guest may not open unless it is allowed to; libcuda is a real library with one function.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VERSION = "570.148.08"
MAJOR, MINOR = 10, 237
NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1")
SOURCE = "int cuInit(unsigned flags) { return (int)flags + 42; }\n"
BANNER = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Thu Jan  1 00:00:00 UTC 2026\nGCC version:\n"
# Two cards, crossed: nvidia-smi's index 0 (the lower bus id) is /dev/nvidia1.
CARDS = {"0000:01:00.0": (1, "GPU-aaaa0000-1111-2222-3333-444444444444"), "0000:81:00.0": (0, "GPU-bbbb0000-1111-2222-3333-444444444444")}
INFORMATION = "Model: \t\t Made Up 9000\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
PLACES = {"folder": ("/usr/local/nvidia/lib64", "/usr/local/nvidia/bin"), "files": ("/usr/local/lib", "/usr/local/bin")}


def overlay(target: str, scratch: Path) -> None:
    """Writes below `target` land in the scratch folder from here on."""
    upper, work = (scratch / f"{target.strip('/').replace('/', '-')}.{kind}" for kind in ("up", "work"))
    upper.mkdir()
    work.mkdir()
    options = f"lowerdir={target},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, target], check=True)


def libraries(style: str) -> None:
    """libcuda and libnvidia-ml of the version, an older one beside them, and a tool."""
    lib, tools = (Path(path) for path in PLACES[style])
    lib.mkdir(parents=True, exist_ok=True)
    tools.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ml"):
        target = lib / f"{name}.so.{VERSION}"
        argv = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}.so.1", "-xc", "-", "-o", str(target)]
        subprocess.run(argv, input=SOURCE, text=True, check=True)
        (lib / f"{name}.so.1").symlink_to(target.name)
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: made up'\n")
    (tools / "nvidia-smi").chmod(0o755)
    if style == "files":
        (lib / "libcuda.so.570.148.06").write_bytes(b"another version")
        subprocess.run(["ldconfig"], check=True)


def furnish(style: str) -> None:
    """Make it all; only this mount namespace sees it."""
    scratch = Path("/mnt")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(scratch)], check=True)
    # Folders that hold mounts of their own would hide them: pts and shm come back on top.
    for name in ("pts", "shm"):
        (scratch / name).mkdir()
        if os.path.ismount(f"/dev/{name}"):
            subprocess.run(["mount", "--rbind", f"/dev/{name}", str(scratch / name)], check=True)
    for target in ("/dev", "/usr/local", "/etc"):
        overlay(target, scratch)
    for name in ("pts", "shm"):
        if os.path.ismount(scratch / name):
            subprocess.run(["mount", "--rbind", str(scratch / name), f"/dev/{name}"], check=True)
    for name in NODES:
        Path("/dev", name).parent.mkdir(exist_ok=True)
        os.mknod(f"/dev/{name}", 0o020666, os.makedev(MAJOR, MINOR))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/proc/driver"], check=True)
    Path("/proc/driver/nvidia").mkdir()
    Path("/proc/driver/nvidia/version").write_text(BANNER)
    for bus, (minor, uuid) in CARDS.items():
        Path("/proc/driver/nvidia/gpus", bus).mkdir(parents=True)
        Path("/proc/driver/nvidia/gpus", bus, "information").write_text(INFORMATION.format(uuid=uuid, bus=bus, minor=minor))
    # The driver's own number: the kernel lists 10 as `misc`, and a rule for someone else's number would not be ours to take away.
    devices = Path("/proc/devices").read_text().replace(f" {MAJOR} misc", f" {MAJOR} nvidia-uvm")
    (scratch / "devices").write_text(devices)
    subprocess.run(["mount", "--bind", str(scratch / "devices"), "/proc/devices"], check=True)
    libraries(style)


def main() -> int:
    """Furnish, then the command."""
    if not os.environ.get("FAKECARD_INSIDE"):
        env = {**os.environ, "FAKECARD_INSIDE": "1"}
        os.execvpe("unshare", ["unshare", "-m", "--propagation", "private", sys.executable, "-m", "tests.beds.fakecard", *sys.argv[1:]], env)
    furnish(sys.argv[1])
    return subprocess.run(sys.argv[2:], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
