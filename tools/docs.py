# SPDX-License-Identifier: Apache-2.0
"""Writes docs/modules/ from each module's SPEC and docs/symptoms.md from the table of symptoms; with --check it only says what would change, and how to mend it."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flyops.domain import symptoms  # noqa: E402
from flyops.spec import Arg, Spec  # noqa: E402

FOLDER = ROOT / "docs" / "modules"
COMPATIBILITY = ROOT / "docs" / "compatibility.md"
SYMPTOMS = ROOT / "docs" / "symptoms.md"
BLOCK = re.compile(r"(<!-- words, .*?-->\n).*?(<!-- end of words -->)", re.DOTALL)
ROOMS = ("flyops.modules", "flyops.planning.actions")


def main(words: list[str]) -> int:
    """Writes the pages, or compares them."""
    pages = {FOLDER / name: text for name, text in render_all()}
    pages[COMPATIBILITY] = BLOCK.sub(lambda found: found[1] + render_words() + found[2], COMPATIBILITY.read_text())
    pages[SYMPTOMS] = render_symptoms()
    present = {path: path.read_text() for path in [*FOLDER.glob("*.md"), COMPATIBILITY, SYMPTOMS] if path.exists()}
    stale = sorted(path for path in set(pages) | set(present) if pages.get(path) != present.get(path))
    if "--check" in words:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: differs from what the code declares")
        print("docs: run `python tools/docs.py` (or ./fly lint --fix)" if stale else f"docs: {len(pages)} pages are as the SPECs say")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        if path in pages:
            path.write_text(pages[path])
        else:
            path.unlink()
    print(f"docs: {len(stale)} of {len(pages)} pages written")
    return 0


def render_all() -> Iterator[tuple[str, str]]:
    """(file name, text) of each page and of the index."""
    specs = dict(sorted(find_specs()))
    for name, spec in specs.items():
        yield f"{name}.md", render(name, spec)
    lines = ["# Modules", "", "Made from each module's SPEC by `tools/docs.py`.", "", "| module | does |", "|---|---|"]
    lines += [f"| [{name}]({name}.md) | {first_sentence(spec.doc)} |" for name, spec in specs.items()]
    yield "README.md", "\n".join(lines) + "\n"


def render_words() -> str:
    """The keywords of plays, blocks and tasks, and Ansible's that are not built yet, as the parser has them."""
    try:
        from flyops.loading import keywords
    except ModuleNotFoundError:
        return ""
    rows = [("a play", keywords.PLAY), ("a block", keywords.BLOCK), ("a task", keywords.TASK), ("a handler", keywords.HANDLER)]
    lines = [f"- {what}: {', '.join(f'`{word}`' for word in sorted(set(words)))}" for what, words in rows]
    lines.append(
        f"- refused as not supported yet: {', '.join(f'`{word}`' for word in sorted(keywords.NOT_YET))}, and `with_…` other than `with_items`"
    )
    return "\n".join(lines) + "\n"


def render_symptoms() -> str:
    """Text or code, cause, remedy: the table that the checks use, by who prints it."""
    lines = [
        "# Symptoms",
        "",
        "Made from `flyops/domain/symptoms.py` by `tools/docs.py`: the table that checks and failures read. `…` stands for anything.",
    ]
    for where in dict.fromkeys(symptom.where for symptom in symptoms.SYMPTOMS):
        lines += ["", f"## {where}", "", "| it says | code | cause | to do |", "|---|---|---|---|"]
        rows = [symptom for symptom in symptoms.SYMPTOMS if symptom.where == where]
        lines += [f"| `{cell(row.says)}` | {row.code} | {cell(row.cause)} | {cell(row.remedy)} |" for row in rows]
    for family, table in (("CUDA", symptoms.CUDA_ERRORS), ("NVML", symptoms.NVML_ERRORS)):
        lines += ["", f"## {family} codes", "", "| code | name | cause | to do |", "|---|---|---|---|"]
        lines += [f"| {code} | {cell(name)} | {cell(cause)} | {cell(remedy)} |" for code, (name, cause, remedy) in table.items() if cause]
    lines += ["", "## Xid (kernel log)", "", "| number | cause | to do |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {number} | {cause} | {remedy} |" for number, (cause, remedy) in symptoms.XIDS.items())]) + "\n"


def find_specs() -> Iterator[tuple[str, Spec]]:
    """Every SPEC of the rooms where modules live; a room that is not there has none."""
    for room in ROOMS:
        try:
            package = importlib.import_module(room)
        except ModuleNotFoundError as error:
            if error.name and room.startswith(error.name):
                continue
            raise
        for info in pkgutil.iter_modules(getattr(package, "__path__", [])):
            spec = getattr(importlib.import_module(f"{room}.{info.name}"), "SPEC", None)
            if isinstance(spec, Spec):
                yield info.name.rstrip("_"), spec  # assert_ and such: the word itself is Python's
        # A room may also keep a table of the small ones.
        for name, spec in getattr(package, "SPECS", {}).items():
            yield name, spec


def render(name: str, spec: Spec) -> str:
    """One page."""
    lines = [f"# {name}", "", spec.doc.strip(), ""]
    if spec.args:
        lines += ["| argument | type | default | meaning |", "|---|---|---|---|"]
        lines += [row(word, arg) for word, arg in sorted(spec.args.items(), key=lambda item: (not item[1].required, item[0]))]
        lines.append("")
    lines += list(relations(spec))
    if spec.returns:
        lines += ["| returns | meaning |", "|---|---|", *(f"| {key} | {cell(text)} |" for key, text in spec.returns.items()), ""]
    if spec.examples.strip():
        lines += ["```yaml", spec.examples.strip("\n"), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def row(name: str, arg: Arg) -> str:
    """An argument as a line of the table."""
    kind = f"list of {arg.elements}" if arg.kind == "list" and arg.elements != "raw" else arg.kind
    choices = " \\| ".join(map(shown, arg.choices))
    kind += f": {choices}" if choices else ""
    default = "required" if arg.required else "" if arg.default is None else f"`{shown(arg.default)}`"
    names = ", ".join([f"**{name}**", *arg.aliases])
    return f"| {names} | {kind} | {cell(default)} | {cell(arg.help)}{' (secret)' if arg.secret else ''} |"


def relations(spec: Spec) -> Iterator[str]:
    """Sentences about arguments that go together or against each other."""
    said = []
    if spec.free_form:
        said.append(f"`{spec.free_form}` may be written behind the module's name.")
    said += [f"Only one of {', '.join(names)}." for names in spec.exclusive]
    said += [f"At least one of {', '.join(names)}." for names in spec.required_one_of]
    said += [f"With `{name}: {value}`: {', '.join(needed)} too." for name, value, needed in spec.required_if]
    if spec.check != "full":
        said.append("Check mode cannot know what it would change.")
    if spec.where == "controller":
        said.append("Runs on the controller.")
    if said:
        yield from [*(f"- {sentence}" for sentence in said), ""]


def shown(value: Any) -> str:
    """A value as one may type it: line ends and the like by their escapes."""
    return str(value).encode("unicode_escape").decode("ascii") if isinstance(value, str) else str(value)


def first_sentence(text: str) -> str:
    """Up to the first full stop."""
    return cell(text.strip().partition(". ")[0].rstrip(".") + ".")


def cell(text: Any) -> str:
    """Text that may stand in a table."""
    return " ".join(str(text).replace("|", "\\|").split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
