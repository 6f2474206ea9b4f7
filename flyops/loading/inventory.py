# SPDX-License-Identifier: Apache-2.0
"""Inventory in YAML: hosts, groups, children, vars; group_vars and host_vars beside it and beside the playbook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyops.errors import LoadError, UsageError
from flyops.loading import patterns
from flyops.loading.positions import NOWHERE, Map, Pos, Problems, nearest
from flyops.loading.yamlfile import load_yaml

GROUP_KEYS = ("hosts", "children", "vars")
SUBFOLDERS = ("hosts.d",)  # what `provision` writes
_RANGE = re.compile(r"\[(?P<first>[0-9]+|[a-z]):(?P<last>[0-9]+|[a-z])(?::(?P<step>\d+))?\]")


@dataclass
class Group:
    """A group as the files gave it."""

    name: str
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    vars: dict[str, Any] = field(default_factory=dict)


@dataclass
class Inventory:
    """Hosts in the order of the files, groups, and their variables. `add_host` may make it grow during a run."""

    groups: dict[str, Group] = field(default_factory=lambda: {"all": Group("all"), "ungrouped": Group("ungrouped")})
    host_vars: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    _cache: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _members: dict[str, list[str]] | None = None

    @property
    def hosts(self) -> list[str]:
        """All host names in order."""
        return list(self.host_vars)

    def members(self) -> dict[str, list[str]]:
        """Group name -> its hosts, those of its children included."""
        if self._members is None:
            self._members = {name: self._hosts_of(name, set()) for name in self.groups}
        return self._members

    def _hosts_of(self, name: str, seen: set[str]) -> list[str]:
        if name == "all":
            return self.hosts
        if name == "ungrouped":
            grouped = {host for group in self.groups.values() if group.name not in ("all", "ungrouped") for host in group.hosts}
            return [host for host in self.hosts if host not in grouped]
        wanted = set()
        todo = [name]
        while todo:
            group = self.groups[todo.pop()]
            wanted.update(group.hosts)
            todo += [child for child in group.children if child not in seen]
            seen.update(group.children)
        return [host for host in self.hosts if host in wanted]

    def add_host(self, name: str, groups: Iterable[str] = (), variables: dict[str, Any] | None = None) -> bool:
        """True when the host or one of its memberships is new."""
        new = name not in self.host_vars
        self.host_vars.setdefault(name, {}).update(variables or {})
        for group_name in groups:
            group = self.groups.setdefault(group_name, Group(group_name))
            if name not in group.hosts:
                group.hosts.append(name)
                new = True
        self.changed()
        return new

    def changed(self) -> None:
        """Forget what was worked out."""
        self._members = None
        self._cache.clear()

    def groups_of(self, host: str) -> list[str]:
        """Names of a host's groups without `all`, lowest priority first: by depth, then priority, then name."""
        names = [name for name, hosts in self.members().items() if host in hosts and name not in ("all", "ungrouped")]
        return sorted(names, key=lambda name: (self._depth(name), self._priority(name), name))

    def _depth(self, name: str, seen: tuple[str, ...] = ()) -> int:
        parents = [g.name for g in self.groups.values() if name in g.children and g.name != "all" and g.name not in seen]
        return 1 + max((self._depth(parent, (*seen, name)) for parent in parents), default=0)

    def _priority(self, name: str) -> int:
        try:
            return int(self.groups[name].vars.get("ansible_group_priority", 1))
        except (TypeError, ValueError):
            return 1

    def under(self, folder: str) -> None:
        """Take the group_vars and host_vars of a folder as defaults, below those of every other source; none of its hosts."""
        if folder not in {str(Path(source).resolve()) for source in self.sources}:
            self.sources = (folder, *self.sources)
            self._cache.clear()

    def select(self, pattern: str | Sequence[str]) -> tuple[list[str], list[str]]:
        """Hosts of a pattern, and its parts that named nothing. `localhost` exists even when no file names it."""
        found, unmatched = patterns.select(pattern, self.members(), self.hosts)
        if "localhost" in unmatched and "localhost" in patterns.split(pattern):
            found.append("localhost")
            unmatched.remove("localhost")
        return found, unmatched

    def variables_of(self, host: str, playbook_dir: str = "") -> dict[str, Any]:
        """A host's merged variables in Ansible's order. Not a copy: do not change it."""
        key = (host, playbook_dir)
        if key not in self._cache:
            self._cache[key] = self._merge(host, playbook_dir)
        return self._cache[key]

    def _merge(self, host: str, playbook_dir: str) -> dict[str, Any]:
        groups = self.groups_of(host)
        beside = [str(Path(source) if Path(source).is_dir() else Path(source).parent) for source in self.sources]
        places = [folder for folder in (*dict.fromkeys(beside), playbook_dir) if folder]
        out: dict[str, Any] = {}
        if host not in self.host_vars:
            out["ansible_connection"] = "local"
        for name in ("all", *groups):
            out.update(self.groups[name].vars)
        for name_set in (["all"], groups):
            for place in places:
                for name in name_set:
                    out.update(_vars_of(place, "group_vars", name))
        out.update(self.host_vars.get(host, {}))
        for place in places:
            out.update(_vars_of(place, "host_vars", host))
        return out


_vars_files: dict[tuple[str, str, str], dict[str, Any]] = {}


