# SPDX-License-Identifier: Apache-2.0
"""Releases: what a tar may hold, what a MANIFEST promises, which folders a pruning keeps. Pure: bytes and listings in, values out."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence, Tuple

from flyops.domain import manifest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
MAX_BYTES = 1 << 30
DIGEST = 64  # hex digits of a sha256; what is shorter names a kind


class ReleaseError(ValueError):
    """A release that cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True)
class Member:
    """One file of a release's tar, below its top folder."""

    path: str
    mode: int
    data: bytes


def check_version(version: str) -> None:
    """A version names a folder: one path part, no dot in front."""
    if not NAME.fullmatch(version):
        raise ReleaseError(f"a version is letters, digits and ._+- (first a letter or digit), found {version!r}")


def problems(text: str, version: str, found: Mapping[str, str]) -> list[str]:
    """What is wrong with a release's folder. `text` is its MANIFEST, `found` path -> sha256 of each file, or `link`, `char`, … for what is none."""
    try:
        listed = manifest.parse(text)
    except manifest.ManifestError as err:
        return [f"MANIFEST: {reason}" for reason in err.reasons]
    out = [f"{path} is a {kind}, expected a file" for path, kind in sorted(found.items()) if len(kind) != DIGEST]
    out += manifest.differences(listed, {path: digest for path, digest in found.items() if len(digest) == DIGEST})
    if listed.version != version:
        out.insert(0, f"MANIFEST: expected version {version}, found {listed.version}")
    return out


def _plain_tar(data: bytes) -> bytes:
    try:
        raw = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, OSError, zlib.error) as err:
        raise ReleaseError(f"the release's tar.gz is cut short or damaged: {err}") from err
    if len(raw) > MAX_BYTES:
        raise ReleaseError(f"the release unpacks to {len(raw)} bytes, expected at most {MAX_BYTES}")
    return raw


def _member(tar: tarfile.TarFile, info: tarfile.TarInfo, version: str) -> Member | None:
    path = info.name[2:] if info.name.startswith("./") else info.name
    top, _, rest = path.rstrip("/").partition("/")
    if info.isdir() and path in ("", "."):
        return None
    if manifest.unsafe(path.rstrip("/")) or "\n" in path:
        raise ReleaseError(f"{path!r}: expected a plain path below the release")
    if top != version:
        raise ReleaseError(f"the tar's top folder is {top!r}, expected {version!r}")
    if info.isdir():
        return None
    if not info.isreg():
        raise ReleaseError(
            f"{path}: a release holds files and folders only, found {'a link to ' + info.linkname if info.issym() or info.islnk() else 'a special file'}"
        )
    if not rest:
        raise ReleaseError(f"{path}: a file where the top folder should be")
    source = tar.extractfile(info)
    body = source.read() if source else b""
    if len(body) != info.size:
        raise ReleaseError(f"{path}: cut short, expected {info.size} bytes, found {len(body)}")
    return Member(rest, 0o755 if info.mode & 0o111 else 0o644, body)


def unpack(data: bytes, version: str) -> tuple[Member, ...]:
    """The files of a release's tar (gzip or plain), checked for paths, links, kinds and length."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_plain_tar(data)), mode="r:") as tar:
            members = [_member(tar, info, version) for info in tar.getmembers()]
    except (tarfile.TarError, EOFError) as err:
        raise ReleaseError(f"the release's tar is cut short or damaged: {err}") from err
    out: dict[str, Member] = {}
    for member in members:
        if member is not None:
            if member.path in out:
                raise ReleaseError(f"{member.path}: twice in the tar")
            out[member.path] = member
    if manifest.NAME not in out:
        raise ReleaseError("the tar has no MANIFEST")
    return tuple(out.values())


def folders(members: Iterable[Member]) -> tuple[str, ...]:
    """Every folder that the members need, parents first."""
    out: dict[str, None] = {}
    for member in members:
        parts = member.path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            out["/".join(parts[:depth])] = None
    return tuple(sorted(out))


def pointed(target: str) -> str:
    """The version that a `current` or `previous` link points to; empty for a link that points elsewhere."""
    parent, _, version = target.rstrip("/").rpartition("/")
    return version if parent.rpartition("/")[2] == "releases" and NAME.fullmatch(version) else ""


def to_prune(aged: Sequence[Tuple[str, float]], kept: Iterable[str], keep: int) -> tuple[str, ...]:
    """Versions to remove: all but the newest `keep` and those in `kept`. `aged` is (version, time of staging)."""
    newest = [version for version, _ in sorted(aged, key=lambda pair: (-pair[1], pair[0]))]
    safe = {*newest[: max(keep, 0)], *kept}
    return tuple(sorted(version for version in newest if version not in safe))
