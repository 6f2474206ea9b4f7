# SPDX-License-Identifier: Apache-2.0
"""One task for one host: which items, whether it runs, with which arguments, on which target. A value still on its way ends the segment."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyops.errors import PlanError
from flyops.loading.blobs import Offer, offer_files
from flyops.loading.lookups import OMIT
from flyops.loading.playbook import Task
from flyops.loading.positions import NOWHERE
from flyops.loading.templating import condition, render
from flyops.loading.variables import Scope
from flyops.model.target import GUESTS, Target
from flyops.planning import registry
from flyops.spec import canonical_names
from flyops.spec.arguments import to_bool

DEFAULT_RETRIES = 3
# Variables of Ansible that would change how a host is reached: told, never passed over.
NOT_YET_VARIABLES = (
    "ansible_password",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_become_password",
    "ansible_become_pass",
    "ansible_become_exe",
    "ansible_become_flags",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_executable",
)
DEFAULT_DELAY_S = 5.0


@dataclass(frozen=True)
class Call:
    """A module call that travels. `check`: "" for real, `run` for the overlay of a check run, `task` for one of its own."""

    module: str
    args: Mapping[str, Any]
    check: str = ""
    diff: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    offers: Mapping[str, Offer] = field(default_factory=dict)
    paths: tuple[str, ...] | None = None  # where it may write; None: anywhere


@dataclass(frozen=True)
class Item:
    """One item of a task (a task without a loop has one): a result already known, or a call."""

    scope: Scope
    value: Any = None
    label: str = ""
    index: int = 0
    known: dict[str, Any] | None = None
    call: Call | None = None


@dataclass(frozen=True)
class Flags:
    """Keywords of a task, rendered."""

    check: bool = False
    diff: bool = False
    no_log: bool = False
    ignore_errors: bool = False
    ignore_unreachable: bool = False
    any_errors_fatal: bool = False


@dataclass(frozen=True)
class Step:
    """A task made ready for one host. `looped` with no items: the loop was empty."""

    task: Task
    scope: Scope
    flags: Flags
    items: tuple[Item, ...]
    looped: bool = False
    loop_var: str = "item"
    target: Target | None = None
    skip: dict[str, Any] | None = None  # known before any item was looked at

    @property
    def is_known(self) -> bool:
        """Nothing travels."""
        return self.skip is not None or all(item.known is not None for item in self.items)

    @property
    def ends_segment(self) -> bool:
        """Whether what comes next must wait for this result."""
        if self.is_known:
            return False
        task = self.task
        static = all(isinstance(value, bool) for value in (*(task.failed_when or ()), *(task.changed_when or ())))
        broken = any(item.known and item.known.get("failed") for item in self.items)
        return task.until is not None or task.retries is not None or not static or broken

    @property
    def survives(self) -> bool:
        """Whether the tasks behind it run even when it fails."""
        return self.flags.ignore_errors or self.task.failed_when == (False,)


@dataclass(frozen=True)
class Run:
    """What holds for the whole run."""

    check: bool = False
    diff: bool = False


def skipped(expression: Any) -> dict[str, Any]:
    """The result of a task whose condition was false."""
    return {"changed": False, "failed": False, "skipped": True, "skip_reason": "Conditional result was False", "false_condition": expression}


def flags_of(task: Task, scope: Scope, run: Run) -> Flags:
    """Its boolean keywords."""

    def flag(name: str, default: bool = False) -> bool:
        value = task.option(name)
        if value is None:
            return default
        try:
            return to_bool(render(value, scope))
        except ValueError as err:
            raise PlanError(f"{name}: {err}", where=str(task.pos)) from err

    return Flags(
        check=flag("check_mode", run.check),
        diff=flag("diff", run.diff),
        no_log=flag("no_log"),
        ignore_errors=flag("ignore_errors"),
        ignore_unreachable=flag("ignore_unreachable"),
        any_errors_fatal=flag("any_errors_fatal"),
    )


def false_condition(task: Task, scope: Scope) -> Any:
    """The first `when` that does not hold, or None."""
    for expression in task.inherit.when:
        if not condition(expression, scope, task.pos):
            return str(expression) if isinstance(expression, str) else expression
    return None


def loop_items(task: Task, scope: Scope) -> list[Any]:
    """The values of a loop."""
    value = render(task.loop, scope)
    where = str(getattr(task.loop, "pos", task.pos))
    if isinstance(value, str) or not isinstance(value, Iterable):
        if task.loop_flatten:
            return [value]
        raise PlanError(
            f"loop: expected a list, found {type(value).__name__}", where=where, fix="a mapping needs | dict2items, a text [ … ] around it"
        )
    if isinstance(value, Mapping):
        raise PlanError("loop: expected a list, found a mapping", where=where, fix="write | dict2items behind it")
    items = list(value)
    if task.loop_flatten:
        items = [part for item in items for part in (item if isinstance(item, list) else [item])]
    return items


def item_scopes(task: Task, scope: Scope) -> list[tuple[Scope, Any, str, int]]:
    """For each item: what it sees, its value, its label, its index."""
    if task.loop is None:
        return [(scope, None, "", 0)]
    values = loop_items(task, scope)
    control = task.loop_control
    name = str(render(control.get("loop_var", "item"), scope))
    out = []
    for index, value in enumerate(values):
        layer: dict[str, Any] = {name: value, "ansible_loop_var": name}
        if control.get("index_var"):
            layer[str(control["index_var"])] = index
        if control.get("extended"):
            layer["ansible_loop"] = _extended(values, index)
        inner = scope.child(layer)
        label = render(control["label"], inner) if "label" in control else value
        out.append((inner, value, str(label), index))
    return out


def _extended(values: list[Any], index: int) -> dict[str, Any]:
    size = len(values)
    out = {"allitems": values, "index": index + 1, "index0": index, "revindex": size - index, "revindex0": size - index - 1}
    out |= {"first": index == 0, "last": index == size - 1, "length": size}
    if index > 0:
        out["previtem"] = values[index - 1]
    if index < size - 1:
        out["nextitem"] = values[index + 1]
    return out


def environment_of(task: Task, scope: Scope) -> dict[str, str]:
    """The merged `environment` of play, blocks and task."""
    out: dict[str, str] = {}
    for raw in task.inherit.environment:
        value = render(raw, scope)
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise PlanError(f"environment: expected a mapping, found {part!r}", where=str(task.pos))
            out.update({str(key): str(item) for key, item in part.items()})
    return out


def make_call(task: Task, scope: Scope, flags: Flags, run: Run) -> Call:
    """The module call with its arguments rendered; secrets among them are told to the scope."""
    spec = registry.find_spec(task.module)
    if spec is None:
        raise PlanError(f"no module {task.module!r}", where=str(task.pos))
    args = {key: _without_omit(render(value, scope)) for key, value in task.args.items()}
    args = {key: value for key, value in args.items() if value is not OMIT}
    offers = offer_files(spec, args, scope)
    names = canonical_names(spec, args)
    for name, arg in spec.args.items():
        if arg.secret and names.get(name) is not None:
            scope.on_secret(names[name])
    if flags.no_log:
        scope.on_secret(
            [args[key] for key, raw in task.args.items() if key in args and isinstance(raw, str) and "{{" in raw and isinstance(args[key], str)]
        )
    mode = "" if not flags.check else "run" if run.check else "task"
    return Call(task.module, args, mode, flags.diff, environment_of(task, scope), offers, paths_of(task, scope))


def paths_of(task: Task, scope: Scope) -> tuple[str, ...] | None:
    """The variable `flyops_paths`: the only places that this run may write to."""
    places = scope.get("flyops_paths")
    if places is None:
        return None
    if not isinstance(places, list) or not all(isinstance(place, str) and place.startswith("/") for place in places):
        raise PlanError(f"flyops_paths: expected a list of absolute paths, found {places!r}", where=str(task.pos))
    return tuple(str(place) for place in places)


def _without_omit(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_omit(item) for key, item in value.items() if item is not OMIT}
    if isinstance(value, list):
        return [_without_omit(item) for item in value if item is not OMIT]
    return value


def plan_task(task: Task, scope: Scope, run: Run) -> Step:
    """A task of a host module, ready to travel. Raises PlanError, or PendingResult when it must wait for an earlier result."""
    if task.loop is None:
        wrong = false_condition(task, scope)
        if wrong is not None:
            return Step(task, scope, flags_of_skipped(task, scope, run), (), skip=skipped(wrong))
    elif not task.loop:
        return Step(task, scope, flags_of(task, scope, run), (), looped=True)
    try:
        entries = item_scopes(task, scope)
    except PlanError:
        if _skipped_before_items(task, scope):
            return Step(task, scope, Flags(), (), skip=skipped(task.inherit.when[-1]))
        raise
    flags = flags_of(task, scope, run)
    loop_var = str(task.loop_control.get("loop_var", "item"))
    items = tuple(_plan_item(task, entry, flags, run) for entry in entries)
    return Step(task, scope, flags, items, task.loop is not None, loop_var, target_of(task, delegate_scope(task, scope)))


def flags_of_skipped(task: Task, scope: Scope, run: Run) -> Flags:
    """A skipped task's keywords may need values that do not exist: then they do not matter."""
    try:
        return flags_of(task, scope, run)
    except PlanError:
        return Flags()


