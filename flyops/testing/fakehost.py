# SPDX-License-Identifier: Apache-2.0
"""A host in memory: files with modes and owners, users, groups, and a table of commands with what they print and change."""

from __future__ import annotations

import copy
import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyops.model.host import Completed, Stat

EPOCH = 1_700_000_000.0
ROOT_USER = {"name": "root", "uid": 0, "gid": 0, "home": "/root", "shell": "/bin/bash", "gecos": "root", "groups": []}
UMASK = 0o022
BLOBS = "/.blobs"


class UnexpectedCommand(AssertionError):
    """A module ran something that the fixture's table does not have."""


@dataclass
class Node:
    """One path of the fake host."""

    kind: str
    mode: int
    uid: int = 0
    gid: int = 0
    data: bytes = b""
    target: str = ""
    rdev: tuple[int, int] = (0, 0)
    mtime: float = EPOCH
    atime: float = EPOCH
    inode: int = 0


@dataclass
class Command:
    """A command that the host knows. `argv` must be equal, or begin so when it ends with `...`; `sets` is what running it changes."""

    argv: list[str]
    rc: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    sets: dict[str, Any] = field(default_factory=dict)
    stdin: bytes | None = None

    def fits(self, argv: Sequence[str]) -> bool:
        """Whether this entry answers for `argv`."""
        if self.argv and self.argv[-1] == "...":
            return list(argv[: len(self.argv) - 1]) == self.argv[:-1]
        return list(argv) == self.argv


