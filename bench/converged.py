# SPDX-License-Identifier: Apache-2.0
"""A converged 30-task play over one ssh host, beside `ssh host true` on the same sshd: round trips, bytes, and the ratio of their times.

A real sshd on the loopback, its own keys. Each run is a whole one: connect, gather facts, thirty tasks, recap; the bundle is cached on the host.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from flyops.operations.play import as_inventory, run_playbook
from tests.beds.ssh import Sshd, sshd

RUNS = 9
TASKS = 30
GOALS = {
    "converged_changed": ("==", 0),
    "converged_round_trips": ("<=", 3),
    "converged_bundles_sent": ("==", 0),
    "seconds_over_ssh_true": ("<=", 2.0),
}


def playbook(folder: Path) -> Path:
    """Facts, ten folders, ten files, ten lines in files."""
    work = folder / "work"
    tasks: list[dict[str, Any]] = [{"name": f"folder {n}", "file": {"path": f"{work}/{n}", "state": "directory"}} for n in range(TASKS // 3)]
    tasks += [{"name": f"file {n}", "copy": {"dest": f"{work}/{n}/text", "content": f"text {n}\n", "mode": "0640"}} for n in range(TASKS // 3)]
    tasks += [{"name": f"line {n}", "lineinfile": {"path": f"{work}/{n}/text", "line": f"line {n}"}} for n in range(TASKS // 3)]
    for task in tasks:
        if "copy" in task:
            task["copy"]["force"] = False  # the lines below belong to the next tasks
    path = folder / "play.yml"
    path.write_text(yaml.safe_dump([{"name": "converged", "hosts": "all", "tasks": tasks}]))
    return path


def one(server: Sshd, inventory: Any, play: Path) -> dict[str, Any]:
    """A run of the play and a run of ssh, next to each other."""
    began = time.perf_counter()
    result = run_playbook(play, inventory=inventory, display="none")
    seconds = time.perf_counter() - began
    host = result.hosts["s1"]
    assert result.exit_code == 0, host.message
    began = time.perf_counter()
    words = [
        "ssh",
        "-F",
        "none",
        "-o",
        f"UserKnownHostsFile={server.known_hosts}",
        "-i",
        str(server.key),
        "-p",
        str(server.port),
        "127.0.0.1",
        "true",
    ]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    ssh_s = time.perf_counter() - began
    count = host.count
    return {
        "ok": host.ok, "changed": host.changed, "seconds": seconds, "ssh_true_seconds": ssh_s,
        "turns": count.turns, "up_bytes": count.up_bytes, "down_bytes": count.down_bytes, "bundles": count.bundles,
    }  # fmt: skip


def measure(raw: Path) -> None:
    """The first run, then the converged ones."""
    with tempfile.TemporaryDirectory() as name, sshd(Path(name) / "sshd") as server:
        hosts = Path(name) / "hosts.yml"
        hosts.write_text(yaml.safe_dump({"all": {"hosts": {"s1": server.host_vars()}}}))
        play = playbook(Path(name))
        runs = [one(server, as_inventory(str(hosts)), play) for _ in range(RUNS + 1)]
    (raw / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")


def figures(raw: Path) -> dict[str, Any]:
    """Medians of the converged runs; the first run apart."""
    first, *runs = json.loads((raw / "runs.json").read_text())
    return {
        "tasks_with_facts": runs[0]["ok"],
        "first_changed": first["changed"],
        "first_round_trips": first["turns"],
        "converged_changed": max(run["changed"] for run in runs),
        "converged_round_trips": max(run["turns"] for run in runs),
        "converged_up_bytes": statistics.median(run["up_bytes"] for run in runs),
        "converged_down_bytes": statistics.median(run["down_bytes"] for run in runs),
        "converged_bundles_sent": sum(run["bundles"] for run in runs),
        "converged_seconds": round(statistics.median(run["seconds"] for run in runs), 3),
        "ssh_true_seconds": round(statistics.median(run["ssh_true_seconds"] for run in runs), 3),
        "seconds_over_ssh_true": round(statistics.median(run["seconds"] / run["ssh_true_seconds"] for run in runs), 3),
    }
