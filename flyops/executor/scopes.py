# SPDX-License-Identifier: Apache-2.0
"""Builds what a task of a host can see: the layers of variables in Ansible's order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flyops
from flyops.errors import LoadError, PlanError
from flyops.executor.state import Context, HostState, HostVars, PlayState, RunState
from flyops.loading.inventory import load_vars
from flyops.loading.lookups import OMIT
from flyops.loading.playbook import Inherit, Task
from flyops.loading.templating import has_template, render, render_variable
from flyops.loading.variables import Scope

VERSION = {"full": "2.19.0", "major": 2, "minor": 19, "revision": 0, "string": "2.19.0"}  # of the language, for playbooks that ask


def scope_for(run: RunState, state: PlayState | None, host: HostState, task: Task | None = None, context: Context = Context()) -> Scope:  # noqa: B008
    """Extra vars, magic, set facts and registers, included vars, task and block vars, vars_files, play vars, facts, inventory."""
    play = state.play if state else None
    inherit = task.inherit if task else (play.inherit if play else Inherit())
    outer_count = len(play.inherit.vars) if play else 0
    inner = inherit.vars[: len(inherit.vars) - outer_count]
    playbook_dir = play.folder if play else ""
    layers = (
        run.extra,
        _magic(run, state, host),
        *context.layers,
        host.set_facts,
        host.included,
        *inner,
        host.play_files,
        *inherit.vars[len(inherit.vars) - outer_count :],
        Lazy({"ansible_facts": lambda: _short_facts(host.facts)}) if host.facts else {},
        host.facts,
        run.inventory.variables_of(host.name, playbook_dir),
    )
    scope = Scope(layers, render_variable)
    scope.on_secret = run.masker.add
    names = list(play.secret_vars) if play else []
    try:
        declared = scope.raw("secret_vars")
        names += [str(name) for name in declared] if isinstance(declared, (list, tuple)) else [str(declared)]
    except KeyError:
        pass
    scope.secret_names = frozenset(names)
    scope.folders = folders_of(task.folder if task and task.folder else playbook_dir, playbook_dir)
    return scope


def folders_of(task_dir: str, playbook_dir: str) -> tuple[str, ...]:
    """Where a task's files are looked for: its own folder, the playbook's, the one above (playbooks/ beside templates/)."""
    places = [task_dir or ".", playbook_dir or ".", os.path.join(playbook_dir or ".", "..")]
    return tuple(dict.fromkeys(os.path.normpath(place) for place in places))


class Lazy(Mapping[str, Any]):
    """Values that are worked out when a template asks for them: most tasks ask for none."""

    def __init__(self, makers: dict[str, Callable[[], Any]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> Any:
        return self._makers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _short_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("ansible_"): value for key, value in facts.items()}


def _magic(run: RunState, state: PlayState | None, host: HostState) -> Lazy:
    inventory = run.inventory
    fixed = {
        "inventory_hostname": host.name,
        "inventory_hostname_short": host.name.split(".")[0],
        "ansible_check_mode": run.run.check,
        "ansible_diff_mode": run.run.diff,
        "ansible_verbosity": run.verbosity,
        "ansible_version": VERSION,
        "flyops_version": flyops.__version__,
        "ansible_forks": run.forks,
        "ansible_managed": "Managed by flyops",
        "omit": OMIT,
    }
    makers: dict[str, Callable[[], Any]] = {name: _give(value) for name, value in fixed.items()}
    makers |= {
        "group_names": lambda: sorted(name for name, hosts in inventory.members().items() if host.name in hosts and name != "all"),
        "groups": lambda: {name: list(hosts) for name, hosts in inventory.members().items()},
        "hostvars": lambda: HostVars(lambda: inventory.hosts, lambda name: scope_for(run, state, run.host(name))),
        "ansible_run_tags": lambda: sorted(run.only_tags),
        "ansible_skip_tags": lambda: sorted(run.skip_tags),
    }
    if run.limit:
        makers["ansible_limit"] = lambda: run.limit
    if inventory.sources:
        source = os.path.abspath(inventory.sources[0])
        makers |= {"inventory_file": lambda: source, "inventory_dir": lambda: source if os.path.isdir(source) else os.path.dirname(source)}
    return Lazy({**makers, **_play_magic(run, state)} if state else makers)


def _play_magic(run: RunState, state: PlayState) -> dict[str, Callable[[], Any]]:
    def alive(names: list[str]) -> list[str]:
        return [name for name in names if run.host(name).goes_on]

    return {
        "play_hosts": lambda: alive(state.hosts),
        "ansible_play_hosts": lambda: alive(state.hosts),
        "ansible_play_hosts_all": lambda: list(state.hosts),
        "ansible_play_batch": lambda: alive(state.batch),
        "ansible_play_name": lambda: state.play.title,
        "playbook_dir": lambda: os.path.abspath(state.play.folder or "."),
    }


def _give(value: Any) -> Callable[[], Any]:
    return lambda: value


def load_vars_files(run: RunState, state: PlayState, host: HostState, facts_known: bool) -> None:
    """`vars_files` of the play; names that need variables wait for the facts."""
    out: dict[str, Any] = {}
    for entry in state.play.vars_files:
        if has_template(entry) and not facts_known:
            continue
        scope = scope_for(run, state, host)
        choices = render(entry, scope)
        names = [str(choice) for choice in (choices if isinstance(choices, list) else [choices])]
        paths = [os.path.join(state.play.folder, os.path.expanduser(name)) for name in names]
        found = next((path for path in paths if os.path.isfile(path)), None)
        if found is None:
            raise PlanError(f"vars_files: no such file: {' or '.join(paths)}", where=str(getattr(entry, "pos", state.play.pos)))
        try:
            out.update(load_vars(found))
        except LoadError as err:
            raise PlanError(err.message, where=err.where, fix=err.fix) from err
        host.play_files = out
    host.play_files = out
