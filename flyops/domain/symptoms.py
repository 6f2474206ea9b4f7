# SPDX-License-Identifier: Apache-2.0
"""What known failure texts and codes mean: text or code -> cause -> remedy. One table; checks, start failures and docs/symptoms.md read it. Pure."""

from __future__ import annotations

import re
from typing import Mapping, Tuple

API_MISMATCH = re.compile(r"the client has the version (\S+?),? but.*?this kernel module has the version (\d+\.\d+(?:\.\d+)?)", re.DOTALL)


def api_mismatch(dmesg: str) -> tuple[str, str] | None:
    """(client, module) versions of the last `NVRM: API mismatch` in a kernel log."""
    found = API_MISMATCH.findall(dmesg)
    return found[-1] if found else None


CUDA_ERRORS: Mapping[int, Tuple[str, str, str]] = {
    0: ("success", "", ""),
    2: ("out of memory", "another process holds the card's memory", "look at nvidia-smi on the host for who holds it"),
    3: ("not initialised", "cuInit was not reached", "see the first error"),
    100: ("no device", "no usable card: no /dev/nvidiaN here, or the device rule forbids it", "give the guest the card: provision NAME --gpu"),
    101: ("invalid device", "FLY_GPU names a card that is not there", "name an index or UUID that is"),
    304: ("operating system call failed", "the device rule or a missing node", "give the guest the card again: provision NAME --gpu"),
    719: ("launch failure", "the card reported a fault", "look for Xid in the host's kernel log"),
    801: ("not supported", "seen on Jetson for a user outside the group of nvmap and nvhost", "run on a discrete card"),
    802: (
        "system not yet initialised",
        "an NVSwitch board whose fabric manager is absent or of another version",
        "start nvidia-fabricmanager of the driver's version on the host",
    ),
    803: ("system driver mismatch", "the libraries here and the loaded module differ", "install the libraries of the loaded module in the guest"),
    804: (
        "forward compatibility on unsupported hardware",
        "a compat libcuda, or libraries of another version",
        "remove the compat library; install those of the loaded module",
    ),
    999: (
        "unknown error",
        "/dev/nvidia-uvm is missing, stale or not allowed (NVML works without it, CUDA does not)",
        "make the nodes again (nvidia_nodes) and allow nvidia-uvm's major",
    ),
}


def cuda_error(code: int) -> str:
    """A CUDA driver code as cause and remedy."""
    name, cause, remedy = CUDA_ERRORS.get(code, ("", "", ""))
    if not name:
        return f"CUDA error {code}: look it up in cuda.h (CUresult)"
    return f"CUDA error {code}, {name}" + (f": {cause}; to do: {remedy}" if cause else "")


TEXT_HINTS: Tuple[Tuple[str, str], ...] = (
    ("Driver/library version mismatch", "libraries and loaded module differ (NVML 18): install the libraries of the loaded module"),
    ("GPU access blocked by the operating system", "the view of /proc and /sys is not complete, or a device rule forbids the node"),
    ("No devices were found", "nodes missing, plain files, or not readable by this user: see nvidia_nodes"),
    ("couldn't communicate with the NVIDIA driver", "the kernel module is not loaded on the host"),
    ("couldn't find libnvidia-ml.so", "the driver's libraries are not in this guest, or not in its linker cache: run ldconfig there"),
    ("Unknown Error", "the device rule was rebuilt without the card (a daemon-reload): restart the guest or set the rule in its own config"),
    ("Driver Not Loaded", "the kernel module is not loaded, or was not yet when this started"),
)


def hint(text: str) -> str:
    """Cause and remedy for a known failure text; empty when it is not known."""
    return next((advice for pattern, advice in TEXT_HINTS if pattern.lower() in text.lower()), "")
