# SPDX-License-Identifier: Apache-2.0
"""Units of systemd: what `systemctl show` says, which steps lead to what was asked, and taking them.

Where systemd is not PID 1, unit files can still be enabled, disabled and masked; starting is refused with the reason.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Mapping

from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host

PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "NeedDaemonReload", "MainPID", "Result", "FragmentPath")
FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
NAME = re.compile(r"^[A-Za-z0-9@_.:\\][A-Za-z0-9@_.:\\-]*$")
SUFFIXES = (".service", ".socket", ".timer", ".target", ".mount", ".path", ".slice", ".scope", ".device", ".swap", ".automount")
ON = ("enabled", "enabled-runtime", "alias", "static", "indirect", "generated", "linked", "linked-runtime", "transient")
CAN_DISABLE = ("enabled", "enabled-runtime", "linked", "linked-runtime")
RUNNING = ("active", "activating", "reloading", "refreshing")
QUIET = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_LESS": ""}


@dataclass(frozen=True)
class Unit:
    """A unit as it was found. `booted`: systemd is PID 1 here."""

    name: str
    booted: bool
    checking: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    on_disk: bool = False

    @property
    def known(self) -> bool:
        """Whether systemd or the disk has it."""
        return self.on_disk or self.properties.get("LoadState", "not-found") != "not-found"


def booted(host: Host) -> bool:
    """The test that sd_booted makes."""
    stat = host.stat("/run/systemd/system")
    return stat is not None and stat.kind == "dir"


def unit_name(name: str) -> str:
    """The name with its kind; `.service` when it has none."""
    if not NAME.fullmatch(name):
        raise ModuleError(f"{name!r} is no name of a unit", fix="use letters, digits and any of @_.:-")
    return name if name.endswith(SUFFIXES) else f"{name}.service"


def scope(args: Mapping[str, Any]) -> list[str]:
    """The option for a scope other than the system's."""
    return [] if args.get("scope") in (None, "system") else [f"--{args['scope']}"]


def look(args: Mapping[str, Any], host: Host) -> Unit:
    """One command that only looks; offline, the state of the unit file and nothing more."""
    if host.which("systemctl") is None:
        raise ModuleError("systemctl is not on this host: there is no systemd", fix="use the service module with manager: supervisor")
    name = unit_name(args["name"]) if args["name"] else ""
    here = booted(host)
    if not name:
        return Unit("", here, host.check)
    on_disk = any(host.stat(posixpath.join(folder, _file_name(name)), follow=True) is not None for folder in FOLDERS)
    properties: dict[str, str] = {}
    if here:
        argv = ["systemctl", *scope(args), "show", "--no-pager", f"--property={','.join(PROPERTIES)}", name]
        properties = parse_show(host.run(argv, query=True, env=QUIET).stdout.decode("utf-8", "replace"))
    if not properties.get("UnitFileState"):
        done = host.run(["systemctl", *scope(args), "is-enabled", name], query=True, env=QUIET)
        properties["UnitFileState"] = done.stdout.decode("utf-8", "replace").strip().split("\n")[0]
    return Unit(name, here, host.check, properties, on_disk)


def _file_name(name: str) -> str:
    """The file of an instance is its template."""
    base, at, rest = name.partition("@")
    return f"{base}@{rest[rest.rindex('.') :]}" if at else name


