# SPDX-License-Identifier: Apache-2.0
"""The base of guests: a folder with a small Debian, made once and shared by all of them as the lower layer of their overlays.

It is kept in the cache by the hash of its recipe, or of the tar it came from, and is never changed once it is there.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from flyops import places
from flyops.errors import FlyopsError, UsageError
from flyops.operations import needs
from flyops.operations.progress import Progress

SUITE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "iproute2", "sysstat", "sudo", "procps")
EXCLUDED = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/share/i18n/*", "/usr/share/zoneinfo/*")
# What the guest does without, or what is this machine's and not the guest's (its name, its name servers, its identity).
GONE = ("var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*.log", "usr/lib/udev/hwdb.*", "etc/hostname", "etc/resolv.conf", "etc/machine-id")
EMPTY = ("etc/machine-id", "etc/resolv.conf")  # empty means: made at the first boot, in the guest's own layer
PROOF = ("usr/lib/systemd/systemd", "usr/bin/python3")
PIECE = 1 << 20


def place(tar: str = "") -> Path:
    """Where the base is, or would be made: by the hash of the recipe or of the tar; a folder that is named stays where it is."""
    if tar and os.path.isdir(tar):
        return _proven(Path(tar).resolve(), f"the folder {tar}")
    return places.cache("rootfs", _digest(tar) if tar else recipe_key())


def ensure(tar: str = "") -> Path:
    """The folder of the base: from a tar (or an unpacked folder) when one is named, else made from Debian's packages. Root only."""
    base = place(tar)
    if tar:
        return _kept(base, lambda folder, progress: unpack(Path(tar), folder, progress), f"unpacking {tar}")
    return _kept(base, build, "making the guests' base")


def recipe_key() -> str:
    """Twelve digits that change with anything that makes the base another one."""
    recipe = json.dumps([SUITE, PACKAGES, EXCLUDED, GONE, EMPTY, os.uname().machine])
    return f"{SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _digest(tar: str) -> str:
    try:
        with open(tar, "rb") as stream:
            return f"tar-{hashlib.file_digest(stream, 'sha256').hexdigest()[:12]}"
    except OSError as error:
        raise UsageError(f"--rootfs {tar}: {error.strerror or error}") from None


def _proven(folder: Path, source: str) -> Path:
    lacking = [path for path in PROOF if not os.path.lexists(folder / path)]
    if lacking:
        raise UsageError(f"{source} is no guest's root file system: it has no {' and no '.join(lacking)}", fix="give one with systemd and python3")
    return folder


def _kept(base: Path, make: Callable[[Path, Progress], None], title: str) -> Path:
    home = base.parent
    if base.is_dir():
        return base
    needs.root("make a guest's file system")
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home / ".lock"), _workshop(home) as shop:
        if not base.is_dir():  # else another run made it while we waited
            shop.chmod(0o755)
            with Progress(title) as progress:
                make(shop, progress)
                _proven(shop, title)
            shop.rename(base)
    return base


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _workshop(home: Path) -> Iterator[Path]:
    """A folder beside the final place; what earlier runs left behind when they were killed goes as well."""
    for old in home.glob(".part-*"):
        shutil.rmtree(old, ignore_errors=True)
    shop = Path(tempfile.mkdtemp(prefix=".part-", dir=home))
    try:
        yield shop
    finally:
        shutil.rmtree(shop, ignore_errors=True)


def build(folder: Path, progress: Progress) -> None:
    """Debian's minimal system with systemd and Python, by mmdebstrap."""
    argv = [needs.program("mmdebstrap", "make the guests' base"), "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    argv += [f"--dpkgopt=path-exclude={path}" for path in EXCLUDED]
    process = subprocess.Popen([*argv, SUITE, str(folder)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    last: deque[str] = deque(maxlen=12)
    for line in cast("IO[str]", process.stderr):
        last.append(line.rstrip())
        if line.startswith("I: "):
            progress.show(line[3:].strip())
    if process.wait() != 0:
        raise FlyopsError(
            "mmdebstrap failed:\n  " + "\n  ".join(last), fix="check that this machine reaches a Debian mirror, or bring a system: --rootfs TAR"
        )
    trim(folder)


def trim(folder: Path) -> None:
    """Takes out what no guest needs and what belongs to the machine that made the base."""
    for pattern in GONE:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in EMPTY:
        (folder / name).touch(mode=0o644)


def unpack(tar: Path, folder: Path, progress: Progress) -> None:
    """A .tar.xz, .tar.gz or .tar into the folder. Python decompresses, as not every machine has xz."""
    size = tar.stat().st_size
    argv = [needs.program("tar", "unpack a root file system"), "--numeric-owner", "-xpf", "-", "--exclude=./dev/*", "-C", str(folder)]
    with tar.open("rb") as raw, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        sink = cast("IO[bytes]", process.stdin)
        trouble = ""
        try:
            with _opened(raw) as stream:
                while piece := stream.read(PIECE):
                    sink.write(piece)
                    progress.show(f"{100 * raw.tell() // max(size, 1)} %")
            sink.close()
        except (OSError, EOFError, lzma.LZMAError) as error:
            trouble = str(error)
            process.kill()
        code = process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip().splitlines()
    if trouble or code != 0:
        raise UsageError(f"{tar} cannot be unpacked: {trouble or '; '.join(said[-3:])}", fix="bring a whole .tar.xz, .tar.gz or .tar")


def _opened(raw: IO[bytes]) -> IO[bytes]:
    head = raw.read(6)
    raw.seek(0)
    if head == b"\xfd7zXZ\x00":
        return cast("IO[bytes]", lzma.open(raw))
    if head[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.open(raw))
    if head[:4] == b"\x28\xb5\x2f\xfd":
        raise OSError("it is compressed with zstd, which Python does not read")
    # Not `raw` itself: the caller closes what it gets, and goes on asking `raw` how far it is.
    return os.fdopen(os.open(raw.name, os.O_RDONLY), "rb")
