# SPDX-License-Identifier: Apache-2.0
"""The write log: every change of the host is noted with its path, and one outside the run's places is refused before it happens."""

from __future__ import annotations

import inspect
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from flyops import places
from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.errors import Refused
from flyops.model.host import Host
from tests.beds.play import Played, inventory, play, tasks

QUIET = {"run", "blob", "note", "would"}  # `run` is noted by its words; the others write nothing of the host's


def acting() -> list[str]:
    """The methods that flyops.model.host.Host lists below `# acting`, and the lock."""
    text = inspect.getsource(Host)
    body = text[text.index("# acting") :]
    return [line.split("def ")[1].split("(")[0] for line in body.splitlines() if line.strip().startswith("def ")]


def do(host: Any, name: str, folder: Path) -> None:
    """One call of each."""
    path = str(folder / "x")
    calls: dict[str, tuple[Any, ...]] = {
        "write_bytes": (path, b"1"), "write_text": (path, "1"), "write_through": (path, "1"), "mkdir": (path,), "chmod": (path, 0o600), "chown": (path, -1, -1),
        "symlink": ("there", path), "link": (str(folder / "old"), path), "mknod": (path, stat.S_IFCHR | 0o600, 1, 3),
        "rename": (str(folder / "old"), path), "remove": (path,), "utime": (path, 1.0, 1.0), "hold_lock": (path, "me", 0.0),
    }  # fmt: skip
    getattr(host, name)(*calls[name])


