# SPDX-License-Identifier: Apache-2.0
"""The service manager of a machine without root: one supervisord of this user, which outlives `./fly` and is adopted by the next one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyops import places
from flyops.errors import FlyopsError, UsageError
from flyops.operations import restore_listener

PLACES = ("fly_home", "fly_etc", "fly_run", "flyops_state")
TEMPLATE = "supervisord.conf.j2"
# sun_path holds 108 bytes, and supervisord first binds a longer name beside the real one.
LONGEST_SOCKET = 90
UNWRITABLE = set('%;"\\\n')  # supervisor expands, cuts or unquotes these, some of them twice
START_S = 15.0
ORPHAN_S = 65.0  # a checkpoint of a large brain on a slow disk


class EmbeddedError(FlyopsError, RuntimeError):
    """supervisord that does not start or does not answer."""


@dataclass(frozen=True)
class Embedded:
    """A running supervisord and what a playbook needs to talk to it."""

    config: Path
    socket: Path
    pid: int
    started: bool  # by this call; else adopted
    changed: bool  # its configuration was written anew

    def variables(self) -> dict[str, str]:
        """Variables for a play whose `service_manager` is supervisor."""
        return {"supervisor_config": str(self.config), "supervisor_ctl": str(program("supervisorctl"))}


def ensure(variables: Mapping[str, Any]) -> Embedded:
    """A supervisord for these places (fly_home, fly_etc, fly_run, flyops_state): adopted if it runs, else started. Nothing else is started."""
    missing = [name for name in PLACES if not variables.get(name)]
    if missing:
        raise UsageError(f"the embedded supervisor needs the variables {', '.join(missing)}", fix="set them in inventory/group_vars/local.yml")
    bad = [name for name in PLACES if set(str(variables[name])) & UNWRITABLE]
    if bad:
        raise UsageError(
            f"{bad[0]} is {variables[bad[0]]!r}: supervisor's configuration cannot hold a path with one of {' '.join(sorted(UNWRITABLE))!r}"
        )
    config = Path(variables["fly_etc"]) / "supervisord.conf"
    socket = Path(variables["fly_run"]) / "supervisor.sock"
    if len(str(socket).encode()) > LONGEST_SOCKET:
        raise UsageError(
            f"the path of the socket {socket} is longer than {LONGEST_SOCKET} bytes", fix="set fly_run (or XDG_STATE_HOME) to a shorter folder"
        )
    for folder in (config.parent, socket.parent, Path(variables["flyops_state"]) / "log"):
        folder.mkdir(parents=True, exist_ok=True)
    _write(Path(variables["flyops_state"]) / "restore-listener.py", Path(restore_listener.__file__).read_text())
    changed = _write(config, render(variables))
    pid = running(socket)
    if pid is None:
        _end_orphans(str(variables["fly_home"]), str(config.parent))
        return Embedded(config, socket, _start(config, socket), started=True, changed=changed)
    if changed:
        _reread(socket)
    return Embedded(config, socket, pid, started=False, changed=changed)


def render(variables: Mapping[str, Any]) -> str:
    """The text of supervisord.conf."""
    import jinja2

    templates = jinja2.FileSystemLoader(places.REPOSITORY / "templates")
    environment = jinja2.Environment(
        loader=templates, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, autoescape=False
    )
    return environment.get_template(TEMPLATE).render(restore_python=_base_python(), **variables)


def _base_python() -> str:
    # Not the environment's: that may be deleted from the cache while the service runs on.
    return os.path.realpath(str(getattr(sys, "_base_executable", "") or sys.executable))


def running(socket: Path) -> int | None:
    """The pid of the supervisord that answers on this socket, or None."""
    try:
        return int(str(_call(socket).getPID()))
    except (OSError, xmlrpc.client.Error):
        return None


def processes(socket: Path) -> list[dict[str, Any]]:
    """What supervisord says of each of its programs: name, statename, pid, start, exitstatus, …"""
    answer: Any = _call(socket).getAllProcessInfo()
    return list(answer)


def shutdown(socket: Path, wait_s: float = 75.0) -> bool:
    """Ends the programs (each with its time for a checkpoint), then supervisord; False when none ran."""
    pid = running(socket)
    if pid is None:
        return False
    _call(socket).shutdown()
    if _gone([pid], wait_s):
        return True
    raise EmbeddedError(f"supervisord on {socket} did not end within {wait_s:.0f} s", fix="see its log, supervisord.log")


def program(name: str) -> Path:
    """A program of the environment that flyops runs in."""
    path = Path(sys.prefix).resolve() / "bin" / name
    if not path.exists():
        raise UsageError(f"{name} is missing in {sys.prefix}: run through ./fly, whose environment has it")
    return path


def _write(path: Path, text: str) -> bool:
    if path.exists() and path.read_text() == text:
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
    return True


def _start(config: Path, socket: Path) -> int:
    # A clean environment: what the operator's shell has set must not reach the simulator past its env files.
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    command = [str(program("supervisord")), "-c", str(config)]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        raise EmbeddedError(f"supervisord does not start (exit {done.returncode}): {(done.stderr or done.stdout).strip()}", fix=f"look at {config}")
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        pid = running(socket)
        if pid is not None:
            return pid
        time.sleep(0.05)
    raise EmbeddedError(f"supervisord was started but does not answer on {socket} within {START_S:.0f} s", fix="see its log, supervisord.log")


def _end_orphans(home: str, etc: str) -> None:
    """Ends programs that a killed supervisord left behind: nobody watches them, and they hold the ports and the state."""
    pids = [pid for pid, argv in _own_processes() if argv[:1] == [f"{home}/current/bin/flysim"] and any(word.startswith(f"{etc}/") for word in argv)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if not _gone(pids, ORPHAN_S):
        raise EmbeddedError(
            f"processes {pids} were left by a supervisord that is gone, and do not end by SIGTERM",
            fix=f"look at them, then: kill -9 {' '.join(map(str, pids))}",
        )


def _own_processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                yield int(entry.name), os.fsdecode((entry / "cmdline").read_bytes()).split("\0")


def _gone(pids: Sequence[int], wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _reread(socket: Path) -> None:
    """Lets a running supervisord take a new configuration: a program whose section changed is stopped and started again if it ran."""
    call = _call(socket)
    answer: Any = call.reloadConfig()
    added, changed, removed = answer[0]
    were = {row["group"] for row in processes(socket) if row["statename"] in {"RUNNING", "STARTING"}}
    for group in [*removed, *changed]:
        call.stopProcessGroup(group)
        call.removeProcessGroup(group)
    for group in [*added, *changed]:
        call.addProcessGroup(group)
    for group in sorted(were & set(changed)):
        call.startProcessGroup(group)


def _call(socket: Path) -> Any:
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(None, None, f"unix://{socket}")
    return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor
