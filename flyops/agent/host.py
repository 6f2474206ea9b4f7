# SPDX-License-Identifier: Apache-2.0
"""The real host. Writes are atomic: a temporary file in the same folder, owner and mode, fsync, rename."""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import pwd
import re
import shutil
import stat as st
import tempfile
import time
from typing import Any, Callable, Dict, Mapping, Sequence

from flyops.agent import command
from flyops.agent.writes import WriteLog, logged
from flyops.domain import system
from flyops.errors import ModuleError
from flyops.model.host import Completed, Stat

HASH_BYTES = 1024 * 1024
LOCK_POLL_S = 0.2

_KINDS = (
    (st.S_ISLNK, "link"),
    (st.S_ISREG, "file"),
    (st.S_ISDIR, "dir"),
    (st.S_ISCHR, "char"),
    (st.S_ISBLK, "block"),
    (st.S_ISFIFO, "fifo"),
    (st.S_ISSOCK, "socket"),
)


def _no_blob(sha256: str) -> str:
    raise ModuleError(f"file {sha256} was not offered with this task")


def _no_note(text: str) -> None:
    """Nobody listens."""


class RealHost:
    """This machine, as flyops.model.host.Host describes it."""

    check = False

    def __init__(self, fetch_blob: Callable[[str], str] = _no_blob, note: Callable[[str], None] = _no_note) -> None:
        self.env: Dict[str, str] = {}  # the task's `environment`
        self.write_log = WriteLog()
        self._fetch_blob = fetch_blob
        self._note = note
        self._locks: Dict[str, int] = {}

    # looking

    def stat(self, path: str, *, follow: bool = False) -> Stat | None:
        """What is there, or None."""
        try:
            seen = os.stat(path) if follow else os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        kind = next((name for test, name in _KINDS if test(seen.st_mode)), "file")
        return Stat(
            kind=kind,
            mode=st.S_IMODE(seen.st_mode),
            uid=seen.st_uid,
            gid=seen.st_gid,
            size=seen.st_size,
            mtime=seen.st_mtime,
            target=os.readlink(path) if kind == "link" else "",
            rdev=(os.major(seen.st_rdev), os.minor(seen.st_rdev)),
            inode=seen.st_ino,
            nlink=seen.st_nlink,
        )

    def read_bytes(self, path: str, *, missing: bytes | None = None) -> bytes:
        """The whole file; `missing` in place of an error when there is none."""
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            if missing is None:
                raise
            return missing

    def read_text(self, path: str, *, missing: str | None = None) -> str:
        """The whole file as UTF-8; bytes that are none are kept as surrogates, so that writing gives them back."""
        data = self.read_bytes(path, missing=None if missing is None else missing.encode("utf-8", "surrogateescape"))
        return data.decode("utf-8", "surrogateescape")

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        return sorted(os.listdir(path))

    def sha256(self, path: str) -> str:
        """Hex digest of a file's bytes."""
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            for piece in iter(lambda: stream.read(HASH_BYTES), b""):
                digest.update(piece)
        return digest.hexdigest()

    def user(self, name: str) -> Mapping[str, Any] | None:
        """name, uid, gid, gecos, home, shell, groups of a user given by name or number."""
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            try:
                found = pwd.getpwuid(int(name))
            except (KeyError, ValueError):
                return None
        keys = ("name", "uid", "gid", "gecos", "home", "shell")
        values = (found.pw_name, found.pw_uid, found.pw_gid, found.pw_gecos, found.pw_dir, found.pw_shell)
        groups = sorted(entry.gr_name for entry in grp.getgrall() if found.pw_name in entry.gr_mem)
        return {**dict(zip(keys, values)), "groups": groups}

    def group(self, name: str) -> Mapping[str, Any] | None:
        """name, gid, members of a group given by name or number."""
        try:
            found = grp.getgrnam(name)
        except KeyError:
            try:
                found = grp.getgrgid(int(name))
            except (KeyError, ValueError):
                return None
        return {"name": found.gr_name, "gid": found.gr_gid, "members": list(found.gr_mem)}

    def which(self, program: str) -> str | None:
        """Where a program is on the task's PATH; system folders count even when a user's PATH lacks them."""
        path = self.getenv("PATH") or os.defpath
        return shutil.which(program, path=path + ":/usr/local/sbin:/usr/sbin:/sbin")

    def getenv(self, name: str, default: str = "") -> str:
        """A variable of the task's environment, else of the agent's."""
        return self.env.get(name, os.environ.get(name, default))

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
        """Run a program to its end. No shell, no TTY; it ends with the agent."""
        if not query:
            self.write_log.command(argv)
        return command.run(argv, stdin, cwd, {**os.environ, **self.env, **(env or {})}, timeout)

    @logged("write")
    def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """Replace a file in one step; what is not given stays as the old file had it. A link at `path` is replaced, not followed."""
        old = self.stat(path)
        kept = old if old is not None and old.kind == "file" else None
        if mode is None:
            mode = kept.mode if kept else 0o666 & ~_umask()
        uid = uid if uid is not None else (kept.uid if kept else None)
        gid = gid if gid is not None else (kept.gid if kept else None)
        folder = os.path.dirname(os.path.abspath(path))
        fd, temporary = tempfile.mkstemp(prefix=".flyops-", dir=folder)
        try:
            with os.fdopen(fd, "wb") as stream:
                stream.write(data)
                stream.flush()
                _own(stream.fileno(), uid, gid, strict=kept is None or uid != kept.uid or gid != kept.gid)
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_folder(folder)

    def write_text(self, path: str, text: str, *, mode: int | None = None, uid: int | None = None, gid: int | None = None) -> None:
        """`write_bytes` of UTF-8."""
        self.write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode, uid=uid, gid=gid)

    @logged("write", follow=True)
    def write_through(self, path: str, text: str) -> None:
        """New text in an old file, which keeps its inode, mode and owner: for /etc/pve and for files that are mounted somewhere.

        Bytes first, length last: a reader in between sees lines of the new text and perhaps an end of the old one, never an empty file.
        """
        data = memoryview(text.encode("utf-8", "surrogateescape"))
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], done)
            os.ftruncate(fd, done)
            os.fsync(fd)
        finally:
            os.close(fd)

    @logged("mkdir", follow=True)
    def mkdir(self, path: str, *, mode: int | None = None) -> None:
        """A folder with its parents; `mode` is for the last one and is set past the umask."""
        os.makedirs(path, exist_ok=True)
        if mode is not None:
            os.chmod(path, mode)

    @logged("chmod")
    def chmod(self, path: str, mode: int) -> None:
        """Permission bits of what `path` names; a link is left alone, as links have none."""
        if not os.path.islink(path):
            os.chmod(path, mode)

    @logged("chown")
    def chown(self, path: str, uid: int, gid: int) -> None:
        """Owner and group (-1 leaves one alone), of a link itself."""
        os.chown(path, uid, gid, follow_symlinks=False)

    @logged("link", 1)
    def symlink(self, target: str, path: str) -> None:
        """A link in one step, replacing a file or a link that is there."""
        temporary = os.path.join(os.path.dirname(os.path.abspath(path)), f".flyops-{os.getpid()}-{time.monotonic_ns()}")
        os.symlink(target, temporary)
        _replace(temporary, path)

    @logged("link", 1)
    def link(self, target: str, path: str) -> None:
        """A hard link in one step, replacing a file or a link that is there."""
        temporary = os.path.join(os.path.dirname(os.path.abspath(path)), f".flyops-{os.getpid()}-{time.monotonic_ns()}")
        os.link(target, temporary, follow_symlinks=False)
        _replace(temporary, path)

    @logged("mknod")
    def mknod(self, path: str, mode: int, major: int, minor: int) -> None:
        """A device node; `mode` holds the kind (S_IFCHR or S_IFBLK) and the permission bits."""
        os.mknod(path, mode, os.makedev(major, minor))
        os.chmod(path, st.S_IMODE(mode))

    @logged("rename", 0, 1)
    def rename(self, old: str, new: str) -> None:
        """Move in one step within a file system; across two, copy beside the new place first."""
        old = refuse_system_folder(old)
        refuse_system_folder(new)
        try:
            os.rename(old, new)
        except OSError as err:
            if err.errno != 18:  # EXDEV
                raise
            _refuse_mounts(old)
            shutil.move(old, new)
        _sync_folder(os.path.dirname(os.path.abspath(new)))

    @logged("remove")
    def remove(self, path: str) -> None:
        """A file, a link (with a slash at its end, too) or a whole tree; links are not followed; nothing there is fine.

        A folder of the system itself is refused, and one with something mounted in it: the removal would go through it.
        """
        path = refuse_system_folder(path)
        if os.path.isdir(path) and not os.path.islink(path):
            _refuse_mounts(path)
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    @logged("utime")
    def utime(self, path: str, atime: float, mtime: float) -> None:
        """Times of a path, of a link itself."""
        os.utime(path, (atime, mtime), follow_symlinks=False)

    # what came along with the task

    def blob(self, sha256: str) -> str:
        """Path of a verified copy of a file that the controller offered; fetched at the first call."""
        return self._fetch_blob(sha256)

    @logged("lock", follow=True)
    def hold_lock(self, path: str, holder: str, wait_s: float) -> str | None:
        """None: the lock is held until the agent ends. Else the text that its holder left."""
        if path in self._locks:
            return None
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                found = os.read(fd, 4096).decode("utf-8", "replace").strip()
                os.close(fd)
                return found or "unknown holder"
            time.sleep(LOCK_POLL_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, holder.encode() + b"\n", 0)
        self._locks[path] = fd
        return None

    def note(self, text: str) -> None:
        """A line of progress."""
        self._note(text)

    def would(self, kind: str, name: str, value: Any = True) -> None:
        """Only check mode remembers."""


