# SPDX-License-Identifier: Apache-2.0
"""Run a playbook: `invoke play FILE`, and `run_playbook` for every other operation."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flyops import errors
from flyops.executor.run import Fan, HostResult, RunResult, hosts_of, run_plays
from flyops.executor.state import RunState
from flyops.loading.extravars import parse_extra
from flyops.loading.inventory import Inventory, limit_hosts, load_inventory
from flyops.loading.parser import Parser
from flyops.loading.playbook import Playbook, selected, walk
from flyops.loading.positions import Text
from flyops.model.event import Event, Listener
from flyops.operations.options import PlayOptions
from flyops.planning import registry
from flyops.planning.steps import Run

HostRun = HostResult
_ASKING = threading.Lock()
Sources = str | Path | Inventory | Sequence[str | Path]


def make_display(kind: str = "auto", *, verbose: bool = False, stats: bool = False) -> list[Listener]:
    """`auto` (live on a terminal, plain in a pipe), `brief` (the same with less of what is right), `live`, `plain`, `json` or `none`."""
    if kind == "brief" and (verbose or not sys.stdout.isatty()):
        kind = "auto"
    if kind == "auto":
        kind = "live" if sys.stdout.isatty() else "plain"
    if kind == "json":
        from flyops.display.jsonlines import JsonLines

        return [JsonLines()]
    if kind == "brief":
        from flyops.display.brief import Brief

        return [Brief(stats=stats)]
    if kind == "live":
        from flyops.display.live import Live

        return [Live(verbose=verbose, stats=stats)]
    if kind == "plain":
        from flyops.display.plain import Plain

        return [Plain(verbose=verbose, stats=stats)]
    return []


def as_inventory(source: Sources) -> Inventory:
    """An Inventory, or what it is loaded from."""
    if isinstance(source, Inventory):
        return source
    return load_inventory([source] if isinstance(source, (str, Path)) else list(source))


def load_playbook(path: str | Path, inventory: Inventory, extra: Mapping[str, Any]) -> tuple[Playbook, Parser]:
    """The checked playbook, and the parser that reads its included files."""
    parser = Parser(registry.find_spec, registry.names, extra)
    if not Path(path).is_file():
        raise errors.LoadError("no such playbook", where=str(path))
    playbook = parser.playbook(str(path))
    from flyops.loading.check import check_variables

    check_variables(playbook, parser, inventory, extra)
    return playbook, parser


def run_playbook(
    path: str | Path,
    *,
    inventory: Sources,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    check: bool = False,
    diff: bool = False,
    tags: Sequence[str] = (),
    skip_tags: Sequence[str] = (),
    forks: int = 20,
    display: str | Sequence[Listener] = "auto",
    start_at_task: str | None = None,
    step: Callable[[str], bool] | None = None,
    force_handlers: bool = False,
    verbose: bool = False,
    stats: bool = False,
) -> RunResult:
    """Run a playbook over an inventory. Errors of loading are raised (exit 2) before the first task; what hosts do is in the result."""
    extra = {name: _trusted(value) for name, value in (extra_vars or {}).items()}
    hosts = as_inventory(inventory)
    limit_hosts(hosts, limit)
    playbook, parser = load_playbook(path, hosts, extra)
    _hosts(playbook, hosts, limit, extra)  # a `hosts` that cannot be rendered is found before the first play runs
    listeners = make_display(display, verbose=verbose, stats=stats) if isinstance(display, str) else list(display)
    run = RunState(
        hosts,
        parser,
        Run(check, diff),
        Fan(listeners).emit,
        extra,
        frozenset(tags) or frozenset({"all"}),
        frozenset(skip_tags),
        find_start(playbook, start_at_task),
        step,
        1 if step else forks,  # questions come one at a time
        int(verbose),
        limit=limit or "",
        force_handlers=force_handlers,
    )
    try:
        return run_plays(run, playbook, listeners)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise


def _trusted(value: Any) -> Any:
    """Extra variables may hold templates, as those of files may."""
    if isinstance(value, str):
        return value if isinstance(value, Text) else Text(value)
    if isinstance(value, dict):
        return {key: _trusted(item) for key, item in value.items()}
    return [_trusted(item) for item in value] if isinstance(value, (list, tuple)) else value


def find_start(playbook: Playbook, name: str | None) -> tuple[int, int] | None:
    """The place of --start-at-task: the task of that name, or the first that matches it as a pattern."""
    if not name:
        return None
    from fnmatch import fnmatch

    for matches in (lambda title: title == name, lambda title: fnmatch(title, name)):
        for play in playbook.plays:
            for task in walk(play.pre_tasks + play.tasks + play.post_tasks):
                if matches(task.title):
                    return play.number, task.order[0]
    from flyops.loading.positions import nearest

    titles = [task.title for play in playbook.plays for task in walk(play.pre_tasks + play.tasks + play.post_tasks)]
    raise errors.UsageError(f"--start-at-task: no task {name!r}; {nearest(name, titles)}")


# looks


def list_hosts(playbook: Playbook, inventory: Inventory, limit: str | None, extra: Mapping[str, Any]) -> list[str]:
    """A line a play and a line a host."""
    out = []
    for play, names in _hosts(playbook, inventory, limit, extra):
        out += [f"play #{play.number + 1} ({play.title}): {len(names)} hosts", *(f"  {name}" for name in names)]
    return out


def _hosts(playbook: Playbook, inventory: Inventory, limit: str | None, extra: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    def ignore(event: Event) -> None:
        """Warnings are for runs."""

    run = RunState(inventory, Parser(registry.find_spec, registry.names), Run(), ignore, extra, limit=limit or "")
    try:
        return [(play, hosts_of(run, play)) for play in playbook.plays]
    except errors.PlanError as err:
        raise errors.LoadError(f"hosts: {err.message}", where=err.where, fix="give it with -e, or write | default(…)") from err


def list_tasks(playbook: Playbook, tags: Sequence[str] = (), skip_tags: Sequence[str] = ()) -> list[str]:
    """A line a task that would be looked at."""
    only, skip = frozenset(tags) or frozenset({"all"}), frozenset(skip_tags)
    out = []
    for play in playbook.plays:
        out.append(f"play #{play.number + 1} ({play.title})")
        for task in walk(play.pre_tasks + play.tasks + play.post_tasks):
            if selected(task.inherit.tags, only, skip):
                found = f"  TAGS: [{', '.join(task.inherit.tags)}]" if task.inherit.tags else ""
                out.append(f"  {task.title}{found}")
    return out


def ask_step(text: str) -> bool:
    """--step: Enter or y runs it, n leaves it out."""
    # Hosts ask from threads of their own: one question at a time, and not through input(), which is made for the main thread.
    with _ASKING:
        sys.stdout.write(f"{text}? (Y/n) ")
        sys.stdout.flush()
        answer = sys.stdin.readline()
    if not answer:
        raise errors.UsageError("--step: nobody answers (the input has ended)", fix="run it on a terminal, or leave --step out")
    return answer.strip().lower() in ("", "y", "yes")


def default_inventory(given: Sequence[str]) -> list[str]:
    """What was typed, else this checkout's inventory."""
    if given:
        return list(given)
    from flyops import places

    return [str(places.REPOSITORY / "inventory")]


