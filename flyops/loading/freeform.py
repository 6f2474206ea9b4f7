# SPDX-License-Identifier: Apache-2.0
"""`module: a=b c="d e"` and `command: text chdir=/x`: words as Ansible splits them, quotes and templates kept whole."""

from __future__ import annotations

from flyops.loading.positions import Text
from flyops.spec import Spec

RAW_OPTIONS = ("chdir", "creates", "removes", "executable", "stdin", "stdin_add_newline", "strip_empty_ends", "expand_argument_vars", "timeout")


def split_words(text: str) -> list[str]:
    """Words of a text; ValueError when a quote or a template is not closed."""
    words: list[str] = []
    word = ""
    quote = ""
    depth = 0
    index = 0
    while index < len(text):
        char = text[index]
        pair = text[index : index + 2]
        if not quote and pair in ("{{", "{%", "{#"):
            depth, word, index = depth + 1, word + pair, index + 2
            continue
        if not quote and depth and pair in ("}}", "%}", "#}"):
            depth, word, index = depth - 1, word + pair, index + 2
            continue
        if char == "\\" and quote != "'" and index + 1 < len(text) and not depth:
            word, index = word + pair, index + 2
            continue
        if depth == 0 and char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        if char.isspace() and not quote and not depth:
            if word:
                words.append(word)
            word = ""
        else:
            word += char
        index += 1
    if quote or depth:
        raise ValueError(f"expected a closing {quote or '}}'} in {text.strip()!r}")
    return [*words, word] if word else words


def unquote(value: str) -> str:
    """Without the pair of quotes around it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def parse(spec: Spec, text: Text) -> dict[str, Text]:
    """Arguments of `module: text`. ValueError says what is wrong with it."""
    words = split_words(str(text))
    if spec.free_form:
        return _free(spec, text, words)
    out = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"expected name=value or a mapping, found {word!r}")
        out[name] = Text(unquote(value), text.pos)
    return out


def _free(spec: Spec, text: Text, words: list[str]) -> dict[str, Text]:
    names = RAW_OPTIONS if spec.free_form in ("cmd", "_raw_params") else tuple(spec.args)
    options = {}
    kept = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in names and name in spec.args and name != spec.free_form:
            options[name] = Text(unquote(value), text.pos)
        else:
            kept.append(word)
    if not options:
        return {spec.free_form: text}
    rest = " ".join(kept)
    return {**options, **({spec.free_form: Text(rest, text.pos)} if rest else {})}
