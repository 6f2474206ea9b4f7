# SPDX-License-Identifier: Apache-2.0
"""The guest that is sabotaged: a real one, with a real card or with its double; what the operator runs against it, and hands that reach into it."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flyops.operations import card, ptx
from flyops.operations import release as releases
from tests.beds import doublecard
from tests.beds.fly import another
from tests.beds.job import Job
from tests.sabotage.case import FIVE, Outcome

DOUBLE = bool(os.environ.get("DOUBLECARD_INSIDE"))
BRAIN = os.environ.get("FLY_BRAIN", "synth:2000:40000" if DOUBLE else "synth:20000:400000")
CPUS = os.environ.get("CPUS", "" if DOUBLE else "0-15")
THREADS = int(os.environ.get("THREADS", "1" if DOUBLE else "8"))
WINDOW_S = float(os.environ.get("WINDOW_S", "5"))
PLACE = "/opt/sabotage"


class Box:
    """One guest, two releases (CPU and cuda), one brain."""

    def __init__(self, out: Path, name: str = "") -> None:
        self.out, self.name = out, name or os.environ.get("SABOTAGE_GUEST", "sab1")
        out.mkdir(parents=True, exist_ok=True)
        self.job = Job(out, self.name, quiet=not os.environ.get("LOUD"))
        self.cpu = releases.open_tar(os.environ["CPU_RELEASE"])
        self.arch, self.cuda = whole_release()
        settings = {"fly_connectome": BRAIN, "rayon_threads": THREADS, "fly_checkpoint_s": 2, "check_ticks": 400, "check_thirds_ticks": 601}
        settings |= {"check_warmup_s": 1, "check_window_s": WINDOW_S}
        if DOUBLE:
            settings["fly_partition_minimum"] = 2
        self.words = [word for key, value in settings.items() for word in ("-e", f"{key}={value}")]

    def make(self) -> None:
        """Provisioned, with the CPU release live and a checkpoint written."""
        rootfs = ["--rootfs", os.environ["ROOTFS"]] if os.environ.get("ROOTFS") else []
        limits = ["--network", "none", "--memory", os.environ.get("MEMORY", "2G" if DOUBLE else "16G"), *(["--cpus", CPUS] if CPUS else [])]
        self.job.fly("provision", self.name, *rootfs, *limits, "--gpu")
        if DOUBLE:
            doublecard.into_guest(self.name)
        self.sh(f"mkdir -p {PLACE}")
        self.job.fly("deploy", "--limit", self.name, *self.words, "--release", str(self.cpu.tar))

    def close(self) -> None:
        """Nothing of it stays."""
        self.job.fly("retire", self.name, code=None)

    # hands

    @property
    def node(self) -> str:
        """Name of the card's node: a machine with several cards may lend any of them."""
        return self.job.inside("sh", "-c", "ls /dev | grep -m1 '^nvidia[0-9]'").strip()

    def sh(self, script: str, check: bool = True) -> str:
        """A shell script in the guest."""
        return self.job.inside("sh", "-c", script, code=0 if check else None).strip()

    def live(self) -> tuple[Any, str]:
        """pid of the live service and the release that is current."""
        return self.sh("systemctl show -p MainPID --value flysim"), self.sh("readlink /opt/fly/current")

    def doctored(self, number: int, files: dict[str, bytes], base: releases.Release | None = None) -> releases.Release:
        """A whole release (its MANIFEST agrees) with other bytes in some of its files."""
        return another(base or self.cuda, self.out / "releases", f"0.1.0-5ab{number:07d}", files)

    @property
    def ptx(self) -> str:
        """The right PTX of this card."""
        text = self.cuda.ptx(self.arch)
        assert text
        return text

    # the operator

    def invoke(self, *words: str, on_line: Callable[[str], None] | None = None) -> Outcome:
        """One command with its exit code."""
        before = self.live()
        text = self.job.fly(*words, code=None, on_line=on_line, limit_s=120)
        return Outcome(self.job.code, self.job.clean(text), {}, before == self.live(), self.job.seconds)

    def deploy(self, release: releases.Release | None = None, *more: str, gpu: bool = True, on_line: Callable[[str], None] | None = None) -> Outcome:
        """`deploy --gpu` with its report."""
        records = self.out / "report"
        for old in records.glob("*"):
            old.unlink()
        tar = str((release or self.cuda).tar)
        found = self.invoke(
            *["deploy", *(["--gpu"] if gpu else []), "--limit", self.name, *self.words, "--release", tar, "--record", str(records), *more],
            on_line=on_line,
        )
        found.checks = verdicts(records)
        return found

    def rollback_cpu(self, *more: str) -> Outcome:
        """`rollback-cpu`."""
        return self.invoke("rollback-cpu", "--limit", self.name, *self.words, *more)

    def verify(self, *more: str) -> Outcome:
        """`verify` of what runs."""
        return self.invoke("verify", "--limit", self.name, *self.words, *more)

    @contextmanager
    def during(self, pattern: str, do: Callable[[], None]) -> Iterator[Callable[[str], None]]:
        """A line of progress that matches starts `do` beside the deploy, once."""
        started: list[threading.Thread] = []

        def look(line: str) -> None:
            if not started and re.search(pattern, line):
                started.append(threading.Thread(target=do))
                started[0].start()

        yield look
        for thread in started:
            thread.join()

    def script(self, text: str) -> None:
        """A Python program in the guest, started and not waited for."""
        self.job.inside("sh", "-c", f"nohup python3 -c {shlex.quote(text)} >/dev/null 2>&1 &")


def whole_release() -> tuple[str, releases.Release]:
    """The cuda release with PTX for the card that is here."""
    base = releases.open_tar(os.environ["CUDA_RELEASE"])
    here = card.this_machine()
    if here is None:
        raise RuntimeError("no card here: run it below `python -m tests.beds.doublecard`, or on a machine that has one")
    if DOUBLE:  # its driver takes any text of its arch; no compiler is asked
        text = (doublecard.KERNELS / "flysim.sm_75.ptx").read_text().replace(".target sm_75", f".target {here.arch}")
        return here.arch, releases.with_ptx(base, {here.arch: text})
    return here.arch, ptx.add(base, [here.arch], here.driver)


def verdicts(folder: Path) -> dict[str, dict[str, str]]:
    """Verdict and words of each of the five out of the newest record."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    found = json.loads(files[-1].read_text()) if files else {}
    rows = {row["check"]: row for row in found.get("checks", [])}
    return {
        name: {"verdict": row["verdict"], "said": f"{row['seen']} {row.get('to_do', '')}"} for name, row in rows.items() if name in (*FIVE, "health")
    }
