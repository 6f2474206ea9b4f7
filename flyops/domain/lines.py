# SPDX-License-Identifier: Apache-2.0
"""Editing text by lines: one line, a marked block, a pattern. Text in, text and a message out; line ends are kept as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Match, Optional, Pattern


@dataclass(frozen=True)
class LineRule:
    """What lineinfile was asked for; the patterns are compiled, so a wrong one failed earlier."""

    line: str = ""
    regexp: Optional[Pattern[str]] = None
    search: Optional[str] = None
    insertafter: Optional[str] = None
    insertbefore: Optional[str] = None
    backrefs: bool = False
    firstmatch: bool = False


def split(text: str) -> list[str]:
    """Lines with their ends; only a newline ends a line."""
    parts = text.split("\n")
    last = parts.pop()
    return [part + "\n" for part in parts] + ([last] if last else [])


def bare(line: str) -> str:
    """A line without its end."""
    return line.rstrip("\r\n")


def ending(lines: list[str]) -> str:
    """The line end that the text uses, taken from its first line."""
    return "\r\n" if lines and lines[0].endswith("\r\n") else "\n"


def ensure(text: str, rule: LineRule) -> tuple[str, str]:
    """The text with the line in it, and what was done ('' when nothing)."""
    lines = split(text)
    if "\n" in rule.line and _stand_together(lines, rule.line.split("\n")):
        return text, ""
    at, match = _last_match(lines, rule)
    if at is not None:
        return _replace(lines, at, match, rule)
    if rule.backrefs or any(bare(line) == rule.line for line in lines):
        return text, ""
    return "".join(_insert(lines, _anchor(lines, rule), rule.line)), "line added"


def _stand_together(lines: list[str], wanted: list[str]) -> bool:
    """Whether several lines stand in a row already: what was asked as one `line` is not added again at each run."""
    bared = [bare(line) for line in lines]
    return any(bared[at : at + len(wanted)] == wanted for at in range(len(bared) - len(wanted) + 1))


def remove(text: str, rule: LineRule) -> tuple[str, int]:
    """The text without every line that matches, and how many there were."""
    kept = [line for line in split(text) if not _matches(line, rule)]
    return "".join(kept), len(split(text)) - len(kept)


def _matches(line: str, rule: LineRule) -> bool:
    if rule.regexp is not None:
        return rule.regexp.search(bare(line)) is not None
    if rule.search is not None:
        return rule.search in line
    return bare(line) == rule.line


def _last_match(lines: list[str], rule: LineRule) -> tuple[Optional[int], Optional[Match[str]]]:
    found: tuple[Optional[int], Optional[Match[str]]] = (None, None)
    for number, line in enumerate(lines):
        match = rule.regexp.search(bare(line)) if rule.regexp is not None else None
        if match or (rule.regexp is None and rule.search is not None and rule.search in line):
            found = (number, match)
            if rule.firstmatch:
                break
    return found


def _replace(lines: list[str], at: int, match: Optional[Match[str]], rule: LineRule) -> tuple[str, str]:
    new = match.expand(rule.line) if rule.backrefs and match else rule.line
    if bare(lines[at]) == new:
        return "".join(lines), ""
    old_end = lines[at][len(bare(lines[at])) :]
    lines[at] = new + (old_end or "\n")
    return "".join(lines), "line replaced"


def _anchor(lines: list[str], rule: LineRule) -> int:
    """Where a new line goes: beside the line that fits the anchor, else at the end."""
    if "BOF" in (rule.insertbefore, rule.insertafter):
        return 0
    anchor = rule.insertafter or rule.insertbefore
    if anchor in (None, "EOF"):
        return len(lines)
    pattern = re.compile(str(anchor))
    hits = [number for number, line in enumerate(lines) if pattern.search(bare(line))]
    if not hits:
        return len(lines)
    hit = hits[0] if rule.firstmatch else hits[-1]
    return hit + 1 if rule.insertafter else hit


def _insert(lines: list[str], where: int, line: str) -> list[str]:
    end = ending(lines)
    if where == len(lines) and lines and not lines[-1].endswith("\n"):
        lines[-1] += end
    return [*lines[:where], line + end, *lines[where:]]


@dataclass(frozen=True)
class BlockRule:
    """What blockinfile was asked for. An empty block means that it should not be there."""

    block: str
    begin: str
    end: str
    insertafter: Optional[str] = None
    insertbefore: Optional[str] = None
    append_newline: bool = False
    prepend_newline: bool = False


def set_block(text: str, rule: BlockRule) -> tuple[str, str]:
    """The text with the marked block as asked, and what was done ('' when nothing). Duplicates of the same block end as one."""
    lines = split(text)
    span = _block_span(lines, rule)
    if span is None and not rule.block:
        return text, ""
    rest, where = _cut(lines, span, rule)
    if not rule.block:
        return "".join(rest), "Block removed"
    new = "".join(_with_block(rest, where, rule))
    if new == text or (span is not None and not text.endswith("\n") and new == text + ending(lines)):
        return text, ""
    return new, "Block inserted"


def _block_span(lines: list[str], rule: BlockRule) -> Optional[tuple[int, int]]:
    """First and last line number of the last block with these markers; a marker at the very end may lack its newline."""
    begin = end = None
    for number, line in enumerate(lines):
        if bare(line) == rule.begin:
            begin = number
        if bare(line) == rule.end:
            end = number
    if begin is None or end is None:
        return None
    return (begin, end) if begin < end else (end, begin)


def _cut(lines: list[str], span: Optional[tuple[int, int]], rule: BlockRule) -> tuple[list[str], int]:
    """The lines without the block, and where the block goes: where it was, or where the rule puts it."""
    if span is not None:
        return lines[: span[0]] + lines[span[1] + 1 :], span[0]
    if "BOF" in (rule.insertbefore, rule.insertafter):
        return lines, 0
    anchor = rule.insertbefore or rule.insertafter
    if anchor in (None, "EOF"):
        return lines, len(lines)
    return lines, _beside(lines, re.compile(str(anchor)), before=bool(rule.insertbefore))


def _beside(lines: list[str], pattern: Pattern[str], *, before: bool) -> int:
    """The place before or after the last line that matches, or after a match over several lines of a `(?m)` pattern; else the end."""
    if pattern.flags & re.MULTILINE:
        text = "".join(lines)
        match = pattern.search(text)
        if match is None:
            return len(lines)
        return text.count("\n", 0, match.start()) if before else text.count("\n", 0, match.end()) + 1
    hits = [number for number, line in enumerate(lines) if pattern.search(bare(line))]
    if not hits:
        return len(lines)
    return hits[-1] if before else hits[-1] + 1


def _with_block(rest: list[str], where: int, rule: BlockRule) -> list[str]:
    end = ending(rest)
    if where > 0 and not rest[where - 1].endswith("\n"):
        rest[where - 1] += end
    block = [line + end for line in [rule.begin, *rule.block.rstrip("\n").split("\n"), rule.end]]
    if rule.prepend_newline and where > 0 and bare(rest[where - 1]) != "":
        block.insert(0, end)
    if rule.append_newline and where < len(rest) and bare(rest[where]) != "":
        block.append(end)
    return [*rest[:where], *block, *rest[where:]]


def substitute(text: str, pattern: Pattern[str], replacement: str, after: Optional[str], before: Optional[str]) -> tuple[str, int]:
    """The text with every match replaced, only between `after` and `before` when given, and how many there were."""
    start, stop = section(text, after, before)
    if start is None or stop is None:
        return text, 0
    new, count = pattern.subn(replacement, text[start:stop])
    return text[:start] + new + text[stop:], count


def section(text: str, after: Optional[str], before: Optional[str]) -> tuple[Optional[int], Optional[int]]:
    """Where the part between two patterns starts and stops; None when a pattern that was given is not there."""
    if after and before:
        expression = f"{after}(?P<flyops_part>.*?){before}"
    elif after:
        expression = f"{after}(?P<flyops_part>.*)"
    elif before:
        expression = f"(?P<flyops_part>.*){before}"
    else:
        return 0, len(text)
    match = re.search(expression, text, re.DOTALL)
    return (match.start("flyops_part"), match.end("flyops_part")) if match else (None, None)
