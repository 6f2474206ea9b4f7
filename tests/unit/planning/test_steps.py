# SPDX-License-Identifier: Apache-2.0
"""What a host does next, decided without a host: values on their way, targets, conditions, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flyops.errors import PlanError
from flyops.loading.parser import Parser
from flyops.loading.playbook import Task
from flyops.loading.templating import render_variable
from flyops.loading.variables import PendingResult, Scope
from flyops.planning import registry
from flyops.planning.steps import Run, Step, is_meeting, plan_task, target_of
from tests.beds.play import write


def task(folder: Path, text: str) -> Task:
    body = text.replace("\n", "\n      ")
    book = Parser(registry.find_spec, registry.names).playbook(str(write(folder, f"- hosts: all\n  tasks:\n    - {body}\n")))
    found = book.plays[0].tasks[0]
    assert isinstance(found, Task)
    return found


def scope(**variables: Any) -> Scope:
    return Scope((variables, {"inventory_hostname": "h", "ansible_connection": "local"}), render_variable)


def plan(folder: Path, text: str, made: Scope | None = None, run: Run | None = None) -> Step:
    return plan_task(task(folder, text), made or scope(), run or Run())


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("command: echo {{ r.stdout }}", True),
        ("command: echo\nwhen: r is changed", True),
        ("command: echo\nwhen: r is defined", True),
        ("command: echo {{ r.stdout | default('x') }}", True),
        ("command: echo {{ other }}", True),
        ("command: echo {{ lookup('vars', 'r') }}", True),
        ("command: echo {{ ansible_facts.system }}", True),
        ("command: echo {{ ansible_distribution }}", True),
        ("command: echo\nenvironment: {A: '{{ r.stdout }}'}", True),
        ("command: echo {{ item }}\nloop: '{{ r.stdout_lines }}'", True),
        ("command: echo {{ plain }}", False),
        ("command: echo {{ ansible_connection }}", False),
        ("command: echo\nbecome: true", False),
        ("command: echo\nregister: r", False),
    ],
)
def test_what_waits_for_a_result_on_its_way(tmp_path: Path, text: str, waits: bool) -> None:
    from flyops.loading.positions import Text

    made = scope(other=Text("{{ r.stdout }}"), plain=1)
    made.pending = frozenset({"r"})
    made.pending_facts = True
    if waits:
        with pytest.raises(PendingResult):
            plan(tmp_path, text, made)
    else:
        assert plan(tmp_path, text, made).items[0].call


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("command: x", False),
        ("command: x\nchanged_when: false", False),
        ("command: x\nfailed_when: false", False),
        ("command: x\nignore_errors: true", False),
        ("command: x\nchanged_when: 1 == 1", True),
        ("command: x\nfailed_when: 1 == 2", True),
        ("command: x\nuntil: 1 == 1", True),
        ("command: x\nretries: 2", True),
    ],
)
def test_what_ends_a_segment(tmp_path: Path, text: str, ends: bool) -> None:
    assert plan(tmp_path, text).ends_segment is ends


@pytest.mark.parametrize(
    ("text", "meets"),
    [
        ("command: x", False),
        ("command: x\nrun_once: true", True),
        ("command: x\nrun_once: false", False),
        ("command: x\ndelegate_to: h2", True),
        ("command: echo {{ hostvars.h2.x }}", True),
        ("meta: noop", True),
    ],
)
def test_where_hosts_meet(tmp_path: Path, text: str, meets: bool) -> None:
    assert is_meeting(task(tmp_path, text)) is meets


def test_check_and_diff(tmp_path: Path) -> None:
    def mode(text: str, run: Run) -> tuple[str, bool]:
        call = plan(tmp_path, text, run=run).items[0].call
        assert call
        return call.check, call.diff

    assert mode("command: x", Run()) == ("", False)
    assert mode("command: x", Run(check=True, diff=True)) == ("run", True)
    assert mode("command: x\ncheck_mode: false", Run(check=True)) == ("", False)
    assert mode("command: x\ncheck_mode: true\ndiff: true", Run()) == ("task", True)


def test_omit_and_secrets(tmp_path: Path) -> None:
    from flyops.loading.lookups import OMIT

    learned: list[Any] = []
    made = Scope(({"omit": OMIT, "inventory_hostname": "h", "ansible_connection": "local"},), render_variable)
    made.on_secret = learned.append
    call = plan(tmp_path, "uri: {url: 'http://x/', method: '{{ omit }}', url_password: sesame}", made).items[0].call
    assert call
    assert "method" not in call.args
    assert "sesame" in learned


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"ansible_connection": "ssh"}, {"connection": "ssh", "address": "h", "port": 0}),
        ({"ansible_connection": "ssh", "ansible_host": "a", "ansible_port": "22", "ansible_user": "u"}, {"address": "a", "port": 22, "user": "u"}),
        ({"ansible_connection": "community.general.lxc"}, {"connection": "lxc", "guest": "h"}),
        ({"ansible_connection": "pct", "ansible_pct_id": 101}, {"connection": "pct", "guest": "101"}),
        ({"ansible_connection": "incus", "ansible_incus_name": "g", "ansible_incus_binary": "lxc"}, {"guest": "g", "incus_binary": "lxc"}),
        ({"ansible_connection": "community.general.incus"}, {"connection": "incus", "guest": "h", "incus_binary": "incus"}),
        ({"ansible_connection": "containers.podman.podman", "ansible_lxc_name": "other"}, {"connection": "podman", "guest": "h"}),
        ({"ansible_become": "yes", "ansible_become_user": "fly"}, {"become": True, "become_user": "fly"}),
        ({"ansible_become": False}, {"become": False}),
    ],
)
def test_targets(tmp_path: Path, variables: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = target_of(task(tmp_path, "command: x\nbecome: true"), scope(**variables))
    assert {key: getattr(found, key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("command: x", {"ansible_connection": "winrm"}),
        ("command: x", {"ansible_ssh_common_args": "-o X"}),
        ("command: x", {"ansible_become_password": "p"}),
        ("command: x\nbecome: true\nbecome_method: su", {}),
    ],
)
def test_what_is_not_supported_yet(tmp_path: Path, text: str, variables: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="not supported yet"):
        target_of(task(tmp_path, text), scope(**variables))


def test_a_proxmox_guest_without_its_number(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="reached by its number, found 'h'") as caught:
        target_of(task(tmp_path, "command: x"), scope(ansible_connection="pct"))
    assert "ansible_pct_id" in caught.value.fix