def split_words(text: str) -> tuple[str, ...]:
    """`a,b` as words."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def run(options: PlayOptions) -> int:
    """`invoke play FILE`."""
    target = options.target
    extra = {name: _trusted(value) for name, value in parse_extra(target.extra).items()}
    inventory = as_inventory(default_inventory(target.inventory))
    limit_hosts(inventory, target.limit)
    tags, skip_tags = split_words(options.tags), split_words(options.skip_tags)
    asked = [name for name in ("syntax_check", "list_hosts", "list_tasks") if getattr(options, name)]
    if asked:
        playbook, _ = load_playbook(options.file, inventory, extra)
        for name in asked:
            if name == "list_hosts":
                print("\n".join(list_hosts(playbook, inventory, target.limit, extra)))
            elif name == "list_tasks":
                print("\n".join(list_tasks(playbook, tags, skip_tags)))
            else:
                print(f"{options.file}: {len(playbook.plays)} plays, no error")
        return errors.EXIT_OK
    return run_playbook(
        options.file,
        inventory=inventory,
        limit=target.limit or None,
        extra_vars=extra,
        check=target.check,
        diff=target.diff,
        tags=tags,
        skip_tags=skip_tags,
        forks=target.forks,
        display="json" if target.json else "auto",
        start_at_task=options.start_at_task or None,
        step=ask_step if options.step else None,
        verbose=target.verbose,
        stats=target.verbose or options.stats,
    ).exit_code
