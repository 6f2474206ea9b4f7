# SPDX-License-Identifier: Apache-2.0
"""Moves the fragments of changelog.d/ into CHANGELOG.md under a version; `--draft` only prints them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = {"feature": "Added", "change": "Changed", "fix": "Fixed", "docs": "Documented"}
MARK = "<!-- releases below -->\n"


def main(words: list[str]) -> int:
    """`changelog.py VERSION`."""
    versions = [word for word in words if not word.startswith("-")]
    if len(versions) != 1:
        print("usage: python tools/changelog.py [--draft] VERSION", file=sys.stderr)
        return 2
    fragments = sorted(path for path in (ROOT / "changelog.d").glob("*.*.md"))
    text = render(versions[0], [(path.name.split(".")[-2], path.read_text()) for path in fragments])
    if "--draft" in words:
        print(text)
        return 0
    changelog = ROOT / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(MARK, f"{MARK}\n{text}", 1))
    for path in fragments:
        path.unlink()
    return 0


def render(version: str, fragments: list[tuple[str, str]]) -> str:
    """A version's section."""
    lines = [f"## {version} ({time.strftime('%Y-%m-%d')})", ""]
    for kind, heading in HEADINGS.items():
        texts = [" ".join(text.split()) for found, text in fragments if found == kind]
        if texts:
            lines += [f"### {heading}", "", *(f"- {text}" for text in texts), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
