# SPDX-License-Identifier: Apache-2.0
"""The only place that joins the parts: a task's options in, one call of an operation, an exit code out.

Everything else is imported inside functions, so that `./fly --list` stays quick and one broken part does not stop the others.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flyops import __version__, errors, places

INTERRUPTED = 130

TARGET_HELP = {
    "inventory": "file or folder with hosts; may be repeated (default: this checkout's inventory/)",
    "limit": "hosts, groups or patterns: dev1 or containers,!dev2",
    "extra": "variables: k=v, JSON or @file; may be repeated",
    "check": "change nothing, say what would be changed",
    "diff": "show what changes in files",
    "json": "events as JSON lines",
    "verbose": "also what did not change",
    "forks": "hosts at a time (default 20)",
}
ROLLBACK_HELP = {
    "force": "also where someone else changed a setting since",
    "wait": "seconds to wait for another run's lock (default: refuse, exit 3)",
}
DEPLOY_HELP = {
    **ROLLBACK_HELP,
    "gpu": "the CUDA backend, after the five checks",
    "release": "a prebuilt flysim-VERSION.tar.gz in place of a build",
    "connectome": "circuit668, celegans, synth:NEURONS:EDGES[:SEED] or a .fly file",
    "allow-jit": "accept PTX that the driver compiles itself",
    "accept": "one compatibility segment that may differ (the state is archived)",
    "archive-state": "move the state to a dated archive whatever differs; the brain starts afresh, and moving it back undoes it",
    "record": "folder for the dated report",
}
WATCH_HELP = {
    "every": "minutes between samples (default 10)",
    "hours": "length of the watch (default 3)",
    "out": "folder of samples and plot (default: this user's state folder)",
    "judge": "judge a recorded watch (its .tsv) in place of a new one",
    "detach": "start it and leave; the same command without this shows and judges",
    "stop": "end it",
    "plot": "no PNG with --no-plot",
}
PLAY_HELP = {
    "file": "the playbook",
    "tags": "only tasks with one of these tags",
    "skip-tags": "no tasks with one of these tags",
    "start-at-task": "leave out what is before the task of this name",
    "list-hosts": "only say which hosts each play means",
    "list-tasks": "only say which tasks would be looked at",
    "syntax-check": "only read it",
    "step": "ask before each task",
    "stats": "also round trips, bytes and time",
}
HOST_HELP = {
    "hold-driver": "keep the driver's packages from unattended upgrades (-e host_hold_driver=false undoes it)",
    "remove": "take away what `host` brought: units, timer, its packages' hold, the card of guests that had it from us",
}
DRIVER_HELP = {
    "strategy": "bind (the host's libraries), runfile (NVIDIA's installer) or package (apt, exact version, held); default bind",
    "runfile": "the installer, a file here; it is sent, checked, run without its kernel part, and removed",
    "sha256": "what the installer's digest must be",
    "version": "of the host's module, where the guest cannot see it",
    "packages": "their names, comma separated, where they are not the usual ones",
    "verify": "only look, at guests and hosts",
    "remove": "take away what the strategy brought",
}
PROVISION_HELP = {
    "name": "the container's name",
    "gpu": "with every card of this machine inside",
    "gpu-ids": "with these cards: UUIDs, bus ids or nvidia-smi's indexes",
    "mig": "with this MIG instance: CARD/GI/CI",
    "no-gpu": "take the card away",
    "cpus": "its CPUs, as 0-3,6; all: no limit",
    "mems": "its memory nodes, as 0; auto: those of its CPUs; none: no limit",
    "memory": "its memory limit, as 4G",
    "disk": "a limit of its own files, as 8G (an image)",
    "unprivileged": "its root is not this machine's root",
    "rootfs": "a root file system (tar) in place of the cached one",
    "network": "bridge, or none: its own loopback only",
    "autostart": "yes or no: start with the host",
    "address": "its address on the bridge, as 10.117.0.7/24",
    "deploy": "then deploy flysim into it and verify",
    "release": "for --deploy: a prebuilt release (tar)",
    "manager": "lxc (the default), pve: a Proxmox VE guest, or incus: one of Incus or LXD",
    "id": "pve: its number, as 101",
    "on": "pve, incus: the node, a host of the inventory (default: this machine)",
    "plan": "only show what would be done",
    "json": "events as JSON lines",
    "verbose": "also what did not change",
}


def main(words: Sequence[str]) -> int:
    """`./fly` with the environment in place: `invoke` with the same words, but 2 for every usage error."""
    from invoke.exceptions import Exit, ParseError
    from invoke.program import Program

    class Fly(Program):
        """Invoke's program with this checkout's tasks, from any folder; no words at all list the tasks."""

        def run(self, argv: list[str] | None = None, exit: bool = True) -> None:
            try:
                super().run(argv, exit=exit)
                sys.stdout.flush()
            except BrokenPipeError:
                _reader_left()

        def parse_core(self, argv: list[str] | None) -> None:
            _usage(super().parse_core, argv)

        def parse_collection(self) -> None:
            _usage(super().parse_collection)

        def parse_tasks(self) -> None:
            _usage(super().parse_tasks)

        def parse_cleanup(self) -> None:
            _usage(super().parse_cleanup)

    def _usage(step: Callable[..., None], *args: Any) -> None:
        try:
            step(*args)
        except ParseError as error:
            raise Exit(f"{error}\n  to do: ./fly --list shows the tasks, ./fly TASK --help its options", code=errors.EXIT_USAGE) from None

    argv = ["fly", "--search-root", str(places.REPOSITORY), *(_help_first(words) or ["--list"])]
    Fly(version=__version__, name="flyops", binary="fly").run(argv)
    return errors.EXIT_OK


def _help_first(words: Sequence[str]) -> list[str]:
    """`play --help` as Invoke's own `--help play`: else the task's first positional word would be `--help`."""
    if len(words) > 1 and words[1] == "--help" and not words[0].startswith("-"):
        return ["--help", words[0], *words[2:]]
    return list(words)


def operation(name: str, options_class: str, typed: dict[str, Any]) -> None:
    """Runs `flyops.operations.NAME.run(options)`; ends the program with its exit code when that is not 0."""
    try:
        run = _find(name)
        code = run(make_options(options_class, typed))
    except errors.FlyopsError as error:
        sys.stderr.write(f"error: {error}\n")
        code = error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command finishes or undoes what was begun\n")
        code = INTERRUPTED
    except BrokenPipeError:
        _reader_left()
        code = errors.EXIT_OK
    except Exception:  # The outermost rim: a person sees one line, the rest goes to a file.
        code = _crash(name)
    if code:
        _end(code)


def _reader_left() -> None:
    """Whoever read our output has had enough (`./fly logs | head`): no complaint at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_options(options_class: str, typed: dict[str, Any]) -> Any:
    """The frozen dataclass of what was typed: a task's arguments by name, those of `Target` gathered in `target`."""
    from flyops.operations import options

    wanted = getattr(options, options_class)
    values = {{"wait": "wait_s"}.get(name, name): value for name, value in typed.items() if name != "c"}
    kinds = {field.name: str(field.type) for field in (*dataclasses.fields(options.Target), *dataclasses.fields(wanted))}
    values = {name: _checked(name, kinds.get(name, ""), value) for name, value in values.items()}
    names = {field.name for field in dataclasses.fields(wanted)}
    shared = {field.name for field in dataclasses.fields(options.Target)} - names
    target = {name: values.pop(name) for name in sorted(shared & set(values))}
    if "target" in names:
        values["target"] = options.Target(**target)
    return wanted(**values)


