# SPDX-License-Identifier: Apache-2.0
"""The five checks of a real release on a real card, both sides of each that has two here; needs neither pytest nor a service manager.

`python3 -m tests.beds.fivechecks TAR BRAIN.fly FOLDER`: stages the tar, runs the CPU kernel as the live service, then a GPU trial from its
checkpoint. Prints the report; an AssertionError says what was not as it must be.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flyops.agent.host import RealHost
from flyops.agent.run import run_module
from flyops.domain import manifest, report
from flyops.modules import checkpoint_gate, cpuset, flysim_check, release, trial

DRIVE = "LC4:50,LPLC2:50"


def stage(tar: Path, home: Path) -> dict[str, Any]:
    """The release of a tar."""
    source = {"path": str(tar), "sha256": hashlib.sha256(tar.read_bytes()).hexdigest(), "size": tar.stat().st_size}
    version = tar.name[len("flysim-") : -len(".tar.gz")]
    return run_module(release, {"home": str(home), "version": version, "src": source, "state": "staged"}, RealHost(lambda _: str(tar)))


def nvcc() -> str | None:
    """The compiler, where there is one."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def add_ptx(folder: Path, kernel: Path, arch: str) -> None:
    """PTX for the card into a staged release, and its line into the MANIFEST."""
    target = folder / "ptx" / f"{arch}.ptx"
    words = [str(nvcc()), "--ptx", f"-arch={arch.replace('sm', 'compute')}", "--fmad=false", "--std=c++17", "-o", str(target), str(kernel)]
    subprocess.run(words, check=True, timeout=120)
    source = hashlib.sha256(kernel.read_bytes()).hexdigest()
    target.write_text(f"// source sha256: {source}\n" + target.read_text())
    listed = manifest.parse((folder / "MANIFEST").read_text())
    files = {**listed.files, f"ptx/{arch}.ptx": hashlib.sha256(target.read_bytes()).hexdigest()}
    (folder / "MANIFEST").write_text(manifest.render(manifest.Manifest(listed.header, files)))


class Run:
    """One card, one release, one brain."""

    def __init__(self, tar: Path, brain: Path, folder: Path) -> None:
        self.folder, self.brain = folder, brain
        staged = stage(tar, folder / "home")
        assert staged["changed"], staged
        self.release = Path(staged["path"])
        self.binary = str(self.release / "bin/flysim")
        (folder / "flysim.env").write_text(
            f"FLY_CONNECTOME={brain}\nFLY_DRIVE={DRIVE}\nFLY_SEED=783\nFLY_CHECKPOINT_S=2\nFLY_STATE_DIR=/nowhere\nFLY_LISTEN=127.0.0.1:1\n"
        )
        self.host = RealHost()
        self.plan = run_module(cpuset, {"sim": 2, "minimum": 4, "manager": "supervisor"}, self.host)
        self.found: list[dict[str, Any]] = []

    def trial(self, name: str, **args: Any) -> dict[str, Any]:
        """A process of flysim below our folder."""
        base = {"manager": "supervisor", "binary": self.binary, "env_files": [str(self.folder / "flysim.env")], "wait": 60}
        return run_module(trial, {"dir": str(self.folder / name), **({} if args.get("state") else base), "manager": "supervisor", **args}, self.host)

    def check(self, name: str, keep: bool = True, **args: Any) -> dict[str, Any]:
        """One check, told in a line."""
        begun = time.monotonic()
        seen = run_module(flysim_check, {"check": name, "fail": False, **args}, self.host)
        assert "exception" not in seen, seen["exception"]
        print(f"[{time.monotonic() - begun:5.1f} s] {name}: {seen.get('verdict')}: {seen.get('seen') or seen.get('msg')}", flush=True)
        if keep:
            self.found.append(seen)
        return seen


def five(run: Run, kernel: Path | None, window_s: float = 10.0) -> list[dict[str, Any]]:
    """All five, in their order."""
    live = run.trial("live", env={"RAYON_NUM_THREADS": 2, "FLY_LIF_CUDA": 0}, cpus=run.plan["sim"])
    assert live["running"], live
    assert run.check("feature", keep=False, log=live["log"])["verdict"] == "failed"  # compiled in, and on the CPU: not the card
    time.sleep(3)
    gate = run_module(checkpoint_gate, {"binary": run.binary, "connectome": str(run.brain), "state_dir": live["state_dir"]}, run.host)
    assert gate["differs"] == [], gate
    gpu = {"env": {"RAYON_NUM_THREADS": 1, "FLY_LIF_CUDA": 1}, "state_dir": live["state_dir"], "cpus": run.plan["page"]}
    first = run.trial("trial", **gpu)
    assert first["running"], first
    cc = run.check("card", keep=False)["details"]["context"]["cc"]
    if kernel is not None:
        jit = run.check("ptx", keep=False, log=first["log"], ptx_dir=str(run.release / "ptx"))
        assert (jit["verdict"], jit["details"]["jit"]) == ("failed", True), jit
        allowed = run.check("ptx", keep=False, log=first["log"], ptx_dir=str(run.release / "ptx"), allow_jit=True)
        assert allowed["verdict"] == "passed", allowed
        add_ptx(run.release, kernel, f"sm_{cc}")
        first = run.trial("trial", **gpu)
        assert first["running"], first
    run.check("feature", log=first["log"])
    run.check("card")
    run.check("ptx", log=first["log"], ptx_dir=str(run.release / "ptx"))
    exact = {"binary": run.binary, "old_binary": run.binary, "connectome": str(run.brain), "drive": DRIVE, "seed": "783"}
    run.check("bitexact", **exact, state_dir=live["state_dir"])
    run.check("cost", url=first["url"], cpu_url=live["url"], warmup=2, window=window_s)
    run.check("health", keep=False, url=first["url"], backend="cuda")
    effective = run_module(cpuset, {"state": "effective", "pid": first["pid"], "want": run.plan["page"]}, run.host)
    assert not effective["failed"], effective
    again = run.check("health", keep=False, url=live["url"], backend="cpu")
    assert again["details"]["second"]["pid"] == live["pid"]  # the live one never noticed
    return report.complete(run.found)


def main(words: list[str]) -> int:
    """The report, on standard output."""
    tar, brain, folder = (Path(word).resolve() for word in words[:3])
    kernel = Path(words[3]).resolve() if len(words) > 3 and nvcc() else None
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(tar, brain, folder)
    try:
        entries = five(run, kernel)
    finally:
        for name in ("trial", "live"):
            print(name, "log:", (folder / name / "log").read_text()[-1500:] if (folder / name / "log").exists() else "none")
            run.trial(name, state="absent")
    print(report.table(entries, 150))
    (folder / "report.json").write_text(report.to_json(entries))
    (folder / "report.md").write_text(report.markdown(entries, date=time.strftime("%Y-%m-%d"), host="card", release=run.release.name))
    print(json.dumps(entries[-1]["details"], indent=1))
    return 0 if report.verdict(entries) == "passed" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
