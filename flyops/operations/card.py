# SPDX-License-Identifier: Apache-2.0
"""The card of this machine, as its driver tells it: nvidia-smi, else NVML through pynvml. None where there is none."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from flyops.domain import ptx


@dataclass(frozen=True)
class Card:
    """The first card."""

    name: str
    arch: str  # sm_90
    driver: str  # 580.82.07


def this_machine() -> Card | None:
    """The first card of this machine; a driver that does not answer counts as no card."""
    return _by_program() or _by_library()


def _by_program() -> Card | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(answer: str) -> Card | None:
    """The first line of nvidia-smi's answer (`NVIDIA H200, 9.0, 580.82.07`)."""
    first = answer.strip().partition("\n")[0]
    fields = [field.strip() for field in first.rsplit(",", 2)]
    arch = ptx.arch_of(fields[1]) if len(fields) == 3 else None
    return Card(fields[0], arch, fields[2]) if arch else None


def _by_library() -> Card | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        name, driver = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlSystemGetDriverVersion()
        return Card(str(name), f"sm_{major}{minor}", str(driver))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