def _checked(name: str, kind: str, value: Any) -> Any:
    """Lists freeze to tuples; numbers are read here, because Invoke itself answers a wrong one with a traceback."""
    if isinstance(value, list):
        return tuple(value)
    if kind not in {"int", "float"} or not isinstance(value, str):
        return value
    option = name.removesuffix("_s").replace("_", "-")
    try:
        number = int(value) if kind == "int" else float(value)
    except ValueError:
        number = -1
    if not 0 <= number < 1e9:
        raise errors.UsageError(f"--{option}: expected a {'whole ' if kind == 'int' else ''}number from 0 on, found {value!r}")
    return number


def _find(name: str) -> Callable[..., int]:
    module_name = f"flyops.operations.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise errors.UsageError(f"`{name}` is not built yet in this version", fix="./fly --list shows the tasks") from None
    run: Callable[..., int] = module.run
    return run


def _crash(name: str) -> int:
    text = traceback.format_exc()
    last = text.strip().splitlines()[-1]
    if os.environ.get("FLY_TRACEBACK"):
        sys.stderr.write(text)
        return errors.EXIT_FAILED
    where = "FLY_TRACEBACK=1 shows where"
    try:
        path = places.state("crashes", time.strftime(f"%Y%m%dT%H%M%S-{name}-{os.getpid()}.txt"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        where = f"details in {path}"
    except OSError:
        pass
    sys.stderr.write(f"error: a fault of flyops itself in `{name}`: {last}\n  to do: report it; {where}\n")
    return errors.EXIT_FAILED


def _end(code: int) -> NoReturn:
    from invoke.exceptions import Exit

    raise Exit(code=code)
