# SPDX-License-Identifier: Apache-2.0
"""From nothing to a verified guest on the CPU, beside `lxc-create` from a tar of the same root file system, and the same steps by hand.

Root and LXC. The root file system is cached, the release is built before; each round does all of them, one after the other, in turning order.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flyops import places
from flyops.operations import build, rootfs

ROUNDS = int(os.environ.get("ROUNDS", "5"))
QUIET_S = float(os.environ.get("QUIET_S", "60"))  # at most so long a sample waits for a machine that is busy elsewhere
LXC = Path("/var/lib/lxc")
CPU = Path("/sys/fs/cgroup/cpu")
CPUS = os.environ.get("CPUS", f"0-{(os.cpu_count() or 1) - 1}")
MEMORY = 1 << 30
NAME = "benchp1"
DEPLOYED = ("etc/fly", "etc/systemd/system", "opt/fly", "var/lib/fly")
WINDOWS_S = 3 + 5 + 3  # of every second way to a verified guest these are spent on looking at the brain
GOALS = {
    "verified_s": ("<=", 20.0),
    "all_verified": ("==", True),
    "rounds": (">=", 5),
    "provision_over_lxc_create": ("<=", 1.0),
}


def quiet() -> None:
    """Waits until the machine's other work lets a CPU be free, or QUIET_S; each sample says the load that it met, and its own priority."""
    end = time.monotonic() + QUIET_S
    while running() > (os.cpu_count() or 1) and time.monotonic() < end:
        time.sleep(1)


def shares() -> int:
    """The weight of our own CPU cgroup (1024 is everybody's), where cgroup v1 has that controller."""
    path = next((line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":cpu:" in line or ":cpu,cpuacct:" in line), "")
    file = CPU / path.strip("/") / "cpu.shares"
    return int(file.read_text()) if path and file.exists() else 1024


@contextmanager
def same_weight() -> Iterator[None]:
    """LXC makes guests beside our own cgroup: with a bench that was given priority on a busy machine, its guest gets the same."""
    end = threading.Event()

    def keep() -> None:
        while not end.wait(0.05):
            with suppress(OSError):
                (CPU / f"lxc.payload.{NAME}" / "cpu.shares").write_text(str(shares()))

    keeper = threading.Thread(target=keep, daemon=True)
    if shares() != 1024:
        keeper.start()
    yield
    end.set()


