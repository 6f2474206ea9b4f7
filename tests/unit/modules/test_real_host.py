# SPDX-License-Identifier: Apache-2.0
"""Generic modules on the real host, in a folder of their own: each changes once, check mode predicts it and leaves every byte as it was."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flyops.agent import registry
from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.errors import ModuleError
from flyops.model.host import Host
from flyops.modules import setup


class Work:
    """A folder of the real host, and files that a controller would offer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._blobs = folder / "blobs"
        self._blobs.mkdir()
        self.host = RealHost(self._fetch)

    def _fetch(self, sha256: str) -> str:
        path = self._blobs / sha256
        if not path.exists():
            raise ModuleError("not offered")
        return str(path)

    def offer(self, data: bytes, path: str = "source.txt") -> dict[str, Any]:
        """A file as the engine hands it to a module."""
        digest = hashlib.sha256(data).hexdigest()
        (self._blobs / digest).write_bytes(data)
        return {"path": path, "sha256": digest, "size": len(data), "mode": 0o644}

    def digest(self) -> list[tuple[Any, ...]]:
        """Every path with its kind, mode, owner, times, inode and content."""
        out: list[tuple[Any, ...]] = []
        for path in sorted([self.folder, *self.folder.rglob("*")]):
            seen = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            out.append((str(path), seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns, seen.st_ino, content))
        return out

    def run(self, module: str, /, *, check: bool = False, **args: Any) -> dict[str, Any]:
        """One module."""
        return run_module(registry.find(module), args, OverlayHost(self.host) if check else self.host, diff=True)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """With a few things in it."""
    made = Work(tmp_path)
    (made.folder / "old.txt").write_text("one\ntwo\n")
    (made.folder / "sub").mkdir()
    (made.folder / "sub" / "deep.txt").write_text("x")
    (made.folder / "link").symlink_to("old.txt")
    return made


Args = Callable[[Work], dict[str, Any]]
CHANGING: list[tuple[str, str, Args]] = [
    ("copy", "text", lambda w: {"content": "hello\n", "dest": f"{w.folder}/a", "mode": "0600"}),
    ("copy", "file", lambda w: {"src": w.offer(b"\0\xff" * 1000), "dest": f"{w.folder}/bin"}),
    ("copy", "large", lambda w: {"src": w.offer(os.urandom(1024 * 1024 + 1)), "dest": f"{w.folder}/large"}),
    ("copy", "empty", lambda w: {"src": w.offer(b""), "dest": f"{w.folder}/empty"}),
    ("copy", "odd name", lambda w: {"content": "x", "dest": f'{w.folder}/it\'s "a" $file; é'}),
    ("copy", "onto a link", lambda w: {"content": "one\ntwo\n", "dest": f"{w.folder}/link"}),
    ("copy", "through a link", lambda w: {"content": "new\n", "dest": f"{w.folder}/link", "follow": True}),
    ("copy", "folder on the host", lambda w: {"src": f"{w.folder}/sub/", "dest": f"{w.folder}/copy", "remote_src": True}),
    ("copy", "validated", lambda w: {"content": "one\n", "dest": f"{w.folder}/v", "validate": "grep -q one %s"}),
    ("template", "rendered", lambda w: {"src": w.offer(b"A=1\n", "a.env.j2"), "dest": f"{w.folder}/a.env", "mode": "u=rw,go="}),
    ("file", "folder", lambda w: {"path": f"{w.folder}/x/y", "state": "directory", "mode": "0750"}),
    ("file", "mode", lambda w: {"path": f"{w.folder}/old.txt", "mode": "u+x"}),
    ("file", "recurse", lambda w: {"path": f"{w.folder}", "state": "directory", "recurse": True, "mode": "u=rwX,go="}),
    ("file", "link", lambda w: {"src": "sub", "dest": f"{w.folder}/current", "state": "link"}),
    ("file", "link moved", lambda w: {"src": "sub", "dest": f"{w.folder}/link", "state": "link"}),
    ("file", "hard link", lambda w: {"src": f"{w.folder}/old.txt", "dest": f"{w.folder}/hard", "state": "hard"}),
    ("file", "absent", lambda w: {"path": f"{w.folder}/sub", "state": "absent"}),
    ("file", "absent link", lambda w: {"path": f"{w.folder}/link", "state": "absent"}),
    ("file", "touch", lambda w: {"path": f"{w.folder}/t", "state": "touch", "modification_time": "preserve", "access_time": "preserve"}),
    ("lineinfile", "add", lambda w: {"path": f"{w.folder}/old.txt", "line": "three"}),
    ("lineinfile", "replace", lambda w: {"path": f"{w.folder}/old.txt", "regexp": "^t", "line": "TWO", "backup": True}),
    ("lineinfile", "remove", lambda w: {"path": f"{w.folder}/old.txt", "line": "two", "state": "absent"}),
    ("blockinfile", "add", lambda w: {"path": f"{w.folder}/new.txt", "block": "a\nb", "create": True}),
    ("replace", "all", lambda w: {"path": f"{w.folder}/old.txt", "regexp": "o", "replace": "0"}),
    ("command", "creates", lambda w: {"argv": ["touch", f"{w.folder}/c"], "creates": f"{w.folder}/c"}),
    ("shell", "creates", lambda w: {"cmd": "echo x > c", "chdir": str(w.folder), "creates": "c"}),
]
LOOKING: list[tuple[str, Args]] = [
    ("stat", lambda w: {"path": f"{w.folder}/old.txt"}),
    ("find", lambda w: {"paths": [str(w.folder)], "recurse": True}),
    ("slurp", lambda w: {"src": f"{w.folder}/old.txt"}),
    ("setup", lambda w: {"fact_path": str(w.folder)}),
    ("wait_for", lambda w: {"path": f"{w.folder}/old.txt", "timeout": 1}),
]


