# SPDX-License-Identifier: Apache-2.0
"""A disk limit of an LXC guest that the kernel enforces: its own files live in an ext4 image of that size, mounted before it starts. Pure.

The image is sparse: what the guest has not written takes no room on the host, and what the image may hold is not set aside.
"""

from __future__ import annotations

import re
from typing import List, Mapping

HOOK = "mount-disk"  # a file in the guest's folder, run by LXC before each start, so that a reboot of the host needs nobody
SMALLEST = 128 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
TOOLS: Mapping[str, str] = {
    "mkfs.ext4": "e2fsprogs",
    "resize2fs": "e2fsprogs",
    "dumpe2fs": "e2fsprogs",
    "losetup": "util-linux",
    "mountpoint": "util-linux",
}


class DiskError(ValueError):
    """A disk limit that cannot be given; the text says what was found and what to do."""


def size(asked: str, has: int, exists: bool) -> int:
    """Bytes of the image for `asked`; empty keeps what there is; 0 is a guest without a limit of its own."""
    if not asked.strip():
        return has
    found = SIZE.fullmatch(asked.strip())
    wanted = int(found.group(1)) * UNITS.get(found.group(2).upper(), 1) if found else -1
    if wanted < 0:
        raise DiskError(f"disk: expected a size such as 8G, found {asked!r}")
    if wanted < SMALLEST:
        raise DiskError(f"disk: {asked!r} is {wanted} bytes: a guest with systemd needs at least 128M")
    wanted -= wanted % 4096
    if exists and not has:
        raise DiskError(
            f"disk: the guest was made without a limit and its files are outside an image, asked {asked}: retire it and provision it anew"
        )
    if wanted < has:
        raise DiskError(f"disk: the guest's image has {has} bytes, asked {wanted}: an image only grows; retire it and provision it anew")
    return wanted


def hook(image: str, mountpoint: str) -> str:
    """The text of the script that LXC runs before a start."""
    return f"#!/bin/sh\n# Written by flyops: the guest's own files are in an image of limited size.\n{mount_script(image, mountpoint)}\n"


def mount_script(image: str, mountpoint: str) -> str:
    """Mounts the image unless it is."""
    return f"mountpoint -q {quoted(mountpoint)} || mount -o loop,noatime {quoted(image)} {quoted(mountpoint)}"


def quoted(text: str) -> str:
    """A word for a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def make_command(image: str, bytes_: int) -> List[str]:
    """The image with its file system appears whole or not at all."""
    script = 'rm -f "$1.part" && truncate -s "$2" "$1.part" && mkfs.ext4 -q -F -m 0 "$1.part" && mv -T "$1.part" "$1"'
    return ["sh", "-c", script, "sh", image, str(bytes_)]


def grow_live(image: str, mountpoint: str, bytes_: int, before: int) -> List[str]:
    """A larger image while the guest runs; a kernel or a machine that forbids it leaves the image as it was."""
    script = """loop=$(losetup -n -O NAME -j "$1" | head -n 1)
truncate -s "$3" "$1" && losetup -c "$loop" && resize2fs "$loop" && sync -f "$2" && exit 0
truncate -s "$4" "$1"; losetup -c "$loop"; exit 1"""
    return ["sh", "-c", script, "sh", image, mountpoint, str(bytes_), str(before)]


def grow_still(image: str, mountpoint: str, bytes_: int) -> List[str]:
    """A larger image of a stopped guest: made beside it, so that it appears whole or not at all."""
    script = """set -e
if mountpoint -q "$2"; then umount "$2"; fi
cp --sparse=always "$1" "$1.part"
truncate -s "$3" "$1.part"
e2fsck -fp "$1.part" >/dev/null || [ $? = 1 ]
resize2fs "$1.part"
mv -T "$1.part" "$1"
"""
    return ["sh", "-c", script, "sh", image, mountpoint, str(bytes_)]


def read_size(dumpe2fs: str) -> int:
    """Bytes of the file system, from `dumpe2fs -h`: what a guest has, whatever the length of the file."""
    found = dict(line.partition(":")[::2] for line in dumpe2fs.splitlines() if ":" in line)
    count, block = (found.get(key, "").strip() for key in ("Block count", "Block size"))
    return int(count) * int(block) if count.isdigit() and block.isdigit() else 0
