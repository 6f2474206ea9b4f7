# SPDX-License-Identifier: Apache-2.0
"""Domain modules in a real guest with systemd, through the one-shot agent: transient trial, drop-ins read back, the journal of one start, restore."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from flyops import places
from flyops.domain import receipt
from flyops.transport.bundle import bundle
from tests.beds.lxc import Guest

pytestmark = [pytest.mark.lxc, pytest.mark.root]
AGENT = "/var/lib/flyops/restore.pyz"


def push(guest: Guest, path: str, data: bytes, mode: str = "0644") -> None:
    """A file in the guest."""
    words = [
        "lxc-attach",
        "--clear-env",
        "-n",
        guest.name,
        "--",
        "sh",
        "-c",
        'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"',
        "sh",
        path,
        mode,
    ]
    subprocess.run(words, input=data, check=True)


class Bed:
    """A guest with the agent in it."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        push(guest, AGENT, bundle()[1])

    def module(self, name: str, /, **args: Any) -> dict[str, Any]:
        """One module, as the restore unit runs it."""
        done = self.guest.run("python3", AGENT, "--module", name, "--args", "-", stdin=json.dumps(args), check=False)
        result: dict[str, Any] = json.loads(done.stdout)
        assert "exception" not in result, result["exception"]
        assert done.returncode == (3 if result.get("refused") else 1 if result.get("failed") else 0)
        return result

    def unit(self, name: str, command: str, more: str = "") -> None:
        """A service of ours."""
        push(self.guest, f"/etc/systemd/system/{name}.service", f"[Service]\nType=exec\nExecStart={command}\n{more}".encode())
        self.guest.run("systemctl", "daemon-reload")


@pytest.fixture
def bed(lxc_guest: Guest) -> Bed:
    """The guest of this test."""
    return Bed(lxc_guest)


@pytest.fixture
def flysim(bed: Bed) -> str:
    """The real binary, a small brain and settings in the guest."""
    builds = sorted(places.cache("builds").glob("*/*/bin/flysim"), key=lambda p: p.stat().st_mtime)
    builds = [path for path in builds if "+cuda" not in str(path)]
    if not builds:
        pytest.skip("no build of flysim in the cache: ./fly build makes one")
    binary = "/opt/fly/releases/v/bin/flysim"
    push(bed.guest, binary, builds[-1].read_bytes(), "0755")
    bed.guest.run("useradd", "--system", "fly")
    bed.guest.run(binary, "synth", "--neurons", "1000", "--edges", "20000", "/opt/fly/brain.fly")
    push(bed.guest, "/etc/fly/flysim.env", b"FLY_CONNECTOME=/opt/fly/brain.fly\nFLY_DRIVE=sensory:50\nRAYON_NUM_THREADS=1\nFLY_CHECKPOINT_S=1\n")
    return binary


def test_a_trial_is_a_transient_unit_on_its_own_cpus(bed: Bed, flysim: str) -> None:
    planned = bed.module("cpuset", sim=1, force=True, minimum=2)
    common = {
        "dir": "/var/lib/flyops/trial",
        "binary": flysim,
        "env_files": ["/etc/fly/flysim.env"],
        "user": "fly",
        "cgroup": planned["cgroup"],
        "wait": 60,
    }
    first = bed.module("trial", **common, cpus=planned["sim"])
    assert first["running"], first
    assert "cpu backend attached" in first["log"]
    assert bed.guest.run("systemctl", "show", "-p", "User", "--value", "flytrial").stdout.strip() == "fly"
    effective = bed.module("cpuset", state="effective", unit="flytrial.service", want=planned["sim"])
    assert not effective["failed"], effective
    assert effective["pid"] == first["pid"]
    if planned["sim"] != planned["page"]:
        wrong = bed.module("cpuset", state="effective", unit="flytrial.service", want=planned["page"])
        assert wrong["refused"]
        assert f"found {planned['sim']}" in wrong["msg"]
    well = bed.module("flysim_check", check="health", url=first["url"], backend="cpu", gap=2, min_factor=0.5)
    assert well["verdict"] == "passed", well
    # The next one goes on from a checkpoint of this one, which ends first.
    bed.guest.run("sh", "-c", "sleep 1.5; cp -a /var/lib/flyops/trial/state /var/lib/fly")
    second = bed.module("trial", **common, state_dir="/var/lib/fly")
    assert second["running"], second
    assert second["pid"] != first["pid"]
    assert "checkpoint restored" in second["log"]
    assert bed.module("trial", state="absent", dir=common["dir"])["changed"]
    assert bed.guest.run("systemctl", "is-active", "flytrial", check=False).stdout.strip() == "inactive"
    assert bed.guest.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "flytrial*").stdout == ""


