# SPDX-License-Identifier: Apache-2.0
"""Neighbouring guests of a deploy: their config files before and after, and who moved what. Pure."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

Digests = Mapping[str, str]


def moved(before: Digests, after: Digests) -> dict[str, str]:
    """Path -> came, went or changed."""
    out = {path: "went" for path in before if path not in after}
    out.update({path: "came" for path in after if path not in before})
    out.update({path: "changed" for path in after if path in before and before[path] != after[path]})
    return dict(sorted(out.items()))


def by_us(changes: Mapping[str, str], writes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those of the paths that this run's own write log has."""
    ours = {str(entry["path"]) for entry in writes if entry.get("kind") != "run"}
    return [path for path in changes if path in ours]


def said(digests: Digests, changes: Mapping[str, str], ours: Iterable[str]) -> list[str]:
    """What the report says: how many were looked at, what moved, and whose doing it was."""
    if not digests and not changes:
        return ["no neighbouring guest's config on the container host"]
    written = set(ours)
    whose = {True: "written by this run: a neighbour must never be touched", False: "by someone else: this run did not write it"}
    lines = [f"{path} {word} during this run, {whose[path in written]}" for path, word in changes.items()]
    return lines or [f"{len(digests)} neighbouring config file{'' if len(digests) == 1 else 's'}, all as before"]
