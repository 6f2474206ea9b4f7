# SPDX-License-Identifier: Apache-2.0
"""What no linter looks for. `python tools/tidy.py` prints each fault as `file:line: what`; exit 1 when there is one.

Absent from every committed file: a missing licence line, a file or function over the limit, a path of somebody's machine, the address of a
package index, a module without its fixtures or its page, a changelog fragment of an unknown kind.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 500
FUNCTION_LINES = 70
CODE = {".py", ".rs", ".cu", ".sh"}
TEXT = CODE | {".md", ".yml", ".yaml", ".toml", ".txt", ".in", ".j2", ".json", ".html", ".js", ".css", ""}
# Somebody's home or work folder. /root alone is a place on targets.
MACHINE = re.compile(r"(?<![\w./-])/(?:home/(?!user\b|ops\b|fly\b|you\b)\w+|Users/\w+|work/\w+)|(?<![\w./-])/root/\.(?:cargo|pyenv|rustup)")
INDEX = re.compile(r"--(?:extra-)?index-url|https?://(?:pypi|files\.pythonhosted|index\.crates|static\.crates|deb\.debian|registry\.npmjs)")
KINDS = {"feature", "fix", "change", "docs"}


def main() -> int:
    """Runs every check over the committed files."""
    files = [Path(name) for name in _git("ls-files").splitlines() if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]
    faults = [fault for file in files if file.suffix in TEXT for fault in check_file(file, (ROOT / file).read_text(errors="replace"))]
    faults += [*check_modules(files), *check_fragments(files)]
    for fault in faults:
        print(fault)
    print(f"tidy: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


def check_file(path: Path, text: str) -> Iterator[str]:
    """The faults of one file."""
    lines = text.splitlines()
    if path.suffix in CODE or path.name in {"fly", "Cargo.toml", "pyproject.toml"}:
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]) and lines:
            yield f"{path}:1: no line `SPDX-License-Identifier: Apache-2.0` on top"
        if len(lines) > FILE_LINES and "generated" not in "".join(lines[:3]):
            yield f"{path}:1: {len(lines)} lines, the limit is {FILE_LINES}: split it"
    if path.suffix != ".txt" and path.name not in {"tidy.py", "Cargo.lock", "LICENSE"}:
        for number, line in enumerate(lines, 1):
            if MACHINE.search(line):
                yield f"{path}:{number}: a path of one machine: {line.strip()[:80]}"
    if path.name not in {"tidy.py", "Cargo.lock"}:
        for number, line in enumerate(lines, 1):
            if INDEX.search(line):
                yield f"{path}:{number}: the address of a package index: {line.strip()[:80]}"
    if path.suffix == ".py":
        yield from check_python(path, text)
    if path.suffix == ".ptx" and re.search(r"^\s*fma\.", text, re.MULTILINE):
        yield f"{path}:1: a fused multiply-add in committed PTX"


def check_python(path: Path, text: str) -> Iterator[str]:
    """Functions over the limit, public names without a docstring."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield f"{path}:{error.lineno}: {error.msg}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, the limit is {FUNCTION_LINES}"
    if path.parts[0] in {"flyops", "tools"}:
        yield from check_docstrings(path, tree)


def check_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """Public functions, classes and modules say what they are. Methods of a documented class may speak by their name."""
    if not ast.get_docstring(tree):
        yield f"{path}:1: the file has no docstring"
    contract = {"read", "plan", "apply"} if path.parts[:2] == ("flyops", "modules") else set()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_") or node.name in contract:
            continue
        if not ast.get_docstring(node):
            yield f"{path}:{node.lineno}: {node.name} has no docstring"


def check_modules(files: list[Path]) -> Iterator[str]:
    """Each module has fixtures and a page."""
    names = sorted(file.stem for file in files if file.parts[:2] == ("flyops", "modules") and len(file.parts) == 3 and not file.stem.startswith("_"))
    for name in names:
        if not any(file.parts[:3] == ("tests", "modules", name) and file.suffix == ".yml" for file in files):
            yield f"flyops/modules/{name}.py:1: no fixture in tests/modules/{name}/"
        if not (ROOT / "docs" / "modules" / f"{name}.md").exists():
            yield f"flyops/modules/{name}.py:1: no page docs/modules/{name}.md: python tools/docs.py"


def check_fragments(files: list[Path]) -> Iterator[str]:
    """changelog.d/NAME.KIND.md."""
    for file in files:
        if file.parts[0] == "changelog.d" and file.name != "README.md":
            kind = file.name.split(".")[-2] if file.name.count(".") == 2 else ""
            if kind not in KINDS:
                yield f"{file}:1: a fragment is called NAME.KIND.md, KIND one of {', '.join(sorted(KINDS))}"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
