# SPDX-License-Identifier: Apache-2.0
"""Reads YAML as programs write it (JSON, or block mappings and lists with one-line scalars), with the standard library only. Pure.

What it does not read (anchors, tags, block scalars, flow collections that are not JSON) it refuses with the line; it never guesses.
"""

from __future__ import annotations

import json
import re
from typing import Any, List, Tuple

Line = Tuple[int, str, int]  # indent, text, number in the file
_QUOTED = r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^']|'')*'"
_PAIR = re.compile(rf"({_QUOTED}|[A-Za-z0-9_./-]+):(?:\s+(.*))?")
_WHOLE = re.compile(_QUOTED)
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class YamlError(ValueError):
    """A text that is not YAML, or more than is read here; says where."""


def load(text: str) -> Any:
    """The value of a document."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise YamlError(f"begins like JSON and is none: {error}") from None
    lines = _lines(text)
    if not lines:
        return None
    value, rest = _block(lines, lines[0][0])
    if rest:
        raise YamlError(f"line {rest[0][2]}: expected the indentation of what is before it, found {rest[0][1]!r}")
    return value


def _lines(text: str) -> List[Line]:
    out: List[Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.strip(" \r")
        if not content or content.startswith("#") or (content == "---" and not out):
            continue
        if "\t" in raw[: len(raw) - len(raw.lstrip())]:
            raise YamlError(f"line {number}: a tab in the indentation")
        out.append((len(raw) - len(raw.lstrip(" ")), content, number))
    return out


def _block(lines: List[Line], indent: int) -> Tuple[Any, List[Line]]:
    """The value that begins at the first line, and the lines behind it."""
    _, text, number = lines[0]
    if text == "-" or text.startswith("- "):
        return _list(lines, indent)
    if _PAIR.fullmatch(text):
        return _mapping(lines, indent)
    if len(lines) > 1 and lines[1][0] > indent:
        raise YamlError(f"line {number}: a value over several lines is not read here")
    return _scalar(text, number), lines[1:]


def _list(lines: List[Line], indent: int) -> Tuple[List[Any], List[Line]]:
    out: List[Any] = []
    while lines and lines[0][0] == indent and (lines[0][1] == "-" or lines[0][1].startswith("- ")):
        _, text, number = lines[0]
        inner = text[1:].lstrip()
        if inner:
            lines = [(indent + len(text) - len(inner), inner, number), *lines[1:]]
            value, lines = _block(lines, lines[0][0])
        else:
            value, lines = _below(lines[1:], indent + 1)
        out.append(value)
    return out, lines


def _mapping(lines: List[Line], indent: int) -> Tuple[Any, List[Line]]:
    out = {}
    while lines and lines[0][0] == indent:
        _, text, number = lines[0]
        found = _PAIR.fullmatch(text)
        if not found:
            raise YamlError(f"line {number}: expected `key: value`, found {text!r}")
        key = str(_scalar(found[1], number)) if found[1][0] in "\"'" else found[1]
        if key in out:
            raise YamlError(f"line {number}: {key!r} for a second time")
        rest = found[2] or ""
        if rest and not rest.startswith("#"):
            out[key], lines = _scalar(rest, number), lines[1:]
        else:
            # A list may stand at its key's own indentation.
            listed = len(lines) > 1 and lines[1][0] == indent and lines[1][1].startswith("-")
            out[key], lines = _below(lines[1:], indent if listed else indent + 1)
    return out, lines


def _below(lines: List[Line], least: int) -> Tuple[Any, List[Line]]:
    return _block(lines, lines[0][0]) if lines and lines[0][0] >= least else (None, lines)


def _scalar(text: str, number: int) -> Any:
    whole = _WHOLE.match(text)
    if whole and (not text[whole.end() :].strip() or text[whole.end() :].lstrip().startswith("#")):
        word = whole.group()
        return _double(word, number) if word[0] == '"' else word[1:-1].replace("''", "'")
    plain = re.split(r"\s#", text, maxsplit=1)[0].strip()
    if plain[0] in "[{":
        return _double(plain, number)
    if plain[0] in "&*!|>%@`\"'":
        raise YamlError(f"line {number}: {plain[:20]!r} is more than is read here")
    if plain in _WORDS:
        return _WORDS[plain]
    if re.fullmatch(r"[-+]?(0|[1-9]\d*)", plain):
        return int(plain)
    if re.fullmatch(r"0[0-7]+", plain):
        return int(plain, 8)  # as YAML 1.1 has it, and so the Go readers
    return float(plain) if re.fullmatch(r"[-+]?\d+\.\d*([eE][-+]?\d+)?", plain) else plain


def _double(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise YamlError(f"line {number}: {text[:40]!r} is more than is read here") from None
