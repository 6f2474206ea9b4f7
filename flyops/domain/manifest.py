# SPDX-License-Identifier: Apache-2.0
"""The MANIFEST of a release: `# key: value` lines, then `sha256  relative/path`, sorted. Text in, values out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NAME = "MANIFEST"
RECORD = "RELEASE.json"
BINARY = "bin/flysim"
# Read in this order by people; anything else follows, sorted.
KEYS = ("version", "built_as", "git_commit", "git_tag", "features", "ptx", "rustc")
_HEADER = re.compile(r"# ([a-z_]+): (.*)")
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


@dataclass(frozen=True)
class Manifest:
    """What a release says of itself and of each of its files."""

    header: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # relative path -> sha256

    @property
    def version(self) -> str:
        """The release's name."""
        return self.header.get("version", "")

    @property
    def features(self) -> tuple[str, ...]:
        """The cargo features of the binary."""
        return tuple(self.header.get("features", "").replace("none", "").split())

    @property
    def ptx(self) -> tuple[str, ...]:
        """The arches of the PTX files beside the binary."""
        return tuple(self.header.get("ptx", "").replace("none", "").split())


class ManifestError(ValueError):
    """A MANIFEST that cannot be trusted; each reason with its line."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def render(manifest: Manifest) -> str:
    """The text of a MANIFEST; equal manifests give equal texts."""
    keys = [key for key in KEYS if key in manifest.header] + sorted(set(manifest.header) - set(KEYS))
    lines = ["# %s: %s" % (key, manifest.header[key]) for key in keys]
    return "\n".join(lines + ["%s  %s" % (manifest.files[path], path) for path in sorted(manifest.files)]) + "\n"


def render_record(manifest: Manifest) -> str:
    """RELEASE.json: the same header for programs."""
    return json.dumps(dict(manifest.header), indent=2, sort_keys=True) + "\n"


def parse(text: str) -> Manifest:
    """The manifest of a text. Every reason not to trust it is in one ManifestError."""
    header: dict[str, str] = {}
    files: dict[str, str] = {}
    reasons = []
    for number, line in enumerate(text.splitlines(), 1):
        key_line, file_line = _HEADER.fullmatch(line), _LINE.fullmatch(line)
        if key_line:
            header[key_line[1]] = key_line[2]
        elif not file_line:
            reasons.append("line %d: expected `sha256  path`, found %.60r" % (number, line))
        elif unsafe(file_line[2]):
            reasons.append("line %d: path leaves the release: %r" % (number, file_line[2]))
        elif file_line[2] in files:
            reasons.append("line %d: %s is listed twice" % (number, file_line[2]))
        else:
            files[file_line[2]] = file_line[1]
    if not header.get("version"):
        reasons.append("no `# version:` line")
    if BINARY not in files:
        reasons.append("%s is not listed" % BINARY)
    if reasons:
        raise ManifestError(reasons)
    return Manifest(header, files)


def unsafe(path: str) -> bool:
    """Whether a relative path would leave its folder or is written in a form that two tools may read differently."""
    parts = path.split("/")
    return path.startswith("/") or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts)


def differences(manifest: Manifest, seen: Mapping[str, str]) -> list[str]:
    """What is wrong with the files of a release folder (path -> sha256, without MANIFEST itself); empty when all is well."""
    found = []
    for path in sorted(set(manifest.files) | (set(seen) - {NAME})):
        if path not in seen:
            found.append("%s is missing" % path)
        elif path not in manifest.files:
            found.append("%s is not in the MANIFEST" % path)
        elif seen[path] != manifest.files[path]:
            found.append("%s differs: expected sha256 %s, found %s" % (path, manifest.files[path][:12], seen[path][:12]))
    return found


def tar_name(version: str) -> str:
    """The file name of a release's tar."""
    return "flysim-%s.tar.gz" % version
