# SPDX-License-Identifier: Apache-2.0
"""Debian's packages: what dpkg has, what apt would take, and the commands that lead to what was asked."""

from __future__ import annotations

import fnmatch
import re
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Completed, Host

NAME = re.compile(r"^[a-z0-9][a-z0-9+.\-]*(:[a-z0-9\-]+)?(=[A-Za-z0-9.+:~*\-]+)?$")
RELEASE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.+*/=\-]*$")
OPTION = re.compile(r"^[a-z][a-z0-9\-]*$")
FORMAT = "${Package}\\t${Architecture}\\t${db:Status-Status}\\t${Version}\\t${Provides}\\n"
LISTS = "/var/lib/apt/lists"
SOURCES = "/etc/apt/sources.list"
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "DEBIAN_PRIORITY": "critical", "APT_LISTCHANGES_FRONTEND": "none", "LC_ALL": "C", "LANG": "C"}
DEFAULTS: dict[str, Any] = {
    "name": None,
    "state": "present",
    "deb": None,
    "update_cache": False,
    "cache_valid_time": 0,
    "upgrade": "no",
    "purge": False,
    "autoremove": False,
    "install_recommends": None,
    "default_release": None,
    "only_upgrade": False,
    "allow_unauthenticated": False,
    "allow_downgrade": False,
    "dpkg_options": "force-confdef,force-confold",
    "lock_timeout": 60,
}


@dataclass(frozen=True)
class Packages:
    """What was found. `versions`: name: version, of what is installed; `leftovers` are removed packages whose settings remain."""

    versions: Mapping[str, str] = field(default_factory=dict)
    provided: frozenset[str] = frozenset()
    leftovers: frozenset[str] = frozenset()
    candidates: Mapping[str, str] = field(default_factory=dict)
    deb: Mapping[str, str] = field(default_factory=dict)
    pending: tuple[str, ...] = ()  # what an upgrade or autoremove would touch
    update_due: bool = False
    simulated: Optional[Completed] = None


@dataclass(frozen=True)
class Work:
    """Words for apt-get, and what check mode's later looks should see."""

    commands: tuple[tuple[str, ...], ...] = ()
    would: Mapping[str, Optional[str]] = field(default_factory=dict)
    update: bool = False


def check(args: Mapping[str, Any]) -> None:
    """Refuse what apt-get could take for an option or for a wish to remove."""
    for name in args["name"] or []:
        if not NAME.fullmatch(name) or name.partition("=")[0].endswith("-"):
            raise ModuleError(f"{name!r} is no package name", fix="write name or name=version; one entry of the list for each package")
    if args["default_release"] is not None and not RELEASE.fullmatch(args["default_release"]):
        raise ModuleError(f"default_release {args['default_release']!r} is no release", fix="write it as bookworm-backports")
    for option in _dpkg_options(args):
        if not OPTION.fullmatch(option):
            raise ModuleError(f"dpkg_options: {option!r} is no option of dpkg", fix="write them as force-confdef,force-confold")
    if args["deb"] is not None and not args["deb"].startswith("/"):
        raise ModuleError(f"deb {args['deb']!r}: expected an absolute path on the host", fix="copy the file there first")


def _dpkg_options(args: Mapping[str, Any]) -> list[str]:
    return [part.strip().lstrip("-") for part in args["dpkg_options"].split(",") if part.strip()]


def base(wanted: str) -> str:
    """`name` of `name:arch=version`."""
    return wanted.partition("=")[0].partition(":")[0]


def look(args: Mapping[str, Any], host: Host, *, fresh: bool = False) -> Packages:
    """Ask dpkg, and apt where that matters. `fresh`: the lists were just updated."""
    check(args)
    if host.which("dpkg-query") is None:
        raise ModuleError("dpkg-query is not on this host: it is no Debian", fix="use the module of that system's package manager")
    done = host.run(["dpkg-query", "-W", f"-f={FORMAT}"], query=True, env=QUIET)
    versions, provided, leftovers = parse_query(done.stdout.decode("utf-8", "replace"))
    for name in [base(w) for w in args["name"] or []]:
        remembered = _remembered(host, name)
        if remembered is not None:
            versions.pop(name, None)
            if remembered:
                versions[name] = remembered
    names = [base(w) for w in args["name"] or []]
    due = not fresh and _update_due(args, host)
    return Packages(
        versions,
        frozenset(provided),
        frozenset(leftovers),
        _candidates(names, host) if args["state"] == "latest" and names else {},
        _deb_fields(args["deb"], host) if args["deb"] else {},
        _pending(args, host),
        due,
        _simulate(args, versions, host),
    )


def _remembered(host: Host, name: str) -> Any:
    """What an earlier checked task said of this package: a version, '' when it would be gone, None when nothing was said."""
    ask = getattr(host, "would_be", None)
    return ask("package", name) if ask is not None else None


