# SPDX-License-Identifier: Apache-2.0
"""Builds a release of flysim with cargo, once for each version; quick when nothing changed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from flyops import places
from flyops.domain import version as versions
from flyops.domain.ptx import known_arch
from flyops.errors import FlyopsError, UsageError
from flyops.operations import needs, release
from flyops.operations.options import BuildOptions
from flyops.operations.progress import Progress
from flyops.operations.release import Release

FEATURES = "FLY_CARGO_FEATURES"
_CUDA_LIBRARY = re.compile(r"lib(?:cuda|cudart|nvrtc|nvidia)[-\w.]*")
# Folders and files below flysim/ that no binary depends on: a new test is no new version.
_NOT_SOURCES = {"target", "tests", "benches", "testkit", "tools", "__pycache__", "clippy.toml", "rustfmt.toml"}


class BuildError(FlyopsError, RuntimeError):
    """cargo failed, or made a binary that must not be shipped."""


def run(options: BuildOptions) -> int:
    """`invoke build`: prints the version and the path of the tar."""
    made = build(cuda=options.gpu)
    if options.arch:
        from flyops.operations import ptx

        made = ptx.add(made, [options.arch])
    if options.json:
        print(json.dumps({**made.manifest.header, "tar": str(made.tar), "fresh": made.fresh}))
    else:
        print(f"{made.version}\n{made.tar}")
    return 0


def build(*, cuda: bool = False) -> Release:
    """The release of this checkout's flysim, from the cache when it was built before. `FLY_CARGO_FEATURES` adds features."""
    features = features_wanted(cuda)
    version = current_version(features)
    parent = places.cache("builds", str(version))
    found = release.load(parent, str(version))
    if found:
        return found
    with _locked(parent):
        return release.load(parent, str(version)) or _build(parent, version, features)


def features_wanted(cuda: bool) -> list[str]:
    """Cargo features: those of `FLY_CARGO_FEATURES` (comma or space), and cuda when asked for."""
    named = re.split(r"[,\s]+", os.environ.get(FEATURES, "").strip())
    return sorted({name for name in named if name} | ({"cuda"} if cuda else set()))


def current_version(features: Sequence[str] = ()) -> versions.Version:
    """The version that a build of this checkout would have; no compiler is asked."""
    workspace = _workspace()
    crate = versions.crate_version((workspace / "Cargo.toml").read_text())
    if crate is None:
        raise BuildError('flysim/Cargo.toml has no line `version = "X.Y.Z"`')
    return versions.version_of(crate, source_hashes(workspace), features)


