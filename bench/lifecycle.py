# SPDX-License-Identifier: Apache-2.0
"""The life of a GPU backend in one transcript: provision by bind, CPU, five checks, the switch, a lost card, the CPU back by itself, the GPU again, a watch, rollback.

Beside the guest stands a second one that nobody may touch. The card is taken from the running unit by FLY_FAULT, which only a build with the feature
`fault` honours: FAULT_RELEASE names that cuda build (CPU_RELEASE the CPU one, ROOTFS a root file system). Without it, below
`python -m tests.beds.doublecard`, the double's process is ended instead. THREADS (8), GPU_THREADS (2), CPUS (0-15), FLY_BRAIN, WATCH_MINUTES (5) and WINDOW_S (30) change its measures.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from flyops.domain import checks, cpuset, watch
from tests.beds import digest, doublecard
from tests.beds.job import ASK, Job, load, release_words

GUEST, BESIDE = "bench1", "bench2"
DOUBLE = bool(os.environ.get("DOUBLECARD_INSIDE"))
BRAIN = os.environ.get("FLY_BRAIN", "synth:2000:40000" if DOUBLE else "synth:139255:2700513")
THREADS, GPU_THREADS = int(os.environ.get("THREADS", "2" if DOUBLE else "8")), int(os.environ.get("GPU_THREADS", "1" if DOUBLE else "2"))
CPUS = os.environ.get("CPUS", "" if DOUBLE else "0-15")
MINUTES = float(os.environ.get("WATCH_MINUTES", "5"))
WINDOW_S = os.environ.get("WINDOW_S", "30")
TRIES = 6 if DOUBLE else 1  # a machine under load may not hold real time for the double, which computes on its cpus
FAULT_IN_S = 6  # from the start of the unit that is to lose its card
GOALS = {
    "five_checks_passed": ("==", 5),
    "driver_bound": ("==", True),
    "gpu_host_cores": ("<", 1.0),
    "gpu_share_of_cpu_cores": ("<=", 0.5),
    "threads_before": ("==", THREADS),
    "threads_on_gpu": ("==", GPU_THREADS),
    "second_gpu_deploy_changed": ("==", 0),
    "neighbour_differs": ("==", 0),
    "exit_code_of_loss": ("==", 75),
    "backend_after_loss": ("==", "cpu"),
    "threads_after_loss": ("==", THREADS),
    "factor_after_loss": (">=", 0.99),
    "ticks_went_on_after_loss": ("==", True),
    "settings_after_loss_as_before": ("==", True),
    "gpu_again": ("==", True),
    "watch_verdict": ("==", "pass"),
    "settings_after_rollback_as_before": ("==", True),
    "ticks_never_went_back": ("==", True),
    **({} if DOUBLE else {"page_cpus_gained": ("==", THREADS - GPU_THREADS)}),
}
# Every file and link that a deploy may write a setting to, and what runs: environment and cpus of both processes.
LOOK = r"""
import glob, hashlib, json, os, subprocess
def unit(name):
    pid = subprocess.run(['systemctl', 'show', '-p', 'MainPID', '--value', name], capture_output=True, text=True).stdout.strip()
    try:
        env = dict(p.partition('=')[::2] for p in open('/proc/%s/environ' % pid).read().split('\0') if p.startswith(('FLY_LIF', 'RAYON')))
        cpus = [l.split()[1] for l in open('/proc/%s/status' % pid) if l.startswith('Cpus_allowed_list')][0]
        group = [l.split(':', 2)[2].strip() for l in open('/proc/%s/cgroup' % pid) if l.startswith('0::')][0]
    except OSError:
        return {}
    path = '/sys/fs/cgroup%s/cpuset.cpus.effective' % group
    return {'pid': int(pid), 'env': env, 'allowed': cpus, 'effective': open(path).read().strip() if os.path.exists(path) else ''}