def _skipped_before_items(task: Task, scope: Scope) -> bool:
    try:
        return false_condition(task, scope) is not None
    except PlanError:
        return False


def _plan_item(task: Task, entry: tuple[Scope, Any, str, int], flags: Flags, run: Run) -> Item:
    scope, value, label, index = entry
    wrong = false_condition(task, scope) if task.loop is not None else None
    if wrong is not None:
        return Item(scope, value, label, index, known=skipped(wrong))
    try:
        return Item(scope, value, label, index, call=make_call(task, scope, flags, run))
    except PlanError as err:
        if task.loop is None:
            raise
        text = f"{err.where}: {err.message}" if err.where else err.message
        return Item(scope, value, label, index, known={"changed": False, "failed": True, "msg": text})


# where it runs


def target_of(task: Task, scope: Scope, host: str = "") -> Target:
    """The agent that a task talks to: the host's connection variables and the task's `become` and `connection`."""
    become = task.option("become")
    become = scope.get("ansible_become", False) if become is None or "ansible_become" in scope else render(become, scope)
    try:
        is_become = to_bool(become)
    except ValueError as err:
        raise PlanError(f"become: {err}", where=str(task.pos)) from err
    user = scope.get("ansible_become_user", render(task.option("become_user"), scope)) or "root"
    method = scope.get("ansible_become_method", render(task.option("become_method"), scope)) or "sudo"
    if is_become and method not in ("sudo", "ansible.builtin.sudo"):
        raise PlanError(f"become_method {method!r} is not supported yet", where=str(task.pos), fix="use sudo")
    defaults = {"connection": task.option("connection"), "user": task.option("remote_user"), "port": task.option("port")}
    return connection_target(scope, is_become, str(user), {name: render(value, scope) for name, value in defaults.items() if value is not None})