class FakeHost:
    """In-memory `Host`. `ran` has the commands that may change something, `asked` those that only look."""

    def __init__(self) -> None:
        self.check = False
        self.nodes: dict[str, Node] = {"/": Node("dir", 0o755, inode=1)}
        self.users: dict[str, dict[str, Any]] = {"root": dict(ROOT_USER)}
        self.groups: dict[str, dict[str, Any]] = {"root": {"name": "root", "gid": 0, "members": []}}
        self.commands: list[Command] = []
        self.programs: dict[str, str] = {}
        self.env: dict[str, str] = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        self.ran: list[tuple[str, ...]] = []
        self.asked: list[tuple[str, ...]] = []
        self.stdins: list[bytes] = []
        self.notes: list[str] = []
        self.would_have: list[tuple[str, str, Any]] = []
        self.writes = 0
        self.locks: dict[str, str] = {}

    # building
    def add_dir(self, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        """Make a folder and those above it."""
        parent = posixpath.dirname(path)
        if parent != path and parent not in self.nodes:
            self.add_dir(parent)
        self.nodes[path] = Node("dir", mode, uid, gid, inode=self._inode())

    def add_file(self, path: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """Make a file and the folders above it."""
        self._parents(path)
        self.nodes[path] = Node("file", mode, uid, gid, data, inode=self._inode())

    def add_link(self, path: str, target: str) -> None:
        """Make a symbolic link and the folders above it."""
        self._parents(path)
        self.nodes[path] = Node("link", 0o777, target=target, inode=self._inode())

    def add_blob(self, data: bytes) -> str:
        """Offer content as the controller would; the digest comes back."""
        digest = hashlib.sha256(data).hexdigest()
        self.add_file(f"{BLOBS}/{digest}", data)
        return digest

    def copy(self) -> FakeHost:
        """A twin that shares nothing."""
        return copy.deepcopy(self)

    def tree(self) -> dict[str, tuple[Any, ...]]:
        """Everything that a second run must find unchanged."""
        return {
            path: (n.kind, n.mode, n.uid, n.gid, n.data, n.target, n.mtime, n.inode)
            for path, n in sorted(self.nodes.items())
            if not path.startswith(BLOBS)
        }

    def _parents(self, path: str) -> None:
        parent = posixpath.dirname(path)
        if parent not in self.nodes:
            self.add_dir(parent)

    def _inode(self) -> int:
        return 1 + max(n.inode for n in self.nodes.values())

    # looking
    def _real(self, path: str, *, last: bool) -> str:
        """The path with links in its folders followed, and the last part too when asked."""
        full = posixpath.normpath(posixpath.join("/", path))
        done = "/"
        parts = full.strip("/").split("/") if full != "/" else []
        for number, part in enumerate(parts):
            done = posixpath.join(done, part)
            for _ in range(40):
                node = self.nodes.get(done)
                if node is None or node.kind != "link" or (number == len(parts) - 1 and not last):
                    break
                done = posixpath.normpath(posixpath.join(posixpath.dirname(done), node.target))
        return done

    def stat(self, path: str, *, follow: bool = False) -> Stat | None:
        """As lstat, or stat when followed."""
        node = self.nodes.get(self._real(path, last=follow))
        if node is None or (follow and node.kind == "link"):
            return None
        size = len(node.target) if node.kind == "link" else len(node.data)
        links = sum(1 for other in self.nodes.values() if other.inode == node.inode)
        return Stat(node.kind, node.mode, node.uid, node.gid, size, node.mtime, node.target, node.rdev, node.inode, links)

    def _file(self, path: str) -> Node | None:
        node = self.nodes.get(self._real(path, last=True))
        if node is not None and node.kind == "dir":
            raise IsADirectoryError(21, "Is a directory", path)
        return node

    def read_bytes(self, path: str, *, missing: bytes | None = None) -> bytes:
        """Content of a file; links are followed."""
        node = self._file(path)
        if node is None:
            if missing is not None:
                return missing
            raise FileNotFoundError(2, "No such file or directory", path)
        return node.data

    def read_text(self, path: str, *, missing: str | None = None) -> str:
        """Content as UTF-8."""
        data = self.read_bytes(path, missing=None if missing is None else missing.encode())
        return data.decode("utf-8", "surrogateescape")

    def listdir(self, path: str) -> list[str]:
        """Names in a folder."""
        real = self._real(path, last=True)
        node = self.nodes.get(real)
        if node is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if node.kind != "dir":
            raise NotADirectoryError(20, "Not a directory", path)
        return sorted(posixpath.basename(p) for p in self.nodes if p != "/" and posixpath.dirname(p) == real)

    def sha256(self, path: str) -> str:
        """Digest of a file's content."""
        return hashlib.sha256(self.read_bytes(path)).hexdigest()

    def _entry(self, table: dict[str, dict[str, Any]], name: str, key: str) -> Mapping[str, Any] | None:
        if name in table:
            return table[name]
        return next((e for e in table.values() if str(e.get(key)) == name), None)

    def user(self, name: str) -> Mapping[str, Any] | None:
        """An account by name, or by number as text."""
        return self._entry(self.users, name, "uid")

    def group(self, name: str) -> Mapping[str, Any] | None:
        """A group by name, or by number as text."""
        return self._entry(self.groups, name, "gid")

    def which(self, program: str) -> str | None:
        """Path of a program that the fixture's commands begin with, or of a file that is there."""
        if "/" in program:
            return program if self.stat(program, follow=True) else None
        if program in self.programs:
            return self.programs[program]
        return f"/usr/bin/{program}" if any(c.argv[0] == program for c in self.commands) else None

    def getenv(self, name: str, default: str = "") -> str:
        """A variable of the agent's environment."""
        return self.env.get(name, default)

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
    ) -> Completed:
        """Answer from the table, and take over what the command changes."""
        words = tuple(str(word) for word in argv)
        (self.asked if query else self.ran).append(words)
        if not query:
            self.stdins.append(stdin)
        found = next((c for c in self.commands if c.fits(words)), None)
        if found is None:
            if "/" not in words[0] and self.which(words[0]) is None and words[0] not in self.programs:
                raise FileNotFoundError(2, "No such file or directory", words[0])
            raise UnexpectedCommand(f"not in the fixture's commands: {list(words)}")
        if found.stdin is not None and found.stdin != stdin:
            raise UnexpectedCommand(f"{words[0]}: stdin {stdin!r}, the fixture has {found.stdin!r}")
        if not query:
            self.change(found.sets)
        return Completed(words, found.rc, found.stdout, found.stderr, 0.01)

    def change(self, sets: Mapping[str, Any]) -> None:
        """Take over what a command does: files, dirs, gone, users, groups, commands (which then answer first)."""
        from flyops.testing.fixtures import furnish

        furnish(self, sets, front=True)

    def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """Replace a path by a file, as a rename would: a link is replaced, not followed."""
        real = self._real(path, last=False)
        parent = self.nodes.get(posixpath.dirname(real))
        if parent is None or parent.kind != "dir":
            raise FileNotFoundError(2, "No such file or directory", path)
        old = self.nodes.get(real)
        if old is not None and old.kind == "dir":
            raise IsADirectoryError(21, "Is a directory", path)
        self.writes += 1
        keep = old if old is not None and old.kind == "file" else None
        bits = mode if mode is not None else (keep.mode if keep else 0o666 & ~UMASK)
        owner = uid if uid is not None else (keep.uid if keep else 0)
        group = gid if gid is not None else (keep.gid if keep else 0)
        self.nodes[real] = Node("file", bits, owner, group, bytes(data), mtime=EPOCH + self.writes, inode=self._inode())

    def write_text(self, path: str, text: str, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """As write_bytes, UTF-8."""
        self.write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode, uid=uid, gid=gid)

    def write_through(self, path: str, text: str) -> None:
        """New text in a file that is there; its inode, mode and owner stay."""
        node = self._old(path)
        if node.kind == "dir":
            raise IsADirectoryError(21, "Is a directory", path)
        node.data, node.mtime = text.encode("utf-8", "surrogateescape"), EPOCH + self.writes

    def _new(self, path: str) -> str:
        real = self._real(path, last=False)
        parent = self.nodes.get(posixpath.dirname(real))
        if parent is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        old = self.nodes.get(real)
        if old is not None and old.kind == "dir":
            raise IsADirectoryError(21, "Is a directory", path)
        self.writes += 1
        return real

    def _old(self, path: str, *, last: bool = True) -> Node:
        node = self.nodes.get(self._real(path, last=last))
        if node is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        self.writes += 1
        return node

    def mkdir(self, path: str, *, mode: int | None = None) -> None:
        """Make a folder with its parents; `mode` is for the last one. One that is there is fine."""
        real = self._real(path, last=True)
        missing = [real]
        while posixpath.dirname(missing[0]) not in self.nodes:
            missing.insert(0, posixpath.dirname(missing[0]))
        for folder in missing:
            found = self.nodes.get(folder) or Node("dir", 0o777 & ~UMASK, inode=self._inode())
            if found.kind != "dir":
                raise FileExistsError(17, "File exists", path)
            self.nodes[folder] = found
        self.writes += 1
        if mode is not None:
            self.nodes[real].mode = mode

    def chmod(self, path: str, mode: int) -> None:
        """Set permission bits; a link has none of its own."""
        node = self._old(path, last=False)
        if node.kind != "link":
            node.mode = mode

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Set the owner of the path itself; -1 leaves one alone."""
        node = self._old(path, last=False)
        node.uid, node.gid = node.uid if uid == -1 else uid, node.gid if gid == -1 else gid

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link, replacing a file or link."""
        self.nodes[self._new(path)] = Node("link", 0o777, target=target, inode=self._inode())

    def link(self, target: str, path: str) -> None:
        """Make a hard link, replacing a file or link."""
        node = self._old(target, last=False)
        self.nodes[self._new(path)] = node

    def mknod(self, path: str, mode: int, major: int, minor: int) -> None:
        """Make a device node; `mode` holds the kind and the bits."""
        kind = "block" if mode & 0o170000 == 0o060000 else "char"
        self.nodes[self._new(path)] = Node(kind, mode & 0o7777, rdev=(major, minor), inode=self._inode())

    def rename(self, old: str, new: str) -> None:
        """Move a path over another one."""
        source, target = self._real(old, last=False), self._real(new, last=False)
        self._old(old, last=False)
        self.nodes.pop(target, None)
        moved = [p for p in self.nodes if p == source or p.startswith(source + "/")]
        for path in moved:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)

    def remove(self, path: str) -> None:
        """Remove a file, a link, or a whole tree; nothing there is fine."""
        real = self._real(path, last=False)
        self.writes += 1
        for name in [p for p in self.nodes if p == real or p.startswith(real.rstrip("/") + "/")]:
            del self.nodes[name]

    def utime(self, path: str, atime: float, mtime: float) -> None:
        """Set the times of the path itself."""
        node = self._old(path, last=False)
        node.atime, node.mtime = atime, mtime

    # what came along
    def blob(self, sha256: str) -> str:
        """Where an offered file is."""
        if f"{BLOBS}/{sha256}" not in self.nodes:
            raise FileNotFoundError(2, "no such blob was offered", sha256)
        return f"{BLOBS}/{sha256}"

    def hold_lock(self, path: str, holder: str, wait_s: float) -> str | None:
        """Take a lock, or say who has it."""
        other = self.locks.get(path)
        if other is not None and other != holder:
            return other
        self.locks[path] = holder
        return None

    def note(self, text: str) -> None:
        """Keep a line of progress."""
        self.notes.append(text)

    def would(self, kind: str, name: str, value: Any = True) -> None:
        """Only check mode's overlay makes use of it."""
        self.would_have.append((kind, name, value))