def source_hashes(workspace: Path) -> dict[str, str]:
    """sha256 of each file that a binary may depend on, by path relative to the workspace."""
    found = {}
    for folder, folders, files in os.walk(workspace):
        folders[:] = sorted(name for name in folders if name not in _NOT_SOURCES and not name.startswith("."))
        for name in files:
            path = Path(folder, name)
            if name not in _NOT_SOURCES and path.suffix not in {".md", ".pyc"} and path.is_file():
                found[path.relative_to(workspace).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _workspace() -> Path:
    workspace = places.REPOSITORY / "flysim"
    if not (workspace / "Cargo.toml").exists():
        raise UsageError(f"flysim's sources are not in {workspace}: use a whole checkout, or --release flysim-VERSION.tar.gz")
    return workspace


def _build(parent: Path, version: versions.Version, features: Sequence[str]) -> Release:
    cargo = needs.program("cargo", "build flysim")
    needs.program("cc", "build flysim (cargo links with it)")
    workspace = _workspace()
    target = places.cache("builds", "target")
    command = [cargo, "build", "--release", "--locked", "--package", "flysim", "--bin", "flysim"]
    command += ["--features", ",".join(features)] if features else []
    command += ["--offline"] if os.environ.get("FLY_OFFLINE") else []
    # The user's folders do not belong in the texts of a panic, nor in what makes two builds differ.
    cargo_home = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
    command += ["--config", f"build.rustflags=[{json.dumps(f'--remap-path-prefix={cargo_home}=/cargo')}]"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "FLY_BUILD_VERSION": str(version), "CARGO_TERM_COLOR": "never"}
    _cargo(command, workspace, environment, parent.with_name(f"{version}.log"), str(version))
    binary = target / "release" / "flysim"
    files: dict[str, Path | bytes] = {"bin/flysim": _stripped(binary, parent)}
    _check(binary, str(version))
    if version.cuda:
        files.update({f"ptx/{arch}.ptx": path for arch, path in _committed_ptx(workspace)})
    return release.assemble(parent, files, _header(version, features, files, workspace))


def _committed_ptx(workspace: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(workspace.glob("crates/*/kernels/*.ptx")):
        arch = path.stem.rpartition(".")[2]  # flysim.sm_75.ptx
        if known_arch(arch):
            yield arch, path


def _header(version: versions.Version, features: Sequence[str], files: Mapping[str, object], workspace: Path) -> dict[str, str]:
    arches = sorted(name.split("/")[1].removesuffix(".ptx") for name in files if name.startswith("ptx/"))
    # The commit that last touched the sources: a commit elsewhere must not give the same version another MANIFEST.
    commit = _git("log", "-1", "--format=%H", "--", ".", cwd=workspace) or "none"
    if _git("status", "--porcelain", "--", ".", cwd=workspace):
        commit += " with changes"
    return {
        "version": str(version),
        "git_commit": commit,
        "git_tag": _git("describe", "--exact-match", "--tags", commit, cwd=workspace) or "none",
        "features": " ".join(features) or "none",
        "ptx": " ".join(arches) or "none",
        "rustc": _output(["rustc", "--version"], workspace) or "unknown",
    }


def _cargo(command: Sequence[str], workspace: Path, environment: Mapping[str, str], log: Path, version: str) -> None:
    """Runs cargo; its words go to the log, a line of progress to the terminal, its last lines to whoever must mend it."""
    last: deque[str] = deque(maxlen=40)
    crates = 0
    with Progress(f"building flysim {version}") as progress, log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=workspace, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                last.append(line)
                word, _, rest = line.strip().partition(" ")
                if word in {"Compiling", "Downloaded", "Downloading", "Locking", "Blocking"}:
                    crates += word == "Compiling"
                    progress.show(f"{crates} crates, {word.lower()} {rest.strip().partition(' (')[0]}")
        except BaseException:
            process.terminate()
            raise
        code = process.wait()
    if code:
        sys.stderr.writelines(last)
        raise BuildError(f"cargo failed with exit {code}; its whole output is in {log}", fix=_cargo_fix("".join(last)))


def _cargo_fix(output: str) -> str:
    if "Cargo.lock needs to be updated" in output or "because --locked was passed" in output:
        return "flysim/Cargo.lock does not fit Cargo.toml: run `cargo build` in flysim/ and commit the lock"
    if "rustc" in output and "is not supported by" in output:
        return "this Rust is too old: rustup update, or deploy a prebuilt release with --release"
    if "failed to download" in output or "Could not resolve host" in output or "--offline was specified" in output:
        return "crates could not be fetched: a network or a filled cargo cache is needed, or --release flysim-VERSION.tar.gz"
    return "the last lines of cargo are above"


def _stripped(binary: Path, parent: Path) -> bytes:
    strip = shutil.which("strip")
    with release.scratch(parent) as work:
        copy = work / "flysim"
        shutil.copyfile(binary, copy)
        if strip:
            subprocess.run([strip, str(copy)], check=True, capture_output=True)
        return copy.read_bytes()


def _check(binary: Path, version: str) -> None:
    """One binary for machines with and without a card: it may link no CUDA library. And it must be the one that was asked for."""
    linked = _output([needs.program("ldd", "see what flysim is linked with"), str(binary)], binary.parent)
    found = sorted(set(_CUDA_LIBRARY.findall(linked)))
    if found:
        raise BuildError(f"the binary is linked with {', '.join(found)}: it would not start without a card", fix="use cudarc with dynamic-loading")
    said = _output([str(binary), "--version"], binary.parent)
    if version not in said.split():
        raise BuildError(f"flysim --version: expected {version}, found {said!r}", fix="flysim must print FLY_BUILD_VERSION of its build")


def _git(*words: str, cwd: Path) -> str:
    # A checkout that belongs to another user is read all the same: its code is what we are building.
    return _output(["git", "-c", f"safe.directory={places.REPOSITORY}", *words], cwd)


def _output(command: Sequence[str], cwd: Path) -> str:
    try:
        return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


@contextmanager
def _locked(parent: Path) -> Iterator[None]:
    parent.parent.mkdir(parents=True, exist_ok=True)
    with parent.with_name(f"{parent.name}.lock").open("w") as file:
        started = time.monotonic()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Progress("another build of the same version is running") as progress:
                progress.show("waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
                progress.show(f"waited {time.monotonic() - started:.0f} s")
        yield
