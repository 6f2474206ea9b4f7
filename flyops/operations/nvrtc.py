# SPDX-License-Identifier: Apache-2.0
"""NVRTC, the compiler library, from its package on PyPI: CUDA C++ in, PTX out; needs neither a card nor a toolkit.

The compiling itself is flysim's own tool (flysim/tools/nvrtc.py), which stands without flyops; here is which library it gets.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

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
    tool = _tool()
    try:
        return str(tool.compile_ptx(source, arch, found[0]))
    except (tool.NvrtcError, OSError) as error:
        raise CompileError(f"{source.name} does not compile for {arch} (NVRTC): {error}") from error


def _tool() -> Any:
    name = "flysim_tools_nvrtc"
    path = places.REPOSITORY / "flysim" / "tools" / "nvrtc.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise UsageError(f"{path} is missing: use a whole checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module
