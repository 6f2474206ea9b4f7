# SPDX-License-Identifier: Apache-2.0
"""The driver's user part in lockstep with the loaded module: bound from the host, by NVIDIA's installer, or by packages; or only looked at."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from flyops.domain import devicerules, driver, driverapt, driverlook, nvidia, probes, symptoms
from flyops.domain.systemd import unit_name
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host, Stat
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Bring the driver's user part of a guest to the version of the loaded module, or judge it. Judged by files, never by whether "
    "nvidia-smi runs: a card that was not given is no reason to install again.",
    args={
        "state": Arg("str", default="present", choices=("present", "absent", "verified"), help="verified looks and refuses what is wrong"),
        "fail": Arg("bool", default=True, help="verified: refuse what is wrong; false: only say so in values"),
        "strategy": Arg(
            "str", default="bind", choices=("bind", "runfile", "package"),
            help="bind: the host's libraries, which the guest's config binds; runfile: NVIDIA's installer; package: apt, exact version, held",
        ),
        "version": Arg("str", help="of the host's module; default: what /proc/driver/nvidia/version says here"),
        "capabilities": Arg("list", default=driver.DEFAULT_CAPABILITIES, elements="str", help="compute, utility, video, graphics, ngx"),
        "runfile": Arg("path", help="runfile: the installer, already on this target"),
        "sha256": Arg("str", help="runfile: its digest, looked at right before it runs"),
        "log": Arg("path", default="/var/log/nvidia-installer.log", help="runfile: the installer's log"),
        "limit": Arg("float", default=900.0, help="runfile: seconds that the installer may take"),
        "packages": Arg("list", elements="str", help="package: names; default: those of Ubuntu, Debian or NVIDIA's repository, as they are offered"),
        "side": Arg("str", default="guest", choices=("guest", "host"), help="verified: a guest, or the host whose libraries the guests get"),
        "unit": Arg("str", help="verified: a unit that opens the card; its rules must be in its own config, which is what a daemon-reload leaves"),
        "lib_dirs": Arg("list", elements="path", help="where to look for libraries; default: the usual folders and the linker's"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="version of the loaded module"),
        "dev": Arg("path", default="/dev", help="verified: folder of the nodes"),
    },
    examples="""
- name: The host's libraries, known to the guest's linker
  nvidia_driver: {strategy: bind}
- name: NVIDIA's installer, without its kernel part
  nvidia_driver: {strategy: runfile, runfile: /var/cache/NVIDIA-Linux-x86_64-570.148.08.run, sha256: "{{ digest }}"}
- name: Nothing drifted
  nvidia_driver: {state: verified}
""",
    returns={
        "version": "the version that is wanted: the loaded module's",
        "found": "every version of a driver's library that is here",
        "leftovers": "files of other versions",
        "empty_targets": "files of size 0 where a library or tool should be bound",
        "links": "SONAMEs that lead to another version's file, or nowhere",
        "incomplete": "libraries of the wanted version are missing, or names lead elsewhere: something has to be installed or bound",
        "verdict": "one sentence in the field's words",
        "problems": "each fault as a sentence that names the path",
        "around": "verified: those of them that are not about files: device rules, daemons, the container toolkit",
        "persistence": "side host: persistence mode of each card (a guest shows its own socket's view, which is no fact about the card)",
    },
)  # fmt: skip

COMPUTE_NODE = re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools)")  # what a context opens; a switch's or a capability's node is no concern of it
RIGHTS = ("Operation not permitted", "Permission denied")
LINKER = "linker cache"  # header of the step that is only ldconfig


@dataclass(frozen=True)
class State:
    """What `read` found."""

    version: str
    module: str
    survey: driver.Survey
    seen: driver.Seen
    own: Any = None  # the strategy's own findings
    problems: Tuple[str, ...] = ()
    persistence: Tuple[str, ...] = ()


def read(args: Dict[str, Any], host: Host) -> State:
    """The files, the linker's cache, and what the strategy needs to know."""
    unknown = [name for name in args["capabilities"] if name not in driver.CAPABILITIES]
    if unknown:
        raise ModuleError(f"capabilities: expected some of {', '.join(driver.CAPABILITIES)}, found {', '.join(unknown)}")
    module = nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing=""))
    version = args["version"] or module
    seen = driverlook.look(host, args["lib_dirs"] or ())
    survey = driver.survey(seen, version, args["capabilities"])
    if args["state"] != "verified":
        own = {"bind": _look_bind, "runfile": _look_runfile, "package": _look_package}[args["strategy"]](args, version, host)
        return State(version, module, survey, seen, own)
    if args["side"] == "guest":
        return State(version, module, survey, seen, problems=_guest_problems(args, host))
    survey = replace(survey, unlinked=())  # guests get its files, and its own linker may know them by another way
    return State(version, module, survey, seen, problems=_host_problems(seen, version, host), persistence=_persistence(host))


