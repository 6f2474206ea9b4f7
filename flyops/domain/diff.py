# SPDX-License-Identifier: Apache-2.0
"""Unified diffs for people: a missing newline at the end is said, binary content is summed up, long content is cut."""

from __future__ import annotations

import difflib
import hashlib
from typing import Optional

from flyops.model.change import Diff

NO_NEWLINE = "\\ No newline at end of file"
SHOW_BYTES = 256 * 1024


def unified(before: str, after: str, header: str, *, context: int = 3) -> str:
    """The diff of two texts, headed by what it is about; empty when they are equal."""
    out: list[str] = []
    for line in difflib.unified_diff(_lines(before), _lines(after), f"before: {header}", f"after: {header}", n=context):
        if line.startswith(("---", "+++", "@@")) or line.endswith("\n"):
            out.append(line if line.endswith("\n") else line + "\n")
        else:
            out.append(f"{line}\n{NO_NEWLINE}\n")
    return "".join(out)


def _lines(content: str) -> list[str]:
    """Split at newlines only: a carriage return or form feed inside a line is content."""
    parts = content.split("\n")
    last = parts.pop()
    return [part + "\n" for part in parts] + ([last] if last else [])


def readable(data: Optional[bytes]) -> str:
    """Bytes as a diff shows them: text as it is, other content by size and digest."""
    if not data:
        return ""
    if len(data) > SHOW_BYTES or b"\0" in data:
        return summary(len(data), hashlib.sha256(data).hexdigest())
    return data.decode("utf-8", "replace")


def summary(size: int, sha256: str) -> str:
    """A line in place of content that is binary or too long to show."""
    return f"({size} bytes, sha256 {sha256[:16]}…)\n"


def of_content(path: str, before: Optional[bytes], after: bytes) -> Diff:
    """The diff of a file's content; `before` is None when there was no file."""
    return Diff(header=path, before=readable(before), after=readable(after))
