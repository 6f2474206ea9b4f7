# SPDX-License-Identifier: Apache-2.0
"""Agents inside a real guest: by lxc-attach from here, and through an sshd on its host; nothing leaks in, nothing stays behind."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.beds.lxc import Guest
from tests.beds.play import LOCAL, OLD_PYTHON, Played, inventory, tasks
from tests.beds.ssh import sshd

pytestmark = [pytest.mark.lxc, pytest.mark.root]


def play_in(guest: Guest, folder: Path, text: str, parents: dict[str, dict[str, Any]], **options: Any) -> Played:
    via = {"ansible_via": next(iter(parents))} if parents else {}
    hosts = inventory({"guest": {"ansible_connection": "lxc", "ansible_lxc_name": guest.name, **via}, **parents})
    return tasks(folder, text, hosts=hosts, limit="guest", **options)


TEXT = """
- command: hostname
  register: name
- command: env
  register: env
- command: id -un
  become: true
  become_user: nobody
  register: who
- copy: {src: "{{ file }}", dest: "/root/it's \\"here\\""}
- command: sha256sum "/root/it's \\"here\\""
  register: sum
  changed_when: false
- shell: head -c 5000000 /dev/zero | tr '\\0' a; head -c 5000000 /dev/zero | tr '\\0' b >&2
  register: big
"""


@pytest.mark.parametrize("way", ["here", "ssh"])
def test_a_guest(lxc_guest: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CONTROLLER", "x")
    source = tmp_path / "big file"
    source.write_bytes(os.urandom(1_048_577))
    with sshd(tmp_path / "sshd") as server:
        parents = {} if way == "here" else {"parent": server.host_vars(ansible_user="root", ansible_python_interpreter=str(OLD_PYTHON or "python3"))}
        found = play_in(lxc_guest, tmp_path, TEXT, parents, extra_vars={"file": str(source)})
        assert found.result.exit_code == 0, [event.result for event in found.seen.of("result")]
        seen = found.vars("guest")
        assert seen["name"]["stdout"] == lxc_guest.name
        assert "SECRET_OF_THE_CONTROLLER" not in seen["env"]["stdout"]
        assert seen["who"]["stdout"] == "nobody"
        assert hashlib.sha256(source.read_bytes()).hexdigest() in seen["sum"]["stdout"]
        assert (len(seen["big"]["stdout"]), len(seen["big"]["stderr"])) == (5_000_000, 5_000_000)
        again = play_in(lxc_guest, tmp_path, "- command: 'true'\n  changed_when: false\n" * 10, parents)
        assert again.result.hosts["guest"].count.turns == 1
        assert again.result.hosts["guest"].count.bundles == 0
    left = lxc_guest.run("sh", "-c", "ps -eo args | grep -c '[F]LYOPS' || true").stdout.strip()
    assert left == "0"


def test_a_controller_that_is_killed_leaves_nothing_in_the_guest(lxc_guest: Guest, tmp_path: Path) -> None:
    """Killing lxc-attach leaves its child running; ours ends with its stdin, and its children with it."""
    import subprocess
    import sys

    code = (
        "from flyops.transport.connect import Pool\nfrom flyops.model.target import Target\nfrom flyops.transport.session import Sent\n"
        f"target = Target('g', 'lxc', guest={lxc_guest.name!r})\n"
        "list(Pool().session(target).request([Sent('shell', {'cmd': 'touch /root/running; sleep 4242'}, 1)], print))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])

    def sleeping() -> bool:
        return lxc_guest.run("sh", "-c", "ps -eo args | grep -q '[s]leep 4242' && echo yes || true").stdout.strip() == "yes"

    deadline = time.monotonic() + 20
    while not sleeping() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert sleeping()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while sleeping() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not sleeping()


def test_a_guest_that_is_not_there(tmp_path: Path) -> None:
    hosts = inventory({"guest": {"ansible_connection": "lxc", "ansible_lxc_name": "flyops-absent"}, "h1": LOCAL})
    found = tasks(tmp_path, "- command: 'true'\n", hosts=hosts)
    assert found.result.exit_code == 4
    assert found.stats("guest") == {"unreachable": 1}
    assert found.stats("h1") == {"ok": 1, "changed": 1}
