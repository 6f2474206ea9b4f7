# SPDX-License-Identifier: Apache-2.0
"""PTX of flysim's kernels for one arch: nvcc if there is one and the driver reads what it writes, else NVRTC; checked before it is given out."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyops import places
from flyops.domain import ptx as texts
from flyops.errors import FlyopsError, UsageError
from flyops.operations import card, nvrtc, release
from flyops.operations.options import PtxOptions
from flyops.operations.release import Release

# Never fused: a fused multiply-add rounds once where the CPU rounds twice.
FLAGS = ("--fmad=false", "--std=c++17")


class PtxError(FlyopsError, RuntimeError):
    """PTX that must not be shipped; each reason is in the message."""


@dataclass(frozen=True)
class Ptx:
    """Checked PTX for one arch."""

    arch: str
    text: str
    isa: str  # 8.0
    tool: str  # nvcc or nvrtc 12.0


def run(options: PtxOptions) -> int:
    """`invoke ptx`: writes the file and prints what is in it."""
    here = card.this_machine()
    arch = options.arch or (here.arch if here else texts.DEFAULT_ARCH)
    driver = options.driver or (here.driver if here and here.arch == arch else "")
    made = build(arch, driver)
    out = Path(options.out or f"{arch}.ptx")
    out.write_text(made.text)
    row = {"arch": arch, "isa": made.isa, "tool": made.tool, "driver": driver or "unknown", "file": str(out.absolute())}
    print(
        json.dumps(row)
        if options.json
        else f"{out}: .target {arch}, .version {made.isa}, by {made.tool}, no fma; driver {driver or 'not known: not checked'}"
    )
    return 0


def add(base: Release, arches: Sequence[str], driver: str = "") -> Release:
    """The release with PTX for these arches; those that it has are kept when they pass the same checks."""
    made = {}
    for arch in sorted(set(arches)):
        present = base.ptx(arch)
        if present is None or texts.problems(present, arch, driver):
            made[arch] = build(arch, driver).text
    return release.with_ptx(base, made)


def build(arch: str, driver: str = "") -> Ptx:
    """PTX for an arch that the driver (when it is known) loads; from the cache when these kernels were compiled before."""
    if not texts.known_arch(arch):
        raise UsageError(f"an arch is written sm_90, found {arch!r}")
    source = kernels()
    refused = []
    for tool, path in _tools(arch):
        text = _cached(source, arch, tool, path)
        wrong = texts.problems(text, arch, driver)
        seen = texts.header(text)
        if seen and not wrong:
            return Ptx(arch, text, "{}.{}".format(*seen.isa), tool)
        refused.append(f"{tool}: {'; '.join(wrong)}")
    raise PtxError(f"no PTX for {arch} that may be shipped: {' | '.join(refused)}", fix="use a driver that is new enough, or an older CUDA toolkit")


def kernels() -> Path:
    """The one CUDA source of the checkout."""
    found = sorted(path for path in (places.REPOSITORY / "flysim" / "crates").rglob("*.cu") if "target" not in path.parts)
    if len(found) != 1:
        raise UsageError(f"expected one .cu file below flysim/crates, found {[path.name for path in found]}: use a whole checkout")
    return found[0]


def _tools(arch: str) -> list[tuple[str, str]]:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    found = [("nvcc", nvcc)] if nvcc else []
    try:
        return [*found, (f"nvrtc {nvrtc.release_for(arch)}", "")]
    except UsageError:
        if found:
            return found
        raise


def _cached(source: Path, arch: str, tool: str, path: str) -> str:
    # Headers beside the source count too; the tool's own version is in its name or in its answer.
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout if path else tool
    parts = [arch, said, *FLAGS, *(file.read_text() for file in sorted(source.parent.glob("*.cu*")) + sorted(source.parent.glob("*.h")))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    target = places.cache("ptx", f"{arch}-{key}.ptx")
    if target.exists():
        return target.read_text()
    text = _nvcc(path, source, arch) if path else nvrtc.compile_file(source, arch)
    target.parent.mkdir(parents=True, exist_ok=True)
    with release.scratch(target) as work:
        (work / "ptx").write_text(text)
        (work / "ptx").replace(target)
    return text


def _nvcc(nvcc: str, source: Path, arch: str) -> str:
    # A file of our own, never /dev/stdout: as root the toolkit replaces what it writes to.
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"{arch}.ptx"
        command = [nvcc, "--ptx", f"-arch={texts.virtual(arch)}", *FLAGS, "-o", str(made), str(source)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            raise nvrtc.CompileError(f"{source.name} does not compile for {arch} ({' '.join(command)}):\n{done.stderr}")
        text = made.read_text()
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    # The same first lines as NVRTC's: flysim tells by the hash whether a PTX is of its own kernels.
    head = f"// SPDX-License-Identifier: Apache-2.0\n// source sha256: {digest}\n// made by nvcc from {source.name}: {' '.join(FLAGS)} -arch={arch}\n"
    return head + text