@pytest.mark.parametrize(("name", "what", "args"), CHANGING, ids=[f"{n}-{w}" for n, w, _ in CHANGING])
def test_changes_once(work: Work, name: str, what: str, args: Args) -> None:
    """Check mode says changed and changes nothing; the run changes; the second run, real or checked, finds nothing to do."""
    given = args(work)
    before = work.digest()

    predicted = work.run(name, check=True, **given)
    assert work.digest() == before
    first = work.run(name, **given)
    after = work.digest()
    again = work.run(name, **given)
    checked = work.run(name, check=True, **given)

    assert [r.get("failed") for r in (predicted, first, again, checked)] == [False] * 4, [predicted, first, again, checked]
    assert [r["changed"] for r in (predicted, first, again, checked)] == [True, True, False, False]
    assert after != before
    assert work.digest() == after


@pytest.mark.parametrize(("name", "args"), LOOKING, ids=[n for n, _ in LOOKING])
def test_looking_changes_nothing(work: Work, name: str, args: Args) -> None:
    """Neither in check mode nor for real."""
    before = work.digest()

    results = [work.run(name, check=check, **args(work)) for check in (True, False)]

    assert [(r["failed"], r["changed"]) for r in results] == [(False, False)] * 2
    assert work.digest() == before


@pytest.mark.parametrize("name", ["copy", "template", "file", "lineinfile", "blockinfile", "replace"])
def test_a_wrong_mode_leaves_nothing_behind(work: Work, name: str) -> None:
    """Validation comes before any write."""
    more: dict[str, dict[str, Any]] = {
        "copy": {"content": "x", "dest": f"{work.folder}/n"},
        "template": {"src": work.offer(b"x"), "dest": f"{work.folder}/n"},
        "file": {"path": f"{work.folder}/n", "state": "touch"},
        "lineinfile": {"path": f"{work.folder}/n", "line": "x", "create": True},
        "blockinfile": {"path": f"{work.folder}/n", "block": "x", "create": True},
        "replace": {"path": f"{work.folder}/old.txt", "regexp": "one", "replace": "1"},
    }
    before = work.digest()

    result = work.run(name, mode="0888", **more[name])

    assert result["failed"]
    assert "octal or symbolic" in result["msg"]
    assert work.digest() == before


def test_a_chain_of_new_things_in_check_mode(work: Work) -> None:
    """A folder, a file in it, a line in that, a link to it, a copy of it: each checked task sees what the ones before would make."""
    before = work.digest()
    overlay = OverlayHost(work.host)
    made = f"{work.folder}/etc"
    steps: list[tuple[str, dict[str, Any]]] = [
        ("file", {"path": made, "state": "directory"}),
        ("copy", {"content": "a=1\n", "dest": f"{made}/conf"}),
        ("lineinfile", {"path": f"{made}/conf", "line": "b=2"}),
        ("blockinfile", {"path": f"{made}/conf", "block": "c=3"}),
        ("replace", {"path": f"{made}/conf", "regexp": "1", "replace": "9"}),
        ("file", {"src": "conf", "dest": f"{made}/link", "state": "link"}),
        ("copy", {"src": f"{made}/conf", "dest": f"{made}/again", "remote_src": True}),
        ("file", {"path": f"{made}/conf", "mode": "0600"}),
    ]

    first = [run_module(registry.find(name), args, overlay) for name, args in steps]
    again = [run_module(registry.find(name), args, overlay) for name, args in steps]
    slurped = run_module(registry.find("slurp"), {"src": f"{made}/link"}, overlay)

    assert [r["changed"] for r in first] == [True] * len(steps), first
    assert b"a=9\nb=2\n" in base64.b64decode(slurped["content"])
    assert [r["failed"] for r in again] == [False] * len(steps)
    assert work.digest() == before


