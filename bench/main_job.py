# SPDX-License-Identifier: Apache-2.0
"""The main job on a card: a guest, a plain deploy on the CPU, `deploy --gpu` through the five checks, `rollback-cpu` back to what it was.

Needs root, LXC and a card. Where there is no cargo, CPU_RELEASE and CUDA_RELEASE name prebuilt tars; ROOTFS a guest's root file system.
CARD=0 rehearses it on a machine without a card: the deploy on the GPU is then to be refused at check 2.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.beds.job import Job, load, release_words

GUEST = "bench1"
BRAIN = os.environ.get("FLY_BRAIN", "synth:139255:2700513")
THREADS = int(os.environ.get("THREADS", "8"))
CPUS = os.environ.get("CPUS", "0-15")
CARD = os.environ.get("CARD", "1") == "1"
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


def measure(raw: Path) -> None:
    """The job, step by step."""
    job = Job(raw, GUEST)
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


def figures(raw: Path) -> dict[str, Any]:
    """Out of the report, the journal and the three looks."""
    reports = sorted((raw / "report").glob("*.json")) if (raw / "report").is_dir() else []
    report = load(reports[-1]) if reports else {}
    checks = {entry["check"]: entry for entry in report.get("checks", [])}
    five = [checks.get(name, {}).get("verdict") for name in ("feature", "card", "ptx", "bitexact", "cost")]
    cost = checks.get("cost", {}).get("details", {})
    cpu, gpu = cost.get("cpu", {}), cost.get("gpu", {})
    looks = [load(raw / f"{name}.json") for name in ("1-cpu", "2-gpu", "3-rolled-back")]
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