files = {}
for root in ('/etc/fly', '/etc/systemd/system'):
    for path in sorted(glob.glob(root + '/**', recursive=True)):
        if os.path.islink(path) or os.path.isfile(path):
            files[path] = os.readlink(path) if os.path.islink(path) else hashlib.sha256(open(path, 'rb').read()).hexdigest()
print(json.dumps({'files': files, 'flysim': unit('flysim'), 'flypage': unit('flypage')}))
"""
RATE = r"""
import json, time, urllib.request as u
ask = lambda: (time.monotonic(), json.load(u.urlopen('http://127.0.0.1:8700/status', timeout=5)))
a, x = ask(); time.sleep(5); b, y = ask()
print(json.dumps({'seconds': b - a, 'ticks': y['tick'] - x['tick'], 'status': y}))
"""


def look(job: Job, name: str) -> dict[str, Any]:
    """Settings and state now, kept as a raw sample."""
    found: dict[str, Any] = json.loads(job.inside("python3", "-c", LOOK).splitlines()[-1])
    found["status"] = job.status()
    (job.raw / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return found


def beside(job: Job, name: str) -> None:
    """The second guest: its config on the host, its init, and every unit with its pid and restart count."""
    found = {"host": digest.host_side(BESIDE), "units": digest.units(BESIDE)}
    (job.raw / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def lose(job: Job) -> None:
    """The running unit loses its card; what follows is looked at until the CPU backend is there."""
    before, by_fault = job.status(), bool(os.environ.get("FAULT_RELEASE"))
    if not by_fault:
        job.inside("systemctl", "stop", "double")
    else:
        folder = "/etc/systemd/system/flysim.service.d"
        tick = before["tick"] + (FAULT_IN_S + 4) * 10_000
        # The drop-in goes as soon as the unit has started with it: the process keeps its environment, and the CPU backend must not lose a card.
        script = (
            f"printf '[Service]\\nEnvironment=FLY_FAULT=gpu-lost@{tick}\\n' >{folder}/99-fault.conf && systemctl daemon-reload && systemctl restart flysim"
            f" && rm {folder}/99-fault.conf && systemctl daemon-reload && systemctl show -p MainPID --value flysim"
        )
        job.inside("sh", "-c", f"mkdir -p {folder}; {script}")
    seen: list[dict[str, Any]] = []
    end = time.monotonic() + 60
    while time.monotonic() < end:
        text = job.inside("sh", "-c", f"python3 -c \"{ASK}\" 2>/dev/null || echo '{{}}'")
        now = json.loads(text)
        seen.append({"at": time.time(), **{key: now.get(key) for key in ("backend", "tick", "pid", "threads")}})
        if now.get("backend") == "cpu":
            break
        time.sleep(0.5)
    rate = json.loads(job.inside("python3", "-c", RATE).splitlines()[-1])
    journal = job.inside("sh", "-c", "journalctl --no-pager -o short-iso-precise -u flysim.service -u flyops-restore.service -n 60", code=None)
    (job.raw / "loss.json").write_text(json.dumps({"before": before, "seen": seen, "rate": rate, "journal": journal.splitlines()}, indent=1) + "\n")
    if not by_fault:
        job.inside("systemctl", "start", "double")


def on_gpu(job: Job, words: list[str], record: str = "") -> str:
    """`deploy --gpu`, held."""
    for _ in range(TRIES):
        said = job.fly(*words, *(["--record", str(job.raw / record)] if record else []), code=None)
        if job.code == 0:
            return said
    raise RuntimeError(f"deploy --gpu: expected exit 0, found {job.code}")


def provision(job: Job) -> None:
    """The guest with the card, and the one beside it."""
    rootfs = ["--rootfs", os.environ["ROOTFS"]] if os.environ.get("ROOTFS") else []
    limits = ["--network", "none", "--memory", "2G" if DOUBLE else "16G", *(["--cpus", CPUS] if CPUS else [])]
    job.fly("provision", BESIDE, *rootfs, "--network", "none", "--memory", "512M")
    job.fly("provision", GUEST, *rootfs, *limits, "--gpu")
    if DOUBLE:
        doublecard.into_guest(GUEST)
    job.inside("sh", "-c", "grep nvidia /proc/self/mountinfo; nvidia-smi -L; ls -l /dev/nvidia*", code=None)
    (job.raw / "mounts.txt").write_text(job.inside("sh", "-c", "grep -E 'nvidia' /proc/self/mountinfo", code=None))


def measure(raw: Path) -> None:
    """The whole life, step by step."""
    job = Job(raw, GUEST)
    brain = ["-e", f"fly_connectome={BRAIN}", "-e", f"rayon_threads={THREADS}", "-e", f"rayon_threads_gpu={GPU_THREADS}", "-e", "fly_checkpoint_s=5"]
    cuda = ["--release", os.environ["FAULT_RELEASE"]] if os.environ.get("FAULT_RELEASE") else release_words("CUDA_RELEASE")
    gpu = ["deploy", "--gpu", "--limit", GUEST, *brain, *cuda]
    first, short = ["-e", f"check_window_s={WINDOW_S}"], ["-e", "check_warmup_s=2", "-e", "check_window_s=5"]
    try:
        provision(job)
        job.fly("deploy", "--limit", GUEST, *brain, *release_words("CPU_RELEASE"))
        look(job, "1-cpu")
        beside(job, "beside-before")
        on_gpu(job, [*gpu, *first], "report")
        look(job, "2-gpu")
        (raw / "second.txt").write_text(on_gpu(job, gpu))
        lose(job)
        look(job, "3-restored")
        job.fly("logs", "--limit", GUEST, "--lines", "20", code=None)
        on_gpu(job, [*gpu, *short], "report-again")
        look(job, "4-gpu-again")
        job.run("sleep", "10")  # what the start itself costs is no drift
        job.fly(
            "watch",
            "--limit",
            GUEST,
            "--hours",
            f"{MINUTES / 60:.5f}",
            "--every",
            "0.25",
            "--out",
            str(raw / "watch"),
            "--no-plot",
            code=None,
            limit_s=60 * MINUTES + 120,
        )
        job.fly("rollback-cpu", "--limit", GUEST, *brain)
        look(job, "5-rolled-back")
        beside(job, "beside-after")
    finally:
        for guest in (GUEST, BESIDE):
            job.fly("retire", guest, code=None)


def neighbour_differs(raw: Path) -> list[str]:
    """What changed beside: config and init on the host, and services that ran; a unit that only ever runs for a moment may come and go."""
    before, after = load(raw / "beside-before.json"), load(raw / "beside-after.json")
    lasting = {name: row for name, row in before.get("units", {}).items() if "MainPID=0" not in row}
    changed = digest.differences(before.get("host", {"host": "no sample"}), after.get("host", {}))
    return changed + [
        f"{name}: {row} -> {after.get('units', {}).get(name)}" for name, row in lasting.items() if after.get("units", {}).get(name) != row
    ]


def five(raw: Path, folder: str) -> dict[str, dict[str, Any]]:
    """The five checks of a report."""
    files = sorted((raw / folder).glob("*.json")) if (raw / folder).is_dir() else []
    rows = load(files[-1]).get("checks", []) if files else []
    return {row["check"]: row for row in rows}


def page_cpus(sample: dict[str, Any]) -> tuple[int, ...]:
    """The page's cpus, as its cgroup has them in force; where the controller is on v1, as its process has them."""
    page = sample.get("flypage", {})
    return cpuset.parse(page.get("effective") or page.get("allowed") or "")


