# SPDX-License-Identifier: Apache-2.0
"""YAML -> Playbook. Every unknown keyword, module and argument is found here, with its place, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from flyops.agent.registry import short_name
from flyops.errors import LoadError
from flyops.loading import freeform, keywords
from flyops.loading.playbook import Block, Inherit, Node, Play, Playbook, Task, walk
from flyops.loading.positions import Map, Pos, Problems, Seq, Text, nearest
from flyops.loading.templating import check_syntax, has_template
from flyops.loading.yamlfile import load_yaml
from flyops.spec import Spec, canonical_names, check_literals
from flyops.spec.arguments import to_bool

IMPORT_TASKS = "import_tasks"
INCLUDE_TASKS = "include_tasks"
CONDITIONS = ("when", "failed_when", "changed_when", "until")
BOOLEANS = ("any_errors_fatal", "become", "check_mode", "diff", "ignore_errors", "ignore_unreachable", "no_log", "run_once", "force_handlers")
IMPORT_DEPTH_MAX = 50


class Parser:
    """Parses the files of one run; `find_spec` knows the modules, `names` lists them for hints."""

    def __init__(self, find_spec: Callable[[str], Spec | None], names: Callable[[], Iterable[str]], extra: Mapping[str, Any] | None = None) -> None:
        self._find_spec = find_spec
        self._names = names
        self._extra = extra or {}
        self.problems = Problems()
        self._counter = 0
        self._includes: dict[tuple[str, int], tuple[Node, ...]] = {}
        self._depth = 0

    # files

    def playbook(self, path: str) -> Playbook:
        """The whole playbook, checked; raises LoadError with all problems."""
        plays = self._plays(path)
        for play in plays:
            self._check_notify(play)
            self._preload(play)
        self.problems.stop()
        return Playbook(path, tuple(replace(play, number=number) for number, play in enumerate(plays)))

    def _load_list(self, path: str, what: str) -> Seq:
        value = load_yaml(path)
        if value is None:
            return Seq(Pos(path, 1, 1))
        if not isinstance(value, Seq):
            raise LoadError(f"expected a list of {what}, found a {type(value).__name__.lower()}", where=f"{path}:1:1")
        return value

    def _plays(self, path: str) -> list[Play]:
        self._depth += 1
        out: list[Play] = []
        try:
            if self._depth > IMPORT_DEPTH_MAX:
                raise LoadError("playbooks import each other", where=path)
            items = self._load_list(path, "plays")
        except LoadError as err:
            self.problems.take(err)
            items = Seq()
        for index, item in enumerate(items):
            if not isinstance(item, Map):
                self.problems.add(f"expected a play (a mapping), found {item!r}", items.at(index))
            elif "import_playbook" in item:
                self._known_keys(item, ("import_playbook", "name"), "import_playbook")
                out += self._plays(os.path.join(os.path.dirname(path), str(item["import_playbook"])))
            else:
                out.append(self._play(item, path))
        self._depth -= 1
        return out

    def load_tasks(self, path: str, outer: Inherit, handlers: bool = False) -> tuple[Node, ...]:
        """The tasks of an included file, once per file and place; raises LoadError with all problems."""
        key = (path, hash((outer.when, outer.tags, id(outer.vars and outer.vars[0]), repr(sorted(outer.options.items(), key=str)))))
        if key not in self._includes:
            problems, self.problems = self.problems, Problems()
            counter, self._counter = self._counter, 0
            try:
                self._includes[key] = self._file(path, outer, handlers)
                self.problems.stop()
            finally:
                self.problems, self._counter = problems, counter
        return self._includes[key]

    def _file(self, path: str, outer: Inherit, handlers: bool) -> tuple[Node, ...]:
        items = self._load_list(path, "tasks")
        return self._nodes(items, outer, os.path.dirname(path), handlers)

    def _preload(self, play: Play) -> None:
        """Included files with a plain name are checked before the run, too."""
        todo = [task for section in (play.pre_tasks, play.tasks, play.post_tasks) for task in walk(section)]
        seen: set[str] = set()
        while todo:
            task = todo.pop()
            name = include_file(task)
            if task.module != INCLUDE_TASKS or not name or has_template(name):
                continue
            path = find_tasks_file(str(name), task.folder, play.folder)
            if path in seen:
                continue
            seen.add(path)
            counter, self._counter = self._counter, 0
            try:
                todo += walk(self._file(path, included_inherit(task), False))
            except LoadError as err:
                self.problems.take(err)
            self._counter = counter

    # plays

    def _play(self, item: Map, path: str) -> Play:
        self._known_keys(item, keywords.PLAY, "play")
        if "hosts" not in item:
            self.problems.add("a play needs `hosts`", item.pos)
        inherit = self._inherit(item, Inherit())
        folder = os.path.dirname(path) or "."
        sections = {name: self._section(item, name, inherit, folder) for name in ("pre_tasks", "tasks", "post_tasks", "handlers")}
        serial = item.get("serial")
        self._check_templates(item)
        return Play(
            name=str(item.get("name") or ""),
            hosts=item.get("hosts", "all"),
            pos=item.pos,
            inherit=inherit,
            vars_files=tuple(_as_list(item.get("vars_files"))),
            gather_facts=item.get("gather_facts", True),
            gather_subset=item.get("gather_subset"),
            serial=tuple(_as_list(serial)),
            max_fail_percentage=item.get("max_fail_percentage"),
            force_handlers=self._bool(item, "force_handlers"),
            secret_vars=tuple(map(str, _as_list(item.get("secret_vars")))),
            folder=folder,
            pre_tasks=sections["pre_tasks"],
            tasks=sections["tasks"],
            post_tasks=sections["post_tasks"],
            handlers=sections["handlers"],
        )

    def _section(self, item: Map, name: str, inherit: Inherit, folder: str) -> tuple[Node, ...]:
        value = item.get(name)
        if value is None:
            return ()
        if not isinstance(value, Seq):
            self.problems.add(f"{name} must be a list of tasks, found {value!r}", item.at(name))
            return ()
        return self._nodes(value, inherit, folder, name == "handlers")

    def _bool(self, item: Map, name: str) -> bool:
        try:
            return to_bool(item.get(name, False))
        except ValueError:
            return False  # reported by _inherit

    # what is handed down

    def _inherit(self, item: Map, outer: Inherit) -> Inherit:
        options = dict(outer.options)
        for name in keywords.INHERITED:
            if name in item:
                options[name] = item[name]
        for name in BOOLEANS:
            if name in item and not has_template(item[name]):
                try:
                    to_bool(item[name])
                except ValueError as err:
                    self.problems.add(f"{name}: {err}", item.value_at(name))
        variables = item.get("vars")
        if variables is not None and not isinstance(variables, dict):
            self.problems.add(f"vars must be a mapping, found {variables!r}", item.at("vars"))
            variables = None
        if "tags" in item and not isinstance(item["tags"], (str, list)):
            self.problems.add("tags must be a name or a list of names", item.at("tags"))
        tags = [part.strip() for tag in _as_list(item.get("tags")) for part in str(tag).split(",")]
        return Inherit(
            options=options,
            when=(*outer.when, *self._conditions(item, "when", ())),
            tags=tuple(dict.fromkeys([*outer.tags, *tags])),
            vars=((variables, *outer.vars) if variables else outer.vars),
            environment=(*outer.environment, item["environment"]) if item.get("environment") else outer.environment,
            delegate_to=item.get("delegate_to", outer.delegate_to),
        )

    def _conditions(self, item: Map, name: str, missing: Any = None) -> Any:
        if name not in item:
            return missing
        out = []
        for value in _as_list(item[name]):
            if isinstance(value, (dict, list)):
                self.problems.add(f"{name} must be an expression, found a {type(value).__name__.lower()}", item.at(name))
                continue
            if isinstance(value, str):
                pos = getattr(value, "pos", item.at(name))
                braced = value if "{{" in value or "{%" in value else "{{ " + value + " }}"
                wrong = check_syntax(braced) if value.strip() else None
                if wrong:
                    self.problems.add(f"{name}: template error: {wrong[0]}", pos)
            out.append(value)
        return tuple(out)

    # tasks

    def _nodes(self, items: Seq, outer: Inherit, folder: str, handlers: bool = False) -> tuple[Node, ...]:
        out: list[Node] = []
        for index, item in enumerate(items):
            if not isinstance(item, Map):
                self.problems.add(f"expected a task (a mapping), found {item!r}", items.at(index))
            elif "block" in item:
                out += self._block(item, outer, folder, handlers)
            elif any(short_name(str(key)) == IMPORT_TASKS for key in item):
                out += self._import(item, outer, folder, handlers)
            else:
                task = self._task(item, outer, folder, handlers)
                out += [task] if task else []
        return tuple(out)

    def _block(self, item: Map, outer: Inherit, folder: str, handlers: bool) -> list[Node]:
        self._known_keys(item, keywords.BLOCK, "block")
        inherit = self._inherit(item, outer)
        self._check_templates(item, skip=("block", "rescue", "always"))
        parts = {name: self._section(item, name, inherit, folder) for name in ("block", "rescue", "always")}
        if not parts["rescue"] and not parts["always"]:
            return list(parts["block"])
        return [Block(parts["block"], parts["rescue"], parts["always"], item.pos, inherit.tags)]

    def _import(self, item: Map, outer: Inherit, folder: str, handlers: bool) -> list[Node]:
        key = next(key for key in item if short_name(str(key)) == IMPORT_TASKS)
        self._known_keys(item, (*keywords.SHARED, "when", "delegate_to", key), IMPORT_TASKS)
        value = item[key]
        name = value.get("file") if isinstance(value, dict) else value
        if isinstance(name, str) and name.startswith("file="):
            name = freeform.unquote(name[len("file=") :].strip())
        if not isinstance(name, str) or has_template(name):
            self.problems.add(
                "import_tasks needs the plain name of a file", item.at(key), "use include_tasks for a name that is known only in the run"
            )
            return []
        path = find_tasks_file(str(name), folder, folder)
        self._depth += 1
        try:
            if self._depth > IMPORT_DEPTH_MAX:
                raise LoadError("task files import each other", where=str(item.at(key)))
            return list(self._file(path, self._inherit(item, outer), handlers))
        except LoadError as err:
            missing = not os.path.exists(path)
            self.problems.add(f"import_tasks: no such file: {path}", item.at(key)) if missing else self.problems.take(err)
            return []
        finally:
            self._depth -= 1

    def _task(self, item: Map, outer: Inherit, folder: str, handler: bool) -> Task | None:
        allowed = keywords.HANDLER if handler else keywords.TASK
        found = self._module(item, allowed)
        if found is None:
            return None
        key, module, spec = found
        args = self._args(item, key, spec)
        self._check_templates(item)
        self._counter += 1
        register = item.get("register", "")
        if register and not str(register).isidentifier():
            self.problems.add(f"register: {register!r} is no variable name", item.value_at("register"), "letters, digits and _ only, no digit first")
        loop_name = "loop" if "loop" in item else "with_items"
        inherit = self._inherit(item, outer)
        return Task(
            module=module,
            args=args,
            pos=item.pos,
            name=item.get("name") or "",
            order=(self._counter,),
            inherit=inherit,
            outer=outer,
            loop=item.get(loop_name),
            loop_flatten=loop_name == "with_items",
            loop_control=self._loop_control(item),
            register=str(register),
            notify=tuple(_as_list(item.get("notify"))),
            listen=tuple(map(str, _as_list(item.get("listen")))),
            failed_when=self._conditions(item, "failed_when"),
            changed_when=self._conditions(item, "changed_when"),
            until=self._conditions(item, "until"),
            retries=item.get("retries"),
            delay=item.get("delay"),
            folder=folder,
            texts=tuple(_texts(item, inherit)),
        )

    def _loop_control(self, item: Map) -> Mapping[str, Any]:
        control = item.get("loop_control") or {}
        if not isinstance(control, Map):
            if control == {}:
                return {}
            self.problems.add("loop_control must be a mapping", item.at("loop_control"))
            return {}
        if control:
            self._known_keys(control, keywords.LOOP_CONTROL, "loop_control")
        return control

    def _module(self, item: Map, allowed: tuple[str, ...]) -> tuple[str, str, Spec] | None:
        """The task's module key, its name, its spec; problems are noted."""
        candidates = []
        wrong = False
        for key in item:
            if key in allowed:
                candidates += [key] if key == "action" else []
            elif keywords.is_not_yet(str(key)):
                self.problems.add(f"keyword {key!r} is not supported yet", item.at(key))
            elif self._spec(str(key), item.at(key), quiet=True):
                candidates.append(key)
            else:
                wrong = True
                late = short_name(str(key)) in keywords.NOT_YET_MODULES or "." in str(key)
                hint = nearest(key, [*allowed, *self._names()])
                self.problems.add(f"module {key!r} is not supported yet" if late else f"unknown keyword or module {key!r}; {hint}", item.at(key))
        if wrong and not candidates:
            return None
        if len(candidates) != 1:
            text = "a task needs a module" if not candidates else f"a task has one module, found {' and '.join(map(repr, candidates))}"
            self.problems.add(text, item.at(candidates[1]) if candidates else item.pos)
            return None
        key = candidates[0]
        name = key
        if key == "action":
            value = item[key]
            name = str(value.get("module", "")) if isinstance(value, dict) else str(value or "").split(" ", 1)[0]
        spec = self._spec(str(name), item.at(key))
        return (key, short_name(str(name)), spec) if spec else None

    def _spec(self, name: str, pos: Pos, quiet: bool = False) -> Spec | None:
        spec = self._find_spec(name)
        if spec is None and not quiet:
            late = short_name(name) in keywords.NOT_YET_MODULES
            self.problems.add(f"module {name!r} is not supported yet" if late else f"unknown module {name!r}; {nearest(name, self._names())}", pos)
        return spec

    def _args(self, item: Map, key: str, spec: Spec) -> Map:
        value: Any = item[key]
        if key == "action" and isinstance(value, str):
            value = Text(str(value).partition(" ")[2], item.value_at(key))
        out = Map(item.at(key))
        extra = item.get("args")
        for source in (extra, value):
            if isinstance(source, Map):
                for name in source:
                    if not (key == "action" and name == "module"):
                        out[name] = source[name]
                        out.key_pos[name], out.value_pos[name] = source.at(name), source.value_at(name)
                        if name in source.source:
                            out.source[name] = source.source[name]
            elif isinstance(source, str) and str(source).strip():
                self._free_form(out, source, item.value_at(key), spec)
            elif source not in (None, "") and not (spec.free_form and not isinstance(source, (dict, list))):
                self.problems.add(f"expected the module's arguments (a mapping), found {source!r}", item.value_at(key))
            elif source not in (None, ""):
                out[spec.free_form] = source
        self._check_args(out, spec)
        return out

    def _free_form(self, out: Map, text: str, pos: Pos, spec: Spec) -> None:
        whole = Text(str(text), pos)
        try:
            values = freeform.parse(spec, whole)
        except ValueError as err:
            self.problems.add(str(err), pos)
            return
        for name, value in values.items():
            out[name] = value
            out.key_pos[name] = out.value_pos[name] = pos

    def _check_args(self, args: Map, spec: Spec) -> None:
        for name, text in check_literals(spec, args, has_template):
            self.problems.add(text, args.at(name) if name else args.pos)
        for name, source in args.source.items():
            canonical = next(iter(canonical_names(spec, {name: None})))
            is_mode = canonical in spec.args and (spec.args[canonical].kind == "mode" or canonical in ("mode", "directory_mode"))
            if (
                is_mode
                and isinstance(args[name], int)
                and source.isdigit()
                and source[0] != "0"
                and len(source) >= 3
                and set(source) <= set("01234567")
            ):
                self.problems.add(
                    f"argument {name!r}: {source} is read as a decimal number, not as an octal mode",
                    args.value_at(name),
                    f"write '0{source}', in quotes",
                )

    def _known_keys(self, item: Map, allowed: Iterable[str], what: str) -> None:
        for key in item:
            if key in allowed:
                continue
            if keywords.is_not_yet(str(key)):
                self.problems.add(f"keyword {key!r} is not supported yet in a {what}", item.at(key))
            else:
                self.problems.add(f"unknown keyword {key!r} in a {what}; {nearest(key, allowed)}", item.at(key))

    def _check_templates(self, item: Map, skip: tuple[str, ...] = ()) -> None:
        """Syntax errors in templates are found now, whatever the run would reach."""
        for key, value in item.items():
            if key in skip or key in ("tasks", "pre_tasks", "post_tasks", "handlers", *CONDITIONS):
                continue
            for text in _template_texts(value):
                wrong = check_syntax(text)
                if wrong:
                    pos = text.pos
                    self.problems.add(f"template error: {wrong[0]}", pos._replace(line=pos.line + wrong[1] - 1))

    def _check_notify(self, play: Play) -> None:
        handlers = list(walk(play.handlers))
        if any(has_template(Text(h.name)) or h.module == INCLUDE_TASKS for h in handlers):
            return
        known = {h.name for h in handlers if h.name} | {topic for h in handlers for topic in h.listen}
        todo = [task for section in (play.pre_tasks, play.tasks, play.post_tasks, play.handlers) for task in walk(section)]
        for task in todo:
            for name in task.notify:
                if not has_template(name) and str(name) not in known:
                    hint = nearest(name, known) if known else "the play has no handlers"
                    self.problems.add(f"notify: no handler {str(name)!r}; {hint}", getattr(name, "pos", task.pos))


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _template_texts(value: Any) -> list[Text]:
    if isinstance(value, Text):
        return [value] if has_template(value) else []
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _template_texts(part)]
    if isinstance(value, (list, tuple)):
        return [text for part in value for text in _template_texts(part)]
    return []


