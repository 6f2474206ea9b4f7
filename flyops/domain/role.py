# SPDX-License-Identifier: Apache-2.0
"""What may be deployed to whom: a `dev` host takes any tree, a `release` host only a clean tree exactly at an annotated tag vX.Y.Z. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Sequence, Tuple

ROLES = ("dev", "release")
TAG = re.compile(r"v\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Tree:
    """A checkout as git tells it. `tags`: (name, annotated) at HEAD; `trouble`: what git said in place of an answer."""

    dirty: Tuple[str, ...] = ()
    tags: Tuple[Tuple[str, bool], ...] = ()
    trouble: str = ""


def release_tag(tree: Tree) -> str:
    """The annotated tag vX.Y.Z at HEAD; empty without one."""
    return next((name for name, annotated in tree.tags if annotated and TAG.fullmatch(name)), "")


def _untagged(tree: Tree) -> str:
    found = ", ".join(f"{name} ({'annotated' if annotated else 'lightweight'})" for name, annotated in tree.tags)
    return f"HEAD is not exactly at an annotated tag vX.Y.Z, found {found or 'no tag'}"


def problems(tree: Tree, *, prerelease: bool = False, tarball: bool = False, current: Sequence[str] = ()) -> list[str]:
    """All that stands between a tree and a release host. `prerelease` waives the tag only before there is any release: neither a tarball
    was given nor has one of the hosts in `current` a release already."""
    if "dubious ownership" in tree.trouble:
        return [f"git refuses to read this checkout, dubious ownership: {tree.trouble}"]
    if tree.trouble:
        return [f"git cannot tell what this checkout is: {tree.trouble}"]
    out = []
    if tree.dirty:
        more = f" and {len(tree.dirty) - 3} more" if len(tree.dirty) > 3 else ""
        out.append(f"the tree is not clean: {', '.join(tree.dirty[:3])}{more}")
    if not release_tag(tree):
        if not prerelease:
            out.append(_untagged(tree))
        elif tarball:
            out.append(f"{_untagged(tree)}; fly_prerelease does not go with --release")
        elif current:
            out.append(f"{_untagged(tree)}; fly_prerelease is for hosts without a release, {', '.join(current)} has one")
    return out


def version_problems(tag: str, version: str, sources: str) -> list[str]:
    """A release against the tag: its number, and that it was built from the tag's own sources. `sources`: the version that the tag's tree has."""
    out = []
    if version.partition("-")[0] != tag[1:]:
        out.append(f"expected a release of version {tag[1:]} for the tag {tag}, found {version}")
    if sources and version != sources:
        out.append(f"expected the release of the tag's own sources, {sources}, found {version}")
    return out


def fix(wrong: Sequence[str]) -> str:
    """What to do about them."""
    if any("dubious ownership" in text for text in wrong):
        return "run it as the owner of the checkout, or tell git that it may be read: git config --global --add safe.directory PATH"
    return "commit, then tag it: git tag -a vX.Y.Z -m …; or deploy to a host with fly_role: dev. Nothing was changed"
