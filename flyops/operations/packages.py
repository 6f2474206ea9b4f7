# SPDX-License-Identifier: Apache-2.0
"""Single packages for their files, not to be imported: fetched by a hashed lock, without dependencies, into the cache."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from flyops import bootstrap, places
from flyops.errors import FlyopsError
from flyops.operations.progress import Progress
from flyops.operations.release import scratch


class FetchError(FlyopsError, OSError):
    """A package that cannot be had, or is not the one of the lock."""


def fetch(lock: str, name: str) -> Path:
    """The folder with the files of package `name` at the version and hash of `requirements/LOCK.txt`."""
    pin = _pin((places.REPOSITORY / "requirements" / f"{lock}.txt").read_text(), name)
    folder = places.cache("packages", f"{name}-{hashlib.sha256(pin.encode()).hexdigest()[:16]}")
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder) as work, Progress(f"fetching {pin.split()[0]}"):
        pinned = work / "pin.txt"
        pinned.write_text(pin)
        _install(pinned, work / "files", name)
        try:
            (work / "files").rename(folder)
        except OSError:
            if not folder.is_dir():  # another run may have been quicker
                raise
    return folder


def _pin(lock: str, name: str) -> str:
    blocks = re.findall(r"^(?:[\w.-]+==.*(?:\n[ \t]+.*)*)", lock, re.MULTILINE)
    for block in blocks:
        if block.partition("==")[0].lower().replace("_", "-") == name:
            return f"{block}\n"
    raise FetchError(f"{name} is not in the lock", fix="add it to its .in file and compile the lock (CONTRIBUTING.md)")


def _install(pinned: Path, target: Path, name: str) -> None:
    wheels = os.environ.get(bootstrap.OFFLINE, "")
    source = ["--no-index", "--find-links", wheels] if wheels else []
    options = ["--no-deps", "--require-hashes", "--no-compile", "--no-input", "--quiet", "--disable-pip-version-check"]
    try:
        command = [*bootstrap.pip(), "install", *options, *source, "--target", str(target), "-r", str(pinned)]
    except bootstrap.BootstrapError as error:
        raise FetchError(str(error)) from error
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr[-1500:])
        raise FetchError(
            f"{name} could not be fetched (see above)", fix="a network is needed once, or ./fly --offline WHEELS with its wheel in the folder"
        )