def _vars_of(place: str, kind: str, name: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path in vars_files(place, kind, name):
        out.update(load_vars(str(path)))
    return out


def vars_files(place: str, kind: str, name: str) -> list[Path]:
    """The files of one group or host: NAME, NAME.yml, NAME.yaml, NAME.json, or all of a folder NAME/."""
    base = Path(place) / kind / name
    found = [base.with_name(base.name + suffix) for suffix in ("", ".yml", ".yaml", ".json")]
    if base.is_dir():
        return sorted(path for path in base.rglob("*") if path.is_file() and path.suffix in ("", ".yml", ".yaml", ".json"))
    return [path for path in found if path.is_file()]


_loaded: dict[tuple[str, int], dict[str, Any]] = {}


def load_vars(path: str) -> dict[str, Any]:
    """A file of variables, read once while it does not change."""
    try:
        key = (path, Path(path).stat().st_mtime_ns)
    except OSError as err:
        raise LoadError(f"cannot read: {err.strerror}", where=path) from err
    if key not in _loaded:
        value = load_yaml(path)
        if value is not None and not isinstance(value, dict):
            raise LoadError(f"expected variables (a mapping), found a {type(value).__name__.lower()}", where=f"{path}:1:1")
        _loaded[key] = value or {}
    return _loaded[key]


def load_inventory(sources: Sequence[str | Path]) -> Inventory:
    """One inventory of several files or folders, later ones over earlier ones. `a,b,` names hosts directly."""
    inventory = Inventory(sources=tuple(str(source) for source in sources if "," not in str(source)))
    problems = Problems()
    for source in sources:
        for path in _files(str(source), inventory, problems):
            try:
                _read(path, inventory, problems)
            except LoadError as err:
                problems.take(err)
    _check_loops(inventory, problems)
    problems.stop()
    for host in inventory.hosts:
        inventory.variables_of(host)  # errors of group_vars and host_vars belong here, too
    return inventory


def _files(source: str, inventory: Inventory, problems: Problems) -> list[Path]:
    path = Path(source)
    if "," in source:
        for name in source.split(","):
            if name.strip():
                inventory.add_host(name.strip())
        return []
    if path.is_dir():
        folders = [path, *(path / sub for sub in SUBFOLDERS)]
        return [file for folder in folders for file in sorted(folder.glob("*")) if file.is_file() and file.suffix in (".yml", ".yaml", ".json")]
    if not path.exists():
        problems.add(f"no inventory at {source!r}", NOWHERE, "give a YAML file, a folder, or names ending in a comma: host1,host2,")
        return []
    if path.suffix not in (".yml", ".yaml", ".json"):
        problems.add(f"inventory {source!r} is not YAML; INI files and scripts are not supported yet", NOWHERE, "write it as .yml")
        return []
    return [path]


def _read(path: Path, inventory: Inventory, problems: Problems) -> None:
    value = load_yaml(path)
    if value is None:
        return
    if not isinstance(value, Map):
        problems.add(f"expected groups (a mapping), found a {type(value).__name__.lower()}", Pos(str(path), 1, 1))
        return
    for name, body in value.items():
        _read_group(str(name), body, value.value_at(name), inventory, problems, ())


def _read_group(name: str, body: Any, pos: Pos, inventory: Inventory, problems: Problems, parents: tuple[str, ...]) -> None:
    group = inventory.groups.setdefault(name, Group(name))
    inventory.changed()
    if body is None:
        return
    if not isinstance(body, Map):
        problems.add(f"group {name!r}: expected a mapping, found {body!r}", pos)
        return
    for key, value in body.items():
        at = body.at(key)
        if key not in GROUP_KEYS:
            problems.add(f"group {name!r}: unknown key {key!r}; {nearest(key, GROUP_KEYS)}", at)
        elif value is not None and not isinstance(value, Map):
            problems.add(f"group {name!r}: {key} must be a mapping, found {value!r}", at, f"write `{key}:` and below it `name:`")
        elif key == "vars":
            group.vars.update(value or {})
        elif key == "hosts":
            for pattern, variables in (value or Map()).items():
                _read_host(str(pattern), variables, (value or Map()).at(pattern), group, inventory, problems)
        else:
            for child, below in (value or Map()).items():
                if child not in group.children:
                    group.children.append(str(child))
                _read_group(str(child), below, (value or Map()).value_at(child), inventory, problems, (*parents, name))


def _read_host(pattern: str, variables: Any, pos: Pos, group: Group, inventory: Inventory, problems: Problems) -> None:
    if variables is not None and not isinstance(variables, dict):
        problems.add(f"host {pattern!r}: expected variables (a mapping), found {variables!r}", pos)
        return
    for name in expand(pattern):
        inventory.add_host(name, () if group.name == "all" else (group.name,), variables)


def expand(pattern: str) -> list[str]:
    """`web[01:03]` -> web01, web02, web03."""
    found = _RANGE.search(pattern)
    if not found:
        return [pattern]
    first, last, step = found["first"], found["last"], int(found["step"] or 1)
    if first.isdigit():
        words = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1, step)]
    else:
        words = [chr(n) for n in range(ord(first), ord(last) + 1, step)]
    return [name for word in words for name in expand(pattern[: found.start()] + word + pattern[found.end() :])]


def _check_loops(inventory: Inventory, problems: Problems) -> None:
    def below(name: str, seen: tuple[str, ...]) -> None:
        if name in seen:
            problems.add(f"groups contain each other: {' -> '.join([*seen, name])}", NOWHERE)
            return
        for child in inventory.groups[name].children:
            below(child, (*seen, name))

    for name in list(inventory.groups):
        below(name, ())


def limit_hosts(inventory: Inventory, limit: str | Sequence[str] | None) -> set[str] | None:
    """The hosts of --limit; None when there is none. A limit that names no host is a usage error."""
    if not limit:
        return None
    found, _ = inventory.select(limit)
    if not found:
        known = [*inventory.groups, *inventory.hosts]
        raise UsageError(f"--limit {limit!r} leaves no hosts to target; {nearest(limit, known)}")
    return set(found)