def parse_show(text: str) -> dict[str, str]:
    """`Key=value` lines."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def decide(args: Mapping[str, Any], unit: Unit) -> Decision:
    """The steps from what is to what was asked, in the order systemd needs them."""
    state = args.get("state")
    if state and not unit.booted:
        fix = "enabled and masked work without it; to start something here use the service module with manager: supervisor"
        raise ModuleError(f"state: {state} needs systemd as PID 1, and it is not running here (no /run/systemd/system)", fix=fix)
    if unit.name and not unit.known and args.get("masked") is None:
        return _unknown(args, unit)
    steps = _steps(args, unit)
    values = _values(args, unit)
    if not steps:
        return Same(values)
    diffs = tuple(Diff(f"{what} of {unit.name}", before, after) for _, what, before, after in steps if what)
    return Change(before=unit, after=tuple(step[0] for step in steps), diff=diffs, values=values)


def _unknown(args: Mapping[str, Any], unit: Unit) -> Decision:
    if not unit.checking:
        raise ModuleError(
            f"Could not find the requested service {unit.name}: host", fix="install the unit file first; systemctl cat shows what there is"
        )
    return Change(before=unit, after=(), values={"name": args["name"], "msg": f"{unit.name} is not there yet; an earlier task may bring it"})


def _values(args: Mapping[str, Any], unit: Unit) -> dict[str, Any]:
    values: dict[str, Any] = {"name": args["name"], "status": dict(unit.properties)}
    if args.get("state"):
        values["state"] = "stopped" if args["state"] == "stopped" else "started"
    if args.get("enabled") is not None:
        values["enabled"] = args["enabled"]
    return values


def _steps(args: Mapping[str, Any], unit: Unit) -> list[tuple[tuple[str, ...], str, str, str]]:
    file_state = unit.properties.get("UnitFileState", "")
    steps: list[tuple[tuple[str, ...], str, str, str]] = []
    if args.get("daemon_reexec"):
        steps.append((("daemon-reexec",), "", "", ""))
    if _wants_reload(args, unit):
        steps.append((("daemon-reload",), "", "", ""))
    masked = file_state.startswith("masked")
    if args.get("masked") is not None and args["masked"] != masked:
        steps.append((("mask" if args["masked"] else "unmask", unit.name), "mask", file_state, "masked" if args["masked"] else "unmasked"))
    enabled = args.get("enabled")
    if enabled and file_state not in ON:
        steps.append((("enable", unit.name), "enablement", file_state, "enabled"))
    elif enabled is False and file_state in CAN_DISABLE:
        steps.append((("disable", unit.name), "enablement", file_state, "disabled"))
    return steps + _state_steps(args, unit)


def _wants_reload(args: Mapping[str, Any], unit: Unit) -> bool:
    """Asked for and needed; a unit that is about to be started anew is never started from old files."""
    if not unit.booted:
        return False
    stale = unit.properties.get("NeedDaemonReload") == "yes" or (bool(unit.name) and unit.properties.get("LoadState") == "not-found")
    if args.get("daemon_reload"):
        return stale or not unit.name
    return stale and args.get("state") in ("started", "restarted", "reloaded")


def _state_steps(args: Mapping[str, Any], unit: Unit) -> list[tuple[tuple[str, ...], str, str, str]]:
    state = args.get("state")
    active = unit.properties.get("ActiveState", "inactive")
    running = active in RUNNING
    block = ("--no-block",) if args.get("no_block") else ()
    verb = ""
    if state == "started" and not running:
        verb = "start"
    elif state == "stopped" and (running or active == "deactivating"):
        verb = "stop"
    elif state == "restarted":
        verb = "restart" if running else "start"
    elif state == "reloaded":
        verb = "reload" if running else "start"
    return [((verb, *block, unit.name), "state", active, str(state))] if verb else []


def perform(args: Mapping[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Take the steps; the first that fails ends it, with what the journal says."""
    unit: Unit = change.before
    only_reload = bool(change.after) and all(words[0].startswith("daemon-") for words in change.after)
    if only_reload and host.check:
        return {"changed": False}
    host.would("service", unit.name, args.get("state") or args.get("enabled"))
    for words in change.after:
        # StartLimitBurst is for crash loops. Here someone asks for it, so starts before this one do not count.
        starts, reset = words[0] in ("start", "restart"), ["systemctl", *scope(args), "reset-failed", unit.name]
        if starts and unit.properties.get("ActiveState") == "failed":
            host.run(reset, env=QUIET)
        done = host.run(["systemctl", *scope(args), *words], env=QUIET)
        if done.rc != 0 and starts and b"reset-failed" in done.stderr:
            host.run(reset, env=QUIET)
            done = host.run(["systemctl", *scope(args), *words], env=QUIET)
        if done.rc != 0:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            raise ModuleError(
                f"Unable to {words[0]} {unit.name or 'systemd'}: {said}", fix=f"journalctl -u {unit.name}", rc=done.rc, **_journal(unit, host)
            )
    if not unit.name or not unit.booted:
        return {"changed": not only_reload}
    argv = ["systemctl", *scope(args), "show", "--no-pager", f"--property={','.join(PROPERTIES)}", unit.name]
    now = parse_show(host.run(argv, query=True, env=QUIET).stdout.decode("utf-8", "replace"))
    return {"changed": not only_reload, "status": now}


def _journal(unit: Unit, host: Host) -> dict[str, Any]:
    if not unit.name or host.which("journalctl") is None:
        return {}
    done = host.run(["journalctl", "--no-pager", "-o", "cat", "-n", "15", "-u", unit.name], query=True, timeout=10)
    return {"journal": done.stdout.decode("utf-8", "replace").splitlines()}