# what is looked at besides files


def _nodes(dev: str, host: Host) -> List[str]:
    names = host.listdir(dev) if host.stat(dev, follow=True) else []
    return [f"{dev}/{name}" for name in names if COMPUTE_NODE.fullmatch(name)]


def _guest_problems(args: Mapping[str, Any], host: Host) -> Tuple[str, ...]:
    """Rights that a daemon-reload takes away, and what must not run in a guest."""
    out = []
    nodes = [(path, seen) for path in _nodes(args["dev"], host) for seen in [host.stat(path)] if seen and seen.kind == "char"]
    rules = host.read_text("/sys/fs/cgroup/devices/devices.list", missing="")
    for path, seen in nodes:
        if rules and not devicerules.rule_allows(rules, *seen.rdev):
            out.append(f"{path}: no device rule here lets {seen.rdev[0]}:{seen.rdev[1]} be opened (rules: {', '.join(rules.splitlines()[:6])})")
    if nodes:
        asked = {"paths": [path for path, _ in nodes]}
        opened = probes.answer(host.run(probes.argv("open", asked, host), query=True, stdin=probes.text("open"), timeout=60))
        told = " ".join(out)
        for path, why in sorted(opened.get("failed", {}).items()):
            # Only the right to open it: what is behind a node, check 2 judges by its number and a context.
            if path not in told and why in RIGHTS:
                out.append(f"{path}: {why} ({symptoms.hint(f'{path}: {why}') or 'unknown reason'})")
    if args["unit"] and host.which("systemctl"):
        out += _unit_problems(args["unit"], nodes, host)
    if host.which("pgrep") and host.run(["pgrep", "-x", "nvidia-persiste"], query=True).rc == 0:
        out.append("nvidia-persistenced runs in this guest: it acts on the machine's cards and belongs to the host alone; disable it here")
    return tuple(out)


def _unit_problems(unit: str, nodes: Sequence[Tuple[str, Stat]], host: Host) -> List[str]:
    """Nodes that the unit cannot open, or only until systemd writes its rules again."""
    unit_name(unit)  # one that begins with a dash would be an option
    show = driverlook.text(
        host.run(["systemctl", "show", "-p", "LoadState", "-p", "MainPID", "-p", "DevicePolicy", "-p", "DeviceAllow", unit], query=True)
    )
    values = dict(line.split("=", 1) for line in show.splitlines() if "=" in line)
    if values.get("LoadState") != "loaded":
        return []
    where = devicerules.devices_path(host.read_text(f"/proc/{values.get('MainPID', '0')}/cgroup", missing=""))
    now = host.read_text(f"/sys/fs/cgroup/devices{where}/devices.list", missing="") if where else ""
    majors = nvidia.char_majors(host.read_text("/proc/devices", missing=""))
    out = []
    for path, seen in nodes:
        names = [name for name, major in majors.items() if major == seen.rdev[0]]
        lasting = devicerules.config_allows(show, path, names)
        open_now = not now or devicerules.rule_allows(now, *seen.rdev)
        if not lasting:
            said = "open now, by a rule that was only injected" if now and open_now else "not open"
            allowed = ", ".join(devicerules.config(show)[1]) or "nothing"
            out.append(f"{path}: {said}: {unit}'s own config allows {allowed}, and a daemon-reload leaves only that")
        elif not open_now:
            out.append(f"{path}: {unit}'s config allows it, and its cgroup does not: systemctl daemon-reload, then restart it")
    return out


