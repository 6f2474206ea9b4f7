# SPDX-License-Identifier: Apache-2.0
"""`./fly watch` and `./fly cost` on a real flysim: samples go on while the controller is dead, the same command finds them; a restart is seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyops.operations.release import Release
from tests.beds.fly import Fly

pytestmark = [pytest.mark.slow]
SHORT = ("--every", "0.05", "--hours", "0.005")  # 7 samples, one every 3 s


@pytest.fixture
def fly(open_folder: Path, flysim_release: Release) -> Iterator[Fly]:
    here = Fly(open_folder)
    here("deploy", "--release", str(flysim_release.tar))
    yield here
    here("watch", *SHORT, "--stop")
    here.close()


def sampler(fly: Fly) -> dict[str, object]:
    found: dict[str, object] = json.loads((fly.state / "watch/watch.json").read_text())
    return found


def samples(fly: Fly) -> int:
    path = fly.state / "watch/watch-0001.tsv"
    return len([line for line in path.read_text().splitlines() if line[:1].isdigit()]) if path.exists() else 0


def wait_for_samples(fly: Fly, count: int) -> None:
    end = time.monotonic() + 60
    while samples(fly) < count:
        assert time.monotonic() < end, f"{samples(fly)} samples"
        time.sleep(0.2)


def test_a_watch_outlives_its_controller_and_sees_a_restart(fly: Fly) -> None:
    controller = subprocess.Popen(
        fly.argv("watch", *SHORT), env=fly.env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_for_samples(fly, 2)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    before = sampler(fly)
    os.kill(fly.status()["pid"], signal.SIGKILL)
    wait_for_samples(fly, 4)

    out = fly("watch", *SHORT, "--json", "--out", str(fly.folder / "out"), code=3)

    found = next(json.loads(line) for line in out.splitlines() if '"kind": "watch"' in line)
    failed = {finding["name"] for finding in found["findings"] if finding["verdict"] == "failed"}
    assert sampler(fly) == {**before, "collected": True}
    assert samples(fly) == 7
    assert "pid" in failed
    assert Path(found["tsv"]).read_text() == (fly.state / "watch/watch-0001.tsv").read_text()
    assert Path(found["plot"]).read_bytes().startswith(b"\x89PNG")


def test_another_length_is_refused_while_one_runs_and_stop_ends_it(fly: Fly) -> None:
    fly("watch", *SHORT, "--detach")
    pid = sampler(fly)["pid"]
    refused = fly("watch", "--every", "1", "--hours", "1", code=1)
    fly("watch", *SHORT, "--stop")

    stat = Path(f"/proc/{pid}/stat")
    assert "another watch is here" in refused
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_cost_of_a_cpu_deploy_is_one_window(fly: Fly) -> None:
    before = fly.status()["pid"]
    found = next(json.loads(line) for line in fly("cost", "--window", "3", "--json").splitlines() if '"kind": "cost"' in line)

    assert list(found["windows"]) == ["cpu"]
    assert 0 < found["windows"]["cpu"]["cores"] < 2
    assert "no cuda backend" in found["missing"]
    assert len(found["samples"]["cpu"]) == 4
    assert fly.status()["pid"] == before


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--every", "0"), "--every 0"), (("--every", "90", "--hours", "1"), "--hours 1"), (("--judge", "/nowhere.tsv"), "cannot be read")],
)
def test_what_makes_no_sense_is_refused(open_folder: Path, words: tuple[str, ...], said: str) -> None:
    here = Fly(open_folder)
    assert said in here("watch", *words, code=2)
