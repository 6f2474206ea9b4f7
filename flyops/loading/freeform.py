# SPDX-License-Identifier: Apache-2.0
"""`module: a=b c="d e"` and `command: text chdir=/x`: words as Ansible splits them, quotes and templates kept whole."""

from __future__ import annotations

from flyops.loading.positions import Text
from flyops.spec import Spec

RAW_NAMES = ("cmd", "_raw_params")  # free forms that are a command
RAW_OPTIONS = ("chdir", "creates", "removes", "executable", "stdin", "stdin_add_newline", "strip_empty_ends", "expand_argument_vars", "timeout")


def split_words(text: str) -> list[str]:
    """Words of a text; ValueError when a quote or a template is not closed."""
    return [text[start:end] for start, end in _spans(text)]


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text begin and end."""
    spans: list[tuple[int, int]] = []
    start = -1  # of the word that we are in
    quote = ""
    depth = 0
    index = 0
    while index < len(text):
        char = text[index]
        pair = text[index : index + 2]
        width = 1
        if not quote and pair in ("{{", "{%", "{#"):
            depth, width = depth + 1, 2
        elif not quote and depth and pair in ("}}", "%}", "#}"):
            depth, width = depth - 1, 2
        elif char == "\\" and quote != "'" and index + 1 < len(text) and not depth:
            width = 2
        elif depth == 0 and char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        elif char.isspace() and not quote and not depth:
            if start >= 0:
                spans.append((start, index))
            start, index = -1, index + 1
            continue
        start = index if start < 0 else start
        index += width
    if quote or depth:
        raise ValueError(f"expected a closing {quote or '}}'} in {text.strip()!r}")
    return [*spans, (start, len(text))] if start >= 0 else spans


def unquote(value: str) -> str:
    """Without the pair of quotes around it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def parse(spec: Spec, text: Text) -> dict[str, Text]:
    """Arguments of `module: text`. ValueError says what is wrong with it."""
    if spec.free_form:
        return _free(spec, text)
    out = {}
    for word in split_words(str(text)):
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"expected name=value or a mapping, found {word!r}")
        out[name] = Text(unquote(value), text.pos)
    return out


def _free(spec: Spec, text: Text) -> dict[str, Text]:
    """Options are taken out of the text, which is otherwise kept to the byte: lines, blanks and the newline at its end."""
    names = RAW_OPTIONS if spec.free_form in RAW_NAMES else tuple(spec.args)
    options: dict[str, Text] = {}
    rest = str(text)
    for start, end in reversed(_spans(rest)):
        name, equals, value = rest[start:end].partition("=")
        if not (equals and name in names and name in spec.args):
            continue
        options.setdefault(name, Text(unquote(value), text.pos))
        rest = _without(rest, start, end)
    if not options:
        return {spec.free_form: text}
    return {**options, **({spec.free_form: Text(rest, text.pos)} if rest.strip() else {})}


def _without(text: str, start: int, end: int) -> str:
    """The text without a word, the blanks that set it off, and its line when nothing else is there."""
    before, after = text[:start].rstrip(" \t"), text[end:]
    if before and not before.endswith("\n"):
        return before + after
    after = after.lstrip(" \t")
    return text[: len(before)] + after.removeprefix("\n")
