# SPDX-License-Identifier: Apache-2.0
"""The main job on a card: a guest, a plain deploy on the CPU, `deploy --gpu` through the five checks, `rollback-cpu` back to what it was.

Needs root, LXC and a card. Where there is no cargo, CPU_RELEASE and CUDA_RELEASE name prebuilt tars; ROOTFS a guest's root file system.
CARD=0 rehearses it on a machine without a card: the deploy on the GPU is then to be refused at check 2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from flyops import places

GUEST = "bench1"
BRAIN = os.environ.get("FLY_BRAIN", "synth:139255:2700513")
THREADS = int(os.environ.get("THREADS", "8"))
CPUS = os.environ.get("CPUS", "0-15")
CARD = os.environ.get("CARD", "1") == "1"
STEP_S = float(os.environ.get("STEP_S", "400"))  # a step that takes longer is ended, so that the transcript shows where it stood
SETTINGS = (
    "/etc/fly/backend.env",
    "/etc/systemd/system/flysim.service.d/50-flyops-cpus.conf",
    "/etc/systemd/system/flypage.service.d/50-flyops-cpus.conf",
)
GOALS = {
    "five_checks_passed": ("==", 5),
    "live_attached_cuda": ("==", True),
    "second_gpu_deploy_changed": ("==", 0),
    "gpu_host_cores": ("<", 1.0),
    "gpu_share_of_cpu_cores": ("<=", 0.5),
    "gpu_realtime_factor": (">=", 0.99),
    "cpu_realtime_factor": (">=", 0.99),
    "mean_hz": (">", 1.0),
    "settings_back_after_rollback": ("==", True),
    "threads_back_after_rollback": ("==", THREADS),
    "ticks_never_went_back": ("==", True),
}


class Job:
    """One transcript, and `invoke` run from the environment that `./fly` made."""

    def __init__(self, raw: Path) -> None:
        self.raw = raw
        self.invoke = shutil.which("invoke") or str(places.REPOSITORY / ".venv/bin/invoke")
        self.transcript = (raw / "transcript.txt").open("w")

    def say(self, text: str) -> None:
        """Into the transcript and onto the screen; where this machine keeps things is nobody's business."""
        text = text.replace(str(self.raw), "RAW").replace(str(places.REPOSITORY), ".")
        self.transcript.write(text)
        self.transcript.flush()
        print(text, end="", flush=True)

    def run(self, *argv: str, code: int | None = 0) -> str:
        """A command with its output in the transcript."""
        began = time.monotonic()
        self.say(f"\n$ {' '.join(argv)}\n")
        running = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=places.REPOSITORY)
        limit = threading.Timer(STEP_S, running.kill)
        limit.start()
        assert running.stdout
        lines = []
        for line in running.stdout:
            lines.append(line)
            self.say(line)
        found = running.wait()
        limit.cancel()
        self.say(f"[exit {found} after {time.monotonic() - began:.1f} s]\n")
        if code is not None and found != code:
            raise RuntimeError(f"{' '.join(argv)}: expected exit {code}, found {found}")
        return "".join(lines)

    def fly(self, *words: str, code: int | None = 0) -> str:
        """`invoke …` as an operator types it."""
        return self.run(self.invoke, *words, code=code)

    def inside(self, *argv: str, code: int | None = 0) -> str:
        """A command in the guest."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return self.run("lxc-attach", "-n", GUEST, "--clear-env", "-v", path, "--", *argv, code=code)

    def keep(self, name: str) -> dict[str, Any]:
        """Settings and state of the guest as they are now, as a raw sample."""
        rows = [line for line in self.fly("status", "--limit", GUEST, "--json").splitlines() if line.startswith("{")]
        files = {path: self.inside("sh", "-c", f"cat {path} 2>/dev/null || echo absent") for path in SETTINGS}
        status = json.loads(
            self.inside("python3", "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8700/status').read().decode())")
        )
        found = {"row": json.loads(rows[-1]), "files": files, "status": status}
        (self.raw / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return found


def release_words(name: str) -> list[str]:
    """`--release TAR` where one was given."""
    return ["--release", os.environ[name]] if os.environ.get(name) else []


def measure(raw: Path) -> None:
    """The job, step by step."""
    job = Job(raw)
    brain = ["-e", f"fly_connectome={BRAIN}", "-e", f"rayon_threads={THREADS}"]
    rootfs = ["--rootfs", os.environ["ROOTFS"]] if os.environ.get("ROOTFS") else []
    try:
        job.fly("provision", GUEST, *rootfs, "--network", "none", "--cpus", CPUS, "--memory", "16G", *(["--gpu"] if CARD else []))
        job.fly("deploy", "--limit", GUEST, *brain, *release_words("CPU_RELEASE"))
        job.keep("1-cpu")
        gpu = ["deploy", "--gpu", "--limit", GUEST, *brain, *release_words("CUDA_RELEASE")]
        job.fly(*gpu, "--record", str(raw / "report"), code=0 if CARD else 3)
        job.keep("2-gpu")
        job.inside("journalctl", "--no-pager", "-o", "cat", "-u", "flysim.service", "-n", "12", code=None)
        if CARD:
            (raw / "second.txt").write_text(job.fly(*gpu))
            (raw / "journal.txt").write_text(
                job.inside("sh", "-c", "journalctl --no-pager -o cat -u flysim.service _PID=$(systemctl show -p MainPID --value flysim)")
            )
            job.run("nvidia-smi", code=None)
            job.fly("verify", "--limit", GUEST, *brain, code=None)
        job.fly("rollback-cpu", "--limit", GUEST, *brain)
        job.keep("3-rolled-back")
        job.fly("rollback-cpu", "--limit", GUEST, *brain)
    finally:
        job.fly("logs", "--limit", GUEST, "--lines", "60", code=None)
        job.fly("retire", GUEST, code=None)


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def figures(raw: Path) -> dict[str, Any]:
    """Out of the report, the journal and the three looks."""
    reports = sorted((raw / "report").glob("*.json")) if (raw / "report").is_dir() else []
    report = _json(reports[-1]) if reports else {}
    checks = {entry["check"]: entry for entry in report.get("checks", [])}
    five = [checks.get(name, {}).get("verdict") for name in ("feature", "card", "ptx", "bitexact", "cost")]
    cost = checks.get("cost", {}).get("details", {})
    cpu, gpu = cost.get("cpu", {}), cost.get("gpu", {})
    looks = [_json(raw / f"{name}.json") for name in ("1-cpu", "2-gpu", "3-rolled-back")]
    ticks = [look.get("status", {}).get("tick", -1) for look in looks]
    journal = (raw / "journal.txt").read_text() if (raw / "journal.txt").exists() else ""
    second = (raw / "second.txt").read_text() if (raw / "second.txt").exists() else ""
    changed = [part.partition("=")[2] for part in second.split() if part.startswith("changed=")]
    return {
        "verdicts": five,
        "five_checks_passed": sum(verdict == "passed" for verdict in five),
        "live_attached_cuda": "cuda backend attached" in journal,
        "second_gpu_deploy_changed": int(changed[-1]) if changed else -1,
        "gpu_host_cores": gpu.get("cores", 99.0),
        "cpu_host_cores": cpu.get("cores", 0.0),
        "gpu_share_of_cpu_cores": round(gpu["cores"] / cpu["cores"], 4) if gpu.get("cores") and cpu.get("cores") else 99.0,
        "gpu_realtime_factor": gpu.get("factor", 0.0),
        "cpu_realtime_factor": cpu.get("factor", 0.0),
        "mean_hz": min(gpu.get("hz", 0.0), cpu.get("hz", 0.0)),
        "settings_back_after_rollback": bool(looks[0]) and looks[0].get("files") == looks[2].get("files") != looks[1].get("files"),
        "threads_back_after_rollback": looks[2].get("row", {}).get("threads", 0),
        "ticks_never_went_back": -1 < ticks[0] <= ticks[1] <= ticks[2],
    }
