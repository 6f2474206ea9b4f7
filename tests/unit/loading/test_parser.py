# SPDX-License-Identifier: Apache-2.0
"""Everything wrong in a playbook is found before the first task: with its place, the nearest right word, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyops.errors import LoadError
from flyops.loading.parser import Parser
from flyops.loading.playbook import Playbook, walk
from flyops.operations.play import load_playbook
from flyops.planning import registry
from tests.beds.play import inventory, write


def parse(folder: Path, text: str) -> Playbook:
    return Parser(registry.find_spec, registry.names).playbook(str(write(folder, text)))


HEAD = "- hosts: all\n  gather_facts: false\n  tasks:\n"

WRONG = [
    (HEAD + "    - debgu: {msg: hi}\n", "4:7", "did you mean 'debug'?"),
    (HEAD + "    - debug: {mgs: hi}\n", "4:15", "unknown argument 'mgs'; did you mean 'msg'?"),
    (HEAD + "    - debug: {msg: hi}\n      whn: true\n", "5:7", "did you mean 'when'?"),
    (HEAD + "    - debug: {msg: hi}\n      async: 5\n", "5:7", "'async' is not supported yet"),
    (HEAD + "    - debug: {msg: hi}\n      with_dict: {}\n", "5:7", "'with_dict' is not supported yet"),
    (HEAD + "    - git: {repo: x}\n", "4:7", "module 'git' is not supported yet"),
    (HEAD + "    - community.general.x: {repo: x}\n", "4:7", "not supported yet"),
    (HEAD + "    - name: nothing\n", "4:7", "a task needs a module"),
    (HEAD + "    - debug: {msg: a}\n      fail: {msg: b}\n", "5:7", "a task has one module"),
    (HEAD + "    - copy: {content: x}\n", "4:7", "missing argument 'dest'"),
    (HEAD + "    - copy: {content: x, src: y, dest: /z}\n", "4:7", "exclude each other"),
    (HEAD + "    - file: {path: /x, state: dir}\n", "4:24", "expected one of"),
    (HEAD + "    - file: {path: /x, mode: 644}\n", "4:30", "decimal number"),
    (HEAD + "    - file: {path: /x, mode: '0888'}\n", "4:24", "octal or symbolic"),
    (HEAD + "    - command: echo 'a\n", "4:16", "expected a closing '"),
    (HEAD + "    - debug: {msg: '{{ x'}\n", "4:20", "template error"),
    (HEAD + "    - debug: {msg: a}\n      when: x ==\n", "5:13", "template error"),
    (HEAD + "    - debug: {msg: a}\n      notify: restrat\n", "5:15", "no handler 'restrat'"),
    (HEAD + "    - debug: {msg: a}\n      register: 1x\n", "5:17", "no variable name"),
    (HEAD + "    - debug: {msg: a}\n      become: perhaps\n", "5:15", "expected a boolean"),
    (HEAD + "    - debug: {msg: a}\n      loop_control: {lable: x}\n", "5:22", "did you mean 'label'?"),
    (HEAD + "    - debug: {msg: a}\n      msg: b\n      name: c\n      name: d\n", "7:7", "given twice"),
    (HEAD + "    - block:\n        - debug: {msg: a}\n      rescu: []\n", "6:7", "did you mean 'rescue'?"),
    (HEAD + "    - import_tasks: absent.yml\n", "4:7", "no such file"),
    (HEAD + "    - import_tasks: '{{ x }}.yml'\n", "4:7", "plain name"),
    (HEAD + "    - just a text\n", "4:7", "expected a task"),
    ("- hosts: all\n  rolez: [x]\n", "2:3", "unknown keyword 'rolez'"),
    ("- hosts: all\n  roles: [x]\n", "2:3", "not supported yet"),
    ("- hosts: all\n  strategy: free\n", "2:3", "not supported yet"),
    ("- tasks: []\n", "1:3", "needs `hosts`"),
    ("- hosts: all\n  hosts: web\n", "2:3", "given twice"),
    ("hosts: all\n", "1:1", "expected a list of plays"),
    ("- hosts: all\n  tasks: {debug: }\n", "2:3", "must be a list of tasks"),
    ("- hosts: all\n  vars: {a: {{ b }}}\n", "2:14", "a key must be a text"),
    (HEAD + "    - debug: {msg: !vault x}\n", "4:20", "vault"),
]


@pytest.mark.parametrize(("text", "place", "says"), WRONG)
def test_what_is_wrong(tmp_path: Path, text: str, place: str, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        parse(tmp_path, text)
    assert caught.value.exit_code == 2
    assert f"{tmp_path}/play.yml:{place}: " in str(caught.value)
    assert says in str(caught.value)


def test_all_errors_are_shown_together(tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        parse(tmp_path, HEAD + "    - debgu: {}\n    - debug: {mgs: 1}\n      whn: 1\n    - fail:\n      notify: x\n")
    text = str(caught.value)
    assert [line.split(":")[1] for line in text.splitlines() if "play.yml" in line] == ["4", "5", "6", "8"]
    assert text.endswith("4 errors; nothing was run")


def test_merge_keys_are_no_duplicates(tmp_path: Path) -> None:
    book = parse(tmp_path, "- hosts: all\n  vars:\n    base: &b {x: 1, y: 2}\n    more: {<<: *b, x: 3}\n")
    assert book.plays[0].inherit.vars[0]["more"] == {"x": 3, "y": 2}


def test_errors_in_imported_and_included_files(tmp_path: Path) -> None:
    write(tmp_path, "- debgu: {}\n", "tasks/a.yml")
    write(tmp_path, "- debug: {mgs: 1}\n- include_tasks: c.yml\n", "tasks/b.yml")
    write(tmp_path, "- fial: {}\n", "tasks/c.yml")
    with pytest.raises(LoadError) as caught:
        parse(tmp_path, HEAD + "    - import_tasks: tasks/a.yml\n    - include_tasks: tasks/b.yml\n")
    for place in ("a.yml:1:3", "b.yml:1:11", "c.yml:1:3"):
        assert place in str(caught.value)


def test_forms_of_arguments(tmp_path: Path) -> None:
    book = parse(
        tmp_path,
        HEAD
        + """\
    - debug: msg="a b" verbosity=1
    - command: echo "x y" chdir=/tmp creates='/a b'
    - action: command echo hi
    - action: {module: debug, msg: x}
    - ansible.builtin.command: echo
      args: {chdir: /}
    - shell: |
        if true; then
          echo a=b
        fi
    - meta: flush_handlers
    - set_fact: a=no b='{{ 5 }}'