def _host_problems(seen: driver.Seen, version: str, host: Host) -> Tuple[str, ...]:
    """A container toolkit that is older than the driver says which file it misses, or says nothing and leaves it out."""
    if host.which("nvidia-container-cli") is None:
        return ()
    done = host.run(["nvidia-container-cli", "list", "--libraries"], query=True, timeout=60)
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.rc != 0:
        return (f"nvidia-container-cli ended with {done.rc}: {said} ({symptoms.hint(said) or 'not in docs/symptoms.md'})",)
    left_out = driver.unlisted(driverlook.text(done), (file.path for file in seen.files if file.kind == "file"), version)
    return tuple(f"the container toolkit does not know {path}: it is older than driver {version}; upgrade it" for path in left_out)


def _persistence(host: Host) -> Tuple[str, ...]:
    if host.which("nvidia-smi") is None:
        return ()
    done = host.run(["nvidia-smi", "--query-gpu=index,persistence_mode", "--format=csv,noheader"], query=True, timeout=60)
    return tuple(line.strip() for line in driverlook.text(done).splitlines() if line.strip()) if done.rc == 0 else ()


# plan


def plan(args: Dict[str, Any], state: State) -> Decision:
    """Nothing when the files are right; else the steps of the strategy."""
    values = _values(args, state)
    if args["state"] == "verified":
        return _verified(args, state, values)
    if args["state"] == "present":
        _preflight(args, state)
    diffs = {"bind": _plan_bind, "runfile": _plan_runfile, "package": _plan_package}[args["strategy"]](args, state)
    if args["state"] == "present" and state.survey.unlinked and LINKER not in [diff.header for diff in diffs]:
        diffs.append(Diff(LINKER, "".join(f"{text}\n" for text in state.survey.unlinked), ""))
    if not diffs:
        return Same({**values, "warnings": list(state.survey.problems)} if state.survey.problems and args["state"] == "present" else values)
    return Change(after=state, diff=tuple(diffs), values=values)


def _values(args: Mapping[str, Any], state: State) -> Dict[str, Any]:
    survey = state.survey
    return {
        "version": state.version,
        "module": state.module,
        "found": list(survey.versions),
        "leftovers": list(survey.leftovers),
        "empty_targets": list(survey.empty),
        "links": list(survey.links),
        "gone": list(survey.gone),
        "incomplete": bool(survey.missing or survey.links),
        "verdict": survey.verdict if survey.problems or not state.problems else "the files fit, the guest or host does not",
        "problems": [*survey.problems, *state.problems],
        "around": list(state.problems),
        "strategy": args["strategy"],
        "persistence": list(state.persistence),
    }


def _fix(args: Mapping[str, Any], state: State) -> str:
    if not state.version:
        return symptoms.LOAD
    if args["side"] == "host":
        return (
            "the host was upgraded and runs its old module: reboot it (invoke host afterwards) before any guest is started again; "
            "a guest that runs keeps what it has until then"
        )
    if state.survey.gone and not state.survey.missing:
        return "do not restart this guest before its host has booted the module of its new libraries; then invoke driver"
    if state.survey.leftovers and not state.survey.missing:
        return "remove the named files (dpkg -S FILE says whose they are), run ldconfig"
    return "invoke driver --limit NAME puts them in lockstep" if state.survey.problems else "see each problem"


