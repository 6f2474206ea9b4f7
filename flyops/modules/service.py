# SPDX-License-Identifier: Apache-2.0
"""Start and stop services, under systemd or under supervisor.

Supervisor is spoken to on its unix socket (XML-RPC). A program section that changed on disk takes effect: the section is
read again and its group is replaced, which is what `supervisorctl reread` and `update` do, for this one service only.
"""

from __future__ import annotations

import http.client
import socket
import time
import xmlrpc.client
from dataclasses import dataclass
from typing import Any, Optional, Union

from flyops.domain import systemd
from flyops.domain.systemd import Unit
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Start and stop services, under systemd or under supervisor; a program section that changed is taken over.",
    args={
        "name": Arg("str", "The unit, or supervisor's program or group", required=True),
        "state": Arg("str", "What it should do; restarted and reloaded always act", choices=("reloaded", "restarted", "started", "stopped")),
        "enabled": Arg("bool", "Whether it starts at boot; under supervisor that is `autostart` in its section"),
        "manager": Arg(
            "str",
            "Who runs services; auto is systemd where it is PID 1, else supervisor",
            default="auto",
            choices=("auto", "systemd", "supervisor"),
            aliases=("use",),
        ),
        "socket": Arg("path", "Supervisor's unix socket; looked for in the usual places when not given"),
        "timeout": Arg("float", "Seconds to wait for the state", default=60.0),
        "daemon_reload": Arg("bool", "systemd: read unit files again first, when they changed", default=False),
    },
    required_one_of=(("state", "enabled"),),
    examples="""
- service: {name: flysim, state: started, enabled: true}
- service: {name: flysim, state: restarted, manager: supervisor, socket: /run/fly/supervisor.sock}
""",
    returns={
        "manager": "who runs it",
        "config_changed": "supervisor: its section was new or changed",
        "pids": "supervisor: program: pid",
        "status": "systemd: the unit's properties",
    },
)
SOCKETS = ("/run/supervisor.sock", "/var/run/supervisor.sock", "/tmp/supervisor.sock")
UP = ("RUNNING", "STARTING")
NOT_RUNNING, ALREADY_STARTED = 70, 60
POLL_S = 0.1


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        self._path, self._timeout = path, timeout

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _Connection(self._path, self._timeout)


@dataclass(frozen=True)
class Programs:
    """A service of supervisor as found. `section` is '', new, changed or removed: what its file says against what runs."""

    path: str
    states: dict[str, str]
    section: str = ""
    group: str = ""
    reachable: bool = True
    checking: bool = False

    @property
    def known(self) -> bool:
        """Whether supervisor has it, or would after an update."""
        return bool(self.states) or self.section == "new"


State = Union[Unit, Programs]


def read(args: dict[str, Any], host: Host) -> State:
    """Ask the manager."""
    manager = args["manager"]
    if manager == "auto":
        manager = "systemd" if systemd.booted(host) else "supervisor"
    if manager == "systemd":
        return systemd.look(args, host)
    return _ask(args, host)


def _socket_path(args: dict[str, Any], host: Host) -> str:
    if args["socket"]:
        return str(args["socket"])
    found = [path for path in SOCKETS if host.stat(path) is not None]
    return found[0] if found else ""


def _ask(args: dict[str, Any], host: Host) -> Programs:
    path = _socket_path(args, host)
    group = str(args["name"]).partition(":")[0]
    try:
        if not path:
            raise FileNotFoundError(2, "no supervisor socket in the usual places", ", ".join(SOCKETS))
        remote = _remote(path, args)
        section = "" if host.check else _section(remote, group)
        infos = _infos(remote, args["name"])
    except OSError as err:
        if host.check:  # an earlier task would have started supervisor
            return Programs(path, {}, group=group, reachable=False, checking=True)
        where = path or f"any of {', '.join(SOCKETS)}"
        fix = "start supervisord first, or give its socket; on a host with systemd use manager: systemd"
        raise ModuleError(f"supervisor does not answer on {where}: {err.strerror or err}; systemd is not running here, either", fix=fix) from None
    return Programs(path, {_full(i): i["statename"] for i in infos}, section, group, checking=host.check)


def _remote(path: str, args: dict[str, Any]) -> Any:
    return xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=_Transport(path, float(args["timeout"]) + 10)).supervisor


def _section(remote: Any, group: str) -> str:
    """Read the config files again, and say what they would mean for this group. Nothing is started or stopped by it."""
    try:
        added, changed, removed = remote.reloadConfig()[0]
    except xmlrpc.client.Fault as err:
        raise ModuleError(f"supervisor cannot read its config: {err.faultString}", fix="mend the file that it names") from None
    return "new" if group in added else "changed" if group in changed else "removed" if group in removed else ""


def _full(info: dict[str, Any]) -> str:
    return f"{info['group']}:{info['name']}"


def _infos(remote: Any, name: str) -> list[dict[str, Any]]:
    """The processes that a name means: a program, a group, or `group:program`."""
    wanted = name[:-2] if name.endswith(":*") else name
    return [i for i in remote.getAllProcessInfo() if wanted in (i["group"], i["name"], _full(i))]


def plan(args: dict[str, Any], state: State) -> Decision:
    """What it takes."""
    if isinstance(state, Unit):
        decision = systemd.decide(args, state)
        return decision if decision is None else _with_manager(decision)
    return _plan_supervisor(args, state)


