# SPDX-License-Identifier: Apache-2.0
"""Builds what a task of a host can see: the layers of variables in Ansible's order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import flyops
from flyops.errors import LoadError, PlanError
from flyops.executor.state import Context, HostState, HostVars, PlayState, RunState
from flyops.loading.inventory import load_vars
from flyops.loading.lookups import OMIT
from flyops.loading.playbook import Inherit, Task
from flyops.loading.templating import has_template, render, render_variable
from flyops.loading.variables import Scope


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
        {"ansible_facts": _short_facts(host.facts)} if host.facts else {},
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


def _short_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("ansible_"): value for key, value in facts.items()}


def _magic(run: RunState, state: PlayState | None, host: HostState) -> dict[str, Any]:
    members = run.inventory.members()
    alive = [name for name in (state.hosts if state else []) if run.host(name).goes_on]
    magic: dict[str, Any] = {
        "inventory_hostname": host.name,
        "inventory_hostname_short": host.name.split(".")[0],
        "group_names": sorted(name for name, hosts in members.items() if host.name in hosts and name != "all"),
        "groups": {name: list(hosts) for name, hosts in members.items()},
        "hostvars": HostVars(lambda: run.inventory.hosts, lambda name: scope_for(run, state, run.host(name))),
        "ansible_check_mode": run.run.check,
        "ansible_diff_mode": run.run.diff,
        "ansible_verbosity": run.verbosity,
        "ansible_version": {"full": "2.19.0", "major": 2, "minor": 19, "revision": 0, "string": "2.19.0"},
        "flyops_version": flyops.__version__,
        "ansible_run_tags": sorted(run.only_tags),
        "ansible_skip_tags": sorted(run.skip_tags),
        "ansible_forks": run.forks,
        "omit": OMIT,
        "environment_of_controller": {},
    }
    magic.pop("environment_of_controller")
    if run.limit:
        magic["ansible_limit"] = run.limit
    if run.inventory.sources:
        source = os.path.abspath(run.inventory.sources[0])
        magic |= {"inventory_file": source, "inventory_dir": source if os.path.isdir(source) else os.path.dirname(source)}
    if state:
        magic |= {
            "play_hosts": alive,
            "ansible_play_hosts": alive,
            "ansible_play_hosts_all": list(state.hosts),
            "ansible_play_batch": [name for name in state.batch if run.host(name).goes_on],
            "ansible_play_name": state.play.title,
            "playbook_dir": os.path.abspath(state.play.folder or "."),
        }
    return magic


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