def _verified(args: Mapping[str, Any], state: State, values: Dict[str, Any]) -> Decision:
    told = f"{values['verdict']}: {'; '.join(values['problems'])}" if values["problems"] else values["verdict"]
    if values["problems"] and args["fail"]:
        raise Refused(told, fix=_fix(args, state), **values)
    return Same(values, msg=told)


def _preflight(args: Mapping[str, Any], state: State) -> None:
    """What no strategy can mend from here."""
    if not state.version:
        raise Refused("the driver's version is not known: no version was given and /proc/driver/nvidia/version names none", fix=symptoms.LOAD)
    if state.module and state.module != state.version:
        raise Refused(
            f"asked for driver {state.version}, the loaded module is {state.module}: libraries of another version would not work",
            fix=f"leave version out, or bring the host to {state.version} first (module, reboot, then its guests)",
        )
    if state.own.nouveau:
        raise Refused("the host runs nouveau: no NVIDIA driver can use its cards", fix="blacklist nouveau on the host and boot again")


@dataclass(frozen=True)
class Own:
    """What a strategy looked at."""

    nouveau: bool = False
    conf: str = ""
    here: Tuple[str, ...] = ()  # bind: tools that are bound
    links: Mapping[str, str] | None = None  # bind: links in TOOL_FOLDER -> target
    digest: str = ""
    machine: str = ""
    uninstall: str = ""
    found: driverapt.Found | None = None
    names: Tuple[str, ...] = ()


def _nouveau(host: Host) -> bool:
    return any(line.split(" ")[0] == "nouveau" for line in host.read_text("/proc/modules", missing="").splitlines())


# bind: what the guest's config binds becomes known to its linker and its PATH


def _look_bind(args: Mapping[str, Any], version: str, host: Host) -> Own:
    folder = f"{driver.FOLDER}/bin"
    here = [name for name in driver.TOOLS for seen in [host.stat(f"{folder}/{name}", follow=True)] if seen and seen.size]
    links = {}
    for name in host.listdir(driver.TOOL_FOLDER) if host.stat(driver.TOOL_FOLDER, follow=True) else []:
        seen = host.stat(f"{driver.TOOL_FOLDER}/{name}")
        if seen and seen.kind == "link" and seen.target.startswith(f"{driver.FOLDER}/"):
            links[name] = seen.target
    return Own(_nouveau(host), host.read_text(driver.LINKER_CONF, missing=""), tuple(here), links)


def _old_targets(state: State) -> Tuple[str, ...]:
    """Empty files that binds of an earlier version needed, in our own folder."""
    prefix = f"{driver.FOLDER}/"
    return tuple(p for p in state.survey.empty if p.startswith(prefix) and driver.file_version(p) and driver.file_version(p) != state.version)


def _plan_bind(args: Mapping[str, Any], state: State) -> List[Diff]:
    present = args["state"] == "present"
    if present:
        _need_binds(state)
    conf, here = (driver.LINKER_TEXT, state.own.here) if present else ("", ())
    out = [Diff(driver.LINKER_CONF, state.own.conf, conf)] if state.own.conf != conf else []
    wanted = {name: f"{driver.FOLDER}/bin/{name}" for name in here}
    for name in sorted({*wanted, *state.own.links}):
        before, after = state.own.links.get(name, ""), wanted.get(name, "")
        if before != after:
            out.append(Diff(f"{driver.TOOL_FOLDER}/{name}", before, after))
    out += [Diff(path, "an empty file\n", "") for path in _old_targets(state) if present]
    linked = (state.seen.linked or {}).get("libcuda.so.1", "")
    if present and state.seen.linked is not None and driver.file_version(linked) != state.version:
        out.append(Diff(LINKER, f"libcuda.so.1 => {linked or 'unknown'}\n", f"libcuda.so.1 => libcuda.so.{state.version}\n"))
    return out


