# SPDX-License-Identifier: Apache-2.0
"""The gate of fly_role: release, asked before anything is built or sent. Refused is exit 3."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from flyops import places
from flyops.domain import role
from flyops.errors import Refused, UsageError
from flyops.operations import build, hosts
from flyops.operations.release import Release


def tree(repository: Path) -> role.Tree:
    """What git says of a checkout, in its own words when it will not: its refusal of a foreign owner is not silenced here."""
    status = _git(repository, "status", "--porcelain")
    tags = _git(repository, "for-each-ref", "--points-at", "HEAD", "--format=%(refname:short) %(objecttype)", "refs/tags")
    trouble = next((done.stderr.strip() for done in (status, tags) if done.returncode), "")
    if trouble:
        return role.Tree(trouble=trouble.splitlines()[0])
    found = [line.split() for line in tags.stdout.splitlines()]
    return role.Tree(tuple(line[3:] for line in status.stdout.splitlines()), tuple((name, kind == "tag") for name, kind in found))


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(repository), *words],
            env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as err:
        return subprocess.CompletedProcess(words, 127, "", f"git: {err.strerror}")


def release_hosts(chosen: hosts.Hosts) -> list[str]:
    """Those of the hosts that take releases only."""
    roles = {name: str(chosen.value(name, "fly_role")) for name in chosen.names}
    wrong = {name: value for name, value in roles.items() if value not in role.ROLES}
    if wrong:
        raise UsageError("; ".join(f"{name}: fly_role is dev or release, found {value!r}" for name, value in wrong.items()))
    return [name for name, value in roles.items() if value == "release"]


def gate(chosen: hosts.Hosts, tarball: str, repository: Path = places.REPOSITORY) -> str:
    """The tag that release hosts get; empty when there are only dev hosts, or for a prerelease. Refused with all that is wrong."""
    names = release_hosts(chosen)
    if not names:
        return ""
    seen = tree(repository)
    prerelease = all(str(chosen.value(name, "fly_prerelease")).lower() == "true" for name in names)
    current = _with_release(chosen, names) if prerelease and not tarball else []
    wrong = role.problems(seen, prerelease=prerelease, tarball=bool(tarball), current=current)
    if wrong:
        raise Refused(f"{', '.join(names)}: fly_role is release: {'; '.join(wrong)}", fix=role.fix(wrong))
    return role.release_tag(seen)


def _with_release(chosen: hosts.Hosts, names: list[str]) -> list[str]:
    """Those of the hosts that have a release already."""
    found = hosts.play(chosen, "look", display="none", look=True)
    return [name for name in names if name in found.hosts and found.hosts[name].vars.get("release_now", {}).get("current")]


def gate_release(tag: str, release: Release) -> None:
    """The release itself against the tag."""
    if not tag:
        return
    built_as = release.manifest.header.get("built_as", release.version)
    wrong = role.version_problems(tag, built_as, str(build.current_version(release.manifest.features)))
    if wrong:
        raise Refused(f"fly_role is release: {'; '.join(wrong)}", fix="build it at the tag: invoke build. Nothing was changed")
