# SPDX-License-Identifier: Apache-2.0
"""What an operation needs of this machine, said in one line with how to get it. Nothing is installed here."""

from __future__ import annotations

import os
import shutil

from flyops.errors import UsageError

HOW = {
    "cargo": "install Rust 1.90 or newer with rustup, or deploy a prebuilt release: --release flysim-VERSION.tar.gz",
    "cc": "apt install gcc, or deploy a prebuilt release: --release flysim-VERSION.tar.gz",
    "ldd": "apt install libc-bin",
    "lxc-start": "apt install lxc",
    "mmdebstrap": "apt install mmdebstrap, or bring a root file system: --rootfs TAR",
    "supervisord": "run through ./fly, whose environment has it",
}


def program(name: str, purpose: str) -> str:
    """The path of a program, or a UsageError of one line: what is missing, what for, how to get it."""
    path = shutil.which(name)
    if path is None:
        raise UsageError(f"{name} is missing, needed to {purpose}: {HOW.get(name, f'apt install {name}')}")
    return path


def root(purpose: str) -> None:
    """Refuses to go on as an ordinary user."""
    if os.geteuid() != 0:
        raise UsageError(f"root is needed to {purpose}: run the same command with sudo")