def figures(raw: Path) -> dict[str, Any]:
    """Out of the looks, the reports, the journal of the loss and the watch's samples."""
    looks = [load(raw / f"{name}.json") for name in ("1-cpu", "2-gpu", "3-restored", "4-gpu-again", "5-rolled-back")]
    first, again = five(raw, "report"), five(raw, "report-again")
    cost = first.get("cost", {}).get("details", {})
    cpu, card = cost.get("cpu", {}), cost.get("gpu", {})
    threads = [int(sample.get("flysim", {}).get("env", {}).get("RAYON_NUM_THREADS", 0)) for sample in looks]
    loss = load(raw / "loss.json")
    rate, journal = loss.get("rate", {"seconds": 1, "ticks": 0, "status": {}}), "\n".join(loss.get("journal", []))
    restored = next((row for row in loss.get("seen", []) if row.get("backend") == "cpu"), {})
    second = (raw / "second.txt").read_text() if (raw / "second.txt").exists() else ""
    changed = [part.partition("=")[2] for part in second.split() if part.startswith("changed=")]
    ticks = [sample.get("status", {}).get("tick", -1) for sample in looks]
    samples = sorted((raw / "watch").glob("*.tsv")) if (raw / "watch").is_dir() else []
    findings = watch.judge(watch.parse(samples[-1].read_text(), samples[-1].name)) if samples else []
    failed = [finding.name for finding in findings if finding.verdict == watch.FAILED]
    names = ("feature", "card", "ptx", "bitexact", "cost")
    verdicts = [first.get(check, {}).get("verdict") for check in names]
    return {
        "verdicts": verdicts,
        "five_checks_passed": verdicts.count("passed"),
        "driver_bound": "/usr/local/nvidia" in ((raw / "mounts.txt").read_text() if (raw / "mounts.txt").exists() else ""),
        "gpu_host_cores": card.get("cores", 99.0),
        "cpu_host_cores": cpu.get("cores", 0.0),
        "gpu_share_of_cpu_cores": round(card["cores"] / cpu["cores"], 4) if card.get("cores") and cpu.get("cores") else 99.0,
        "gpu_realtime_factor": card.get("factor", 0.0),
        "cpu_realtime_factor": cpu.get("factor", 0.0),
        "threads_before": threads[0],
        "threads_on_gpu": threads[1],
        "page_cpus": [cpuset.render(page_cpus(sample)) for sample in looks],
        "page_cpus_gained": len(page_cpus(looks[1])) - len(page_cpus(looks[0])),
        "second_gpu_deploy_changed": int(changed[-1]) if changed else -1,
        "neighbour_differs": len(neighbour_differs(raw)),
        "exit_code_of_loss": 75 if "status=75" in journal else -1,
        "backend_after_loss": rate["status"].get("backend", ""),
        "threads_after_loss": rate["status"].get("threads", 0),
        "factor_after_loss": _factor(rate),
        "seconds_without_a_backend": round(restored.get("at", 0) - next((row["at"] for row in loss.get("seen", []) if not row.get("backend")), restored.get("at", 0)), 1),
        "ticks_went_on_after_loss": bool(restored) and (restored.get("tick") or 0) >= loss.get("before", {}).get("checkpoint", {}).get("tick", 1 << 60),
        "settings_after_loss_as_before": _same(looks[0], looks[2]),
        "gpu_again": [again.get(check, {}).get("verdict") for check in names] == ["passed"] * 5,
        "watch_samples": len(samples) and len(watch.parse(samples[-1].read_text(), samples[-1].name).answered),
        "watch_failed": failed,
        "watch_verdict": "pass" if findings and not failed else "fail",
        "settings_after_rollback_as_before": _same(looks[0], looks[4]),
        "ticks_never_went_back": ticks[0] >= 0 and ticks == sorted(ticks),
    }  # fmt: skip


def _factor(rate: dict[str, Any]) -> float:
    """By the outside clock; /status may be as late as one batch of ticks."""
    return round(rate["ticks"] / checks.TICKS_PER_S / rate["seconds"] + checks.RESOLUTION_S / rate["seconds"], 4) if rate["ticks"] else 0.0


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Files and links by digest, and what both processes really have."""
    parts = [(sample.get("files"), sample.get("flysim", {}).get("env"), page_cpus(sample)) for sample in (before, after)]
    return bool(before.get("files")) and parts[0] == parts[1]