def running() -> int:
    """Tasks that run or want to, ourselves among them."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])


def timed(argv: list[str], **more: Any) -> dict[str, Any]:
    """A command, its seconds and its exit code; what it said when it failed."""
    began = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=places.REPOSITORY, **more)
    out: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 3), "code": done.returncode}
    return out if done.returncode == 0 else {**out, "said": (done.stdout + done.stderr)[-1500:].replace(str(places.REPOSITORY), ".")}


class Ways:
    """The ways to a guest, each from nothing; `gone` takes it away again, outside of what is timed."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.base = rootfs.ensure(os.environ.get("ROOTFS", ""))
        self.release = os.environ.get("CPU_RELEASE") or str(build.build().tar)
        self.rootfs = ["--rootfs", os.environ["ROOTFS"]] if os.environ.get("ROOTFS") else []

    def fly(self, *words: str) -> list[str]:
        """`./fly …` as an operator types it."""
        return [str(places.REPOSITORY / "fly"), *words]

    def prepare(self) -> None:
        """Tars for the other ways: the base, LXC's template config, and what a deploy writes into a guest."""
        first = timed([*self.deployed()])
        if first["code"]:
            raise RuntimeError(first["said"])
        with tarfile.open(self.work / "deployed.tar.gz", "w:gz") as tar:
            for path in DEPLOYED:
                tar.add(LXC / NAME / "up" / path, arcname=path)
        self.gone()
        meta = self.work / "meta"
        meta.mkdir()
        (meta / "config").write_text("lxc.include = /usr/share/lxc/config/common.conf\n")
        subprocess.run(["tar", "-cJf", self.work / "meta.tar.xz", "-C", meta, "config"], check=True)
        packing = 'tar --numeric-owner -C "$1" -cf - . | xz -T0 -1 > "$2"'
        subprocess.run(["sh", "-c", packing, "sh", self.base, self.work / "rootfs.tar.xz"], check=True)

    def provisioned(self) -> list[str]:
        """A running guest, its limits read back."""
        return self.fly("provision", NAME, *self.rootfs, "--network", "none", "--cpus", CPUS, "--memory", str(MEMORY))

    def deployed(self) -> list[str]:
        """A verified guest, in one command."""
        return [*self.provisioned(), "--deploy", "--release", self.release]

    def lxc_create(self) -> list[str]:
        """A running guest by LXC's own tools, from a tar; systemd is waited for, limits are not read back."""
        config = self.work / "lxc.conf"
        config.write_text("lxc.net.0.type = empty\nlxc.apparmor.profile = unconfined\nlxc.mount.auto = cgroup:mixed proc:mixed sys:mixed\n")
        script = """set -e
lxc-create -n "$1" -f "$2" -t local -- --metadata "$3/meta.tar.xz" --fstree "$3/rootfs.tar.xz" >/dev/null
lxc-start -d -n "$1"
until lxc-attach -n "$1" --clear-env -- systemctl is-system-running 2>/dev/null | grep -Eq 'running|degraded'; do sleep 0.2; done"""
        return ["sh", "-c", script, "sh", NAME, str(config), str(self.work)]

    def by_hand(self) -> list[str]:
        """A verified guest by a script of the same steps."""
        script = str(places.REPOSITORY / "bench/provision_by_hand.sh")
        return [script, NAME, str(self.base), str(self.work / "deployed.tar.gz"), CPUS, str(MEMORY)]

    def gone(self) -> None:
        """Whatever made it, nothing is left."""
        if timed(self.fly("retire", NAME))["code"]:
            for argv in (["lxc-stop", "-k", "-n", NAME], ["lxc-destroy", "-n", NAME]):
                subprocess.run(argv, capture_output=True, check=False)
        if (LXC / NAME).exists():
            raise RuntimeError(f"{LXC / NAME} is still there")


def measure(raw: Path) -> None:
    """ROUNDS rounds; which way comes first turns with the round, so that none profits from a warm machine alone."""
    with tempfile.TemporaryDirectory() as name, same_weight():
        ways = Ways(Path(name))
        ways.prepare()
        order: list[tuple[str, Callable[[], list[str]]]] = [
            ("deployed", ways.deployed), ("by_hand", ways.by_hand), ("provisioned", ways.provisioned), ("lxc_create", ways.lxc_create),
        ]  # fmt: skip
        samples = []
        try:
            for number in range(ROUNDS):
                for way, argv in order[number % 4 :] + order[: number % 4]:
                    quiet()
                    load = os.getloadavg()[0]
                    samples.append({"round": number, "way": way, "load": load, "shares": shares(), **timed(argv())})
                    print(json.dumps(samples[-1]), flush=True)
                    ways.gone()
        finally:
            ways.gone()
            (raw / "samples.json").write_text(json.dumps(samples, indent=1) + "\n")


def figures(raw: Path) -> dict[str, Any]:
    """Medians of the runs that ended well, and their ratios."""
    samples = json.loads((raw / "samples.json").read_text())
    ways = {
        way: [s["seconds"] for s in samples if s["way"] == way and s["code"] == 0] for way in ("deployed", "by_hand", "provisioned", "lxc_create")
    }
    median = {way: round(statistics.median(seconds), 2) if seconds else 0.0 for way, seconds in ways.items()}
    ends = [s["code"] for s in samples if s["way"] == "deployed"]
    return {
        "verified_s": median["deployed"] or 999.0,
        "verified_worst_s": max(ways["deployed"], default=999.0),
        "by_hand_s": median["by_hand"],
        "provision_s": median["provisioned"],
        "lxc_create_s": median["lxc_create"],
        "verified_over_by_hand": round(median["deployed"] / median["by_hand"], 2) if median["by_hand"] else 999.0,
        "provision_over_lxc_create": round(median["provisioned"] / median["lxc_create"], 2) if median["lxc_create"] else 999.0,
        "looking_s": WINDOWS_S,
        "rounds": len(ends),
        "all_verified": bool(ends) and not any(ends),
        "cpu_shares": max(s["shares"] for s in samples),
        "load_median": round(statistics.median(s["load"] for s in samples), 2),
    }
