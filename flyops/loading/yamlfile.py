# SPDX-License-Identifier: Apache-2.0
"""YAML 1.1 as Ansible reads it, with the place of every key, value and item. A key given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from flyops.errors import LoadError
from flyops.loading.positions import Map, Pos, Seq, Text, Unsafe

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MERGE = "tag:yaml.org,2002:merge"


class _Loader(_BASE):  # type: ignore[misc]
    """Composes nodes; `_build` turns them into values that know their place."""

    file = ""


def load_yaml(path: str | Path) -> Any:
    """The value of a file; None for an empty one."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise LoadError(f"cannot read: {err.strerror}", where=str(path)) from err
    except UnicodeDecodeError as err:
        raise LoadError(f"expected UTF-8, found byte {err.object[err.start]:#04x} at offset {err.start}", where=str(path)) from err
    return parse_yaml(text, str(path))


def parse_yaml(text: str, file: str = "<text>") -> Any:
    """The value of a text."""
    loader = _Loader(text)
    loader.file = file
    try:
        node = loader.get_single_node()
        return None if node is None else _build(loader, node)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        message = " ".join(part for part in (err.context, err.problem) if part)
        raise LoadError(f"not valid YAML: {message}", where=where, fix=_yaml_hint(text, mark)) from err
    except yaml.YAMLError as err:
        raise LoadError(f"not valid YAML: {err}", where=file) from err
    finally:
        loader.dispose()


def _yaml_hint(text: str, mark: Any) -> str:
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if re.search(r":\s+\{\{", line):
        return 'quote a value that starts with a template: "{{ … }}"'
    if "\t" in line:
        return "indent with spaces, not tabs"
    return ""


def _pos(loader: Any, node: Any) -> Pos:
    return Pos(loader.file, node.start_mark.line + 1, node.start_mark.column + 1)


def _build(loader: Any, node: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _build_map(loader, node)
    if isinstance(node, yaml.SequenceNode):
        return _build_seq(loader, node)
    pos = _pos(loader, node)
    if node.tag == "!unsafe":
        return Unsafe(node.value)
    if node.tag in ("!vault", "!vault-encrypted"):
        raise LoadError(
            "vault values are not supported yet", where=str(pos), fix="keep the secret in a file outside and read it with lookup('file', …)"
        )
    try:
        value = loader.construct_object(node)
    except ValueError as err:
        raise LoadError(f"not valid YAML: {err}", where=str(pos)) from err
    return Text(value, pos) if isinstance(value, str) else value


def _build_seq(loader: Any, node: Any) -> Seq:
    out = Seq(_pos(loader, node))
    for item in node.value:
        out.append(_build(loader, item))
        out.item_pos.append(_pos(loader, item))
    return out


def _build_map(loader: Any, node: Any) -> Map:
    _refuse_duplicates(loader, node)
    loader.flatten_mapping(node)  # `<<` comes first, so that the mapping's own keys win
    out = Map(_pos(loader, node))
    for key_node, value_node in node.value:
        key = _build(loader, key_node)
        if isinstance(key, (dict, list)):
            raise LoadError("a key must be a text or a number", where=str(_pos(loader, key_node)))
        key = str(key) if isinstance(key, Text) else key
        out[key] = _build(loader, value_node)
        out.key_pos[key] = _pos(loader, key_node)
        out.value_pos[key] = _pos(loader, value_node)
        if isinstance(value_node, yaml.ScalarNode) and not value_node.style:
            out.source[key] = value_node.value
    return out


def _refuse_duplicates(loader: Any, node: Any) -> None:
    seen: dict[Any, Pos] = {}
    for key_node, _ in node.value:
        if key_node.tag == MERGE or not isinstance(key_node, yaml.ScalarNode):
            continue
        pos = _pos(loader, key_node)
        if key_node.value in seen:
            raise LoadError(
                f"key {key_node.value!r} is given twice in one mapping; the first is at line {seen[key_node.value].line}",
                where=str(pos),
                fix="remove one of them",
            )
        seen[key_node.value] = pos
