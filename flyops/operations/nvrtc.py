# SPDX-License-Identifier: Apache-2.0
"""NVRTC, the compiler library, from its package on PyPI: CUDA C++ in, PTX out; needs neither a card nor a toolkit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

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
    raise UsageError(f"no NVRTC of the locks knows {arch}: known are sm_50 to sm_90, sm_100, 101, 103, 120, 121", fix="install a CUDA toolkit whose nvcc knows it")


def compile_text(source: str, name: str, arch: str, options: Sequence[str]) -> str:
    """PTX of a CUDA C++ text for an arch."""
    folder = packages.fetch(f"nvrtc-{release_for(arch)}", PACKAGE)
    library = _load(folder)
    program = ctypes.c_void_p()
    _ok(library, library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        words = [f"--gpu-architecture={ptx.virtual(arch)}", *options]
        vector = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
        failed = library.nvrtcCompileProgram(program, len(words), vector)
        if failed:
            log = _text(library, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
            raise CompileError(f"{name} does not compile for {arch} (NVRTC, {' '.join(words)}):\n{log}")
        return _text(library, program, "nvrtcGetPTXSize", "nvrtcGetPTX")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _load(folder: Path) -> ctypes.CDLL:
    found = sorted(folder.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))
    if not found:
        raise CompileError(f"libnvrtc is not in {folder}", fix=f"delete {folder} and run the same command again")
    library = ctypes.CDLL(str(found[0]))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _ok(library: ctypes.CDLL, code: int) -> None:
    if code:
        raise CompileError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, size_of: str, get: str) -> str:
    size = ctypes.c_size_t()
    _ok(library, getattr(library, size_of)(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _ok(library, getattr(library, get)(program, buffer))
    return buffer.value.decode()
