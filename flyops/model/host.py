# SPDX-License-Identifier: Apache-2.0
"""What a module may do to the host it runs on. Three implementations: the real host (flyops.agent), the overlay of check mode, the fake of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Stat:
    """A path as lstat (or stat, when followed) saw it."""

    kind: str  # file | dir | link | char | block | fifo | socket
    mode: int  # permission bits only, 0o0000 to 0o7777
    uid: int
    gid: int
    size: int
    mtime: float
    target: str = ""  # of a link
    rdev: tuple[int, int] = (0, 0)  # major, minor of a device node
    inode: int = 0
    nlink: int = 1


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    argv: tuple[str, ...]
    rc: int
    stdout: bytes
    stderr: bytes
    seconds: float = 0.0


class Host(Protocol):
    """Reads never change anything. Writes are atomic: temporary file in the same folder, fsync, mode and owner, rename.

    In check mode a module gets an overlay: writes land in memory, later reads of the same run see them, and `run`
    is refused unless it is `query=True` (a command that only looks).
    """

    check: bool

    # looking
    def stat(self, path: str, *, follow: bool = False) -> Stat | None: ...
    def read_bytes(self, path: str, *, missing: bytes | None = None) -> bytes: ...
    def read_text(self, path: str, *, missing: str | None = None) -> str: ...
    def listdir(self, path: str) -> list[str]: ...
    def sha256(self, path: str) -> str: ...
    def user(self, name: str) -> Mapping[str, Any] | None: ...
    def group(self, name: str) -> Mapping[str, Any] | None: ...
    def which(self, program: str) -> str | None: ...
    def getenv(self, name: str, default: str = "") -> str: ...

    # acting
    def run(
        self,
        argv: Sequence[str],
        *,
        query: bool = False,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completed: ...
    def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None: ...
    def write_text(self, path: str, text: str, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None: ...
    def write_through(self, path: str, text: str) -> None: ...  # the one write that is not atomic: it keeps the file's inode
    def mkdir(self, path: str, *, mode: int | None = None) -> None: ...
    def chmod(self, path: str, mode: int) -> None: ...
    def chown(self, path: str, uid: int, gid: int) -> None: ...
    def symlink(self, target: str, path: str) -> None: ...
    def link(self, target: str, path: str) -> None: ...
    def mknod(self, path: str, mode: int, major: int, minor: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...  # a file, a link, or a whole tree; links are not followed
    def utime(self, path: str, atime: float, mtime: float) -> None: ...

    # what came along with the task
    def blob(self, sha256: str) -> str: ...  # path of a local, verified copy of a file the controller offered
    def hold_lock(self, path: str, holder: str, wait_s: float) -> str | None: ...  # None: held until the agent ends; else who holds it
    def note(self, text: str) -> None: ...  # a line of progress for the display; never needed for the result
    def would(self, kind: str, name: str, value: Any = True) -> None: ...  # check mode: remember that this user/group/package/service would exist
