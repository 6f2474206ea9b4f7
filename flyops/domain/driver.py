# SPDX-License-Identifier: Apache-2.0
"""The driver's user part: which files it is, by capability; which of them belong to a version; what is wrong with a folder of them. Pure.

Versions have two or three parts and are compared as whole strings (570.148.06 beside 570.148.08 does not work). The one source of the wanted
version is the loaded module; never the "NVML library version" that nvidia-smi prints: it is cut to two parts.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence, Tuple

FOLDER = "/usr/local/nvidia"  # the driver's user part inside a guest that gets the host's
LINKER_CONF = "/etc/ld.so.conf.d/00-flyops-nvidia.conf"  # 00: before what an image may bring along
LINKER_TEXT = f"{FOLDER}/lib64\n"
TOOL_FOLDER = "/usr/local/bin"

CAPABILITIES: Mapping[str, Tuple[str, ...]] = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"),
    "compute": (
        "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp", "libnvidia-ptxjitcompiler", "libnvidia-fatbinaryloader",
        "libnvidia-allocator", "libnvidia-compiler", "libnvidia-pkcs11", "libnvidia-pkcs11-openssl3", "libnvidia-nvvm", "libnvidia-tileiras",
    ),
    "video": ("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),
    "graphics": (
        "libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi", "libnvidia-fbc", "libnvidia-ifr", "libnvidia-rtcore",
        "libnvoptix", "libGLX_nvidia", "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia", "libnvidia-glvkspirv", "libnvidia-cbl",
    ),
    "ngx": ("libnvidia-ngx",),
}  # fmt: skip
NEEDED: Mapping[str, Tuple[str, ...]] = {
    "utility": ("libnvidia-ml",),
    "compute": ("libcuda",),
    "video": ("libnvidia-encode",),
    "graphics": ("libnvidia-glcore",),
    "ngx": ("libnvidia-ngx",),
}  # without which the capability is not there; the others come and go with the versions
TOOLS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
HOST_ONLY = ("nvidia-persistenced", "nv-fabricmanager", "nvidia-modprobe")  # they act on the machine's cards: never in a guest
DEFAULT_CAPABILITIES = ("compute", "utility")
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
WIDE = frozenset({"x86-64", "AArch64"})  # 64-bit entries of ldconfig -p; a bare libc6 is i386, `hard-float` 32-bit ARM

_EVERY = {library: capability for capability, libraries in CAPABILITIES.items() for library in libraries}
_NAME = re.compile(r"(lib[A-Za-z0-9_-]+)\.so(?:\.(\d+(?:\.\d+)*))?")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_CACHE = re.compile(r"\s*(\S+) \(([^)]*)\) => (\S+)")


def parts(name: str) -> Tuple[str, str] | None:
    """(`libcuda`, `570.148.08`) of a file name or path of the driver's; the second is `1` or empty for a link's name; None: not the driver's."""
    found = _NAME.fullmatch(posixpath.basename(name))
    return (found.group(1), found.group(2) or "") if found and found.group(1) in _EVERY else None


def file_version(name: str) -> str:
    """The driver's version in a library's file name; empty for a SONAME, a linker name and what is not the driver's."""
    found = parts(name)
    return found[1] if found and _VERSION.fullmatch(found[1]) else ""


def capability(name: str) -> str:
    """What a library is for (`compute`, …); empty when it is not the driver's."""
    found = parts(name)
    return _EVERY[found[0]] if found else ""


def driver_files(names: Iterable[str], version: str, capabilities: Sequence[str] = DEFAULT_CAPABILITIES) -> Tuple[str, ...]:
    """Among the file names of a library folder: the driver's user libraries of exactly this version. Never a kernel part."""
    return tuple(sorted(n for n in names if version and file_version(n) == version and capability(n) in capabilities))


@dataclass(frozen=True)
class Cached:
    """A line of `ldconfig -p`."""

    name: str
    path: str
    wide: bool  # 64-bit


def cache(ldconfig: str) -> Tuple[Cached, ...]:
    """The linker's cache as `ldconfig -p` prints it, in its order: of two entries of one name and width the first is taken."""
    out = []
    for line in ldconfig.splitlines():
        found = _CACHE.fullmatch(line.rstrip())
        if found:
            flags = [flag.strip() for flag in found.group(2).split(",")]
            out.append(Cached(found.group(1), found.group(3), any(flag in WIDE for flag in flags)))
    return tuple(out)


def library_folders(ldconfig: str, names: Sequence[str] = ("libcuda.so.1",)) -> Tuple[str, ...]:
    """Folders of these libraries in the output of `ldconfig -p`, 64-bit ones only."""
    return tuple(dict.fromkeys(posixpath.dirname(entry.path) for entry in cache(ldconfig) if entry.wide and entry.name in names))


def library_versions(names: Iterable[str], library: str) -> Tuple[str, ...]:
    """Versions of `library` (`libcuda.so`) among file names, without the soname link (`libcuda.so.1`)."""
    wanted = library.partition(".so")[0]
    return tuple(sorted({file_version(name) for name in names if file_version(name) and (parts(name) or ("",))[0] == wanted}))


def judge_versions(module: str, names: Iterable[str]) -> Tuple[bool, str]:
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
