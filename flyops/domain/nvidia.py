# SPDX-License-Identifier: Apache-2.0
"""NVIDIA devices as the kernel describes them: majors, nodes, module version, library versions, CUDA's error codes. Pure: texts in, values out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Mapping, Tuple

from flyops.model.host import Stat

FRONTEND = ("nvidia", "nvidia-frontend")  # the same thing: renamed with 545.29 and 550.40
CONTROL_MINOR = 255
MODESET_MINOR = 254
VERSION = re.compile(r"(?<![\w.])\d+\.\d+(?:\.\d+)?(?![\w.])")
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")


class NvidiaError(ValueError):
    """A text of the driver that cannot be used; says which and what was expected."""


@dataclass(frozen=True)
class Node:
    """A device node as it should be."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


@dataclass(frozen=True)
class Verdict:
    """What a path is in place of the node it should be. `state`: right, missing, stale, regular, mode, other."""

    node: Node
    state: str
    text: str

    @property
    def right(self) -> bool:
        """The node can be used as it is."""
        return self.state == "right"


def char_majors(proc_devices: str) -> dict[str, int]:
    """Name -> major of the character devices only (a block device may share a number). Lines that are no entry are passed over."""
    out: dict[str, int] = {}
    section = ""
    for line in proc_devices.splitlines():
        text = line.strip()
        if text.endswith("devices:"):
            section = text
            continue
        number, _, name = text.partition(" ")
        if section == "Character devices:" and number.isascii() and number.isdigit() and name:
            out.setdefault(name.strip(), int(number))
    return out


def live_majors(proc_devices: str) -> dict[str, int]:
    """Majors of the nvidia devices by today's names: nvidia, nvidia-uvm, nvidia-caps, …; `nvidia-frontend` counts as `nvidia`."""
    every = char_majors(proc_devices)
    out = {name: major for name, major in every.items() if name.startswith("nvidia") and name not in FRONTEND}
    for name in FRONTEND:
        if name in every:
            out.setdefault("nvidia", every[name])
    return out


def module_version(text: str) -> str:
    """The loaded module's version out of /proc/driver/nvidia/version; empty when the text is (module not loaded)."""
    for line in text.splitlines():
        if "Kernel Module" in line:
            found = VERSION.search(line.partition("Kernel Module")[2])
            if found:
                return found.group()
    return ""


def information(text: str) -> dict[str, str]:
    """/proc/driver/nvidia/gpus/BUS/information as a mapping (`Device Minor`, `GPU UUID`, `Model`)."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def mig_minors(text: str) -> dict[str, int]:
    """/proc/driver/nvidia-caps/mig-minors: `config` -> 1, `gpu0/gi1/access` -> 12."""
    out = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if name and number.isdigit():
            out[name] = int(number)
    return out


def params_mode(text: str) -> tuple[int, int, int]:
    """(mode, uid, gid) that the driver's own tools give nodes, from /proc/driver/nvidia/params (decimal there)."""
    values = information(text)

    def number(key: str, default: int) -> int:
        value = values.get(key, "")
        return int(value) if value.isdigit() else default

    return number("DeviceFileMode", 0o666) & 0o7777, number("DeviceFileUID", 0), number("DeviceFileGID", 0)


def _caps(dev: str, major: int, caps: Mapping[str, int]) -> list[Node]:
    modes = {"config": 0o400}
    return [
        Node(f"{dev}/nvidia-caps/nvidia-cap{minor}", major, minor, modes.get(name, 0o444)) for name, minor in sorted(caps.items(), key=lambda c: c[1])
    ]


