# SPDX-License-Identifier: Apache-2.0
"""Jinja2 with Ansible's meaning: native values, trim_blocks, the last newline kept, undefined names are errors with their line."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, StrictUndefined, Undefined
from jinja2.utils import missing

from flyops.errors import LoadError, PlanError
from flyops.loading.positions import NOWHERE, Pos, Text, Unsafe
from flyops.loading.variables import Recursion, Scope

MARKS = ("{{", "{%", "{#")


class Missing(StrictUndefined):
    """An undefined value that may be walked (`nope.b.c | default('x')`) but not used."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return self

    def __getitem__(self, name: Any) -> Any:
        return self


class _Native(CodeGenerator):
    """Emits values as they are; `_join` makes a text of them only when there are several."""

    @staticmethod
    def _default_finalize(value: Any) -> Any:
        return value

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        values = list(group)
        return repr(values[0] if len(values) == 1 else "".join(_embed(value) for value in values))

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> Any:
        const = node.as_const(frame.eval_ctx)
        if not isinstance(node, nodes.TemplateData) and not isinstance(const, (str, int, float, bool, type(None))):
            raise nodes.Impossible
        return const

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if finalize.src is not None:
            self.write(finalize.src)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if finalize.src is not None:
            self.write(")")


class ScopeVars(dict[str, Any]):
    """What Jinja2 takes for the template's variables; the real ones are in `scope`."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope


class _Context(Context):
    """Looks names up in the Scope, only when they are used."""

    def __init__(self, environment: Any, parent: Any, name: Any, blocks: Any, globals: Any = None) -> None:
        super().__init__(environment, parent, name, blocks, globals)
        self.scope: Scope | None = getattr(parent, "scope", None)

    def resolve_or_missing(self, key: str) -> Any:
        if key in self.vars:
            return self.vars[key]
        if key in self.parent:
            return self.parent[key]
        if self.scope is not None and key in self.scope:
            return self.scope[key]
        return self.environment.globals.get(key, missing)

    def get_all(self) -> Any:
        if self.scope is None:
            return super().get_all()
        out = ScopeVars(self.scope)
        out.update(self.vars)
        return out


class _Environment(jinja2.Environment):
    code_generator_class = _Native
    context_class = _Context


def _embed(value: Any) -> str:
    return "" if value is None else str(value)


def _join(values: Iterable[Any]) -> Any:
    parts = list(values)
    if len(parts) == 1:
        return parts[0]
    return "".join(_embed(part) for part in parts)


Settings = tuple[tuple[str, Any], ...]
DEFAULTS = {"trim_blocks": True, "lstrip_blocks": False}


@functools.cache
def environment(settings: Settings = ()) -> jinja2.Environment:
    """The one environment for these settings, with Ansible's filters, tests and look-ups."""
    from flyops.loading import filters, lookups

    env = _Environment(
        undefined=Missing,
        **{**DEFAULTS, **dict(settings)},
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"],
        autoescape=False,
        cache_size=0,
    )
    env.filters.update(filters.FILTERS)
    env.tests.update(filters.TESTS)
    env.globals.update(lookups.GLOBALS)
    return env


_compiled: dict[tuple[str, Settings], Any] = {}
_compile_lock = threading.Lock()


def compiled(source: str, settings: Settings = ()) -> Any:
    """A template, compiled once for all hosts."""
    key = (source, settings)
    found = _compiled.get(key)
    if found is None:
        with _compile_lock:
            found = environment(settings).from_string(source)
            _compiled[key] = found
    return found


