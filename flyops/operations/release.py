# SPDX-License-Identifier: Apache-2.0
"""Releases as files on this machine: a folder in the cache with its MANIFEST, and the tar that travels. Equal inputs give equal bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flyops import places
from flyops.domain import manifest as manifests
from flyops.domain import version as versions
from flyops.domain.manifest import Manifest
from flyops.errors import UsageError

LIMIT_BYTES = 1 << 30  # an unpacked release is a few MB; more is not a release


@dataclass(frozen=True)
class Release:
    """One release in the cache: `folder` is its unpacked form, `tar` what is sent."""

    version: str
    folder: Path
    tar: Path
    manifest: Manifest
    fresh: bool = False  # made by this call

    @property
    def binary(self) -> Path:
        """The flysim in it, for use on this machine."""
        return self.folder / manifests.BINARY

    def ptx(self, arch: str) -> str | None:
        """The text of its PTX for an arch, if it has one."""
        path = self.folder / "ptx" / f"{arch}.ptx"
        return path.read_text() if path.exists() else None


def assemble(parent: Path, files: Mapping[str, Path | bytes], header: Mapping[str, str]) -> Release:
    """Lays `parent/VERSION/…` and its tar, at once or not at all; `parent` is replaced."""
    version = header["version"]
    parent.parent.mkdir(parents=True, exist_ok=True)
    with scratch(parent) as work:
        folder = work / version
        for path, source in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
            target.chmod(0o755 if path.startswith("bin/") else 0o644)
        record = Manifest(header)
        (folder / manifests.RECORD).write_text(manifests.render_record(record))
        whole = replace(record, files=hashes(folder))
        (folder / manifests.NAME).write_text(manifests.render(whole))
        _write_tar(folder, work / manifests.tar_name(version))
        _replace(work, parent)
    return Release(version, parent / version, parent / manifests.tar_name(version), whole, fresh=True)


def load(parent: Path, version: str) -> Release | None:
    """A release laid by `assemble`, or None when it is not (or no longer) whole."""
    folder, tar = parent / version, parent / manifests.tar_name(version)
    try:
        record = manifests.parse((folder / manifests.NAME).read_text())
    except (OSError, ValueError):
        return None
    whole = tar.exists() and record.version == version and not manifests.differences(record, hashes(folder))
    return Release(version, folder, tar, record) if whole else None


def open_tar(path: str | Path) -> Release:
    """A prebuilt release: unpacked into the cache, every file compared with its MANIFEST. UsageError says all that is wrong."""
    tar = Path(path).expanduser().absolute()
    try:
        digest = _sha256(tar)
    except OSError as error:
        raise UsageError(f"the release {path} cannot be read: {error.strerror}") from error
    parent = places.cache("builds", "opened", digest[:16])
    parent.parent.mkdir(parents=True, exist_ok=True)
    with scratch(parent) as work:
        version, record = _unpack(tar, work)
        _replace(work, parent)
    return Release(version, parent / version, tar, record)


def with_ptx(release: Release, texts: Mapping[str, str]) -> Release:
    """The release with PTX files for these arches, under a name of its own; itself when it has them already. The binary is not touched."""
    missing = {arch: text for arch, text in texts.items() if release.ptx(arch) != text}
    if not missing:
        return release
    files: dict[str, Path | bytes] = {path: release.folder / path for path in release.manifest.files if path != manifests.RECORD}
    files.update({f"ptx/{arch}.ptx": text.encode() for arch, text in missing.items()})
    arches = sorted(path.split("/")[1].removesuffix(".ptx") for path in files if path.startswith("ptx/"))
    version = versions.with_arches(release.version, missing)
    header = {"built_as": release.version, **release.manifest.header, "version": version, "ptx": " ".join(arches)}
    key = hashlib.sha256(repr(sorted(missing.items())).encode() + manifests.render(release.manifest).encode()).hexdigest()[:16]
    parent = places.cache("builds", "with-ptx", f"{version}-{key}")
    return load(parent, version) or assemble(parent, files, header)


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every regular file below a folder, by relative path."""
    return {str(path.relative_to(folder)): _sha256(path) for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()}


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder beside `target` to work in; gone afterwards unless it was moved to its place."""
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    work.chmod(0o755)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(work: Path, target: Path) -> None:
    # A folder cannot be renamed over a full one; whoever comes second throws its equal work away.
    shutil.rmtree(target, ignore_errors=True)
    try:
        work.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_tar(folder: Path, target: Path) -> None:
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=9) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            info = tar.gettarinfo(path, arcname=str(path.relative_to(folder.parent)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = "root"
            info.mode = 0o755 if path.is_dir() or path.parent.name == "bin" else 0o644
            tar.addfile(info, io.BytesIO(path.read_bytes()) if path.is_file() else None)


def _unpack(tar: Path, work: Path) -> tuple[str, Manifest]:
    """Extracts regular files and folders below one top folder; checks them; gives the version and the manifest."""
    try:
        with tarfile.open(tar, "r:gz") as archive:
            members = archive.getmembers()
            wrong = [m.name for m in members if manifests.unsafe(m.name.rstrip("/")) or not (m.isfile() or m.isdir())]
            if wrong or sum(m.size for m in members) > LIMIT_BYTES:
                raise UsageError(f"{tar} is not a release: it holds {wrong[:3] or 'more than 1 GiB'}")
            archive.extractall(work, filter="data")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UsageError(f"{tar} cannot be unpacked: {error}", fix="copy it again; it is cut off or damaged") from error
    tops = sorted(entry.name for entry in work.iterdir())
    if len(tops) != 1:
        raise UsageError(f"{tar} is not a release: expected one top folder, found {tops[:5]}")
    try:
        record = manifests.parse((work / tops[0] / manifests.NAME).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{tar} is not a release: its MANIFEST: {error}") from error
    wrong = manifests.differences(record, hashes(work / tops[0]))
    if record.version != tops[0]:
        wrong.insert(0, f"the folder {tops[0]} and the version {record.version} differ")
    if wrong:
        raise UsageError(f"{tar} does not match its MANIFEST: {'; '.join(wrong[:5])}", fix="copy or build it again")
    return tops[0], record