def connection_target(scope: Scope, become: bool, become_user: str, defaults: Mapping[str, Any], depth: int = 0) -> Target:
    """A Target from a host's variables."""
    name = str(scope["inventory_hostname"])

    def var(key: str, default: Any = "") -> Any:
        return scope.get(f"ansible_{key}", default)

    connection = str(var("connection", defaults.get("connection", "ssh"))).rpartition(".")[2]
    if connection not in ("local", "ssh", *GUESTS):
        raise PlanError(f"host {name}: ansible_connection {connection!r} is not supported yet", fix=f"use one of local, ssh, {', '.join(GUESTS)}")
    ignored = [key for key in NOT_YET_VARIABLES if scope.get(key) not in (None, "", False)]
    if ignored:
        raise PlanError(f"host {name}: {', '.join(ignored)} not supported yet", fix="use keys, ~/.ssh/config and sudo without a password")
    if connection == "pct" and not str(var("pct_id", name)).isdigit():
        raise PlanError(f"host {name}: a Proxmox guest is reached by its number, found {var('pct_id', name)!r}", fix="set ansible_pct_id")
    via = None
    if connection in GUESTS and var("via"):
        via = _via(scope, str(var("via")), depth)
    port = int(var("port", var("ssh_port", defaults.get("port", 0))) or 0)
    python = str(var("python_interpreter", ""))
    return Target(
        name=name,
        connection=connection,
        address=str(var("host", var("ssh_host", name))) if connection == "ssh" else "",
        port=port if connection == "ssh" else 0,
        user=str(var("user", var("ssh_user", defaults.get("user", ""))) or "") if connection == "ssh" else "",
        key_file=str(var("ssh_private_key_file", var("private_key_file", ""))),
        known_hosts_file=str(var("ssh_known_hosts_file", "")),
        accept_new=connection == "ssh" and to_bool(scope.get("flyops_ssh_accept_new", False)),
        python="" if python in ("auto", "auto_silent", "auto_legacy") else python,
        become=become,
        become_user=become_user if become else "root",
        guest=str(scope.get(GUESTS[connection], name)) if connection in GUESTS else "",
        lxc_path=str(var("lxc_path", "")),
        incus_binary=str(var("incus_binary", "incus")) if connection == "incus" else "",
        via=via,
        connect_s=float(var("timeout", 10) or 10),
        silence_s=float(scope.get("flyops_silence_s", 30) or 30),
    )


