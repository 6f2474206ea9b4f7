# SPDX-License-Identifier: Apache-2.0
"""Names of releases: the crate's version and a hash of what the binary is built from, `+cuda` when the feature is in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Tuple

HASH_DIGITS = 10
_VERSION = re.compile(r"(?P<crate>\d+\.\d+\.\d+)-(?P<hash>[0-9a-f]{%d})(?P<cuda>\+cuda)?(?P<arches>(?:\.sm_\d+[af]?)*)" % HASH_DIGITS)
_ARCHES = re.compile(r"(?:\.sm_\d+[af]?)+$")
_CRATE = re.compile(r'^version\s*=\s*"(\d+\.\d+\.\d+)"', re.MULTILINE)


@dataclass(frozen=True)
class Version:
    """A release's name taken apart."""

    crate: str
    sources: str  # first digits of the hash of sources, lock and features
    cuda: bool
    arches: Tuple[str, ...] = ()  # PTX files that were added after the build

    def __str__(self) -> str:
        return with_arches("%s-%s%s" % (self.crate, self.sources, "+cuda" if self.cuda else ""), self.arches)


def parse(text: str) -> Version | None:
    """The parts of a release's name, or None when it is not one."""
    found = _VERSION.fullmatch(text)
    return Version(found["crate"], found["hash"], bool(found["cuda"]), tuple(found["arches"].split(".")[1:])) if found else None


def with_arches(name: str, arches: Iterable[str]) -> str:
    """The name of a release to which PTX for these arches was added (`0.1.0-3f9c1a2b4d+cuda.sm_90`): another content is another name."""
    there = _ARCHES.search(name)
    before = there[0].split(".")[1:] if there else []
    base = name[: there.start()] if there else name
    return ".".join([base, *sorted({*before, *arches})])


def crate_version(cargo_toml: str) -> str | None:
    """The version in a Cargo.toml: its first `version = "X.Y.Z"` line."""
    found = _CRATE.search(cargo_toml)
    return found[1] if found else None


def version_of(crate: str, source_hashes: Mapping[str, str], features: Iterable[str]) -> Version:
    """The name for these sources (path -> sha256) and features. Names and contents count, order and times do not."""
    wanted = sorted(set(features))
    digest = hashlib.sha256()
    for path in sorted(source_hashes):
        digest.update(("%d %s %s\n" % (len(path.encode()), path, source_hashes[path])).encode())
    digest.update(("features %s\n" % " ".join(wanted)).encode())
    return Version(crate, digest.hexdigest()[:HASH_DIGITS], "cuda" in wanted)
