# SPDX-License-Identifier: Apache-2.0
"""A fixture: a Proxmox host that is a double, with card nodes whose majors a test may move, and nothing of this machine's /etc or /dev."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.beds.pct import pct as double

DOUBLE = Path(double.__file__)
MINORS = {"nvidia0": ("nvidia", 0), "nvidia1": ("nvidia", 1), "nvidiactl": ("nvidia", 255), "nvidia-uvm": ("uvm", 0), "nvidia-uvm-tools": ("uvm", 1)}
UUIDS = ("GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-0000-4000-8000-000000000001")


@dataclass
class PveBed:
    """The double's folders, and how a module is pointed at them."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """PATH with the double first."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    @property
    def args(self) -> dict[str, Any]:
        """The path arguments of container_gpu."""
        return {
            "manager": "pve",
            "conf_dir": str(self.folder / "conf"),
            "state_dir": str(self.folder / "state"),
            "lock_dir": str(self.folder / "lock"),
            "dev": str(self.folder / "dev"),
            "proc_devices": str(self.folder / "proc_devices"),
            "proc_driver": str(self.folder / "driver" / "nvidia"),
            "mig_minors": str(self.folder / "mig-minors"),
            "proc_mounts": str(self.folder / "mounts"),
            "online": str(self.folder / "online"),
        }

    def pct(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of the double, as an operator would type it; in this process where it can be, which is half the time of a test."""
        if words[0] == "exec":
            done = subprocess.run([self.folder / "bin" / "pct", *words], capture_output=True, text=True, check=False, timeout=60)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                code = double.main(["", "pct", str(self.folder), *words])
            done = subprocess.CompletedProcess(["pct", *words], code, out.getvalue(), err.getvalue())
        assert not check or done.returncode == 0, done.stderr
        return done

    def conf(self, guest: str = "101") -> str:
        """The config's text."""
        return (self.folder / "conf" / f"{guest}.conf").read_text()

    def write(self, text: str, guest: str = "101") -> None:
        """A config as somebody left it."""
        (self.folder / "conf" / f"{guest}.conf").write_text(text)

    def reemit(self, guest: str = "101") -> None:
        """Any change by Proxmox writes the whole file again; this one changes nothing."""
        self.pct("unlock", guest)

    def started(self, guest: str = "101") -> dict[str, Any]:
        """What the last start found: nodes with their numbers, rules, cpus."""
        return dict(json.loads((self.folder / "run" / f"{guest}.start.json").read_text()))

    def calls(self) -> list[str]:
        """Every command that the double was given."""
        return (self.folder / "calls").read_text().splitlines()

    def settle(self, uvm: int, caps: int = 236, others: str = "226 drm\n509 mei\n") -> None:
        """The host as after a boot: these majors in /proc/devices, and nodes that have them."""
        rows = f"  1 mem\n195 nvidia\n195 nvidiactl\n{others}{caps} nvidia-caps\n{uvm} nvidia-uvm\n"
        (self.folder / "proc_devices").write_text(f"Character devices:\n{rows}\nBlock devices:\n  8 sd\n")
        for name, (kind, minor) in MINORS.items():
            node = self.folder / "dev" / name
            node.unlink(missing_ok=True)
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(uvm if kind == "uvm" else 195, minor))
            node.chmod(0o666)

    def install(self, version: str) -> None:
        """A driver's user part on the host, found by an ldconfig of the bed's own, and the module that it belongs to."""
        (self.folder / "driver" / "nvidia" / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build\n")
        libraries = self.folder / "lib"
        libraries.mkdir(exist_ok=True)
        for name in ("libcuda", "libnvidia-ml"):
            argv = ["gcc", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{name}.so.1", "-o", str(libraries / f"{name}.so.{version}")]
            subprocess.run(argv, check=True)
        linker = self.folder / "bin" / "ldconfig"
        linker.write_text(f"#!/bin/sh\nprintf '\\tlibcuda.so.1 (libc6,x86-64) => {libraries}/libcuda.so.1\\n'\n")
        linker.chmod(0o755)

    def close(self) -> None:
        """No guest of the bed runs on."""
        for path in (self.folder / "conf").glob("*.conf"):
            self.pct("stop", path.stem, check=False)


def make(folder: Path, pve_container: str = "6.1.10") -> PveBed:
    """A new bed."""
    for name in ("bin", "conf", "state", "lock", "run", "dev", "driver/nvidia/gpus"):
        (folder / name).mkdir(parents=True)
    for tool in ("pct", "pveversion", "pveam"):
        script = folder / "bin" / tool
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{DOUBLE}" {tool} "{folder}" "$@"\n')
        script.chmod(0o755)
    (folder / "settings.json").write_text(json.dumps({"pve_container": pve_container}))
    (folder / "templates.json").write_text(json.dumps(["local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"]))
    (folder / "mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    (folder / "online").write_text("0-7\n")
    (folder / "mig-minors").write_text("config 1\nmonitor 2\n")
    (folder / "calls").write_text("")
    for minor, uuid in enumerate(UUIDS):
        card = folder / "driver" / "nvidia" / "gpus" / f"0000:0{minor + 1}:00.0"
        card.mkdir()
        (card / "information").write_text(f"Model: \t\t A Card\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    bed = PveBed(folder)
    bed.settle(511)
    return bed
