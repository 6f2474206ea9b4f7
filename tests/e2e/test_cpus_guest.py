# SPDX-License-Identifier: Apache-2.0
"""The CPU partition in a real guest: both units on their own cpus, a deploy that keeps off the simulator's, a mask that was reset is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyops.operations.release import Release
from tests.beds.fly import another, changed
from tests.beds.flyguest import FlyGuest, make
from tests.beds.lxc import Guest

pytestmark = [pytest.mark.lxc, pytest.mark.root]
SPLIT = ("-e", "fly_partition_minimum=2", "-e", "rayon_threads=1")
# Until an agent has come and gone: which cpus its threads may use, each list that was seen. The words are apart, so that this script is none.
WATCH = """
import glob, re, time
def agents():
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            if b"FLY" + b"OPS" in open(folder + "/cmdline", "rb").read():
                yield from glob.glob(folder + "/task/*/status")
        except OSError:
            pass
seen, end, quiet = set(), time.monotonic() + 90, 0
while time.monotonic() < end and quiet < 50:
    there = list(agents())
    quiet = quiet + 1 if seen and not there else 0
    for status in there:
        try:
            seen.add(re.search("Cpus_allowed_list:(.*)", open(status).read()).group(1).strip())
        except (OSError, AttributeError):
            pass
    time.sleep(0.02)
print(*sorted(seen))
"""


@pytest.fixture
def split(lxc_guest: Guest, flysim_release: Release, tmp_path: Path) -> FlyGuest:
    """A guest whose two cpus are divided."""
    box = make(lxc_guest, tmp_path)
    if box.run("nproc") == "1":
        pytest.skip("two cpus are the least that can be divided")
    box("deploy", "--release", str(flysim_release.tar), *SPLIT)
    return box


def cpus_of(box: FlyGuest, unit: str) -> set[str]:
    """Cpus_allowed_list of each thread of a unit's main process."""
    pid = box.unit(unit, "MainPID")
    return {line.split()[-1] for line in box.sh(f"grep -h Cpus_allowed_list /proc/{pid}/task/*/status").splitlines()}


def test_case_68_a_divided_guest(split: FlyGuest, flysim_release: Release, tmp_path: Path) -> None:
    sim, page = cpus_of(split, "flysim"), cpus_of(split, "flypage")
    assert len(sim) == len(page) == 1 and sim != page
    assert split.unit("flysim", "Slice") == "flysim.slice"
    assert "RAYON_NUM_THREADS=1" in split.sh("cat /etc/fly/backend.env").splitlines()
    assert changed(split("deploy", "--release", str(flysim_release.tar), *SPLIT), "box") == 0

    # While a deploy unpacks, hashes and restarts, its agent is where the page is once it has looked.
    running = split.fly.start("deploy", "--release", str(another(flysim_release, tmp_path, "0.1.0-cccccccccc").tar), *SPLIT)
    seen = split.run("python3", "-I", "-c", WATCH).split()
    assert running.wait(120) == 0
    assert split.release() == "0.1.0-cccccccccc"
    assert page <= set(seen) and not sim & set(seen), seen  # all cpus until it has looked, then the page's alone

    # Case 68: the kernel gives a thread the whole set again when cpuset gets enabled below it; the next look says so.
    pid = split.unit("flysim", "MainPID")
    split.sh(f"taskset --all-tasks --cpu-list --pid {next(iter(sim))},{next(iter(page))} {pid}")
    said = split("verify", *SPLIT, "-e", "check_window_s=1", "-e", "check_warmup_s=0", "-e", "check_ticks=20", "-e", "check_thirds_ticks=30", code=3)
    assert "flysim.service: expected cpus" in said
    split("deploy", "--release", str(flysim_release.tar), *SPLIT)
    assert cpus_of(split, "flysim") == sim
