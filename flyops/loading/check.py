# SPDX-License-Identifier: Apache-2.0
"""Names that nothing can define, found before the run. A `default` or an `is defined` on the name guards it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
from jinja2 import meta, nodes

from flyops.errors import LoadError
from flyops.loading.inventory import Inventory, load_vars, vars_files
from flyops.loading.parser import INCLUDE_TASKS, Parser, find_tasks_file, include_file, included_inherit
from flyops.loading.playbook import Play, Playbook, Task, walk
from flyops.loading.positions import NOWHERE, Problems, nearest
from flyops.loading.templating import environment, has_template

MAGIC = frozenset(
    [
        "inventory_hostname",
        "inventory_hostname_short",
        "group_names",
        "groups",
        "hostvars",
        "play_hosts",
        "playbook_dir",
        "inventory_dir",
        "inventory_file",
        "omit",
        "item",
        "role_name",
        "role_path",
        "vars",
        "environment",
        "flyops_version",
        "template_path",
        "template_fullpath",
        "template_host",
        "range",
        "dict",
        "lipsum",
        "cycler",
        "joiner",
        "namespace",
        "lookup",
        "query",
        "q",
        "undef",
        "secret_vars",
    ]
)
GUARD_TESTS = ("defined", "undefined")
GUARD_FILTERS = ("default", "d", "mandatory")


def check_variables(playbook: Playbook, parser: Parser, inventory: Inventory, extra: Mapping[str, Any]) -> None:
    """Raise LoadError with every unknown name and its place."""
    problems = Problems()
    shared = {*MAGIC, *extra, *_inventory_names(inventory)}
    earlier: set[str] = set()
    for play in playbook.plays:
        tasks = list(_all_tasks(play, parser))
        names, is_open = _defined(play, tasks)
        earlier |= names
        if is_open:
            break  # names come from where only the run can look
        known = shared | earlier | _beside(play, inventory)
        for task in tasks:
            _check_task(task, known, problems)
    problems.stop()


def _all_tasks(play: Play, parser: Parser) -> Iterable[Task]:
    todo = list(walk(play.pre_tasks + play.tasks + play.post_tasks + play.handlers))
    seen: set[str] = set()
    while todo:
        task = todo.pop(0)
        yield task
        name = include_file(task) if task.module == INCLUDE_TASKS else None
        if name and not has_template(name):
            path = find_tasks_file(str(name), task.folder, play.folder)
            if path not in seen:
                seen.add(path)
                todo += walk(parser.load_tasks(path, included_inherit(task)))


def _inventory_names(inventory: Inventory) -> set[str]:
    out: set[str] = set()
    for host in [*inventory.hosts, "localhost"]:
        out.update(inventory.variables_of(host))
    for group in inventory.groups.values():
        out.update(group.vars)
    return out


def _beside(play: Play, inventory: Inventory) -> set[str]:
    out: set[str] = set()
    for kind, names in (("group_vars", inventory.groups), ("host_vars", inventory.host_vars)):
        for name in names:
            for path in vars_files(play.folder, kind, name):
                out.update(load_vars(str(path)))
    return out


def _defined(play: Play, tasks: list[Task]) -> tuple[set[str], bool]:
    """Names that the play may define, and whether it reads some from a place that is not known yet."""
    out: set[str] = {str(name) for layer in play.inherit.vars for name in layer}
    is_open = False
    for entry in play.vars_files:
        for name in entry if isinstance(entry, list) else [entry]:
            try:
                if has_template(name):
                    is_open = True
                else:
                    out.update(load_vars(f"{play.folder}/{name}"))
            except LoadError:
                continue
    for task in tasks:
        if task.register:
            out.add(task.register)
        out.update(str(name) for layer in task.inherit.vars for name in layer)
        out.update(str(task.loop_control[key]) for key in ("loop_var", "index_var") if key in task.loop_control)
        if task.module == "set_fact":
            out.update(map(str, task.args))
            is_open = is_open or any(has_template(_text(key)) for key in task.args)
        is_open = is_open or task.module in ("include_vars", "add_host")
        if task.module == INCLUDE_TASKS and has_template(include_file(task)):
            is_open = True
    return out, is_open


def _text(key: Any) -> Any:
    from flyops.loading.positions import Text

    return Text(str(key))


def _check_task(task: Task, known: set[str], problems: Problems) -> None:
    asts = []
    for text in task.texts:
        try:
            asts.append((text, environment().parse(str(text))))
        except jinja2.TemplateError:
            continue  # reported by the parser
    guarded = {name for _, ast in asts for name in _guarded(ast)}
    for text, ast in asts:
        for name in sorted(meta.find_undeclared_variables(ast)):
            if name in known or name in guarded or name.startswith("ansible_"):
                continue
            line = next((node.lineno for node in ast.find_all(nodes.Name) if node.name == name), 1)
            pos = getattr(text, "pos", NOWHERE)
            if not pos.file:
                pos = task.pos
            problems.add(
                f"nothing defines the variable {name!r}; {nearest(name, known)}".rstrip("; "),
                pos._replace(line=pos.line + line - 1),
                "define it, or write | default(…)",
            )


def _guarded(ast: nodes.Template) -> Iterable[str]:
    for test in ast.find_all(nodes.Test):
        if test.name in GUARD_TESTS:
            yield from _names(test.node)
    for item in ast.find_all(nodes.Filter):
        if item.name in GUARD_FILTERS and item.node is not None:
            yield from _names(item.node)


def _names(node: nodes.Node) -> Iterable[str]:
    if isinstance(node, nodes.Name):
        yield node.name
    for name in node.find_all(nodes.Name):
        yield name.name