def test_backup_has_the_old_content(work: Work) -> None:
    """And the old mode; its name is returned."""
    (work.folder / "old.txt").chmod(0o640)

    result = work.run("copy", content="new\n", dest=f"{work.folder}/old.txt", backup=True)

    kept = Path(result["backup_file"])
    assert kept.read_text() == "one\ntwo\n"
    assert kept.stat().st_mode & 0o777 == 0o640


def test_content_that_is_refused_leaves_the_old_file_and_no_copy(work: Work) -> None:
    """The trial copy goes, too."""
    before = work.digest()

    result = work.run("copy", content="bad\n", dest=f"{work.folder}/old.txt", validate="grep -q good %s")

    assert "failed to validate" in result["msg"]
    after = work.digest()
    assert [entry[0] for entry in after] == [entry[0] for entry in before]
    assert (work.folder / "old.txt").read_text() == "one\ntwo\n"


def test_commands_for_real(work: Work) -> None:
    """Words arrive as they are; both streams may be long; bytes that are no text never fail; a limit ends it."""
    odd = 'it\'s "q" `id` é\\n'
    echoed = work.run("command", argv=["printf", "%s|", odd, "", "5", "$(id)"])
    long = work.run("shell", cmd="head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2")
    bytes_ = work.run("shell", cmd="printf 'a\\377b\\n'")
    late = work.run("command", argv=["sleep", "30"], timeout=0.3)
    no_pipefail = work.run("shell", cmd="false | true")
    fed = work.run("command", argv=["cat"], stdin="hello")

    assert echoed["stdout"] == f"{odd}||5|$(id)|"
    assert (len(long["stdout"]), len(long["stderr"])) == (3000000, 3000000)
    assert (bytes_["failed"], bytes_["stdout"], bytes_["stdout_b64"]) == (False, "a\ufffdb", base64.b64encode(b"a\xffb\n").decode())
    assert late["failed"]
    assert "limit" in late["msg"]
    assert no_pipefail["rc"] == 0
    assert fed["stdout"] == "hello"
    assert work.run("command", argv=["/nonexistent"])["rc"] == 2
    assert work.run("shell", cmd="nonexistent-program")["rc"] == 127


def test_tempfile_is_private(work: Work) -> None:
    """Two calls give two names, nobody else can read them, and check mode makes none."""
    made = [work.run("tempfile", path=str(work.folder), state=state) for state in ("file", "directory", "file")]
    checked = work.run("tempfile", path=str(work.folder), check=True)

    assert len({r["path"] for r in made}) == 3
    assert [Path(r["path"]).stat().st_mode & 0o777 for r in made] == [0o600, 0o700, 0o600]
    assert checked["changed"]
    assert not Path(checked["path"]).exists()


def test_setup_for_real(work: Work) -> None:
    """The facts that playbooks use are there and are true."""
    facts = work.run("setup")["ansible_facts"]

    assert facts["ansible_architecture"] == os.uname().machine
    assert facts["ansible_processor_nproc"] == len(os.sched_getaffinity(0))
    assert facts["fly_cpuset"]
    assert facts["ansible_memtotal_mb"] > 0
    assert facts["ansible_user_uid"] == os.geteuid()
    assert [key for key in facts if key.startswith("fly_facts_failed")] == []


def test_setup_has_a_limit_for_each_group(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that hangs is named as late and costs no more than its limit."""

    def hangs(args: dict[str, Any], host: Host) -> dict[str, Any]:
        time.sleep(5)
        return {}

    monkeypatch.setitem(setup.PROBES, "mounts", hangs)
    began = time.monotonic()

    result = work.run("setup", gather_timeout=0.3)

    assert time.monotonic() - began < 2
    assert result["late"] == ["mounts"]
    assert "ansible_kernel" in result["ansible_facts"]


@pytest.mark.skipif(not Path("/usr/bin/dpkg-query").exists(), reason="no Debian")
def test_apt_looks_for_real(work: Work) -> None:
    """What is installed is seen; check mode on something else only simulates."""
    there = work.run("apt", name=["dpkg", "libc6"])
    would = work.run("apt", name="no-such-package-here", check=True)

    assert (there["failed"], there["changed"]) == (False, False)
    assert (would["failed"], would["changed"]) == (False, True)
    assert "Unable to locate" in would["warnings"][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.root
def test_owner_by_name_and_number(work: Work) -> None:
    """Both are set, on a link's own self and below a folder."""
    first = work.run("file", path=str(work.folder), state="directory", recurse=True, owner="nobody", group="65534")
    again = work.run("file", path=str(work.folder), state="directory", recurse=True, owner="65534", group="nogroup")

    assert (first["changed"], again["changed"]) == (True, False)
    assert (work.folder / "link").lstat().st_uid == 65534
    assert (work.folder / "sub" / "deep.txt").stat().st_gid == 65534
