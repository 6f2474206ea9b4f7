# SPDX-License-Identifier: Apache-2.0
"""Fixture files as tests: `tests/modules/<module>/*.yml` say what a host is like, what is asked, and what must come out.

A file holds one case or a list of cases:

    name: one sentence
    args: {…}                    # `src: {blob: TEXT, path: NAME}` offers a file, `src: {tree: {PATH: TEXT}, path: NAME}` a folder
    host:                        # what is there before
      files: {PATH: TEXT or {content|base64, mode, uid, gid, mtime}}
      dirs: {PATH: MODE} or [PATH]
      links: {PATH: TARGET}
      nodes: {PATH: [MAJOR, MINOR, MODE]}  # character devices
      users: {NAME: {uid, …}}    # and groups
      programs: [NAME]           # on the PATH
      env: {NAME: VALUE}
      commands: [{argv: […, '...'], rc, stdout, stderr, stdin, sets: {files, users, groups, gone, commands}}]
    expect:
      changed: true              # or fails: TEXT, or refused: TEXT
      msg: TEXT                  # part of the message
      files/dirs/links: as above; absent: [PATH]
      ran: [[ARGV], …]           # commands that may change something, all of them, in order
      stdins: [TEXT, …]          # what they were fed
      values: {KEY: VALUE}       # a part of the result
      diff: [HEADER, …]
      lacks: [TEXT]              # must be nowhere in the result (secrets)
    check: {changed, skipped, unknown, values}   # where check mode's answer differs
    repeats: changes             # a second run may change again; `again: {…}` is what it must say in full

For free, for each case: check mode predicts `changed`, runs nothing and leaves the host as it was; a second run changes
nothing; a case that fails leaves the host as it was.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from flyops.agent import registry
from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.model.host import Stat
from flyops.testing.fakehost import Command, FakeHost

KNOWN_KEYS = {"name", "args", "host", "expect", "check", "repeats", "again", "hostile"}
EXPECT_KEYS = {
    "changed",
    "fails",
    "refused",
    "msg",
    "files",
    "dirs",
    "links",
    "absent",
    "ran",
    "stdins",
    "values",
    "diff",
    "lacks",
    "skipped",
    "unknown",
}


@dataclass(frozen=True)
class Case:
    """One fixture, and where it stands."""

    module: str
    source: str
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For the list of tests."""
        return f"{self.module}-{self.source}-{self.data.get('name', '')}".replace(" ", "_")


def load_cases(root: Path) -> Iterator[Case]:
    """Every case under `root`, one folder for each module."""
    for path in sorted(root.glob("*/*.yml")):
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        for data in loaded if isinstance(loaded, list) else [loaded]:
            yield Case(path.parent.name, path.stem, data)


def as_bytes(value: Any) -> bytes:
    """File content as a fixture has it: a text, or a mapping with `content` or `base64`."""
    if isinstance(value, Mapping):
        if "base64" in value:
            return base64.b64decode(value["base64"])
        value = value.get("content", "")
    assert isinstance(value, str), f"content must be a text in quotes, found {value!r}"
    return value.encode()


def _mode(value: Any, default: int) -> int:
    return default if value is None else int(str(value), 8) if isinstance(value, str) else int(value)


def furnish(host: FakeHost, data: Mapping[str, Any], *, front: bool = False) -> None:
    """Put into a fake host what a fixture's `host`, or a command's `sets`, describes."""
    dirs = data.get("dirs") or {}
    for path in dirs:
        host.add_dir(path, _mode(dirs[path] if isinstance(dirs, Mapping) else None, 0o755))
    for path, value in (data.get("files") or {}).items():
        more = value if isinstance(value, Mapping) else {}
        host.add_file(path, as_bytes(value), _mode(more.get("mode"), 0o644), more.get("uid", 0), more.get("gid", 0))
        host.nodes[path].mtime = float(more.get("mtime", host.nodes[path].mtime))
    for path, target in (data.get("links") or {}).items():
        host.add_link(path, target)
    for path, (major, minor, mode) in (data.get("nodes") or {}).items():
        host.add_file(path, b"", _mode(mode, 0o666))
        host.nodes[path].kind, host.nodes[path].rdev = "char", (major, minor)
    for path in data.get("gone") or []:
        host.remove(path)
    _people(host.users, data.get("users") or {}, {"gid": 0, "home": "", "shell": "/bin/sh", "gecos": "", "groups": []})
    _people(host.groups, data.get("groups") or {}, {"members": []})
    host.env.update({name: str(value) for name, value in (data.get("env") or {}).items()})
    host.programs.update({name: f"/usr/bin/{name}" for name in data.get("programs") or []})
    commands = [_command(entry) for entry in data.get("commands") or []]
    host.commands = commands + host.commands if front else host.commands + commands


