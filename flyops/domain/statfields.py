# SPDX-License-Identifier: Apache-2.0
"""A path's status as Ansible's stat and find name it."""

from __future__ import annotations

import codecs
from typing import Any, Optional

from flyops.model.host import Stat

KINDS = {"isdir": "dir", "ischr": "char", "isblk": "block", "isreg": "file", "isfifo": "fifo", "islnk": "link", "issock": "socket"}
BITS = {
    "rusr": 0o400,
    "wusr": 0o200,
    "xusr": 0o100,
    "rgrp": 0o040,
    "wgrp": 0o020,
    "xgrp": 0o010,
    "roth": 0o004,
    "woth": 0o002,
    "xoth": 0o001,
    "isuid": 0o4000,
    "isgid": 0o2000,
}


def fields(path: str, stat: Stat) -> dict[str, Any]:
    """Kind, bits, numbers and times."""
    out: dict[str, Any] = {"path": path, "mode": f"{stat.mode:04o}", "uid": stat.uid, "gid": stat.gid, "size": stat.size}
    out.update({name: stat.kind == kind for name, kind in KINDS.items()})
    out.update({name: bool(stat.mode & bit) for name, bit in BITS.items()})
    out.update(inode=stat.inode, nlink=stat.nlink, mtime=stat.mtime)
    out["disk_usage_bytes"] = getattr(stat, "blocks", -(-stat.size // 512)) * 512
    # The host may know more than the protocol promises.
    out.update(atime=getattr(stat, "atime", stat.mtime), ctime=getattr(stat, "ctime", stat.mtime), dev=getattr(stat, "dev", 0))
    return out


def access(stat: Stat, uid: int, groups: list[int]) -> dict[str, bool]:
    """Whether this user may read, write and execute, by the permission bits."""
    shift = 6 if stat.uid == uid else 3 if stat.gid in groups else 0
    bits = (stat.mode >> shift) & 7
    if uid == 0:
        bits = 6 | (1 if stat.mode & 0o111 or stat.kind == "dir" else 0)
    return {"readable": bool(bits & 4), "writeable": bool(bits & 2), "executable": bool(bits & 1)}


HEAD_BYTES = 64 * 1024
INODES = {"dir": "directory", "link": "symlink", "char": "chardevice", "block": "blockdevice", "fifo": "fifo", "socket": "socket"}


def kind_of_content(stat: Stat, head: Optional[bytes]) -> dict[str, str]:
    """mimetype and charset as far as the first bytes tell: text in ASCII or UTF-8, empty, or something else."""
    if stat.kind in INODES:
        return {"mimetype": f"inode/{INODES[stat.kind]}", "charset": "binary"}
    if head is None:
        return {"mimetype": "unknown", "charset": "unknown"}
    if not head:
        return {"mimetype": "inode/x-empty", "charset": "binary"}
    if b"\0" in head:
        return {"mimetype": "application/octet-stream", "charset": "binary"}
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(head)  # a character that the cut took apart is fine
    except UnicodeDecodeError:
        return {"mimetype": "application/octet-stream", "charset": "binary"}
    return {"mimetype": "text/plain", "charset": "us-ascii" if head.isascii() else "utf-8"}