def test_a_trial_that_ends_tells_its_exit_code(bed: Bed, flysim: str) -> None:
    args = {
        "dir": "/var/lib/flyops/trial",
        "binary": flysim,
        "env_files": ["/etc/fly/flysim.env"],
        "env": {"FLY_LIF_CUDA": 1},
        "user": "fly",
        "fail": False,
    }
    found = bed.module("trial", **args, wait=30)
    assert (found.get("running"), found.get("exit_code")) == (False, 78), found
    refused = bed.module("flysim_check", check="feature", log=found["log"], exit_code=78)
    assert refused["refused"]
    assert "FLY_CARGO_FEATURES=cuda" in refused["msg"]
    again = bed.module("trial", **args, wait=30)  # the failed unit is no obstacle
    assert again["exit_code"] == 78
    bed.module("trial", state="absent", dir=args["dir"])
    assert bed.guest.run("systemctl", "is-failed", "flytrial", check=False).stdout.strip() != "failed"


def test_a_unit_of_that_name_that_is_not_ours_is_left_alone(bed: Bed) -> None:
    bed.unit("flytrial", "/bin/sleep 600")
    bed.guest.run("systemctl", "start", "flytrial")
    push(bed.guest, "/opt/x", b"#!/bin/sh\nsleep 60\n", "0755")
    failed = bed.module("trial", dir="/var/lib/flyops/trial", binary="/opt/x", wait=5)
    assert "was not started by this trial" in failed["msg"]
    assert bed.guest.run("systemctl", "is-active", "flytrial").stdout.strip() == "active"


def test_drop_ins_by_receipt_are_read_back_and_put_back(bed: Bed) -> None:
    bed.unit("flysim", "/bin/sleep 600")
    bed.unit("flypage", "/bin/sleep 600")
    planned = bed.module("cpuset", sim=1, force=True, minimum=2)
    if planned["count"] < 2:
        pytest.skip("one cpu cannot be divided")
    files = {path: {"content": text} for path, text in planned["dropins"].items()}
    args = {"dir": "/var/lib/flyops/receipts", "name": "gpu"}
    assert bed.module("settings_receipt", **args, state="applied", files=files)["changed"]
    bed.guest.run("systemctl", "daemon-reload")
    bed.guest.run("systemctl", "restart", "flysim", "flypage")
    for unit, role in (("flysim.service", "sim"), ("flypage.service", "page")):
        seen = bed.module("cpuset", state="effective", unit=unit, want=planned[role])
        assert not seen["failed"], seen
    # What flyops-restore.service does, word for word.
    push(bed.guest, "/var/lib/flyops/restore.json", json.dumps(receipt.restore_args(folder=args["dir"], name="gpu")).encode())
    for step in receipt.restore_steps("systemd", AGENT, "/var/lib/flyops/restore.json"):
        bed.guest.run(*[word for word in step if word != "--no-block"])
    assert bed.guest.run("sh", "-c", "ls /etc/systemd/system").stdout.split().count("flysim.service.d") == 0
    whole = bed.module("cpuset", state="effective", unit="flysim.service", want=planned["cpus"])
    assert not whole["failed"], whole


def test_only_the_journal_of_the_last_start_counts(bed: Bed) -> None:
    script = "#!/bin/sh\n[ -e /run/old ] && echo 'cpu backend attached (threads 1, cpus 0)' >&2\n[ -e /run/old ] || echo 'cuda feature compiled in (PTX sm_75)' >&2\n[ -e /run/old ] || echo 'cuda backend attached (x, exact)' >&2\ntouch /run/old\nexec sleep 600\n"
    push(bed.guest, "/opt/words", script.encode(), "0755")
    bed.unit("words", "/opt/words")
    bed.guest.run("systemctl", "start", "words")
    bed.guest.run("journalctl", "--sync", check=False)
    assert bed.module("flysim_check", check="feature", unit="words.service")["verdict"] == "passed"
    bed.guest.run("systemctl", "restart", "words")
    bed.guest.run("journalctl", "--sync", check=False)
    refused = bed.module("flysim_check", check="feature", unit="words.service")
    assert refused["refused"], refused
    assert "no such line" in refused["msg"]


def test_a_lock_in_the_guest_is_seen_by_the_next_run(bed: Bed) -> None:
    words = "import fcntl,time,os\nos.makedirs('/var/lib/flyops',exist_ok=True)\nf=open('/var/lib/flyops/lock','w')\nfcntl.flock(f,2)\nf.write('pid 1, root, since 12:00, invoke deploy');f.flush()\ntime.sleep(600)\n"
    push(bed.guest, "/opt/hold.py", words.encode())
    bed.unit("hold", "/usr/bin/python3 /opt/hold.py")
    bed.guest.run("systemctl", "start", "hold")
    bed.guest.run("sh", "-c", "for i in $(seq 50); do [ -s /var/lib/flyops/lock ] && break; sleep 0.1; done")
    refused = bed.module("lock", path="/var/lib/flyops/lock", holder="me")
    assert refused["refused"]
    assert refused["holder"] == "pid 1, root, since 12:00, invoke deploy"
    bed.guest.run("systemctl", "stop", "hold")
    assert bed.module("lock", path="/var/lib/flyops/lock", holder="me")["held"]
