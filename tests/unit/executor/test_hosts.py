# SPDX-License-Identifier: Apache-2.0
"""Several hosts, tags, includes, limits and the precedence of variables, with real local agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flyops.errors import LoadError, UsageError
from tests.beds.play import inventory, play, tasks, write

GONE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_timeout": 2}
HERE = {"ansible_connection": "local"}


# run_once, delegation, serial


def test_run_once_is_decided_on_the_first_host(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- command: echo x\n  run_once: true\n  when: inventory_hostname == 'h2'\n  register: r\n", hosts="h1 h2")
    assert found.vars("h1")["r"]["skipped"]
    assert found.vars("h2")["r"]["skipped"]


def test_run_once_after_the_first_host_failed(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        "- fail: {}\n  when: inventory_hostname == 'h1'\n- command: echo {{ inventory_hostname }}\n  run_once: true\n  register: r\n- debug: {msg: '{{ r.stdout }}'}\n",
        hosts="h1 h2 h3",
    )
    assert found.vars("h3")["r"]["stdout"] == "h2"
    assert found.seen.result("debug", "h3")["msg"] == "h2"


def test_hostvars_of_another_host(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        "- command: echo {{ inventory_hostname }}\n  register: r\n- set_fact: {other: \"{{ hostvars['h2'].r.stdout }} {{ groups.all | map('extract', hostvars, 'plain') | join(',') }}\"}\n",
        hosts={"h1": {**HERE, "plain": 1}, "h2": {**HERE, "plain": 2}},
    )
    assert found.vars("h1")["other"] == "h2 1,2"


def test_delegate_to(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        "- command: echo $WHO\n  delegate_to: h2\n  environment: {WHO: '{{ inventory_hostname }}'}\n  register: r\n- debug: {msg: '{{ r.stdout }}'}\n",
        hosts={"h1": HERE, "h2": HERE},
    )
    assert found.vars("h1")["r"]["stdout"] == "h1"
    assert found.result.hosts["h2"].count.up_bytes > found.result.hosts["h1"].count.up_bytes == 0


def test_serial_and_max_fail_percentage(tmp_path: Path) -> None:
    text = """
    - hosts: all
      gather_facts: false
      serial: 1
      max_fail_percentage: 0
      tasks:
        - command: "{{ 'false' if inventory_hostname == 'b' else 'true' }}"
    """
    found = play(tmp_path, text, hosts="a b c")
    assert [event.host for event in found.seen.of("result")] == ["a", "b"]
    assert found.result.exit_code == 1


@pytest.mark.parametrize(("serial", "wanted"), [("2", [2, 2, 1]), ("[1, 3]", [1, 3, 1]), ("'40%'", [2, 2, 1])])
def test_serial_sizes(tmp_path: Path, serial: str, wanted: list[int]) -> None:
    text = f"- hosts: all\n  gather_facts: false\n  serial: {serial}\n  tasks:\n    - set_fact: {{n: '{{{{ ansible_play_batch | length }}}}'}}\n"
    found = play(tmp_path, text, hosts="a b c d e")
    sizes = [int(found.vars(name)["n"]) for name in "abcde"]
    assert [sizes[sum(wanted[:i])] for i in range(len(wanted))] == wanted


def test_add_host_and_groups(tmp_path: Path) -> None:
    text = """
    - hosts: all
      gather_facts: false
      tasks:
        - add_host: {name: new, groups: fresh, ansible_connection: local, color: red}
    - hosts: fresh
      gather_facts: false
      tasks:
        - command: echo {{ color }} {{ group_names | join }}
          register: r
    """
    assert play(tmp_path, text, hosts="h1 h2").vars("new")["r"]["stdout"] == "red fresh"


def test_meta_end(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        "- meta: end_host\n  when: inventory_hostname == 'h1'\n- {name: one, debug: {}}\n- meta: end_play\n- {name: two, debug: {}}\n",
        hosts="h1 h2",
    )
    assert found.seen.order("h1") == []
    assert "one:ok" in found.seen.order("h2")
    assert "two:ok" not in found.seen.order("h2")
    assert found.result.exit_code == 0


def test_hosts_run_ahead_but_are_shown_task_by_task(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        "- {name: a, command: \"sh -c 'sleep {{ wait }}'\"}\n- {name: b, command: 'true'}\n",
        hosts={"h1": {**HERE, "wait": 0.5}, "h2": {**HERE, "wait": 0}},
    )
    shown = [(event.task, event.host) for event in found.seen.of("result")]
    assert [task for task, _ in shown] == ["a", "a", "b", "b"]
    assert [event.task for event in found.seen.of("task")] == ["a", "b"]


# tags

TAGGED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("- include_tasks: inner.yml\n", {"tags": ["t1"]}, []),
    ("- include_tasks: inner.yml\n  tags: t1\n", {"tags": ["t1"]}, ["in1"]),
    ("- import_tasks: inner.yml\n  tags: t1\n", {"tags": ["t1"]}, ["in1", "in2"]),
    ("- include_tasks: {file: inner.yml, apply: {tags: t1}}\n  tags: t1\n", {"tags": ["t1"]}, ["in1", "in2"]),
    ("- {name: a, debug: {}, tags: always}\n- {name: n, debug: {}, tags: [never, x]}\n- {name: u, debug: {}}\n", {}, ["a", "u"]),
    ("- {name: a, debug: {}, tags: always}\n- {name: n, debug: {}, tags: [never, x]}\n- {name: u, debug: {}}\n", {"tags": ["x"]}, ["a", "n"]),
    ("- {name: a, debug: {}, tags: always}\n- {name: u, debug: {}}\n", {"skip_tags": ["always"]}, ["u"]),
    ("- {name: a, debug: {}, tags: 'p,q'}\n- {name: u, debug: {}}\n", {"tags": ["q"]}, ["a"]),
    ("- {name: a, debug: {}, tags: p}\n- {name: u, debug: {}}\n", {"tags": ["untagged"]}, ["u"]),
    ("- {name: a, debug: {}, tags: p}\n- {name: u, debug: {}}\n", {"tags": ["tagged"]}, ["a"]),
    ("- block:\n    - {name: a, debug: {}}\n  tags: p\n- {name: u, debug: {}}\n", {"skip_tags": ["p"]}, ["u"]),
]


@pytest.mark.parametrize(("text", "options", "wanted"), TAGGED)
def test_tags(tmp_path: Path, text: str, options: dict[str, Any], wanted: list[str]) -> None:
    write(tmp_path, "- {name: in1, debug: {}, tags: t1}\n- {name: in2, debug: {}}\n", "inner.yml")
    order = tasks(tmp_path, text, **options).seen.order()
    assert [entry.split(":")[0] for entry in order if not entry.startswith("include_tasks")] == wanted


def test_include_with_loop_vars_and_when(tmp_path: Path) -> None:
    write(tmp_path, '- set_fact: {seen: "{{ seen | default([]) + [[item, given]] }}"}\n', "sub/inner.yml")
    found = tasks(tmp_path, "- include_tasks: sub/inner.yml\n  loop: [1, 2, 3]\n  when: item != 2\n  vars: {given: '{{ item * 10 }}'}\n")
    assert found.vars()["seen"] == [[1, 10], [3, 30]]


def test_an_include_with_a_meeting_inside(tmp_path: Path) -> None:
    write(
        tmp_path,
        "- command: echo {{ inventory_hostname }}\n  run_once: true\n  register: r\n- command: echo {{ r.stdout }}\n  register: s\n",
        "inner.yml",
    )
    found = tasks(tmp_path, "- include_tasks: inner.yml\n", hosts="h1 h2")
    assert [found.vars(name)["s"]["stdout"] for name in ("h1", "h2")] == ["h1", "h1"]


def test_start_at_task(tmp_path: Path) -> None:
    text = "- {name: a, debug: {}}\n- {name: b b, debug: {}}\n- {name: c, debug: {}}\n"
    assert tasks(tmp_path, text, start_at_task="b b").seen.order() == ["b b:ok", "c:ok"]
    assert tasks(tmp_path, text, start_at_task="b*").seen.order() == ["b b:ok", "c:ok"]
    with pytest.raises(UsageError, match="did you mean 'b b'"):
        tasks(tmp_path, text, start_at_task="bb")


# limit, variables, environment


def test_limit(tmp_path: Path) -> None:
    text = "- hosts: localhost\n  gather_facts: false\n  tasks: [{name: l, debug: {}}]\n- hosts: web\n  gather_facts: false\n  tasks: [{name: w, debug: {}}]\n"
    groups = {"web": ["w1", "w2"]}
    found = play(tmp_path, text, hosts="w1 w2", groups=groups, limit="w1")
    assert found.seen.order() == ["w:ok"]
    assert play(tmp_path, text, hosts="w1 w2", groups=groups).seen.order() == ["l:ok", "w:ok", "w:ok"]
    with pytest.raises(UsageError, match="leaves no hosts") as caught:
        play(tmp_path, text, hosts="w1 w2", groups=groups, limit="nope")
    assert caught.value.exit_code == 2


def test_precedence_in_a_play(tmp_path: Path) -> None:
    write(tmp_path, "v: file\nw: file\n", "v.yml")
    text = """
    - hosts: all
      gather_facts: false
      vars: {v: play, w: play, x: play, y: play, z: play}
      vars_files: [v.yml]
      tasks:
        - block:
            - set_fact: {seen: ["{{ v }}", "{{ w }}", "{{ x }}", "{{ y }}", "{{ z }}", "{{ i }}"]}
              vars: {x: task, y: task}
          vars: {w: block, x: block}
    """
    found = play(tmp_path, text, hosts={"h1": {**HERE, "i": "inventory", "v": "inventory"}}, extra_vars={"y": "extra"})
    assert found.vars()["seen"] == ["file", "block", "task", "extra", "play", "inventory"]


def test_environment(tmp_path: Path) -> None:
    text = "- hosts: all\n  gather_facts: false\n  environment: {A: play, B: play}\n  tasks:\n    - shell: echo $A $B\n      environment: {B: task}\n      register: r\n"
    assert play(tmp_path, text).vars()["r"]["stdout"] == "play task"


def test_handlers_that_are_missing_are_found_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no handler 'nope'"):
        tasks(tmp_path, f"- command: touch {tmp_path}/never\n  notify: nope\n")
    assert not (tmp_path / "never").exists()


def test_an_inventory_that_names_no_connection_means_ssh(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- command: 'true'\n", hosts=inventory({"h1": {"ansible_host": "127.0.0.1", "ansible_port": 1}}))
    assert found.result.exit_code == 4