def delegate_scope(task: Task, scope: Scope) -> Scope:
    """The variables of the host that really runs it."""
    raw = task.inherit.delegate_to
    if raw is None:
        return scope
    loop_var = str(task.loop_control.get("loop_var", "item"))
    if task.loop is not None and re.search(rf"\b{re.escape(loop_var)}\b", str(raw)):
        raise PlanError("delegate_to a different host for each item is not supported yet", where=str(task.pos))
    name = str(render(raw, scope))
    if name == scope["inventory_hostname"]:
        return scope
    hosts = scope["hostvars"]
    if name not in hosts:
        raise PlanError(f"delegate_to: no host {name!r} in the inventory", where=str(task.pos))
    found: Scope = hosts[name].host_scope
    return found


def _via(scope: Scope, parent: str, depth: int) -> Target:
    if depth > 4:
        raise PlanError(f"ansible_via: hosts lead to each other at {parent}")
    variables = scope["hostvars"]
    if parent not in variables:
        raise PlanError(f"ansible_via: no host {parent!r} in the inventory", fix="add it, with the variables of its connection")
    inner = variables[parent].host_scope
    become = to_bool(inner.get("ansible_become", False))
    return connection_target(inner, become, str(inner.get("ansible_become_user", "root")), {}, depth + 1)


@functools.cache
def reads_other_hosts(task: Task) -> bool:
    """Whether a task may look at another host's variables: then hosts meet before it."""
    return any("hostvars" in text for text in task.texts)


def is_meeting(task: Task) -> bool:
    """Whether all hosts of a batch must have come this far before it runs."""
    if task.option("run_once") not in (None, False) or task.inherit.delegate_to is not None or task.option("any_errors_fatal") not in (None, False):
        return True
    return task.module in ("meta", "add_host", "pause") or reads_other_hosts(task)


def where_of(task: Task) -> str:
    """For messages."""
    return str(task.pos) if task.pos != NOWHERE else ""