def _with_manager(decision: Union[Change, Same]) -> Decision:
    values = {**decision.values, "manager": "systemd"}
    if isinstance(decision, Same):
        return Same(values, decision.skipped, decision.msg)
    return Change(decision.before, decision.after, decision.diff, values)


def _plan_supervisor(args: dict[str, Any], state: Programs) -> Decision:
    name, wanted = args["name"], args["state"]
    values: dict[str, Any] = {"name": name, "manager": "supervisor", "config_changed": bool(state.section)}
    if wanted:
        values["state"] = "stopped" if wanted == "stopped" else "started"
    if not state.reachable or (state.checking and not state.known):
        return Change(state, "", (), {**values, "msg": f"{name} is not known to supervisor yet; an earlier task may bring it"})
    if not state.known or state.section == "removed":
        found = "its section is gone from the config" if state.section == "removed" else "no such program or group"
        raise ModuleError(f"supervisor has no {name}: {found}", fix="write its [program:…] section first; supervisorctl avail lists them")
    verb = _verb(wanted, state)
    if not verb and not state.section:
        return Same(values, msg="" if args["enabled"] is None else "under supervisor, enabled is autostart in the program's section")
    before = ", ".join(f"{n} {s}" for n, s in state.states.items())
    diff = [Diff(f"state of {name}", before, str(wanted))] if verb else []
    if state.section:
        diff.append(Diff(f"section of {name}", "", f"{state.section}\n"))
    return Change(state, verb, tuple(diff), values)


def _verb(wanted: Optional[str], state: Programs) -> str:
    up = [s in UP for s in state.states.values()]
    if wanted == "started":
        return "" if up and all(up) and not state.section else "start"
    if wanted == "stopped":
        return "stop" if any(up) or state.section else ""
    return {"restarted": "restart", "reloaded": "reload"}.get(wanted or "", "")


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Take over a changed section, then bring the programs to the state."""
    if isinstance(change.before, Unit):
        return systemd.perform(args, change, host)
    state: Programs = change.before
    host.would("service", args["name"], args["state"])
    if host.check:
        return {}
    remote = _remote(state.path, args)
    try:
        renewed = _update(remote, state) if state.section else False
        infos = _bring(remote, args, change.after, renewed=renewed)
    except xmlrpc.client.Fault as err:
        raise ModuleError(
            f"supervisor refused to {change.after or 'update'} {args['name']}: {err.faultString}", fix="see the program's log"
        ) from None
    except OSError as err:
        raise ModuleError(f"supervisor stopped answering on {state.path}: {err}", fix="see supervisord's own log") from None
    return {"pids": {_full(i): i["pid"] for i in infos}}


def _update(remote: Any, state: Programs) -> bool:
    """Replace the group by what its section says now."""
    if state.section == "changed":
        remote.stopProcessGroup(state.group, True)
        remote.removeProcessGroup(state.group)
    remote.addProcessGroup(state.group)
    return True


def _bring(remote: Any, args: dict[str, Any], verb: str, *, renewed: bool) -> list[dict[str, Any]]:
    name = args["name"]
    for info in _infos(remote, name):
        up = info["statename"] in UP
        if verb == "stop" or (verb == "restart" and up and not renewed):
            _tolerate(remote.stopProcess, NOT_RUNNING, _full(info), True)
            up = False
        if verb == "reload" and up and not renewed:
            remote.signalProcess(_full(info), "HUP")
        elif verb in ("start", "restart", "reload") and not up:
            _tolerate(remote.startProcess, ALREADY_STARTED, _full(info), False)
    return _settle(remote, args) if verb in ("start", "restart", "reload") else _infos(remote, name)


def _tolerate(call: Any, code: int, *words: Any) -> None:
    """Supervisor may have got there by itself in between (autostart, an exit)."""
    try:
        call(*words)
    except xmlrpc.client.Fault as err:
        if err.faultCode != code:
            raise


def _settle(remote: Any, args: dict[str, Any]) -> list[dict[str, Any]]:
    """Wait until every program runs; one that gave up ends the wait with what it said."""
    deadline = time.monotonic() + float(args["timeout"])
    while True:
        infos = _infos(remote, args["name"])
        lost = [i for i in infos if i["statename"] in ("FATAL", "EXITED", "UNKNOWN")]
        late = time.monotonic() > deadline
        if not lost and not late and any(i["statename"] != "RUNNING" for i in infos):
            time.sleep(POLL_S)
            continue
        bad = lost or [i for i in infos if i["statename"] != "RUNNING"]
        if not bad:
            return infos
        first = bad[0]
        why = first["spawnerr"] or first["description"]
        raise ModuleError(
            f"{_full(first)} is {first['statename']}, expected RUNNING{' in time' if late else ''}: {why}",
            fix="see its log",
            stderr=_tail(remote, _full(first)),
        )


def _tail(remote: Any, name: str) -> str:
    try:
        log, _, _ = remote.tailProcessStderrLog(name, 0, 2000)
        if not log:
            log, _, _ = remote.tailProcessStdoutLog(name, 0, 2000)
    except (xmlrpc.client.Fault, OSError):
        return ""
    return str(log)