@pytest.mark.parametrize("name", [name for name in acting() if name not in QUIET])
@pytest.mark.parametrize("kind", ["real", "overlay"])
def test_every_way_to_change_a_host_is_noted_and_fenced(tmp_path: Path, name: str, kind: str) -> None:
    """Named by the protocol itself: a method that is added and does not note itself fails here."""
    if name == "mknod" and os.geteuid() != 0:
        pytest.skip("needs root")
    if name == "hold_lock" and kind == "overlay":
        return  # check mode only looks at a lock
    real = RealHost()
    host = real if kind == "real" else OverlayHost(real)
    (tmp_path / "old").write_text("old")
    if name in ("chmod", "chown", "utime", "write_through"):
        (tmp_path / "x").write_text("x")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    host.write_log.begin([str(tmp_path / "elsewhere")])
    with pytest.raises(Refused, match="this run may write to"):
        do(host, name, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    host.write_log.begin([str(tmp_path)])
    do(host, name, tmp_path)
    assert str(tmp_path / "x") in [path for _, path in host.write_log.into({})["writes"]]


def test_links_and_dots_lead_nowhere_else(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (own / "link").symlink_to(other)
    (tmp_path / "name").symlink_to(own)
    host = RealHost()
    host.write_log.begin([str(tmp_path / "name/"), str(tmp_path / "name/../flat*")])
    host.write_text(str(own / "x"), "own\n")
    host.write_text(str(tmp_path / "flat1"), "own\n")
    for path in (own / "link/config", own / "../other/config", Path(f"{own}/link/../config")):
        with pytest.raises(Refused, match="refused to write"):
            host.write_text(str(path), "stolen\n")
    (other / "old").write_text("theirs\n")
    (own / "through").symlink_to(other / "old")
    with pytest.raises(Refused, match=f"refused to write {other}/old"):
        host.write_through(str(own / "through"), "stolen\n")
    (other / "old").unlink()
    host.remove(str(own / "link"))  # the link itself is ours
    assert list(other.iterdir()) == [] and not (tmp_path / "config").exists()


def test_commands_are_logged_as_such_and_looks_are_not() -> None:
    host = RealHost()
    host.write_log.begin(None)
    host.run(["true", "a b"])
    host.run(["true"], query=True)
    host.read_text("/proc/version")
    assert host.write_log.into({}) == {"writes": [["run", "true 'a b'"]]}
    host.write_log.begin(None)
    assert host.write_log.into({"changed": False}) == {"changed": False}


# through a run


def writes(found: Played) -> list[tuple[str, str]]:
    return [(entry["kind"], entry["path"]) for entry in found.result.hosts["h1"].writes]


def test_a_run_has_its_write_log(tmp_path: Path) -> None:
    text = f"""\
    - copy: {{content: "{{{{ item }}}}", dest: "{tmp_path}/{{{{ item }}}}"}}
      loop: [a, b]
      name: Two files
    - command: echo
    - command: echo geheimes
      no_log: true
    - stat: {{path: {tmp_path}/a}}
    """
    found = tasks(tmp_path, text)
    assert [path for _, path in writes(found) if "/" in path and not path.startswith("echo")] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert [path for kind, path in writes(found) if kind == "run"] == ["echo", "echo"]
    assert {(entry["task"], entry["on"]) for entry in found.result.hosts["h1"].writes} >= {("Two files", "h1")}
    assert ["write", f"{tmp_path}/a"] in found.seen.of("item")[0].result["writes"]
    assert writes(tasks(tmp_path, text, check=True)) == []


def test_a_neighbours_config_is_refused_with_who_and_where(tmp_path: Path) -> None:
    """A play on a container host that means one guest and writes another's; check mode says so, too."""
    for name in ("ours", "other"):
        (tmp_path / "lxc" / name).mkdir(parents=True)
        (tmp_path / "lxc" / name / "config").write_text("lxc.include = x\n")
    text = """\
    - hosts: all
      gather_facts: false
      vars: {flyops_paths: ["{{ here }}/lxc/ours"]}
      tasks:
        - lineinfile: {path: "{{ here }}/lxc/{{ guest }}/config", line: "lxc.start.auto = 1"}
    """
    given = {"here": str(tmp_path), "guest": "other"}
    for check in (True, False):
        found = play(tmp_path, text, extra_vars=given, check=check)
        assert found.result.exit_code == 3
        said = found.result.hosts["h1"].message
        assert f"refused to write {tmp_path}/lxc/other/config, which belongs to the guest other" in said and "flyops_paths" in said
    assert (tmp_path / "lxc/other/config").read_text() == "lxc.include = x\n"
    found = play(tmp_path, text, extra_vars={**given, "guest": "ours"})
    assert (found.result.exit_code, found.stats()) == (0, {"ok": 1, "changed": 1})


def test_places_that_are_no_paths_are_an_error(tmp_path: Path) -> None:
    hosts = inventory({"h1": {"ansible_connection": "local", "flyops_paths": "/opt/fly"}})
    found = play(tmp_path, "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: touch x\n", hosts=hosts)
    assert found.result.exit_code == 1 and "flyops_paths: expected a list of absolute paths" in found.result.hosts["h1"].message


@pytest.mark.parametrize("name", ["provision", "retire"])
def test_a_playbook_for_one_guest_has_a_fence_around_it(tmp_path: Path, name: str) -> None:
    """The fence that the playbook itself declares, with a task that means another guest's config."""
    lines = (places.REPOSITORY / "playbooks" / f"{name}.yml").read_text().splitlines()
    declared = next(line for line in lines if line.strip().startswith("flyops_paths:")).strip()
    (tmp_path / "lxc/other").mkdir(parents=True)
    given = {
        "guest_lxc_path": f"{tmp_path}/lxc",
        "guest_name": "ours",
        "inventory_file": f"{tmp_path}/inv/ours.yml",
        "archive_file": f"{tmp_path}/arc/ours.tar.gz",
    }
    text = f"""\
    - hosts: all
      gather_facts: false
      vars:
        {declared}
      tasks:
        - file: {{path: "{{{{ path | dirname }}}}", state: directory}}
        - copy: {{content: x, dest: "{{{{ path }}}}"}}
    """
    for path in ("lxc/ours/config", "inv/ours.yml"):
        assert play(tmp_path, text, extra_vars={**given, "path": f"{tmp_path}/{path}"}).result.exit_code == 0
    found = play(tmp_path, text, extra_vars={**given, "path": f"{tmp_path}/lxc/other/config"})
    assert found.result.exit_code == 3 and "which belongs to the guest other" in found.result.hosts["h1"].message