def _need_binds(state: State) -> None:
    """The libraries come by the guest's config; without them there is nothing to tell the linker about."""
    bound = [file.path for file in state.seen.files if file.path.startswith(f"{driver.FOLDER}/") and file.size]
    if f"libcuda.so.{state.version}" not in [posixpath.basename(path) for path in bound]:
        versions = driver.library_versions(bound, "libcuda")
        empty = [path for path in state.survey.empty if path.startswith(f"{driver.FOLDER}/")]
        raise Refused(
            f"expected libcuda.so.{state.version} in {driver.FOLDER}/lib64, bound from the host; found {', '.join(versions) or 'none'}"
            + (f" (empty, so the source of the bind was missing at start: {', '.join(empty)})" if empty else ""),
            fix="give the guest the card again: invoke provision NAME --gpu (the host first when its own libraries are of another version)",
        )
    writable = driver.writable_mounts(state.seen.mountinfo)
    if writable:
        raise Refused(f"{', '.join(writable)}: bound writable, so this guest could change its host's driver", fix="bind read-only (invoke provision)")


def _apply_bind(args: Mapping[str, Any], change: Change, host: Host) -> None:
    for diff in change.diff:
        if diff.header == LINKER:
            continue
        if not diff.after:
            host.remove(diff.header)
            continue
        folder = posixpath.dirname(diff.header)
        if host.stat(folder, follow=True) is None:
            host.mkdir(folder, mode=0o755)
        if diff.header == driver.LINKER_CONF:
            host.write_text(diff.header, diff.after, mode=0o644)
        else:
            host.symlink(diff.after, diff.header)
    if host.which("ldconfig"):
        _must(host, ["ldconfig"], "telling the linker")


def _must(host: Host, argv: Sequence[str], what: str) -> None:
    done = host.run(argv)
    if done.rc != 0:
        raise ModuleError(f"{what}: {argv[0]} ended with {done.rc}: {done.stderr.decode('utf-8', 'replace').strip()}")


# runfile: NVIDIA's installer, never its kernel part


def _look_runfile(args: Mapping[str, Any], version: str, host: Host) -> Own:
    path = args["runfile"]
    seen = host.stat(path, follow=True) if path else None
    machine = driverlook.text(host.run(["uname", "-m"], query=True)).strip()
    digest = host.sha256(path) if seen and seen.kind == "file" and args["state"] == "present" else ""
    return Own(_nouveau(host), digest=digest, machine=machine, uninstall=host.which("nvidia-uninstall") or "")


def _plan_runfile(args: Mapping[str, Any], state: State) -> List[Diff]:
    what = "driver's user part (installer)"
    if args["state"] == "absent":
        return [Diff(what, f"{', '.join(state.survey.versions)}\n", "")] if state.own.uninstall else []
    if not state.survey.missing and not state.survey.links:
        return []
    _need_runfile(args, state)
    return [Diff(what, f"{', '.join(state.survey.versions) or 'none'}\n", f"{state.version}\n")]


def _need_runfile(args: Mapping[str, Any], state: State) -> None:
    """The right file, whole, and nothing bound where it would write."""
    path = args["runfile"]
    if not path or not args["sha256"]:
        raise ModuleError(
            "strategy runfile: expected runfile (the installer on this target) and sha256", fix="invoke driver --runfile FILE gives both"
        )
    if not state.own.digest:
        raise ModuleError(f"{path}: no such file on this target", fix="copy it there first (invoke driver --runfile FILE does)")
    if state.own.digest != args["sha256"].lower():
        raise Refused(
            f"{path}: expected sha256 {args['sha256']}, found {state.own.digest}: it is not run", fix="copy it again; compare with the publisher's"
        )
    named = driver.RUN_NAME.fullmatch(posixpath.basename(path))
    if named and (named["version"], named["arch"]) != (state.version, state.own.machine):
        raise Refused(
            f"{posixpath.basename(path)} is the driver {named['version']} for {named['arch']}; expected {state.version} for {state.own.machine}",
            fix=f"take NVIDIA-Linux-{state.own.machine}-{state.version}.run",
        )
    bound = driver.mounted(state.seen.mountinfo)
    if bound:
        raise Refused(
            f"{', '.join(bound[:3])}: bound from the host, the installer cannot write there",
            fix="one strategy: bind, or take the binds out of the config",
        )