def has_template(value: Any) -> bool:
    """Whether a value holds a text that must be rendered."""
    if isinstance(value, Text):
        return any(mark in value for mark in MARKS)
    if isinstance(value, dict):
        return any(has_template(item) or has_template(key) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(has_template(item) for item in value)
    return False


def render(value: Any, scope: Scope) -> Any:
    """A value with every template in it rendered; the types of single expressions are kept."""
    if isinstance(value, Text):
        return render_text(value, scope) if any(mark in value for mark in MARKS) else value
    if isinstance(value, dict):
        return {render(key, scope): render(item, scope) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [render(item, scope) for item in value]
    return value


def render_variable(value: Any, scope: Scope) -> Any:
    """A variable's value: an item inside it that cannot be rendered hurts only who uses it."""
    if isinstance(value, dict) and has_template(value):
        return {_soft(key, scope): _soft(item, scope) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and has_template(value):
        return [_soft(item, scope) for item in value]
    return render(value, scope) if isinstance(value, Text) else value


def _soft(value: Any, scope: Scope) -> Any:
    try:
        return render_variable(value, scope)
    except PlanError as err:
        return Missing(err.message)


def render_text(source: str, scope: Scope, settings: Settings = ()) -> Any:
    """One template text. A single expression keeps its type; an undefined name is a PlanError with file, line and column."""
    pos = getattr(source, "pos", NOWHERE)
    try:
        template = compiled(str(source), settings)
        value = _evaluate(template, scope)
        if isinstance(value, Undefined):
            value._fail_with_undefined_error()
        return value
    except jinja2.TemplateSyntaxError as err:
        raise PlanError(f"template error: {err.message}", where=_where(pos, err.lineno)) from err
    except jinja2.UndefinedError as err:
        raise PlanError(str(err.message), where=_where(pos, _template_line(err))) from err
    except Recursion as err:
        raise PlanError(str(err), where=_where(pos, 1)) from err
    except PlanError as err:
        if not err.where:
            raise PlanError(err.message, where=_where(pos, _template_line(err)), fix=err.fix) from err
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError, LookupError, AttributeError, OSError) as err:
        raise PlanError(f"template error: {type(err).__name__}: {err}", where=_where(pos, _template_line(err))) from err


def _evaluate(template: Any, scope: Scope) -> Any:
    context = template.new_context(ScopeVars(scope), shared=True)
    return _join(template.root_render_func(context))


def _template_line(err: BaseException) -> int:
    line, trace = 1, err.__traceback__
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _where(pos: Pos, line: int) -> str:
    if not pos.file:
        return ""
    return f"{pos.file}:{pos.line + line - 1}:{pos.column if line == 1 else 1}"


def render_file(text: str, file: str, scope: Scope, **given: Any) -> str:
    """A whole template file as text; `given` are Jinja2's own settings. A `#jinja2: key:value` first line may change them."""
    settings = {**DEFAULTS, **given}
    first_line = 1
    if text.startswith("#jinja2:"):
        head, _, text = text.partition("\n")
        first_line = 2
        for pair in head[len("#jinja2:") :].split(","):
            name, _, word = pair.partition(":")
            if name.strip() in settings:
                settings[name.strip()] = word.strip().lower() in ("true", "yes", "1") if name.strip() in DEFAULTS else word
    value = render_text(Text(text, Pos(file, first_line, 1)), scope, tuple(sorted(settings.items())))
    return _embed(value)


def condition(source: Any, scope: Scope, pos: Pos = NOWHERE) -> bool:
    """`when` and its kin: an expression whose value must be a boolean."""
    if isinstance(source, bool):
        return source
    pos = getattr(source, "pos", pos)
    text = str(source)
    if isinstance(source, Unsafe) or not isinstance(source, str):
        value: Any = source
    elif any(mark in text for mark in MARKS[:2]):
        value = render_text(Text(text, pos), scope)
        value = render_text(Text("{{ " + value + " }}", pos), scope) if isinstance(value, str) and value not in ("", text) else value
    else:
        value = render_text(Text("{{ " + text + " }}", pos), scope) if text.strip() else True
    if isinstance(value, bool):
        return value
    raise PlanError(
        f"Conditional result ({bool(value)}) was derived from value of type {_kind(value)!r}; a condition must have a boolean result",
        where=str(pos) if pos.file else "",
        fix=f"write {text} | bool, or compare it with something",
    )


def _kind(value: Any) -> str:
    from flyops.loading.filters import FILTERS

    return str(FILTERS["type_debug"](value))


def check_syntax(source: str) -> tuple[str, int] | None:
    """The template error of a text and its line, or None."""
    try:
        environment().parse(str(source))
    except jinja2.TemplateSyntaxError as err:
        return str(err.message), err.lineno
    except jinja2.TemplateError as err:
        return str(err), 1
    return None


def load_error(err: PlanError) -> LoadError:
    """The same, found while loading."""
    return LoadError(err.message, where=err.where, fix=err.fix)