""",
    )
    found = [(task.module, dict(task.args)) for task in walk(book.plays[0].tasks)]
    free = registry.find_spec("command").free_form  # type: ignore[union-attr]
    assert found[0] == ("debug", {"msg": "a b", "verbosity": "1"})
    assert found[1] == ("command", {free: 'echo "x y"', "chdir": "/tmp", "creates": "/a b"})
    assert found[2] == ("command", {free: "echo hi"})
    assert found[3] == ("debug", {"msg": "x"})
    assert found[4] == ("command", {free: "echo", "chdir": "/"})
    assert found[5][1][free] == "if true; then\n  echo a=b\nfi\n"
    assert found[6] == ("meta", {"action": "flush_handlers"})
    assert found[7] == ("set_fact", {"a": "no", "b": "{{ 5 }}"})


UNKNOWN = [
    ("- debug: {msg: '{{ nope }}'}", "nope"),
    ("- debug: {msg: hi}\n  when: nope", "nope"),
    ("- debug: {msg: '{{ inventory_hostnam }}'}", "did you mean 'inventory_hostname'"),
    ("- assert: {that: nope == 1}", "nope"),
    ("- debug: {msg: '{{ item }} {{ nope }}'}\n  loop: [1]", "nope"),
]
GUARDED = [
    "- debug: {msg: '{{ nope | default(1) }}'}",
    "- debug: {msg: '{{ nope.x.y | d(1) }}'}",
    "- debug: {msg: '{{ nope }}'}\n  when: nope is defined",
    "- debug: {var: nope}",
    "- command: 'true'\n  register: nope\n- debug: {msg: '{{ nope }}'}",
    "- set_fact: {nope: 1}\n- debug: {msg: '{{ nope }}'}",
    "- debug: {msg: '{{ nope }}'}\n  vars: {nope: 1}",
    "- debug: {msg: '{{ thing }} {{ n }}'}\n  loop: [1]\n  loop_control: {loop_var: thing, index_var: n}",
    "- debug: {msg: '{{ ansible_facts.x }} {{ ansible_distribution }} {{ hostvars.h1 }} {{ groups.all }}'}",
    "- include_vars: x.yml\n- debug: {msg: '{{ nope }}'}",
    "- debug: {msg: '{% set a = 1 %}{{ a }}{% for b in [1] %}{{ b }}{% endfor %}'}",
]


def _body(text: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(("text", "says"), UNKNOWN)
def test_a_name_that_nothing_defines(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(LoadError, match="nothing defines the variable") as caught:
        load_playbook(write(tmp_path, _body(text)), inventory(), {})
    assert says in str(caught.value)
    assert f"{tmp_path}/play.yml:" in str(caught.value)


@pytest.mark.parametrize("text", GUARDED)
def test_a_name_that_something_may_define(tmp_path: Path, text: str) -> None:
    load_playbook(write(tmp_path, _body(text)), inventory(), {})


def test_names_of_inventory_extra_and_files(tmp_path: Path) -> None:
    write(tmp_path, "g: 1\n", "group_vars/all.yml")
    write(tmp_path, "f: 1\n", "v.yml")
    text = "- hosts: all\n  vars_files: [v.yml]\n  vars: {p: 1}\n  tasks:\n    - debug: {msg: '{{ g }}{{ f }}{{ p }}{{ e }}{{ i }}'}\n"
    load_playbook(write(tmp_path, text), inventory({"h1": {"i": 1}}), {"e": 1})
