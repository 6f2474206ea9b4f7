# SPDX-License-Identifier: Apache-2.0
"""The real host and the overlay of check mode, side by side: the same acts, one on the disk, one in memory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyops.agent.command import TimedOut
from flyops.agent.host import RealHost, refuse_system_folder
from flyops.agent.overlay import OverlayHost, OverlayStop
from flyops.domain import system
from flyops.errors import ModuleError
from flyops.model.host import Host


@pytest.fixture(params=["real", "overlay"])
def host(request: pytest.FixtureRequest) -> Host:
    real = RealHost()
    return real if request.param == "real" else OverlayHost(real)


def tree(folder: Path) -> list[tuple[str, int, int, str]]:
    """Everything below a folder: names, modes, times, contents."""
    out = []
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        out.append((str(path), seen.st_mode, seen.st_mtime_ns, path.read_text() if path.is_file() else ""))
    return out


def test_the_same_acts_look_the_same(host: Host, tmp_path: Path) -> None:
    at = str(tmp_path)
    (tmp_path / "old").write_text("old")
    before = tree(tmp_path)
    host.mkdir(f"{at}/a/b", mode=0o2750)
    host.write_text(f"{at}/a/b/f", "text", mode=0o640)
    host.symlink("b/f", f"{at}/a/l")
    host.write_bytes(f"{at}/old", b"new")
    host.chmod(f"{at}/old", 0o600)
    host.link(f"{at}/old", f"{at}/hard")
    host.utime(f"{at}/a/b/f", 5.0, 5.0)
    host.rename(f"{at}/a", f"{at}/c")
    host.mkdir(f"{at}/d")
    host.remove(f"{at}/d")
    host.remove(f"{at}/absent")
    names = (host.listdir(at), host.listdir(f"{at}/c"), host.listdir(f"{at}/c/b"))
    assert names == (["c", "hard", "old"], ["b", "l"], ["f"])
    assert host.read_text(f"{at}/c/l") == "text"
    assert host.read_text(f"{at}/hard") == "new"
    assert host.sha256(f"{at}/c/b/f") == "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"
    folder, file, link = host.stat(f"{at}/c/b"), host.stat(f"{at}/c/b/f"), host.stat(f"{at}/c/l")
    assert folder
    assert file
    assert link
    assert (folder.kind, folder.mode, file.kind, file.mode, file.size, file.mtime) == ("dir", 0o2750, "file", 0o640, 4, 5.0)
    assert (link.kind, link.target) == ("link", "b/f")
    assert host.stat(f"{at}/a/b/f") is None
    assert host.stat(f"{at}/old/x") is None
    if host.check:
        assert tree(tmp_path) == before


@pytest.mark.parametrize("act", ["write", "chmod", "read", "list", "write-on-dir", "sha256", "rename"])
def test_the_same_errors(host: Host, tmp_path: Path, act: str) -> None:
    at = str(tmp_path)
    acts = {
        "write": lambda: host.write_text(f"{at}/no/f", "x"),
        "chmod": lambda: host.chmod(f"{at}/no", 0o600),
        "read": lambda: host.read_text(f"{at}/no"),
        "list": lambda: host.listdir(f"{at}/no"),
        "write-on-dir": lambda: host.write_text(at, "x"),
        "sha256": lambda: host.sha256(f"{at}/no"),
        "rename": lambda: host.rename(f"{at}/no", f"{at}/x"),
    }
    with pytest.raises(OSError):
        acts[act]()
    assert os.listdir(at) == []
    assert host.read_text(f"{at}/no", missing="m") == "m"


def test_a_write_keeps_mode_and_replaces_links(tmp_path: Path) -> None:
    real, path = RealHost(), tmp_path / "f"
    path.write_text("a")
    path.chmod(0o604)
    inode = path.stat().st_ino
    real.write_text(str(path), "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert path.stat().st_ino != inode
    (tmp_path / "l").symlink_to("f")
    real.write_text(str(tmp_path / "l"), "c", mode=0o600)
    assert not (tmp_path / "l").is_symlink()
    assert path.read_text() == "b"
    assert os.listdir(tmp_path) == ["f", "l"] or sorted(os.listdir(tmp_path)) == ["f", "l"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        RealHost().write_text(str(tmp_path / "f"), "new")
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_bytes_that_are_no_text_come_back(host: Host, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\xffb")
    host.write_text(str(tmp_path / "g"), host.read_text(str(tmp_path / "f")))
    assert host.read_bytes(str(tmp_path / "g")) == b"a\xffb"


def test_names_with_spaces_and_quotes(host: Host, tmp_path: Path) -> None:
    name = str(tmp_path / 'it\'s "q" $x `y` \n é')
    host.write_text(name, "x")
    assert host.read_text(name) == "x"
    assert host.run(["printf", "%s", name], query=True).stdout == name.encode()


def test_links_are_walked(host: Host, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "l").symlink_to("real")
    host.write_text(str(tmp_path / "l" / "f"), "x")
    assert host.read_text(str(tmp_path / "real" / "f")) == "x"
    host.symlink("loop", str(tmp_path / "loop"))
    with pytest.raises(OSError):
        host.read_text(str(tmp_path / "loop" / "f"))


def test_commands(tmp_path: Path) -> None:
    real = RealHost()
    done = real.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in", cwd=str(tmp_path), env={"A": "1"})
    assert (done.rc, done.stdout, done.stderr) == (3, b"in", b"err\n")
    real.env = {"B": "2"}
    assert real.run(["sh", "-c", "echo $A$B; pwd"], env={"A": "1"}, cwd=str(tmp_path)).stdout == f"12\n{tmp_path}\n".encode()
    with pytest.raises(FileNotFoundError):
        real.run(["absent-program"])
    with pytest.raises(TimedOut) as caught:
        real.run(["sh", "-c", "echo early; sleep 60"], timeout=0.3)
    assert caught.value.stdout == b"early\n"
    assert real.run(["sh", "-c", "kill -9 $$"]).rc == -9


def test_five_megabytes_on_both_streams() -> None:
    script = "import sys; a=b'x'*5000000; sys.stderr.buffer.write(a); sys.stdout.buffer.write(a); sys.stdout.buffer.write(sys.stdin.buffer.read())"
    done = RealHost().run([sys.executable, "-c", script], stdin=b"y" * 3_000_000)
    assert (len(done.stdout), len(done.stderr)) == (8_000_000, 5_000_000)


def test_a_daemon_that_keeps_the_pipe_is_not_waited_for() -> None:
    started = time.monotonic()
    done = RealHost().run(["sh", "-c", "sleep 30 & echo $!"])
    assert time.monotonic() - started < 5
    os.kill(int(done.stdout), 9)


def test_the_overlay_runs_only_what_looks(tmp_path: Path) -> None:
    overlay = OverlayHost(RealHost())
    with pytest.raises(OverlayStop, match="would run touch"):
        overlay.run(["touch", str(tmp_path / "f")])
    assert overlay.run(["echo", "x"], query=True).stdout == b"x\n"
    assert not (tmp_path / "f").exists()


def test_would_be_users_groups_and_programs() -> None:
    overlay = OverlayHost(RealHost())
    assert overlay.user("flyops-nobody") is None
    overlay.would("user", "flyops-nobody")
    overlay.would("group", "flyops-group", {"name": "flyops-group", "gid": 5, "members": []})
    overlay.would("user", "root", None)
    user, group = overlay.user("flyops-nobody"), overlay.group("flyops-group")
    assert user
    assert group
    assert (user["name"], group["gid"], overlay.user("root")) == ("flyops-nobody", 5, None)


def test_locks(tmp_path: Path) -> None:
    path = str(tmp_path / "locks" / "lock")
    assert OverlayHost(RealHost()).hold_lock(path, "check", 0) is None
    assert not os.path.exists(path)
    mine = RealHost()
    assert mine.hold_lock(path, "me, pid 1", 0) is None
    assert mine.hold_lock(path, "me again", 0) is None
    script = f"from flyops.agent.host import RealHost; import sys; print(RealHost().hold_lock({path!r}, 'other', 0.5))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert other.stdout == "me, pid 1\n"
    assert OverlayHost(RealHost()).hold_lock(path, "check", 0) == "me, pid 1"


SYSTEM = ["/", "/etc", "/etc/", "/etc/.", "/etc/./", "/etc/systemd/..", "/usr/../etc", "//var//lib", "/usr/lib", "/bin", "/lib/", "/var/run"]


@pytest.mark.parametrize(
    "path", [*SYSTEM, "/proc/self/root/etc", "/proc/self/root/.", "/proc/self/root/usr/../etc/", "/proc/self/cwd/../../../../etc"]
)
def test_folders_of_the_system_are_never_removed(path: str) -> None:
    """Asked of the function that both hosts call first: no test tries it for real."""
    with pytest.raises(ModuleError, match="folder of the system"):
        refuse_system_folder(path)


def test_an_empty_path_is_never_the_working_folder() -> None:
    for call in (refuse_system_folder, RealHost().remove, OverlayHost(RealHost()).remove):
        with pytest.raises(ModuleError, match="without text"):
            call("")


def test_links_lead_to_folders_of_the_system_only_when_they_are_above_the_last_name(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "systemd").symlink_to("/etc/systemd")
    (tmp_path / "away").symlink_to(deep)
    for path, place in (
        (tmp_path, tmp_path),
        ("/etc/fly", "/etc/fly"),
        (tmp_path / "root", tmp_path / "root"),  # the link itself
        (f"{tmp_path}/root/", tmp_path / "root"),
        (f"{tmp_path}/away/../c", tmp_path / "a" / "c"),  # `..` counts from where the link leads
    ):
        assert refuse_system_folder(str(path)) == str(place)
    for name in ("root/etc", "root/etc/", "root/.", "systemd/..", "systemd/../", "systemd/."):
        with pytest.raises(ModuleError, match="folder of the system"):
            refuse_system_folder(f"{tmp_path}/{name}")


def test_a_slash_behind_a_link_still_removes_the_link_only(tmp_path: Path) -> None:
    mine = tmp_path / "data" / "mine"
    mine.parent.mkdir()
    mine.write_text("text")
    (tmp_path / "l").symlink_to("data")
    OverlayHost(RealHost()).remove(f"{tmp_path}/l/")
    assert os.path.islink(tmp_path / "l")

    RealHost().remove(f"{tmp_path}/l/")

    assert not os.path.lexists(tmp_path / "l")
    assert mine.read_text() == "text"
    RealHost().remove(f"{tmp_path}/data/.")
    assert not mine.parent.exists()


def test_check_mode_sees_links_that_only_it_has(tmp_path: Path) -> None:
    host = OverlayHost(RealHost())
    host.symlink("/", str(tmp_path / "l"))
    with pytest.raises(ModuleError, match="folder of the system"):
        host.remove(f"{tmp_path}/l/etc")
    host.remove(str(tmp_path / "l"))


def test_a_folder_of_the_system_is_neither_moved_nor_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(system, "FOLDERS", frozenset({str(tmp_path / "system")}))  # a stand-in: a broken guard must not cost the real ones
    for host in (RealHost(), OverlayHost(RealHost())):
        for old, new in (("new", "system/"), ("system", "new/system"), ("system/.", "other")):
            with pytest.raises(ModuleError, match="folder of the system"):
                host.rename(f"{tmp_path}/{old}", f"{tmp_path}/{new}")
        with pytest.raises(ModuleError, match="folder of the system"):
            host.remove(f"{tmp_path}/new/../system")
    assert sorted(os.listdir(tmp_path)) == ["new", "system"]
    RealHost().rename(f"{tmp_path}/new/", f"{tmp_path}/system/new")
    assert os.listdir(tmp_path / "system") == ["new"]


IN_A_NAMESPACE = """
import os, subprocess, sys
from flyops.agent.host import RealHost
from flyops.domain import system
top = sys.argv[1]
system.FOLDERS = frozenset([f"{top}/fake"])  # a stand-in for /etc
os.makedirs(f"{top}/fake/etc/deep"); os.makedirs(f"{top}/a b/in"); os.makedirs(f"{top}/same")
subprocess.run(["mount", "--bind", f"{top}/fake", f"{top}/a b/in"], check=True)
subprocess.run(["mount", "--bind", f"{top}/fake", f"{top}/same"], check=True)
for path in ("a b", "a b/in", "same"):
    try:
        RealHost().remove(f"{top}/{path}")
    except Exception as err:
        print(str(err).replace(top, ""))
subprocess.run(["umount", f"{top}/a b/in"], check=True)
subprocess.run(["umount", f"{top}/same"], check=True)
RealHost().remove(f"{top}/a b")
print(sorted(os.listdir(top)), os.path.isdir(f"{top}/fake/etc/deep"))
"""


@pytest.mark.root
def test_a_removal_does_not_go_through_a_mount(tmp_path: Path) -> None:
    """In a mount namespace of its own; what stands for the system is a folder of this test."""
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", IN_A_NAMESPACE, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])

    assert [line for line in done.stdout.splitlines() if "to do:" not in line] == [
        "refused to remove /a b: something is mounted at /a b/in",
        "refused to remove or move /a b/in, which is /fake: it is a folder of the system itself",
        "refused to remove or move /same, which is /fake: it is a folder of the system itself",
        "['fake', 'same'] True",
    ]