def parse_query(text: str) -> tuple[dict[str, str], set[str], set[str]]:
    """Installed versions by name (and name:arch), virtual names provided, and names of which only settings remain."""
    versions: dict[str, str] = {}
    provided: set[str] = set()
    leftovers: set[str] = set()
    for line in text.splitlines():
        fields = [*line.split("\t"), "", "", "", ""]
        name, arch, status, version, provides = fields[:5]
        if status == "installed":
            versions[name] = versions[f"{name}:{arch}"] = version
            provided |= {part.strip().split(" ")[0] for part in provides.split(",") if part.strip()}
        elif status == "config-files":
            leftovers.add(name)
    return versions, provided, leftovers


def _update_due(args: Mapping[str, Any], host: Host) -> bool:
    if not (args["update_cache"] or args["cache_valid_time"]):
        return False
    if not args["cache_valid_time"]:
        return True
    stamps = [stat.mtime for stat in (host.stat("/var/lib/apt/periodic/update-success-stamp"), host.stat(LISTS)) if stat is not None]
    if not stamps:
        return True
    return time.time() - max(stamps) > args["cache_valid_time"] or _sources_changed(host) > max(stamps)


def _sources_changed(host: Host) -> float:
    """When a source was last added, changed or removed: lists older than that lack its packages, however young they are."""
    names = [SOURCES, *(f"{SOURCES}.d/{name}" for name in _names(host, f"{SOURCES}.d")), f"{SOURCES}.d"]
    return max((stat.mtime for stat in map(host.stat, names) if stat is not None), default=0.0)


def _names(host: Host, folder: str) -> list[str]:
    return host.listdir(folder) if host.stat(folder, follow=True) is not None else []


def _candidates(names: list[str], host: Host) -> dict[str, str]:
    done = host.run(["apt-cache", *_no_caches(host), "policy", *names], query=True, env=QUIET)
    out: dict[str, str] = {}
    name = ""
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line and not line.startswith(" "):
            name = line.rstrip(":")
        elif line.startswith("  Candidate: "):
            out[name] = line.split(": ", 1)[1].strip()
    return out


def _deb_fields(path: str, host: Host) -> dict[str, str]:
    if host.stat(path, follow=True) is None:
        raise ModuleError(f"{path}: no such file on the host", fix="copy the package there first")
    done = host.run(["dpkg-deb", "--field", path, "Package", "Version", "Architecture"], query=True, env=QUIET)
    fields = dict(line.split(": ", 1) for line in done.stdout.decode("utf-8", "replace").splitlines() if ": " in line)
    if done.rc == 0 and "Package" in fields:
        return fields
    if host.check:  # an earlier checked task would have written it
        return {"Package": "", "Version": ""}
    raise ModuleError(f"{path} is no Debian package: {_said(done)}", fix="build it again, or copy it again")


def _pending(args: Mapping[str, Any], host: Host) -> tuple[str, ...]:
    words = _upgrade_words(args)
    if not words and args["autoremove"] and not (args["name"] or args["deb"]):
        words = ["autoremove"]
    if not words:
        return ()
    done = host.run(["apt-get", *_no_caches(host), "-s", *words], query=True, env=QUIET)
    return tuple(line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith(("Inst ", "Remv ")))


def _upgrade_words(args: Mapping[str, Any]) -> list[str]:
    kind = {"dist": "dist-upgrade", "full": "dist-upgrade", "safe": "upgrade", "yes": "upgrade"}.get(args["upgrade"])
    return [kind, "--with-new-pkgs"] if kind == "upgrade" and args["upgrade"] == "safe" else [kind] if kind else []


def _simulate(args: Mapping[str, Any], versions: Mapping[str, str], host: Host) -> Optional[Completed]:
    """In check mode ask apt what it would do; that it cannot resolve a package yet is no failure."""
    names = args["name"] or []
    if not host.check or not names or args["state"] == "absent":
        return None
    return host.run([*_apt(args), *_no_caches(host), "-s", "install", "--", *names], query=True, env=QUIET)


def _no_caches(host: Host) -> list[str]:
    """In check mode not even apt's own caches are written."""
    return ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="] if host.check else []


def _apt(args: Mapping[str, Any]) -> list[str]:
    argv = ["apt-get", "-q", "-y", "-o", f"DPkg::Lock::Timeout={args['lock_timeout']}"]
    for option in _dpkg_options(args):
        argv += ["-o", f"Dpkg::Options::=--{option}"]
    if args["install_recommends"] is not None:
        argv += ["-o", f"APT::Install-Recommends={'yes' if args['install_recommends'] else 'no'}"]
    if args["default_release"]:
        argv += ["-t", args["default_release"]]
    flags = {"only_upgrade": "--only-upgrade", "allow_unauthenticated": "--allow-unauthenticated", "allow_downgrade": "--allow-downgrades"}
    argv += [flag for name, flag in flags.items() if args[name]]
    return argv + (["--auto-remove"] if args["autoremove"] else [])


