# SPDX-License-Identifier: Apache-2.0
"""`Arg` declares one argument, `Spec` a module's whole surface, `validate` turns what was typed into values and errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict

TRUE_WORDS = frozenset({"y", "yes", "on", "1", "true", "t"})
FALSE_WORDS = frozenset({"n", "no", "off", "0", "false", "f"})


@dataclass(frozen=True)
class Arg:
    """One argument. `kind`: str, int, float, bool, list, dict, path, mode, raw, blob or template. `secret` values are masked everywhere.

    A `blob` is typed as the path of a file on the controller; the engine offers that file to the agent and the module
    gets `{"path": typed, "sha256": …, "size": …}` (for a folder also `"tree": [{"path", "kind", "sha256", "size", "mode"}]`), and
    fetches it with `host.blob(sha256)` only when it needs the bytes. A `template` is the same, rendered first.
    """

    kind: str = "str"
    help: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    secret: bool = False
    elements: str = "raw"  # of a list


@dataclass(frozen=True)
class Spec:
    """A module's surface. `free_form` names the argument that `module: text` fills; `check` says what check mode can know.

    `where` is `host` (runs in the agent) or `controller` (pure, runs where the play runs).
    """

    doc: str
    args: Mapping[str, Arg]
    free_form: str = ""
    required_if: tuple[tuple[str, Any, tuple[str, ...]], ...] = ()
    exclusive: tuple[tuple[str, ...], ...] = ()
    required_one_of: tuple[tuple[str, ...], ...] = ()
    check: str = "full"  # full | unknown (counted in the recap)
    where: str = "host"
    examples: str = ""
    open: bool = False  # takes names that are not declared (set_fact, add_host)
    returns: Mapping[str, str] | None = None


def to_bool(value: Any) -> bool:
    """Ansible's words for true and false; anything else is a ValueError."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"expected a boolean (yes/no, true/false, on/off, 1/0), found {value!r}")


def to_mode(value: Any) -> int | str:
    """A file mode: an octal string (`"0644"`), an int as YAML read it, or a symbolic text (`u=rw,g=r`), which stays text."""
    if isinstance(value, bool):
        raise ValueError(f"expected a file mode such as '0644', found {value!r}")
    if isinstance(value, int):
        if not 0 <= value <= 0o7777:
            raise ValueError(f"expected a file mode from 0 to 07777, found {value}")
        return value
    text = str(value).strip()
    text = text[2:] if text.startswith("0o") else text
    if text and all(c in "01234567" for c in text):
        return int(text, 8)
    if text and any(op in text for op in "=+-") and text[0] in "ugoa+-=":
        return text
    raise ValueError(f"mode must be in octal or symbolic form, found {value!r}")


def to_list(value: Any) -> list[Any]:
    """A list as it is, a text split at commas, anything else as the only element."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")] if value else []
    return [value]


def _to_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"expected a mapping, found {type(value).__name__}")


def _to_text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise ValueError(f"expected a text, found a {type(value).__name__}")
    return str(value)


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, found {value!r}")
    return int(str(value).strip())


CONVERT: Dict[str, Callable[[Any], Any]] = {
    "str": _to_text,
    "path": _to_text,
    "int": _to_int,
    "float": float,
    "bool": to_bool,
    "list": to_list,
    "dict": _to_dict,
    "mode": to_mode,
    "raw": lambda value: value,
    "blob": lambda value: value,
    "template": lambda value: value,
}


def _convert(name: str, arg: Arg, value: Any) -> Any:
    if value is None:
        return None
    out = CONVERT[arg.kind](value)
    if arg.kind == "path" and (arg.required or arg.default) and not out.strip():
        raise ValueError(f"expected a path, found {out!r}: a variable is empty")
    if arg.kind == "list" and arg.elements != "raw":
        out = [CONVERT[arg.elements](item) for item in out]
    for item in out if arg.kind == "list" else [out]:
        if arg.choices and item not in arg.choices:
            raise ValueError(f"expected one of {', '.join(map(str, arg.choices))}, found {item!r}")
    return out


def canonical_names(spec: Spec, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under the names that the spec declares."""
    alias = {other: name for name, arg in spec.args.items() for other in arg.aliases}
    return {alias.get(name, name): value for name, value in raw.items()}


def unknown_arguments(spec: Spec, names: Mapping[str, Any]) -> list[str]:
    """One error per name that the spec lacks, with the nearest right word."""
    if spec.open:
        return []
    known = {other for name, arg in spec.args.items() for other in (name, *arg.aliases)}
    out = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(sorted(known))}"
            out.append(f"unknown argument {name!r}; {hint}")
    return out


def _relations(spec: Spec, values: Mapping[str, Any]) -> list[str]:
    given = {name for name, value in values.items() if value is not None}
    out = [f"{' and '.join(sorted(given & set(g)))} exclude each other" for g in spec.exclusive if len(given & set(g)) > 1]
    out += [f"one of {', '.join(g)} is required" for g in spec.required_one_of if not given & set(g)]
    for name, wanted, needed in spec.required_if:
        missing = [n for n in needed if n not in given]
        if values.get(name) == wanted and missing:
            out.append(f"{', '.join(missing)} required when {name} is {wanted}")
    return out


def validate(spec: Spec, raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values with defaults filled in, and every error found (an empty list when it is right)."""
    errors = unknown_arguments(spec, raw)
    given = canonical_names(spec, raw)
    values: dict[str, Any] = {}
    for name, arg in spec.args.items():
        if given.get(name) is None:
            values[name] = arg.default
            if arg.required:
                errors.append(f"missing argument {name!r} ({arg.help})")
            continue
        try:
            values[name] = _convert(name, arg, given[name])
        except (ValueError, TypeError) as err:
            errors.append(f"argument {name!r}: {err}")
    if spec.open:
        values.update({name: value for name, value in given.items() if name not in values})
    return values, errors + _relations(spec, values)


def check_literals(spec: Spec, raw: Mapping[str, Any], is_open: Callable[[Any], bool]) -> list[tuple[str, str]]:
    """What can be said before a run: (argument as typed or "", error). `is_open(value)`: not known yet, holds a template."""
    out: list[tuple[str, str]] = []
    for typed in raw:
        out += [(typed, text) for text in unknown_arguments(spec, {typed: None})]
    given = canonical_names(spec, raw)
    typed_as = {name: typed for typed in raw for name in canonical_names(spec, {typed: None})}
    for name, arg in spec.args.items():
        value = given.get(name)
        if value is None:
            if arg.required and name not in given:
                out.append(("", f"missing argument {name!r} ({arg.help})"))
        elif not is_open(value):
            try:
                _convert(name, arg, value)
            except (ValueError, TypeError) as err:
                out.append((typed_as[name], f"argument {name!r}: {err}"))
    known = {name: value for name, value in given.items() if not is_open(value)}
    closed = {**given, **{name: _OPEN for name in given if name not in known}}
    for name, arg in spec.args.items():
        closed.setdefault(name, arg.default)
    return out + [("", text) for text in _relations(spec, closed)]


_OPEN = object()  # equal to nothing that a `required_if` could ask for
