# SPDX-License-Identifier: Apache-2.0
"""Ansible's filters and tests that playbooks use most; those of Jinja2 itself come with it."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from jinja2 import Undefined
from jinja2.filters import do_default

from flyops.errors import PlanError
from flyops.spec.arguments import to_bool


def plain(value: Any) -> Any:
    """Without our subclasses, for writers of JSON and YAML."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    return str(value) if isinstance(value, str) else value


def _bool(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    try:
        return to_bool(value)
    except ValueError:
        return False


def _to_json(value: Any, indent: int | None = None, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    return json.dumps(plain(value), indent=indent, sort_keys=sort_keys, ensure_ascii=ensure_ascii)


def _to_nice_json(value: Any, indent: int = 4, sort_keys: bool = True, ensure_ascii: bool = True) -> str:
    return _to_json(value, indent, sort_keys, ensure_ascii)


def _to_yaml(value: Any, indent: int = 2, default_flow_style: bool | None = None, sort_keys: bool = True, width: int = 80) -> str:
    return str(
        yaml.safe_dump(plain(value), indent=indent, default_flow_style=default_flow_style, sort_keys=sort_keys, width=width, allow_unicode=True)
    )


def _to_nice_yaml(value: Any, indent: int = 4, sort_keys: bool = True, width: int = 80) -> str:
    return _to_yaml(value, indent, False, sort_keys, width)


def _flags(ignorecase: bool, multiline: bool) -> int:
    return (re.IGNORECASE if ignorecase else 0) | (re.MULTILINE if multiline else 0)


def _regex_replace(value: Any, pattern: str = "", replacement: str = "", ignorecase: bool = False, multiline: bool = False, count: int = 0) -> str:
    return re.sub(pattern, replacement, str(value), count=count, flags=_flags(ignorecase, multiline))


def _regex_search(value: Any, pattern: str, *groups: str, ignorecase: bool = False, multiline: bool = False) -> Any:
    found = re.search(pattern, str(value), _flags(ignorecase, multiline))
    if found is None:
        return None
    if not groups:
        return found.group()
    wanted = [group[3:].rstrip(">") if group.startswith("\\g<") else int(group.lstrip("\\")) for group in groups]
    return [found.group(group) for group in wanted]


def _regex_findall(value: Any, pattern: str, multiline: bool = False, ignorecase: bool = False) -> list[Any]:
    return re.findall(pattern, str(value), _flags(ignorecase, multiline))


def _combine(*values: Any, recursive: bool = False, list_merge: str = "replace") -> dict[Any, Any]:
    if list_merge != "replace":
        raise PlanError(f"combine(list_merge={list_merge!r}) is not supported yet")
    maps: list[Any] = []
    for value in values:
        maps.extend(value) if isinstance(value, (list, tuple)) else maps.append(value)
    return functools.reduce(lambda a, b: _merge(a, b, recursive), maps, {})


def _merge(left: Any, right: Any, recursive: bool) -> dict[Any, Any]:
    for side in (left, right):
        if not isinstance(side, Mapping):
            raise PlanError(f"combine expects mappings, found {type(side).__name__}")
    out = dict(left)
    for key, value in right.items():
        deep = recursive and isinstance(out.get(key), Mapping) and isinstance(value, Mapping)
        out[key] = _merge(out[key], value, True) if deep else value
    return out


def _dict2items(value: Mapping[Any, Any], key_name: str = "key", value_name: str = "value") -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise PlanError(f"dict2items expects a mapping, found {type(value).__name__}")
    return [{key_name: key, value_name: item} for key, item in value.items()]


def _items2dict(value: Sequence[Mapping[str, Any]], key_name: str = "key", value_name: str = "value") -> dict[Any, Any]:
    return {item[key_name]: item[value_name] for item in value}


def _ternary(value: Any, yes: Any, no: Any, none: Any = None) -> Any:
    if value is None and none is not None:
        return none
    return yes if value else no


def _mandatory(value: Any, msg: str | None = None) -> Any:
    if isinstance(value, Undefined):
        raise PlanError(msg or f"mandatory variable is undefined: {value._undefined_name or ''}".rstrip(": "))
    return value


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return do_default(value, default_value, boolean)


def _hash(value: Any, name: str = "sha1") -> str:
    return hashlib.new(name, str(value).encode()).hexdigest()


def _flatten(value: Any, levels: int | None = None, skip_nulls: bool = True) -> list[Any]:
    out: list[Any] = []
    for item in value:
        if isinstance(item, (list, tuple)) and (levels is None or levels > 0):
            out.extend(_flatten(item, None if levels is None else levels - 1, skip_nulls))
        elif not (skip_nulls and item is None):
            out.append(item)
    return out


def _unique(value: Any) -> list[Any]:
    out: list[Any] = []
    for item in value:
        if item not in out:
            out.append(item)
    return out


def _set_filter(keep: Callable[[Any, Any, Any], bool], both: bool = False) -> Callable[[Any, Any], list[Any]]:
    def run(left: Any, right: Any) -> list[Any]:
        pool = [*left, *right] if both else list(left)
        return _unique([item for item in pool if keep(item, left, right)])

    return run


def _split(value: Any, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    return str(value).split(sep, maxsplit)


def _extract(key: Any, container: Any, morekeys: Any = None) -> Any:
    value = container[key]
    for more in morekeys if isinstance(morekeys, list) else [morekeys] if morekeys is not None else []:
        value = value[more]
    return value


def _type_debug(value: Any) -> str:
    kinds = ((bool, "bool"), (str, "str"), (Mapping, "dict"), (list, "list"))
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)


FILTERS: dict[str, Callable[..., Any]] = {
    "b64decode": lambda value, encoding="utf-8": base64.b64decode(value).decode(encoding),
    "b64encode": lambda value, encoding="utf-8": base64.b64encode(str(value).encode(encoding)).decode(),
    "basename": lambda value: os.path.basename(str(value)),
    "bool": _bool,
    "combine": _combine,
    "default": _default,
    "d": _default,
    "dict2items": _dict2items,
    "difference": _set_filter(lambda item, _left, right: item not in right),
    "dirname": lambda value: os.path.dirname(str(value)),
    "expanduser": lambda value: os.path.expanduser(str(value)),
    "extract": _extract,
    "flatten": _flatten,
    "from_json": lambda value: json.loads(str(value)),
    "from_yaml": lambda value: yaml.safe_load(str(value)),
    "hash": _hash,
    "intersect": _set_filter(lambda item, _left, right: item in right),
    "items2dict": _items2dict,
    "mandatory": _mandatory,
    "path_join": lambda value: os.path.join(*value) if isinstance(value, (list, tuple)) else str(value),
    "quote": lambda value: shlex.quote("" if value is None else str(value)),
    "realpath": lambda value: os.path.realpath(str(value)),
    "regex_escape": lambda value: re.escape(str(value)),
    "regex_findall": _regex_findall,
    "regex_replace": _regex_replace,
    "regex_search": _regex_search,
    "sha1": _hash,
    "split": _split,
    "splitext": lambda value: list(os.path.splitext(str(value))),
    "ternary": _ternary,
    "to_json": _to_json,
    "to_nice_json": _to_nice_json,
    "to_nice_yaml": _to_nice_yaml,
    "to_yaml": _to_yaml,
    "type_debug": _type_debug,
    "union": _set_filter(lambda _item, _left, _right: True, both=True),
    "unique": _unique,
    "zip": lambda *lists: [list(row) for row in zip(*lists, strict=False)],
}


def _result(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        if isinstance(value, Undefined):
            value._fail_with_undefined_error()
        raise PlanError(f"this test expects the result of a task, found {type(value).__name__}")
    return value


def _match(value: Any, pattern: str, ignorecase: bool = False, multiline: bool = False) -> bool:
    return re.match(pattern, str(value), _flags(ignorecase, multiline)) is not None


def _search(value: Any, pattern: str, ignorecase: bool = False, multiline: bool = False) -> bool:
    return re.search(pattern, str(value), _flags(ignorecase, multiline)) is not None


def _version_key(text: str) -> list[tuple[int, int, str]]:
    """Numbers above words, as loose versions compare."""
    parts = re.findall(r"\d+|[a-z]+", str(text).lower())
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _version(value: Any, other: Any, operator: str = "eq", strict: bool | None = None, version_type: str | None = None) -> bool:
    left, right = _version_key(value), _version_key(other)
    size = max(len(left), len(right))
    left, right = (side + [(1, 0, "")] * (size - len(side)) for side in (left, right))
    order = (left > right) - (left < right)
    words = {"==": {0}, "=": {0}, "eq": {0}, "!=": {-1, 1}, "<>": {-1, 1}, "ne": {-1, 1}, "<": {-1}, "lt": {-1}, "<=": {-1, 0}, "le": {-1, 0}}
    words |= {">": {1}, "gt": {1}, ">=": {0, 1}, "ge": {0, 1}}
    if operator not in words:
        raise PlanError(f"version test: expected one of {', '.join(words)}, found {operator!r}")
    return order in words[operator]


TESTS: dict[str, Callable[..., bool]] = {
    "all": all,
    "any": any,
    "abs": lambda value: os.path.isabs(str(value)),
    "changed": lambda value: bool(_result(value).get("changed")),
    "change": lambda value: bool(_result(value).get("changed")),
    "contains": lambda value, item: item in value,
    "directory": lambda value: os.path.isdir(str(value)),
    "exists": lambda value: os.path.exists(str(value)),
    "failed": lambda value: bool(_result(value).get("failed")),
    "failure": lambda value: bool(_result(value).get("failed")),
    "falsy": lambda value, convert_bool=False: not (_bool(value) if convert_bool else value),
    "file": lambda value: os.path.isfile(str(value)),
    "match": _match,
    "ok": lambda value: not _result(value).get("failed"),
    "regex": _search,
    "search": _search,
    "skip": lambda value: bool(_result(value).get("skipped")),
    "skipped": lambda value: bool(_result(value).get("skipped")),
    "subset": lambda value, other: all(item in other for item in value),
    "succeeded": lambda value: not _result(value).get("failed"),
    "success": lambda value: not _result(value).get("failed"),
    "successful": lambda value: not _result(value).get("failed"),
    "superset": lambda value, other: all(item in value for item in other),
    "truthy": lambda value, convert_bool=False: bool(_bool(value) if convert_bool else value),
    "unreachable": lambda value: bool(_result(value).get("unreachable")),
    "version": _version,
    "version_compare": _version,
}
