# SPDX-License-Identifier: Apache-2.0
"""`lookup('env' | 'file' | 'template' | 'vars', …)`, `query`, and what else a template may call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jinja2 import pass_context

from flyops.errors import PlanError
from flyops.loading.positions import Text
from flyops.loading.variables import PendingResult, Scope


class Omit:
    """`omit`: leave the argument away."""

    def __repr__(self) -> str:
        return "<omit>"


OMIT = Omit()


def find_file(name: str, folders: tuple[str, ...], kind: str) -> str:
    """A file that a task names: absolute, or in `kind`/ or directly in one of the folders (the task file's, the playbook's, the project's)."""
    name = os.path.expanduser(name)
    if os.path.isabs(name):
        if os.path.exists(name):
            return name
        raise PlanError(f"no such file on this machine: {name}")
    tried = [os.path.normpath(os.path.join(folder, sub, name)) for folder in folders for sub in (kind, "")]
    for path in tried:
        if os.path.exists(path):
            return path + ("/" if name.endswith("/") else "")
    raise PlanError(f"no such file: {name}", fix=f"put it at one of {', '.join(dict.fromkeys(tried))}")


def read_text(path: str) -> str:
    """A file of this machine as UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as err:
        raise PlanError(f"expected UTF-8 in {path}, found byte {err.object[err.start]:#04x} at offset {err.start}") from err
    except OSError as err:
        raise PlanError(f"cannot read {path}: {err.strerror}") from err


def _env(scope: Scope, term: str, default: Any) -> Any:
    return os.environ.get(term, "" if default is None else default)


def _file(scope: Scope, term: str, default: Any) -> str:
    return read_text(find_file(term, scope.folders, "files")).rstrip()


def _template(scope: Scope, term: str, default: Any) -> str:
    from flyops.loading.templating import render_file

    path = find_file(term, scope.folders, "templates")
    return render_file(read_text(path), path, scope)


def _vars(scope: Scope, term: str, default: Any) -> Any:
    if term not in scope:
        if default is not None:
            return default
        raise PlanError(f"no variable {term!r} for lookup('vars')")
    return scope[term]


LOOKUPS = {"env": _env, "file": _file, "template": _template, "vars": _vars}


def _run(context: Any, kind: str, terms: tuple[Any, ...], default: Any) -> list[Any]:
    name = kind.removeprefix("ansible.builtin.")
    if name not in LOOKUPS:
        raise PlanError(f"lookup {kind!r} is not supported yet", fix=f"there are: {', '.join(LOOKUPS)}")
    if context.scope.pending_files and name in ("file", "template"):
        raise PendingResult(name)
    flat = [item for term in terms for item in (term if isinstance(term, (list, tuple)) else [term])]
    return [LOOKUPS[name](context.scope, str(term), default) for term in flat]


@pass_context
def _lookup(context: Any, kind: str, *terms: Any, default: Any = None, wantlist: bool = False, errors: str = "strict") -> Any:
    try:
        values = _run(context, kind, terms, default)
    except PlanError:
        if errors == "ignore":
            return [] if wantlist else None
        raise
    if wantlist or len(values) != 1:
        return values if wantlist else ",".join(str(value) for value in values)
    return values[0]


@pass_context
def _query(context: Any, kind: str, *terms: Any, default: Any = None) -> list[Any]:
    return _run(context, kind, terms, default)


@pass_context
def _undef(context: Any, hint: str = "") -> Any:
    raise PlanError(hint or "this variable must be set")


def extra_text(value: str) -> Text:
    """A text from the command line: as good as one from a file."""
    return Text(value)


GLOBALS = {"lookup": _lookup, "query": _query, "q": _query, "omit": OMIT, "undef": _undef}
