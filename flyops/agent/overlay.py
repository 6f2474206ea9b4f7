# SPDX-License-Identifier: Apache-2.0
"""Check mode's host: reads see the real one through what earlier tasks would have made; nothing reaches the disk."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat as st
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from flyops.agent.host import RealHost, refuse_system_folder
from flyops.agent.writes import WriteLog, logged
from flyops.model.host import Completed, Stat

LINKS_MAX = 40


class OverlayStop(BaseException):
    """A command that may change something was asked for in check mode. Not an Exception: no module may swallow it."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(f"would run {' '.join(argv)}")
        self.argv = tuple(argv)


@dataclass(frozen=True)
class Entry:
    """A would-be path. `data` None: the bytes are still those of `backing` on the disk. `fresh`: nothing of the disk shows below it."""

    stat: Stat
    data: Optional[bytes] = None
    backing: str = ""
    fresh: bool = False


class OverlayHost:
    """A host whose changes stay in memory; one per agent for a whole --check run."""

    check = True

    def __init__(self, real: RealHost) -> None:
        self.real = real
        self.write_log = WriteLog()  # what may not be written would not be written either
        self._entries: Dict[str, Optional[Entry]] = {}  # None: removed
        self._would: Dict[Tuple[str, str], Any] = {}

    @property
    def env(self) -> Dict[str, str]:
        """The task's environment."""
        return self.real.env

    @env.setter
    def env(self, value: Dict[str, str]) -> None:
        self.real.env = value

    # paths

    def _at(self, path: str) -> Entry | None:
        """What is at a path whose parents are already resolved: the overlay first, then the disk."""
        if path in self._entries:
            return self._entries[path]
        parent = os.path.dirname(path)
        while parent != "/":
            if parent in self._entries:
                over = self._entries[parent]
                if over is None or over.fresh:
                    return None
                if over.backing and over.backing != parent:
                    moved = over.backing + path[len(parent) :]
                    seen = self.real.stat(moved)
                    return Entry(seen, backing=moved) if seen else None
                break
            parent = os.path.dirname(parent)
        seen = self.real.stat(path)
        return Entry(seen, backing=path) if seen else None

    def _resolve(self, path: str, follow: bool) -> str:
        """Absolute path with its links followed, the last one only when asked."""
        todo = [part for part in os.path.abspath(path).split("/") if part]
        here = "/"
        links = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                here = os.path.dirname(here)
                continue
            there = os.path.join(here, part)
            entry = self._at(there)
            if entry and entry.stat.kind == "link" and (todo or follow):
                links += 1
                if links > LINKS_MAX:
                    raise OSError(40, "Too many levels of symbolic links", path)
                target = entry.stat.target
                here = "/" if target.startswith("/") else here
                todo = [p for p in target.split("/") if p and p != "."] + todo
                continue
            here = there
        return here

    def _need(self, path: str, follow: bool = False) -> tuple[str, Entry]:
        where = self._resolve(path, follow)
        entry = self._at(where)
        if entry is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return where, entry

    def _need_parent(self, path: str) -> str:
        where = self._resolve(path, False)
        parent = self._at(os.path.dirname(where)) if os.path.dirname(where) != "/" else None
        if os.path.dirname(where) != "/" and parent is None:
            raise FileNotFoundError(2, "No such file or directory", os.path.dirname(path))
        if parent is not None and parent.stat.kind != "dir":
            raise NotADirectoryError(20, "Not a directory", os.path.dirname(path))
        return where

    # looking

    def stat(self, path: str, *, follow: bool = False) -> Stat | None:
        """What would be there, or None."""
        if os.path.abspath(path) == "/":
            return self.real.stat("/")
        entry = self._at(self._resolve(path, follow))
        return entry.stat if entry else None

    def read_bytes(self, path: str, *, missing: bytes | None = None) -> bytes:
        """The bytes that would be there."""
        entry = self._at(self._resolve(path, True))
        if entry is None:
            if missing is None:
                raise FileNotFoundError(2, "No such file or directory", path)
            return missing
        if entry.data is not None:
            return entry.data
        return self.real.read_bytes(entry.backing or path)

    def read_text(self, path: str, *, missing: str | None = None) -> str:
        """As UTF-8."""
        data = self.read_bytes(path, missing=None if missing is None else missing.encode("utf-8", "surrogateescape"))
        return data.decode("utf-8", "surrogateescape")

    def listdir(self, path: str) -> list[str]:
        """Names that would be in a folder."""
        where = self._resolve(path, True)
        entry = self._at(where) if where != "/" else None
        if where != "/" and entry is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        names = set() if entry and entry.fresh else set(self.real.listdir((entry.backing if entry else "") or where))
        prefix = where.rstrip("/") + "/"
        for other, over in self._entries.items():
            rest = other[len(prefix) :] if other.startswith(prefix) else ""
            if rest and "/" not in rest:
                names.add(rest) if over else names.discard(rest)
        return sorted(names)

    def sha256(self, path: str) -> str:
        """Digest of the bytes that would be there."""
        entry = self._need(path, follow=True)[1]
        if entry.data is not None:
            return hashlib.sha256(entry.data).hexdigest()
        return self.real.sha256(entry.backing or path)

    def user(self, name: str) -> Mapping[str, Any] | None:
        """A real user, or one that an earlier task would have made."""
        return self._person("user", name, self.real.user(name))

    def group(self, name: str) -> Mapping[str, Any] | None:
        """A real group, or one that an earlier task would have made."""
        return self._person("group", name, self.real.group(name))

    def _person(self, kind: str, name: str, real: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        value = self._would.get((kind, name), real)
        if value is True:  # its number is the system's to give
            number = 65533
            value = {"name": name, "uid": number, "gid": number, "home": f"/home/{name}", "shell": "", "gecos": "", "groups": [], "members": []}
        return value or None

    def which(self, program: str) -> str | None:
        """Where a program is or would be."""
        return self.real.which(program) or self._would.get(("program", program))

    def getenv(self, name: str, default: str = "") -> str:
        """A variable of the environment."""
        return self.real.getenv(name, default)

    def would_be(self, kind: str, name: str, default: Any = None) -> Any:
        """What an earlier task of this check run said with `would`."""
        return self._would.get((kind, name), default)

    # acting, in memory

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
        """Only a command that looks is run."""
        if not query:
            raise OverlayStop(argv)
        return self.real.run(argv, query=True, stdin=stdin, cwd=cwd, env=env, timeout=timeout)

    @logged("write")
    def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """Remember the file."""
        where = self._need_parent(path)
        old = self._at(where)
        if old and old.stat.kind == "dir":
            raise IsADirectoryError(21, "Is a directory", path)
        kept = old.stat if old and old.stat.kind == "file" else None
        seen = kept or Stat("file", 0o666 & ~_umask(), os.geteuid(), os.getegid(), 0, 0.0)
        self._entries[where] = Entry(
            replace(
                seen,
                mode=seen.mode if mode is None else mode,
                uid=seen.uid if uid is None else uid,
                gid=seen.gid if gid is None else gid,
                size=len(data),
                mtime=time.time(),
            ),
            data=data,
        )

    def write_text(self, path: str, text: str, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """Remember the file."""
        self.write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode, uid=uid, gid=gid)

    @logged("write", follow=True)
    def write_through(self, path: str, text: str) -> None:
        """Remember the new text of a file that is there."""
        where, entry = self._need(path, follow=True)
        data = text.encode("utf-8", "surrogateescape")
        self._entries[where] = replace(entry, stat=replace(entry.stat, size=len(data), mtime=time.time()), data=data)

    @logged("mkdir", follow=True)
    def mkdir(self, path: str, *, mode: int | None = None) -> None:
        """Remember the folder and its parents."""
        where = self._resolve(path, True)
        missing = []
        while where != "/" and self._at(where) is None:
            missing.append(where)
            where = os.path.dirname(where)
        above = self._at(where) if where != "/" else None
        if above and above.stat.kind != "dir":
            raise NotADirectoryError(20, "Not a directory", path)
        for folder in reversed(missing):
            self._entries[folder] = Entry(Stat("dir", 0o777 & ~_umask(), os.geteuid(), os.getegid(), 4096, time.time()), fresh=True)
        if mode is not None:
            self.chmod(path, mode)

    def _update(self, path: str, **values: Any) -> None:
        where, entry = self._need(path)
        self._entries[where] = replace(entry, stat=replace(entry.stat, **values))

    @logged("chmod")
    def chmod(self, path: str, mode: int) -> None:
        """Remember the mode; a link has none of its own."""
        if self._need(path)[1].stat.kind != "link":
            self._update(path, mode=mode)

    @logged("chown")
    def chown(self, path: str, uid: int, gid: int) -> None:
        """Remember owner and group."""
        seen = self._need(path)[1].stat
        self._update(path, uid=seen.uid if uid == -1 else uid, gid=seen.gid if gid == -1 else gid)

    @logged("link", 1)
    def symlink(self, target: str, path: str) -> None:
        """Remember the link."""
        self._entries[self._need_parent(path)] = Entry(Stat("link", 0o777, os.geteuid(), os.getegid(), len(target), time.time(), target))

    @logged("link", 1)
    def link(self, target: str, path: str) -> None:
        """Remember the hard link."""
        self._entries[self._need_parent(path)] = self._need(target)[1]

    @logged("mknod")
    def mknod(self, path: str, mode: int, major: int, minor: int) -> None:
        """Remember the node."""
        kind = "block" if st.S_ISBLK(mode) else "char"
        seen = Stat(kind, st.S_IMODE(mode), os.geteuid(), os.getegid(), 0, time.time(), rdev=(major, minor))
        self._entries[self._need_parent(path)] = Entry(seen)

    @logged("rename", 0, 1)
    def rename(self, old: str, new: str) -> None:
        """Remember the move, with everything below it."""
        refuse_system_folder(old)
        refuse_system_folder(new)
        source, entry = self._need(old)
        to = self._need_parent(new)
        below = {path: over for path, over in self._entries.items() if path.startswith(source + "/")}
        self.remove(new)
        for path, over in below.items():
            del self._entries[path]
            self._entries[to + path[len(source) :]] = over
        self._entries[to] = entry
        self._entries[source] = None

    @logged("remove")
    def remove(self, path: str) -> None:
        """Remember that it would be gone."""
        refuse_system_folder(path)
        where = refuse_system_folder(self._resolve(path, False))  # a link that only the overlay has may lead there, too
        for other in [p for p in self._entries if p.startswith(where + "/")]:
            del self._entries[other]
        self._entries[where] = None

    @logged("utime")
    def utime(self, path: str, atime: float, mtime: float) -> None:
        """Remember the time."""
        self._update(path, mtime=mtime)

    # what came along with the task

    def blob(self, sha256: str) -> str:
        """As on the real host: a diff may need the bytes."""
        return self.real.blob(sha256)

    def hold_lock(self, path: str, holder: str, wait_s: float) -> str | None:
        """Looks whether the lock is free; makes no file and holds nothing."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return os.read(fd, 4096).decode("utf-8", "replace").strip() or "unknown holder"
        finally:
            os.close(fd)
        return None

    def note(self, text: str) -> None:
        """A line of progress."""
        self.real.note(text)

    def would(self, kind: str, name: str, value: Any = True) -> None:
        """Later `user`, `group`, `which` and `would_be` see it."""
        self._would[(kind, name)] = value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