def _texts(item: Map, inherit: Inherit) -> list[str]:
    """Everything of a task that is a template; conditions are given their braces."""
    out: list[str] = list(_template_texts({key: value for key, value in item.items() if key not in CONDITIONS}))
    conditions = [*inherit.when, *(value for name in CONDITIONS[1:] for value in _as_list(item.get(name)))]
    that = item.get("assert", item.get("ansible.builtin.assert"))
    if isinstance(that, dict):
        conditions += _as_list(that.get("that"))
    out += [
        value if has_template(value) else Text("{{ " + value + " }}", getattr(value, "pos", item.pos))
        for value in conditions
        if isinstance(value, str) and value.strip()
    ]
    var = item.get("debug", item.get("ansible.builtin.debug"))
    if isinstance(var, dict) and isinstance(var.get("var"), str):
        out.append(Text("{{ (" + str(var["var"]) + ") is defined }}", item.pos))
    return out + list(_template_texts([inherit.environment, inherit.delegate_to]))


def find_tasks_file(name: str, folder: str, playbook_dir: str) -> str:
    """A task file: beside the file that names it, else beside the playbook, else in the playbook's tasks/."""
    places = [os.path.join(folder, name), os.path.join(playbook_dir, name), os.path.join(playbook_dir, "tasks", name)]
    return next((os.path.normpath(path) for path in places if os.path.isfile(path)), os.path.normpath(places[0]))


def include_file(task: Task) -> Any:
    """The file argument of an include_tasks."""
    return task.args.get("file", task.args.get("_raw_params"))


def included_inherit(task: Task) -> Inherit:
    """What an include hands to the tasks inside: its surroundings, its vars, and what `apply` says."""
    outer = task.outer
    apply = task.args.get("apply") or {}
    own_vars = task.inherit.vars[: len(task.inherit.vars) - len(outer.vars)]
    tags = [str(tag) for tag in _as_list(apply.get("tags"))]
    return Inherit(
        options={**outer.options, **{name: apply[name] for name in keywords.INHERITED if name in apply}},
        when=(*outer.when, *_as_list(apply.get("when"))),
        tags=tuple(dict.fromkeys([*outer.tags, *tags])),
        vars=(*own_vars, *outer.vars),
        environment=(*outer.environment, apply["environment"]) if apply.get("environment") else outer.environment,
        delegate_to=apply.get("delegate_to", outer.delegate_to),
    )
