# SPDX-License-Identifier: Apache-2.0
"""Makes a virtual environment from a hashed lock, once, in the user's cache; standard library only.

An environment is named by the lock's content and the interpreter, so clones share it and an old one is never changed.
It counts only when its stamp is there: a creation that was cut off is removed and done again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from flyops import places

OFFLINE = "FLY_OFFLINE"  # a folder of wheels; handed on to everything that `fly` starts
STAMP = "flyops-complete"
LOCKS = {"run": ".venv", "dev": ".venv-dev"}  # lock -> the link beside `fly`


class BootstrapError(Exception):
    """Something that only the person at the keyboard can mend; its text is one line."""


def enter(words: Sequence[str]) -> list[str]:
    """Makes the environment if need be and goes on in it: returns the words once this process runs there. SystemExit after one line otherwise."""
    words = list(words)
    if words[:1] == ["--offline"]:
        if len(words) < 2 or not os.path.isdir(words[1]):
            _complain("--offline needs a folder of wheels: ./fly --offline WHEELS …  (make one with: pip download -r requirements/run.txt -d WHEELS)")
        os.environ[OFFLINE] = os.path.abspath(words[1])
        del words[:2]
    try:
        python = environment("run")
    except BootstrapError as error:
        _complain(str(error))
    except KeyboardInterrupt:
        _complain("interrupted; the same command starts the environment again", code=130)
    if os.path.realpath(sys.prefix) != os.path.realpath(python.parent.parent):
        fly = str(places.REPOSITORY / "fly")
        os.execv(python, [str(python), fly, *words])
    return words


def environment(lock: str) -> Path:
    """The interpreter of the environment of `requirements/LOCK.txt`, made first if it is not there."""
    requirements = places.REPOSITORY / "requirements" / f"{lock}.txt"
    folder = places.cache("venvs", f"{lock}-{_key(requirements)}")
    python = folder / "bin" / "python"
    if not _complete(folder):
        try:
            with _locked(folder.with_name(f"{folder.name}.lock")):
                if not _complete(folder):
                    _create(folder, requirements)
        except OSError as error:
            raise BootstrapError(f"cannot make {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written") from error
    if lock in LOCKS:
        _link(places.REPOSITORY / LOCKS[lock], folder)
    return python


def pip(target: Path | None = None) -> list[str]:
    """The start of a pip command line: this interpreter's own pip, told to work on `target`'s environment if there is one."""
    base = _base_python()
    if _has_module(base, "pip"):
        return [base, "-m", "pip", *(["--python", str(target)] if target else [])]
    if target and (target.parent / "pip").exists():
        return [str(target), "-m", "pip"]
    raise BootstrapError("pip is missing: install your system's packages python3-pip and python3-venv")


def _complete(folder: Path) -> bool:
    # bin/python is a link to the base interpreter: an upgrade may have taken that away.
    return (folder / STAMP).exists() and (folder / "bin" / "python").exists()


def _key(requirements: Path) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{sys.implementation.cache_tag} {version} {os.uname().machine} {sys.base_prefix}\n".encode()
    return hashlib.sha256(text + requirements.read_bytes()).hexdigest()[:16]


def _base_python() -> str:
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def _has_module(python: str, name: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another ./fly is making the environment; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _create(folder: Path, requirements: Path) -> None:
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    count = requirements.read_text().count("==")
    _say(f"making the environment: {count} packages of {requirements.name}, hashes checked")
    base = _base_python()
    own_pip = [] if _has_module(base, "pip") else ["with pip"]
    made = subprocess.run(
        [base, "-m", "venv", *([] if own_pip else ["--without-pip"]), str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise BootstrapError("python's venv is missing or broken: install your system's package python3-venv (python3.11-venv)")
    _install(folder / "bin" / "python", requirements, count)
    (folder / STAMP).write_text(f"{requirements.name}\n")
    _say(f"environment ready in {time.monotonic() - started:.0f} s: {folder}")


def _install(python: Path, requirements: Path, count: int) -> None:
    wheels = os.environ.get(OFFLINE, "")
    source = ["--no-index", "--find-links", wheels] if wheels else []
    options = ["--require-hashes", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
    command = [*pip(python), "install", "--progress-bar", "off", *options, *source, "-r", str(requirements)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines, seen = [], 0
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Collecting "):
            seen += 1
            _progress(f"package {seen} of {count}: {line.split()[1].partition('==')[0]}")
        elif line.startswith("Installing collected"):
            _progress(f"installing {seen} packages")
    _progress("")
    if process.wait():
        sys.stderr.writelines(lines[-12:])
        raise BootstrapError(_why("".join(lines), wheels))


def _why(output: str, wheels: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return "a package is not the one of the lock (its hash differs): nothing was installed; check where your packages come from"
    if wheels:
        return f"a package of the lock is not in {wheels}; make the folder with: pip download -r requirements/run.txt -d WHEELS"
    return "packages could not be installed (see above); without a network: ./fly --offline WHEELS …"


def _link(link: Path, folder: Path) -> None:
    """Points `.venv` at the environment; a checkout that may only be read, or a person's own `.venv` folder, is left as it is."""
    try:
        if os.readlink(link) == str(folder):
            return
    except OSError:
        if link.exists():
            return
    temporary = link.with_name(f"{link.name}.{os.getpid()}")
    try:
        os.symlink(folder, temporary)
        os.replace(temporary, link)
    except OSError:
        return


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[Kfly: {text}" if text else "\r\033[K")
        sys.stderr.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"fly: {text}\n")
    sys.stderr.flush()


def _complain(text: str, code: int = 2) -> NoReturn:
    _say(text)
    raise SystemExit(code)
