# SPDX-License-Identifier: Apache-2.0
"""A guest with a made-up card: nodes, device rules and the driver's user part arrive in the guest, and go again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flyops import places
from tests.beds.fakecard import MAJOR, MINOR, VERSION
from tests.beds.lxc import LXC_PATH, Guest, converge, free_name

pytestmark = [pytest.mark.lxc, pytest.mark.root]
OPEN = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR)); print('opened')"
CUDA = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def missing_at_start(name: str) -> None:
    """The guest starts while the host lacks a node, which then comes back: LXC leaves an empty file in its place."""
    subprocess.run(["lxc-stop", "-n", name, "-t", "20"], check=True)
    Path("/dev/nvidia-uvm").unlink()
    subprocess.run(["lxc-start", "-d", "-n", name], check=True)
    os.mknod("/dev/nvidia-uvm", 0o020666, os.makedev(MAJOR, MINOR))


def scenario(base: str, name: str, more: bool) -> dict[str, Any]:
    """Runs where the card is: what was seen at each step."""
    args = {"name": name, "rootfs": base, "network": "none", "memory": "1G"}
    seen: dict[str, Any] = {"first": converge(**args)}
    guest = Guest(name, seen["first"])
    guest.run("sh", "-c", f"mknod -m 666 /opt/node c {MAJOR} {MINOR}")

    def look(when: str) -> None:
        seen[when] = {
            "rule": guest.run("python3", "-c", OPEN, "/opt/node", check=False).stdout.strip(),
            "node": guest.run("python3", "-c", OPEN, "/dev/nvidia-uvm", check=False).stdout.strip(),
            "caps": guest.run("sh", "-c", "ls /dev/nvidia-caps 2>/dev/null; true").stdout.strip(),
            "cuda": guest.run("python3", "-c", CUDA, check=False).stdout.strip(),
            "smi": guest.run("nvidia-smi", "-L", check=False).stdout.strip(),
            "write": guest.run("sh", "-c", "find /usr/local/nvidia -name 'libcuda.so.5*' -exec sh -c 'echo x >> \"$1\"' sh {} \\; 2>&1; true").stdout,
            "libs": guest.run("sh", "-c", "ls /usr/local/nvidia/lib64 2>/dev/null; true").stdout.split(),
            "kind": guest.run("stat", "-c", "%F %s", "/dev/nvidia-uvm", check=False).stdout.strip(),
            "pid": guest.pid(),
            "cards": guest.run("sh", "-c", "ls -1 /dev | grep -x 'nvidia[0-9]*'; true").stdout.split(),
            "mknod": guest.run("sh", "-c", f"mknod /dev/other c {MAJOR} 0 2>&1; rm -f /dev/other").stdout,
        }

    try:
        look("without")
        seen["given"] = converge(**args, gpu=True)
        look("with")
        seen["again"] = converge(**args, gpu=True)
        guest.run("rm", "/etc/ld.so.conf.d/00-flyops-nvidia.conf")
        guest.run("ldconfig")
        seen["repaired"] = converge(**args, gpu=True)
        look("repaired_look")
        if more:
            missing_at_start(name)
            look("empty")
            seen["found"] = converge(**args, gpu=True)
            look("found_look")
            seen["one"] = converge(**args, gpu=["GPU-aaaa"])
            look("one_look")
            seen["index"] = converge(**args, gpu=[0])
        seen["taken"] = converge(**args)
        look("after")
        seen["taken_again"] = converge(**args)
    finally:
        seen["gone"] = converge(name=name, state="absent")
    return seen


def check_more(seen: dict[str, Any]) -> None:
    """A node that was missing at start, and some of the cards."""
    assert seen["empty"]["kind"] == "regular empty file 0"
    assert (seen["found"]["changed"], seen["found"]["restarted"]) == (True, True), seen["found"]
    assert any("size 0: the bind's source was missing at start" in piece["after"] for piece in seen["found"]["diff"])
    assert (seen["found_look"]["kind"], seen["found_look"]["cards"], seen["found_look"]["mknod"]) == (
        "character special file 0",
        ["nvidia0", "nvidia1"],
        "",
    )
    # One card: by its UUID it is nvidia-smi's 0 and /dev/nvidia1; the other's node is not there and cannot be made.
    assert (seen["one"]["restarted"], seen["one_look"]["cards"], seen["one_look"]["node"]) == (True, ["nvidia1"], "opened"), seen["one"]
    assert "Operation not permitted" in seen["one_look"]["mknod"]
    assert seen["one_look"]["caps"] == ""
    assert seen["index"]["changed"] is False, seen["index"]


@pytest.mark.parametrize("style", [pytest.param("folder", id="case-42-folder-case-50"), pytest.param("files", id="case-42-files")])
def test_a_card_comes_and_goes(style: str, lxc_base: str) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a real card")
    name = free_name()
    argv = [sys.executable, "-m", "tests.beds.fakecard", style, sys.executable, "-m", "tests.e2e.test_lxc_gpu", lxc_base, name, style]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=places.REPOSITORY)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    bare = seen["without"]
    assert (bare["rule"], bare["node"], bare["cuda"], bare["smi"], bare["libs"]) == ("", "", "", "", [])
    assert (seen["given"]["changed"], seen["given"]["restarted"], seen["given"]["driver"]) == (True, True, VERSION), seen["given"]
    full = seen["with"]
    assert (full["rule"], full["node"], full["cuda"], full["smi"]) == ("opened", "opened", "42", "GPU 0: made up"), seen["given"]
    assert full["caps"] == "nvidia-cap1"
    assert "Read-only file system" in full["write"]
    assert f"libcuda.so.{VERSION}" in full["libs"]
    assert "libcuda.so.570.148.06" not in full["libs"]
    assert seen["again"]["changed"] is False, seen["again"]
    assert (seen["repaired"]["changed"], seen["repaired"]["restarted"]) == (True, False)
    assert seen["repaired_look"]["cuda"] == "42"
    assert seen["repaired_look"]["pid"] == full["pid"]
    if style == "folder":
        check_more(seen)
    assert (seen["taken"]["changed"], seen["taken"]["restarted"]) == (True, True)
    assert seen["after"]["cards"] == []
    assert (seen["after"]["rule"], seen["after"]["node"], seen["after"]["cuda"], seen["after"]["smi"]) == ("", "", "", "")
    assert seen["taken_again"]["changed"] is False, seen["taken_again"]
    assert seen["gone"]["failed"] is False
    assert not Path(LXC_PATH, name).exists()
    assert not Path("/dev/nvidia0").exists()
    assert not Path("/usr/local/nvidia").exists()


if __name__ == "__main__":
    os.environ.pop("FAKECARD_INSIDE", None)
    print(json.dumps(scenario(sys.argv[1], sys.argv[2], sys.argv[3] == "folder")))
