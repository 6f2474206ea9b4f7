# SPDX-License-Identifier: Apache-2.0
"""`./fly` from nothing: with a lock and a folder of wheels, without a network, as an ordinary user, cut off and done again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.beds.ordinary import UID, as_ordinary_user

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("fly", "tasks.py", "flyops", "requirements", "pyproject.toml")

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The packages of the run lock, fetched once."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "download", "-q", "--require-hashes", "-r", str(ROOT / "requirements/run.txt"), "-d", str(folder)]
    base = [getattr(sys, "_base_executable", sys.executable), *command[1:]]
    subprocess.run(base, check=True)
    return folder


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the bootstrap reads."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    return folder


def fly(checkout: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs ./fly with private XDG folders and no way to an index."""
    python = Path(getattr(sys, "_base_executable", sys.executable)).parent
    environment = {"PATH": f"{python}:/usr/bin:/bin", "HOME": str(checkout.parent), "XDG_CACHE_HOME": str(checkout.parent / "cache"), **variables}
    return subprocess.run(
        [str(checkout / "fly"), *words], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=300
    )


def no_network(**variables: str) -> dict[str, str]:
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", **variables}


def test_from_wheels_alone_then_quick(checkout, wheels):
    started = time.monotonic()
    first = fly(checkout, "--offline", str(wheels), "--version", **no_network())
    cold = time.monotonic() - started
    times = []
    for _ in range(5):
        started = time.monotonic()
        again = fly(checkout, "--version", **no_network())
        times.append(time.monotonic() - started)
    started = time.monotonic()
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-c", ""], check=True)
    bare = time.monotonic() - started

    print(f"cold {cold:.1f} s, second call {min(times):.2f} s, Python alone {bare:.2f} s")
    assert (first.returncode, first.stdout) == (0, "flyops 0.1.0\n"), first.stderr
    assert (again.returncode, again.stdout, again.stderr) == (0, "flyops 0.1.0\n", "")
    assert (checkout / ".venv").is_symlink()
    assert (checkout / ".venv/bin/invoke").exists()


def test_a_second_clone_uses_the_same_environment(checkout, wheels, tmp_path):
    assert fly(checkout, "--offline", str(wheels), "--version", **no_network()).returncode == 0
    second = tmp_path / "second"
    shutil.copytree(checkout, second, symlinks=True, ignore=shutil.ignore_patterns(".venv"))

    done = fly(second, "--version", **no_network())

    assert (done.returncode, done.stderr) == (0, "")
    assert os.readlink(second / ".venv") == os.readlink(checkout / ".venv")


def test_cut_off_creation_is_done_again(checkout, wheels):
    python = Path(getattr(sys, "_base_executable", sys.executable)).parent
    environment = {"PATH": f"{python}:/usr/bin:/bin", "HOME": str(checkout.parent), "XDG_CACHE_HOME": str(checkout.parent / "cache")}
    process = subprocess.Popen(
        [str(checkout / "fly"), "--offline", str(wheels), "--version"], env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    cache = checkout.parent / "cache/flyops/venvs"
    end = time.monotonic() + 60
    # Cut it off in the middle: some packages are unpacked, the stamp is not there.
    while not list(cache.glob("run-*/lib/python*/site-packages/*")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(cache.glob("run-*/flyops-complete")), "the creation was over before it could be cut off"

    again = fly(checkout, "--offline", str(wheels), "--version")

    assert (again.returncode, again.stdout) == (0, "flyops 0.1.0\n"), again.stderr


def test_a_missing_wheel_is_told_in_one_line(checkout, wheels, tmp_path):
    some = tmp_path / "some"
    shutil.copytree(wheels, some, ignore=shutil.ignore_patterns("rich-*"))

    done = fly(checkout, "--offline", str(some), "--version", **no_network())

    assert done.returncode == 2
    assert re.fullmatch(r"fly: a package of the lock is not in .*pip download.*", done.stderr.strip().splitlines()[-1])
    assert not list((checkout.parent / "cache").rglob("flyops-complete"))


def test_a_package_that_is_not_the_one_of_the_lock_is_refused(checkout, wheels):
    lock = checkout / "requirements/run.txt"
    changed, count = re.subn(
        r"(rich==\S+ \\\n(?:\s+--hash=sha256:\S+(?: \\)?\n)+)", lambda m: re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, m[0]), lock.read_text()
    )
    assert count == 1
    lock.write_text(changed)

    done = fly(checkout, "--offline", str(wheels), "--version", **no_network())

    assert done.returncode == 2
    assert "hash differs" in done.stderr.splitlines()[-1]


def test_offline_without_a_folder_is_a_usage_error(checkout):
    for words in (["--offline"], ["--offline", "/nowhere", "--version"]):
        done = fly(checkout, *words)

        assert done.returncode == 2
        assert "needs a folder of wheels" in done.stderr


@pytest.mark.root
def test_ordinary_user_in_a_checkout_that_may_only_be_read(checkout, wheels, open_folder):
    home, mine, packages = open_folder / "home", open_folder / "checkout", open_folder / "wheels"
    home.mkdir()
    os.chown(home, UID, UID)
    shutil.copytree(checkout, mine)
    shutil.copytree(wheels, packages)
    packages.chmod(0o755)
    python = Path(getattr(sys, "_base_executable", sys.executable)).parent
    words = [str(mine / "fly"), "--offline", str(packages), "--list"]
    environment = {"PATH": f"{python}:/usr/bin:/bin", **no_network()}

    done = subprocess.run(as_ordinary_user(words, home, environment), capture_output=True, text=True, check=False, timeout=300)
    again = subprocess.run(as_ordinary_user([words[0], "--list"], home, environment), capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    assert "deploy" in done.stdout
    assert (again.returncode, again.stderr) == (0, "")
    assert not (mine / ".venv").exists()
    assert [path.stat().st_uid for path in home.rglob("flyops-complete")] == [UID]


def old_python() -> str | None:
    """An interpreter that is too old, if this machine has one."""
    for folder in sorted(Path(sys.base_prefix).parent.glob("3.[6-9].*")):
        if (folder / "bin/python3").exists():
            return str(folder / "bin/python3")
    return None


@pytest.mark.skipif(old_python() is None, reason="no Python older than 3.10 here")
def test_an_old_python_says_what_is_missing_or_finds_a_newer_one(checkout, wheels, tmp_path):
    old = old_python()
    alone = subprocess.run([old, str(checkout / "fly"), "--version"], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)

    assert alone.returncode == 2
    assert re.fullmatch(r"fly: Python 3\.11 or newer is missing \(this is 3\.\d+\): install it .*\n", alone.stderr)

    newer = Path(sys.base_prefix) / "bin"
    environment = {"PATH": f"{newer}:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = subprocess.run(
        [old, str(checkout / "fly"), "--offline", str(wheels), "--version"], env=environment, capture_output=True, text=True, check=False
    )

    assert (found.returncode, found.stdout) == (0, "flyops 0.1.0\n"), found.stderr