def refuse_system_folder(path: str) -> str:
    """The place that `path` names, for whoever removes or moves it; a folder of the system, however it is written, is an error.

    No task means to remove or move /, /etc or /usr as a whole: such a path comes from an empty variable or a wrong link.
    """
    whole = _place(path)
    found = _system_folder(whole)
    if found:
        also = "" if found == whole else f", which is {found}"
        raise ModuleError(
            f"refused to remove or move {whole}{also}: it is a folder of the system itself",
            fix="look at the path of this task; name what is inside it",
        )
    return whole


def _place(path: str) -> str:
    """Folder and name as the kernel finds them: links and `..` above the last name are followed, slashes at the end mean nothing."""
    if not path.strip("/") and not path.startswith("/"):
        raise ModuleError("refused to remove or move a path without text", fix="a variable of this task is empty: give it a value")
    folder, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder or "."), name)


def _system_folder(whole: str) -> str:
    """The system's folder that stands at a place: by name, or as the same folder under another name (a bind mount, /proc/PID/root)."""
    if whole in system.FOLDERS:
        return whole
    try:
        seen = os.lstat(whole)
    except OSError:
        return ""
    if not st.S_ISDIR(seen.st_mode):
        return ""
    for folder in system.FOLDERS:
        try:
            if os.path.samestat(seen, os.stat(folder)):
                return folder
        except OSError:
            continue
    return ""


def _refuse_mounts(whole: str) -> None:
    """What is mounted inside a folder belongs to somebody else, and a removal would empty it."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            points = [_unescape(line.split(" ")[4]) for line in stream]
    except OSError:
        return
    inside = sorted(point for point in points if point == whole or point.startswith(f"{whole}/"))
    if inside:
        raise ModuleError(f"refused to remove {whole}: something is mounted at {inside[0]}", fix=f"umount {inside[0]} first")


def _unescape(text: str) -> str:
    """A path as the kernel's tables write it: blanks and backslashes are octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _own(fd: int, uid: int | None, gid: int | None, strict: bool) -> None:
    """Keeping an old owner is a courtesy (an ordinary user may lack the right); a new one that was asked for is not."""
    try:
        os.fchown(fd, -1 if uid is None else uid, -1 if gid is None else gid)
    except PermissionError:
        if strict and not (uid is None and gid is None):
            raise


def _replace(temporary: str, path: str) -> None:
    try:
        os.rename(temporary, path)
    finally:  # renaming one hard link onto another of the same file leaves both
        if os.path.lexists(temporary):
            os.unlink(temporary)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:  # some file systems refuse it for folders
        pass
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
