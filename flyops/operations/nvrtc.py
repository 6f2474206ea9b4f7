# SPDX-License-Identifier: Apache-2.0
"""NVRTC, the compiler library, from its package on PyPI: CUDA C++ in, PTX out; needs neither a card nor a toolkit.

The compiling itself is flysim's own tool (flysim/tools/nvrtc.py), which stands without flyops; here is which library it gets.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from flyops import places
from flyops.domain import ptx
from flyops.errors import FlyopsError, UsageError
from flyops.operations import packages

PACKAGE = "nvidia-cuda-nvrtc-cu12"
# The oldest release that knows an arch writes the oldest PTX ISA, which the oldest drivers read.
_OLDEST = (("12.0", range(50, 91)), ("12.8", (100, 101, 120)), ("12.9", (103, 121)))


class CompileError(FlyopsError, RuntimeError):
    """The kernels do not compile; the compiler's log is in the message."""


def release_for(arch: str) -> str:
    """The NVRTC release to use for an arch: `12.0` for sm_90."""
    for release, numbers in _OLDEST:
        if ptx.number(arch) in numbers:
            return release
    raise UsageError(
        f"no NVRTC of the locks knows {arch}: known are sm_50 to sm_90, sm_100, 101, 103, 120, 121", fix="install a CUDA toolkit whose nvcc knows it"
    )


def compile_file(source: Path, arch: str) -> str:
    """PTX of a .cu file for an arch, with the source's hash on top."""
    folder = packages.fetch(f"nvrtc-{release_for(arch)}", PACKAGE)
    found = sorted(folder.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))
    if not found:
        raise CompileError(f"libnvrtc is not in {folder}", fix=f"delete {folder} and run the same command again")
    tool = places.REPOSITORY / "flysim" / "tools" / "nvrtc.py"
    if not tool.exists():
        raise UsageError(f"{tool} is missing: use a whole checkout")
    # In a process of its own: the library leaves its caller's thread with another locale, and texts read after it would be ASCII.
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / f"{arch}.ptx"
        command = [sys.executable, str(tool), str(source), "--arch", arch, "--lib", str(found[0]), "-o", str(made)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            raise CompileError(f"{source.name} does not compile for {arch} (NVRTC): {done.stderr.strip()}")
        return made.read_text()