def _apply_runfile(args: Mapping[str, Any], change: Change, host: Host) -> None:
    if args["state"] == "absent":
        _must(host, [change.after.own.uninstall, "--silent"], "removing the driver's user part")
        return
    path = args["runfile"]
    words = driver.run_words(_help(path, host))
    if not words:
        raise ModuleError(
            f"{path}: its help knows neither {' nor '.join(driver.KERNEL_OPTION)}; it is not run: its kernel part would act on the host's module",
            fix="is this NVIDIA's installer?",
        )
    done = host.run(["sh", path, *words, f"--log-file-name={args['log']}"], timeout=args["limit"])
    if done.rc != 0:
        log = host.read_text(args["log"], missing="")
        said = (done.stderr or done.stdout).decode("utf-8", "replace")
        errors = driver.installer_errors(log) or driver.installer_errors(said) or (said.strip()[-400:] or "no words",)
        known = symptoms.find(f"{' '.join(errors)}\n{said}")
        because = f" ({known.cause})" if known else ""
        fix = known.remedy if known else f"see {args['log']}"
        raise ModuleError(f"the installer ended with {done.rc}: {'; '.join(errors)}{because}", fix=fix, rc=done.rc, log=log[-4000:])


def _help(path: str, host: Host) -> str:
    done = host.run(["sh", path, "--advanced-options"], timeout=300)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


# package: apt, exact version, held


def _look_package(args: Mapping[str, Any], version: str, host: Host) -> Own:
    names = tuple(args["packages"] or ())
    found = driverapt.look(names, version, host)
    return Own(_nouveau(host), found=found, names=driverapt.installed(names, found, host) if args["state"] == "absent" else ())


def _plan_package(args: Mapping[str, Any], state: State) -> List[Diff]:
    found = state.own.found
    if args["state"] == "absent":
        return [Diff(f"package {name}", f"{found.installed[name]}\n", "") for name in state.own.names]
    driverapt.check_offer(found, state.version)
    out = [Diff(f"package {name}", f"{found.installed.get(name, '')}\n", f"{found.wanted[name]}\n") for name in found.moving]
    return out + [Diff(f"hold of {name}", "", "held\n") for name in found.unheld]


def _apply_package(args: Mapping[str, Any], change: Change, host: Host) -> None:
    own: Own = change.after.own
    assert own.found is not None
    if args["state"] == "absent":
        driverapt.remove(own.names, own.found, host)
    else:
        driverapt.install(own.found, host)


# doing it


def apply(args: Dict[str, Any], change: Change, host: Host) -> Dict[str, Any]:
    """The strategy's steps, then another look: what is there counts, not what was run."""
    state: State = change.after
    if {diff.header for diff in change.diff} == {LINKER}:
        _must(host, ["ldconfig"], "telling the linker")
    else:
        {"bind": _apply_bind, "runfile": _apply_runfile, "package": _apply_package}[args["strategy"]](args, change, host)
    seen = driverlook.look(host, args["lib_dirs"] or ())
    survey = driver.survey(seen, state.version, args["capabilities"])
    values = _values(args, State(state.version, state.module, survey, seen))
    if args["state"] == "absent":
        return values
    wrong = [*survey.missing, *survey.unlinked, *survey.links]
    if wrong:
        raise ModuleError(f"{args['strategy']} ended well, and the files do not fit: {'; '.join(wrong)}", fix="see each file", **values)
    return {**values, "warnings": list(survey.problems)} if survey.problems else values