def decide(args: Mapping[str, Any], found: Packages) -> Decision:
    """The commands that it takes; lists that are due are read first."""
    commands: list[tuple[str, ...]] = []
    would: dict[str, Optional[str]] = {}
    diffs: list[Diff] = []
    words = _upgrade_words(args)
    if found.pending and (words or args["autoremove"]):
        commands.append(tuple(words or ["autoremove"]))
        diffs.append(Diff("upgrade" if words else "autoremove", "", "\n".join(found.pending) + "\n"))
    if args["deb"] and found.versions.get(found.deb["Package"]) != found.deb["Version"]:
        commands.append(("install", "--", args["deb"]))
        would[found.deb["Package"]] = found.deb["Version"]
        diffs.append(Diff(f"package {found.deb['Package']}", found.versions.get(found.deb["Package"], ""), found.deb["Version"]))
    moving = [w for w in args["name"] or [] if _moves(args, w, found)]
    if moving:
        verb = ("purge" if args["purge"] else "remove") if args["state"] == "absent" else "install"
        commands.append((verb, "--", *(base_arch(w) if verb != "install" else w for w in moving)))
        for wanted in moving:
            would[base(wanted)] = _after(args, wanted, found)
            diffs.append(Diff(f"package {base(wanted)}", found.versions.get(base(wanted), ""), would[base(wanted)] or ""))
    values = _values(found, bool(moving))
    if not commands and not found.update_due:
        return Same(values)
    return Change(before=found, after=Work(tuple(commands), would, found.update_due), diff=tuple(diffs), values=values)


def base_arch(wanted: str) -> str:
    """`name:arch` of `name:arch=version`."""
    return wanted.partition("=")[0]


def _values(found: Packages, moving: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"cache_updated": False}
    if found.simulated is not None and moving:
        lines = found.simulated.stdout.decode("utf-8", "replace").splitlines()
        values["simulated"] = [line for line in lines if line.startswith(("Inst ", "Remv "))]
        if found.simulated.rc != 0:
            values["warnings"] = [f"apt cannot resolve it yet: {_said(found.simulated)}"]
    return values


def _moves(args: Mapping[str, Any], wanted: str, found: Packages) -> bool:
    name, _, version = wanted.partition("=")
    have = found.versions.get(name)
    if args["state"] == "absent":
        return have is not None or (args["purge"] and base(name) in found.leftovers)
    if have is None:
        return not (base(name) in found.provided and not version) and not args["only_upgrade"]
    if version:
        return not fnmatch.fnmatchcase(have, version)
    candidate = found.candidates.get(base(name))
    return args["state"] == "latest" and candidate not in (None, "(none)", have)


def _after(args: Mapping[str, Any], wanted: str, found: Packages) -> Optional[str]:
    if args["state"] == "absent":
        return ""
    version = wanted.partition("=")[2]
    return version or found.candidates.get(base(wanted)) or "newest"


def perform(args: Mapping[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Update the lists when they are due, look again, then run what is still needed."""
    work: Work = change.after
    values: dict[str, Any] = {"cache_updated": False}
    moved = False
    if work.update:
        if host.check and not work.commands:
            return {"changed": False, "msg": "would read the package lists anew"}
        if not host.check:
            moved = _update(args, host)
            values = {"cache_updated": True}
            again = decide(args, look(args, host, fresh=True))
            work = again.after if isinstance(again, Change) else Work()
    for name, version in work.would.items():
        host.would("package", name, version)
    for words in work.commands:
        done = host.run([*_apt(args), *words], env=QUIET)
        if done.rc != 0:
            said = _said(done)
            raise ModuleError(f"'apt-get {' '.join(words)}' failed: {said}", fix="see apt's message", rc=done.rc, stderr=said, **values)
        values["stdout"] = done.stdout.decode("utf-8", "replace")
        values["stdout_lines"] = values["stdout"].splitlines()
    asked_more = bool(args["name"] or args["deb"] or _upgrade_words(args) or args["autoremove"])
    return {**values, "changed": bool(work.commands) or (moved and not asked_more)}


def _update(args: Mapping[str, Any], host: Host) -> bool:
    """Whether reading the lists anew brought anything. The folder's time is set, so that cache_valid_time can count from it."""
    before = _fingerprint(host)
    done = host.run([*_apt({**DEFAULTS, "lock_timeout": args["lock_timeout"]}), "update"], env=QUIET)
    errors = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.startswith(("E:", "Err:"))]
    if done.rc != 0 or errors:
        raise ModuleError(f"Failed to update apt cache: {_said(done)}", fix="see that the repositories answer", rc=done.rc)
    if host.stat(LISTS) is not None:
        host.utime(LISTS, time.time(), time.time())
    return _fingerprint(host) != before


def _fingerprint(host: Host) -> list[tuple[str, float, int]]:
    if host.stat(LISTS) is None:
        return []
    stats = [(name, host.stat(f"{LISTS}/{name}")) for name in host.listdir(LISTS)]
    return [(name, stat.mtime, stat.size) for name, stat in stats if stat is not None and stat.kind == "file" and name != "lock"]


def _said(done: Completed) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", "replace")
    wrong = [line for line in text.splitlines() if line.startswith(("E:", "Err:", "dpkg:"))]
    return "; ".join(wrong) or text.strip()
