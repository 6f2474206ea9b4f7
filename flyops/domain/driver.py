# SPDX-License-Identifier: Apache-2.0
"""The driver's user part: which files it is, by capability; which of them belong to a version; what is wrong with a folder of them. Pure.

Versions have two or three parts and are compared as whole strings (570.148.06 beside 570.148.08 does not work). The one source of the wanted
version is the loaded module; never the "NVML library version" that nvidia-smi prints: it is cut to two parts.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Sequence, Tuple

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
DEFAULT_CAPABILITIES = ("compute", "utility")
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
    """Versions of `library` (`libcuda`) among file names, without the soname link (`libcuda.so.1`)."""
    return tuple(sorted({file_version(name) for name in names if file_version(name) and (parts(name) or ("",))[0] == library}))


# a folder of libraries, file by file

LIB_DIRS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64", "/usr/lib", "/usr/local/lib", f"{FOLDER}/lib64", f"{FOLDER}/lib",
)  # fmt: skip
HOPS = 40  # as many links as the kernel follows


def real(path: str, link: Callable[[str], str]) -> str:
    """Where a path ends when every link in it is followed (Debian's go through /etc/alternatives); empty when they go in a circle.

    `link` gives the target of a link, and nothing for what is none.
    """
    done, left, hops = "", [part for part in path.split("/") if part], 0
    while left:
        part = left.pop(0)
        if part in (".", ".."):
            done = done.rpartition("/")[0] if part == ".." else done
            continue
        target = link(f"{done}/{part}")
        if not target:
            done = f"{done}/{part}"
            continue
        hops += 1
        if hops > HOPS:
            return ""
        done = "" if target.startswith("/") else done
        left = [piece for piece in target.split("/") if piece] + left
    return done or "/"


@dataclass(frozen=True)
class File:
    """A path of the driver's. `final`: where a link ends, empty when nowhere; `size`: of what is there in the end."""

    path: str
    kind: str  # file, link, …
    size: int = 0
    final: str = ""


@dataclass(frozen=True)
class Seen:
    """Everything that a look at a guest or host found of the driver's user part."""

    files: Tuple[File, ...] = ()
    tools: Tuple[File, ...] = ()
    linked: Mapping[str, str] | None = None  # SONAME -> the file that the linker's cache leads to, empty when nowhere; None: no cache to ask
    mountinfo: str = ""


@dataclass(frozen=True)
class Survey:
    """What is right and wrong with a driver's user part; all paths, most telling kind of fault first."""

    wanted: str
    versions: Tuple[str, ...] = ()
    missing: Tuple[str, ...] = ()
    unlinked: Tuple[str, ...] = ()
    empty: Tuple[str, ...] = ()
    links: Tuple[str, ...] = ()
    leftovers: Tuple[str, ...] = ()
    gone: Tuple[str, ...] = ()  # bound files that their host has removed since
    tools: Tuple[str, ...] = ()

    @property
    def problems(self) -> Tuple[str, ...]:
        """Each as a sentence that names the path."""
        return (
            *([] if self.wanted else ["no version to compare with: the nvidia module is not loaded, or /proc/driver/nvidia is not visible here"]),
            *self.missing,
            *self.unlinked,
            *(f"{path} is an empty file: the source of its bind was missing at start" for path in self.empty),
            *self.links,
            *(f"{path} is left over from another version than {self.wanted}" for path in self.leftovers),
            *(f"{path} is bound from a file that the host has removed since: it works until this guest's next start" for path in self.gone),
            *self.tools,
        )

    @property
    def verdict(self) -> str:
        """In the field's words."""
        others = [version for version in self.versions if version != self.wanted]
        kinds = (
            (not self.wanted, "driver not loaded"),
            (self.missing and others, f"driver/library version mismatch: module {self.wanted}, libraries {', '.join(others)}"),
            (self.empty, "empty bind targets"),
            (self.missing, f"libraries of {self.wanted} missing"),
            (self.unlinked, f"the linker does not know the libraries of {self.wanted}"),
            (self.links, "a SONAME leads to another version's file"),
            (self.leftovers, f"leftovers of {', '.join(others)} beside {self.wanted}"),
            (self.gone, "mounts predate an upgrade of the host"),
            (self.tools, "tools do not fit"),
        )
        return next((text for wrong, text in kinds if wrong), f"in lockstep with {self.wanted}")


def survey(seen: Seen, wanted: str, capabilities: Sequence[str] = DEFAULT_CAPABILITIES) -> Survey:
    """Every library found against the wanted version, whole string."""
    whole = [file for file in seen.files if file.kind == "file" and file_version(file.path)]
    full = [file for file in whole if file.size]
    here = {parts(file.path)[0] for file in full if file_version(file.path) == wanted}  # type: ignore[index]
    needed = [library for name in capabilities for library in NEEDED[name]]
    paths = [file.path for file in full]
    missing = [
        f"{library}.so: expected {wanted}, found {', '.join(library_versions(paths, library)) or 'none'}"
        for library in needed
        if wanted and library not in here
    ]
    return Survey(
        wanted,
        versions=tuple(sorted({file_version(file.path) for file in full})),
        missing=tuple(missing),
        unlinked=tuple(_unlinked(seen, needed, here)),
        empty=tuple(file.path for file in (*seen.files, *seen.tools) if file.kind == "file" and not file.size),
        links=tuple(_links(seen, wanted, capabilities)),
        leftovers=tuple(file.path for file in full if wanted and file_version(file.path) != wanted),
        gone=gone_mounts(seen.mountinfo),
        tools=tuple(f"{file.path} leads nowhere" for file in seen.tools if file.kind == "link" and not file.size),
    )


def _unlinked(seen: Seen, needed: Sequence[str], here: Iterable[str]) -> list[str]:
    """Libraries that are there and that the linker does not know."""
    if seen.linked is None:
        return []
    return [f"the linker's cache does not know {name}.so.1: run ldconfig" for name in needed if name in here and f"{name}.so.1" not in seen.linked]


def _links(seen: Seen, wanted: str, capabilities: Sequence[str]) -> list[str]:
    out = []
    for file in seen.files:
        if file.kind != "link" or capability(file.path) not in capabilities:
            continue
        version = file_version(file.final)
        if not file.size:
            out.append(f"{file.path} leads {f'to {file.final}, which is empty or missing' if file.final else 'nowhere'}")
        elif version and version != wanted:
            out.append(f"{file.path} leads to {file.final}, expected version {wanted}")
    told = " ".join(out)
    for name, final in (seen.linked or {}).items():
        version = file_version(final)
        if version and version != wanted and capability(name) in capabilities and final not in told:
            out.append(f"the linker takes {final} for {name}, expected version {wanted}")
    return out


_MOUNT = re.compile(r"\d+ \d+ \S+ (?P<root>\S+) (?P<point>\S+) (?P<options>\S+) ")


def _driver_mounts(mountinfo: str) -> list[Tuple[str, str, str]]:
    """(mount point, root, options) of mounts that are files or folders of the driver's."""
    out = []
    for line in mountinfo.splitlines():
        found = _MOUNT.match(line)
        point = found["point"] if found else ""
        name = posixpath.basename(point)
        if found and (parts(name) or name in TOOLS or point.startswith(FOLDER)):
            out.append((point, found["root"], found["options"]))
    return out


def gone_mounts(mountinfo: str) -> Tuple[str, ...]:
    """Mount points of the driver's whose source was removed after the mount: a running guest keeps it, its next start has nothing to bind."""
    return tuple(point for point, root, _ in _driver_mounts(mountinfo) if root.endswith("//deleted"))


def mounted(mountinfo: str) -> Tuple[str, ...]:
    """Mount points of the driver's: where nothing can be installed."""
    return tuple(point for point, _, _ in _driver_mounts(mountinfo))


def writable_mounts(mountinfo: str) -> Tuple[str, ...]:
    """Mount points of the driver's through which the guest could change the host's files."""
    return tuple(point for point, _, options in _driver_mounts(mountinfo) if "ro" not in options.split(","))


# the installer and the toolkit


def installer_errors(log: str) -> Tuple[str, ...]:
    """The errors of nvidia-installer's log, each in one line; its closing words (see the log, see the README) are left out."""
    out: list[str] = []
    inside = False
    for line in log.splitlines():
        if line.startswith("ERROR: "):
            out.append(line[len("ERROR: ") :].strip())
            inside = True
        elif inside and line.startswith(" " * len("ERROR: ")) and line.strip():
            out[-1] += " " + line.strip()
        else:
            inside = False
    return tuple(text for text in out if not text.startswith("Installation has failed"))


RUN_NAME = re.compile(r"NVIDIA-Linux-(?P<arch>x86_64|aarch64|x86)-(?P<version>\d+\.\d+(?:\.\d+)?)(?:-[A-Za-z0-9.-]+)?\.run")
KERNEL_OPTION = ("--no-kernel-modules", "--no-kernel-module")  # never the kernel part; the name grew an s
RUN_OPTIONS = ("--silent", "--no-x-check", "--no-nouveau-check", "--no-rebuild-initramfs", "--no-nvidia-modprobe", "--no-dkms")


def run_words(help_text: str) -> Tuple[str, ...]:
    """The options for an installer whose help is given; empty when it has no way to leave the kernel part out."""
    known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", help_text))
    kernel = [word for word in KERNEL_OPTION if word in known][:1]
    return tuple(kernel + [word for word in RUN_OPTIONS if word in known]) if kernel else ()


def unlisted(listed: str, files: Iterable[str], version: str) -> Tuple[str, ...]:
    """Files of this driver that `nvidia-container-cli list` leaves out: a toolkit older than the driver does not know them."""
    names = {posixpath.basename(line.strip()) for line in listed.splitlines() if line.strip()}
    own = [path for path in files if file_version(path) == version and capability(path) in DEFAULT_CAPABILITIES]
    return tuple(path for path in own if posixpath.basename(path) not in names) if names else ()


# packages


PACKAGE_SETS: Tuple[Tuple[str, ...], ...] = (
    ("libnvidia-compute-{major}", "nvidia-utils-{major}"),  # Ubuntu
    ("libnvidia-compute-{major}-server", "nvidia-utils-{major}-server"),
    ("libcuda1", "libnvidia-ml1", "nvidia-smi"),  # Debian
    ("libcuda1", "nvidia-driver-cuda"),  # NVIDIA's repository for Debian
)


def upstream(package_version: str) -> str:
    """The driver's version in a package's (`1:570.148.08-0ubuntu1` -> `570.148.08`)."""
    return package_version.rpartition(":")[2].partition("-")[0]


def madison(text: str) -> Mapping[str, Tuple[str, ...]]:
    """Package -> versions that its repositories offer, newest first, from `apt-cache madison`."""
    out: dict[str, list[str]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and not fields[2].endswith("Sources"):
            out.setdefault(fields[0], []).append(fields[1])
    return {name: tuple(dict.fromkeys(versions)) for name, versions in out.items()}


def exact(offered: Mapping[str, Sequence[str]], names: Sequence[str], version: str) -> Mapping[str, str]:
    """Package -> the offered version whose driver is exactly this one; empty unless all of them are offered so."""
    found = {name: next((v for v in offered.get(name, ()) if upstream(v) == version), "") for name in names}
    return found if all(found.values()) else {}


def siblings(depends: str, version: str) -> Tuple[str, ...]:
    """Packages that `Depends:` names with exactly this version: apt would take their newest, and then refuse, unless they are asked for, too."""
    return tuple(name for name, wanted in re.findall(r"([a-z0-9][a-z0-9+.-]*)(?::any)? \(= ([^)]+)\)", depends) if wanted == version)