def _people(table: dict[str, dict[str, Any]], wanted: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    for name, entry in wanted.items():
        if entry is None:
            table.pop(name, None)
        else:
            table[name] = {"name": name, **base, **table.get(name, {}), **entry}


def _command(entry: Mapping[str, Any]) -> Command:
    stdin = entry.get("stdin")
    return Command(
        [str(word) for word in entry["argv"]],
        int(entry.get("rc", 0)),
        as_bytes(entry.get("stdout", "")),
        as_bytes(entry.get("stderr", "")),
        dict(entry.get("sets") or {}),
        None if stdin is None else as_bytes(stdin),
    )


def _offer(host: FakeHost, value: Any) -> Any:
    """An argument as the module gets it: files and folders of the controller become digests."""
    if not isinstance(value, Mapping) or not ({"blob", "tree"} & set(value)):
        return value
    if "blob" in value:
        data = as_bytes(value["blob"])
        return {"path": value.get("path", "source.txt"), "sha256": host.add_blob(data), "size": len(data), "mode": _mode(value.get("mode"), 0o644)}
    entries: list[dict[str, Any]] = []
    for path, content in value["tree"].items():
        if content is None:
            entries.append({"path": path, "kind": "dir", "mode": 0o755, "sha256": "", "size": 0})
        elif isinstance(content, Mapping) and "link" in content:
            entries.append({"path": path, "kind": "link", "target": content["link"], "mode": 0o777, "sha256": "", "size": 0})
        else:
            data = as_bytes(content)
            mode = _mode(content.get("mode"), 0o644) if isinstance(content, Mapping) else 0o644
            entries.append({"path": path, "kind": "file", "sha256": host.add_blob(data), "size": len(data), "mode": mode})
    return {"path": value.get("path", "folder"), "tree": entries}


def check_case(case: Case) -> None:
    """Run a case in every way that counts; an AssertionError tells what was wrong."""
    unknown = set(case.data) - KNOWN_KEYS | {f"expect.{k}" for k in set(case.data["expect"]) - EXPECT_KEYS}
    assert not unknown, f"unknown words in the fixture: {sorted(unknown)}"
    module = registry.find(case.module)
    assert module is not None, f"no module {case.module}"
    host = FakeHost()
    furnish(host, case.data.get("host") or {})
    args = {name: _offer(host, value) for name, value in (case.data.get("args") or {}).items()}
    _check_mode(case, module, args, host.copy())
    before = host.tree()
    result = run_module(module, args, host, diff=True)
    _compare(case.data["expect"], result, host)
    if result.get("failed"):
        keeps = {"files", "dirs", "links"} & set(case.data["expect"])
        assert keeps or host.tree() == before, "a failed task left something behind"
        return
    if case.data.get("repeats") != "changes":
        _second_run(case, module, args, host)


def _check_mode(case: Case, module: Any, args: dict[str, Any], host: FakeHost) -> None:
    before = host.tree()
    result = run_module(module, args, OverlayHost(cast(RealHost, host)), diff=True)
    assert host.tree() == before, "check mode changed the host"
    assert host.ran == [], f"check mode ran {host.ran}"
    expect = dict(case.data.get("check") or {})
    if not expect:
        expect = {key: case.data["expect"][key] for key in ("changed", "fails", "refused") if key in case.data["expect"]}
    _compare(expect, result, None, "check mode: ")


def _second_run(case: Case, module: Any, args: dict[str, Any], host: FakeHost) -> None:
    before = host.tree()
    result = run_module(module, args, host, diff=True)
    _compare(case.data.get("again") or {"changed": False}, result, None, "second run: ")
    if not result["changed"]:
        assert host.tree() == before, "a second run that says unchanged changed the host"


def _compare(expect: Mapping[str, Any], result: dict[str, Any], host: FakeHost | None, when: str = "") -> None:
    said = json.dumps(result, default=str, ensure_ascii=False)
    wrong = expect.get("fails", expect.get("refused"))
    assert bool(result.get("failed")) == (wrong is not None), f"{when}failed: {said}"
    assert bool(result.get("refused")) == ("refused" in expect), f"{when}refused: {said}"
    if wrong is not None:
        assert str(wrong) in result["msg"], f"{when}message {result['msg']!r} lacks {wrong!r}"
    for key in ("changed", "skipped", "unknown"):
        if key in expect:
            assert bool(result.get(key)) == expect[key], f"{when}{key}: {said}"
    if "msg" in expect:
        assert str(expect["msg"]) in str(result.get("msg", "")), f"{when}message {result.get('msg')!r} lacks {expect['msg']!r}"
    for text in expect.get("lacks") or []:
        assert text not in said, f"{when}{text!r} is in the result: {said}"
    _subset(expect.get("values") or {}, result, when + "result")
    if "diff" in expect:
        headers = [entry["header"] for entry in result.get("diff", [])]
        assert headers == expect["diff"], f"{when}diff headers {headers}"
    if host is not None:
        _compare_host(expect, host)


def _subset(wanted: Any, found: Any, where: str) -> None:
    if isinstance(wanted, Mapping):
        for key, value in wanted.items():
            assert key in (found if isinstance(found, Mapping) else {}), f"{where} has no {key!r}: {found!r}"
            _subset(value, found[key], f"{where}.{key}")
    else:
        assert found == wanted, f"{where}: expected {wanted!r}, found {found!r}"


def _expect_kind(host: FakeHost, path: str, kind: str) -> Stat:
    stat = host.stat(path)
    assert stat is not None, f"{path}: expected a {kind}, found nothing"
    assert stat.kind == kind, f"{path}: expected a {kind}, found {stat}"
    return stat


def _compare_host(expect: Mapping[str, Any], host: FakeHost) -> None:
    for path, value in (expect.get("files") or {}).items():
        stat = _expect_kind(host, path, "file")
        if not isinstance(value, Mapping) or {"content", "base64"} & set(value):
            assert host.read_bytes(path) == as_bytes(value), f"{path}: found {host.read_bytes(path)!r}"
        for key in ("mode", "uid", "gid") if isinstance(value, Mapping) else ():
            if key in value:
                want = _mode(value[key], 0) if key == "mode" else value[key]
                assert getattr(stat, key) == want, f"{path}: {key} is {getattr(stat, key):#o}, expected {want:#o}"
    dirs = expect.get("dirs") or {}
    for path in dirs:
        stat = _expect_kind(host, path, "dir")
        want_mode = dirs[path] if isinstance(dirs, Mapping) else None
        assert want_mode is None or stat.mode == _mode(want_mode, 0), f"{path}: mode is {stat.mode:#o}"
    for path, target in (expect.get("links") or {}).items():
        found = _expect_kind(host, path, "link").target
        assert found == target, f"{path}: expected a link to {target}, found {found}"
    for path in expect.get("absent") or []:
        assert host.stat(path) is None, f"{path} is still there"
    if "ran" in expect:
        assert host.ran == [tuple(map(str, argv)) for argv in expect["ran"]], f"ran {host.ran}"
    if "stdins" in expect:
        assert host.stdins == [as_bytes(text) for text in expect["stdins"]], f"stdin was {host.stdins}"