def wanted_nodes(
    majors: Mapping[str, int],
    gpu_minors: Iterable[int],
    *,
    caps: Mapping[str, int] | None = None,
    modeset: bool = False,
    mode: int = 0o666,
    dev: str = "/dev",
) -> tuple[Node, ...]:
    """Every node that a compute guest needs. A missing major of `nvidia` or `nvidia-uvm` is an error that names the module to load."""
    for name, module in (("nvidia", "nvidia"), ("nvidia-uvm", "nvidia-uvm")):
        if name not in majors:
            raise NvidiaError(
                f"/proc/devices has no character device {name!r}: module {module} is not loaded; load it (modprobe {module}) and run again"
            )
    out = [Node(f"{dev}/nvidiactl", majors["nvidia"], CONTROL_MINOR, mode)]
    out += [Node(f"{dev}/nvidia{minor}", majors["nvidia"], minor, mode) for minor in sorted(set(gpu_minors))]
    if modeset:
        out.append(Node(f"{dev}/nvidia-modeset", majors.get("nvidia-modeset", majors["nvidia"]), MODESET_MINOR, mode))
    out += [Node(f"{dev}/nvidia-uvm", majors["nvidia-uvm"], 0, mode), Node(f"{dev}/nvidia-uvm-tools", majors["nvidia-uvm"], 1, mode)]
    if caps and "nvidia-caps" not in majors:
        raise NvidiaError("capability nodes were asked for, and /proc/devices has no character device 'nvidia-caps'")
    return tuple(out + (_caps(dev, majors["nvidia-caps"], caps) if caps else []))


def expected_device(name: str, majors: Mapping[str, int]) -> Tuple[int, int] | None:
    """(major, minor) that a name below /dev should have by the live majors; None for a name that we do not know (minor -1: any)."""
    rules: Tuple[Tuple[str, str, int], ...] = (
        (r"nvidiactl", "nvidia", CONTROL_MINOR),
        (r"nvidia-modeset", "nvidia-modeset" if "nvidia-modeset" in majors else "nvidia", MODESET_MINOR),
        (r"nvidia-uvm", "nvidia-uvm", 0),
        (r"nvidia-uvm-tools", "nvidia-uvm", 1),
        (r"nvidia(\d+)", "nvidia", -1),
        (r"nvidia-caps/nvidia-cap(\d+)", "nvidia-caps", -1),
    )
    for pattern, key, minor in rules:
        found = re.fullmatch(pattern, name)
        if found and key in majors:
            return majors[key], int(found.group(1)) if found.groups() else minor
    return None


def judge_node(node: Node, seen: Stat | None, *, check_mode: bool = True) -> Verdict:
    """What is at the node's path against what should be."""
    if seen is None:
        return Verdict(node, "missing", f"{node.path} is missing")
    if seen.kind == "file":
        empty = ", size 0: the bind's source was missing at start" if seen.size == 0 else f", size {seen.size}"
        return Verdict(node, "regular", f"{node.path} is a regular file{empty}")
    if seen.kind != "char":
        return Verdict(node, "other", f"{node.path} is a {seen.kind}, expected a character device")
    if seen.rdev != (node.major, node.minor):
        found = f"{seen.rdev[0]}:{seen.rdev[1]}"
        return Verdict(node, "stale", f"{node.path} is {found}, the loaded module's number is {node.major}:{node.minor}")
    if check_mode and seen.mode != node.mode:
        return Verdict(node, "mode", f"{node.path} has mode {seen.mode:04o}, expected {node.mode:04o}")
    return Verdict(node, "right", f"{node.path} {node.major}:{node.minor}")


def library_versions(names: Iterable[str], library: str) -> tuple[str, ...]:
    """Versions of `library` among file names (`libcuda.so.570.148.08`), without the soname link (`libcuda.so.1`)."""
    pattern = re.compile(re.escape(library) + r"\.(\d+\.\d+(?:\.\d+)?)")
    found = (pattern.fullmatch(name.rpartition("/")[2]) for name in names)
    return tuple(sorted({match.group(1) for match in found if match}))


def judge_versions(module: str, names: Iterable[str]) -> tuple[bool, str]:
    """Are the libraries in the guest of the loaded module's version, whole string? The text has both sides."""
    listed = list(names)
    if not module:
        return False, "the driver's version file is missing or empty: the nvidia module is not loaded, or /proc/driver/nvidia is not visible here"
    wrong = []
    for library in LIBRARIES:
        found = library_versions(listed, library)
        if found != (module,):
            wrong.append(f"{library}: expected {module}, found {', '.join(found) or 'none'}")
    if not wrong:
        return True, f"libcuda and libnvidia-ml are {module}, as the loaded module"
    return False, "; ".join(wrong) + ". The host's driver moved or the guest keeps old files: install the libraries of the loaded module"


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
