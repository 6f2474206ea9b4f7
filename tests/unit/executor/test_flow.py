# SPDX-License-Identifier: Apache-2.0
"""Flow of a play with real local agents: registers, loops, handlers, blocks, tags, batches, failure policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beds.play import play, tasks

GONE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_timeout": 2}
HERE = {"ansible_connection": "local"}


# registers and loops


def test_a_skipped_task_overwrites_its_register(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- command: echo hi\n  register: r\n- command: echo no\n  when: 1 == 2\n  register: r\n")
    assert found.vars()["r"] == {
        "changed": False,
        "failed": False,
        "skipped": True,
        "skip_reason": "Conditional result was False",
        "false_condition": "1 == 2",
    }
    assert found.stats() == {"ok": 1, "changed": 1, "skipped": 1}


def test_a_condition_sees_the_own_result_under_a_name_that_the_task_before_registered(tmp_path: Path) -> None:
    """Both travel together: the first result must not be waited for when the second is judged."""
    found = tasks(
        tmp_path,
        "- command: echo a\n  register: r\n- command: echo b\n  register: r\n  failed_when: r.stdout != 'b'\n  changed_when: r.stdout == 'a'\n"
        "- command: echo {{ item }}\n  loop: [b, c]\n  register: r\n  failed_when: r.stdout == 'c'\n",
    )
    assert [part["failed"] for part in found.vars()["r"]["results"]] == [False, True]
    assert found.stats() == {"ok": 2, "changed": 1, "failed": 1}


def test_loops_all_skipped_and_empty(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        "- command: echo\n  loop: [1, 2]\n  when: item > 5\n  register: a\n- command: echo\n  loop: []\n  register: b\n- debug: {msg: x}\n  loop: [1]\n  when: false\n  register: c\n",
    )
    a, b, c = (found.vars()[name] for name in "abc")
    assert (a["skipped"], a["msg"]) == (True, "All items skipped")
    assert [(part["item"], part["skipped"], part["ansible_loop_var"]) for part in a["results"]] == [(1, True, "item"), (2, True, "item")]
    assert (b["results"], b["skip_reason"]) == ([], "No items in the list")
    assert c["skipped"]


def test_loop_control(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        """
        - command: "echo {{ thing }} {{ n }} {{ ansible_loop.last }}"
          loop: [a, b]
          loop_control: {loop_var: thing, index_var: n, extended: true, label: "<{{ thing }}>"}
          register: r
        - command: echo {{ item }}
          with_items: [[1, 2], 3]
          register: s
        """,
    )
    assert [part["stdout"] for part in found.vars()["r"]["results"]] == ["a 0 False", "b 1 True"]
    assert [event.label for event in found.seen.of("item")][:2] == ["<a>", "<b>"]
    assert [part["stdout"] for part in found.vars()["s"]["results"]] == ["1", "2", "3"]


def test_an_item_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- command: sh -c 'exit {{ item }}'\n  loop: [0, 3, 0]\n  register: r\n- debug: {msg: never}\n")
    assert [part["rc"] for part in found.vars()["r"]["results"]] == [0, 3, 0]
    assert found.result.exit_code == 1
    assert len(found.seen.of("result")) == 1


def test_set_fact_in_a_loop_sees_the_item_before(tmp_path: Path) -> None:
    found = tasks(tmp_path, '- set_fact: {x: "{{ x | default([]) + [item] }}"}\n  loop: [1, 2, 3]\n')
    assert found.vars()["x"] == [1, 2, 3]


def test_set_fact_types(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- set_fact: kv=false t='{{ 5 }}'\n- set_fact: {y: yes, s: 'Yes', i: '{{ 5 }}', z: '{{ 5 }} '}\n")
    assert {key: found.vars()[key] for key in ("kv", "t", "y", "s", "i", "z")} == {"kv": "false", "t": 5, "y": True, "s": "Yes", "i": 5, "z": "5 "}


def test_failed_when_and_changed_when(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        """
        - command: sh -c 'exit {{ item }}'
          loop: [0, 1, 2]
          register: r
          failed_when: [r.rc == 1, false]
          changed_when: r.rc == 2
        - command: sh -c 'exit 7'
          register: f
          failed_when: false
        """,
    )
    assert [part["failed"] for part in found.vars()["r"]["results"]] == [False, False, False]
    assert [part["changed"] for part in found.vars()["r"]["results"]] == [False, False, True]
    assert (found.vars()["f"]["rc"], found.vars()["f"]["failed"]) == (7, False)
    assert found.result.exit_code == 0


def test_failed_when_per_item(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- command: sh -c 'exit {{ item }}'\n  loop: [0, 1, 0]\n  register: r\n  failed_when: r.rc == 1\n  ignore_errors: true\n")
    assert [part["failed"] for part in found.vars()["r"]["results"]] == [False, True, False]


@pytest.mark.parametrize(("retries", "attempts", "failed"), [(5, 3, False), (2, 2, True)])
def test_until(tmp_path: Path, retries: int, attempts: int, failed: bool) -> None:
    count = tmp_path / "count"
    found = tasks(
        tmp_path,
        f"- shell: echo x >> {count}; wc -l < {count}\n  register: r\n  until: r.stdout | int >= 3\n  retries: {retries}\n  delay: 0\n",
    )
    assert (found.vars()["r"]["attempts"], found.vars()["r"]["failed"]) == (attempts, failed)
    assert len(count.read_text().splitlines()) == attempts


def test_a_when_that_is_no_boolean_fails(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- debug: {msg: x}\n  when: v\n  vars: {v: [1]}\n")
    assert found.result.exit_code == 1
    assert "must have a boolean result" in found.result.hosts["h1"].message
    assert "play.yml:5:13" in found.result.hosts["h1"].message


def test_an_undefined_variable_fails_the_task_with_its_line(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- set_fact: {a: 1}\n  when: false\n- debug: {msg: '{{ a }}'}\n")
    assert found.result.exit_code == 1
    assert f"{tmp_path}/play.yml:6:20: 'a' is undefined" in found.result.hosts["h1"].message


def test_debug_of_an_undefined_variable_is_no_failure(tmp_path: Path) -> None:
    found = tasks(tmp_path, "- debug: {var: nope}\n")
    assert found.seen.result("debug")["nope"] == "VARIABLE IS NOT DEFINED!"


# segments


def test_tasks_that_need_nothing_of_each_other_travel_together(tmp_path: Path) -> None:
    body = "".join(f"- command: echo {n}\n  changed_when: false\n" for n in range(20))
    found = tasks(tmp_path, body)
    again = tasks(tmp_path, body)
    assert found.stats() == {"ok": 20}
    assert again.result.hosts["h1"].count.turns == 1


def test_a_task_that_needs_a_result_waits_for_it(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        """
        - command: echo 5
          register: a
        - command: echo {{ a.stdout | int + 1 }}
          register: b
        - command: echo {{ c }}
          vars: {c: "{{ b.stdout }}!"}
          register: d
        - command: echo is {{ (e is defined) | string }}
          register: f
        - command: echo
          register: e
        """,
    )
    assert (found.vars()["b"]["stdout"], found.vars()["d"]["stdout"], found.vars()["f"]["stdout"]) == ("6", "6!", "is False")


def test_a_failure_stops_what_travels_behind_it(tmp_path: Path) -> None:
    found = tasks(tmp_path, f"- command: 'true'\n- command: 'false'\n- command: touch {tmp_path}/never\n")
    assert not (tmp_path / "never").exists()
    assert found.stats() == {"ok": 1, "changed": 1, "failed": 1}


def test_ignored_errors_do_not(tmp_path: Path) -> None:
    found = tasks(tmp_path, f"- command: 'false'\n  ignore_errors: true\n- command: touch {tmp_path}/made\n")
    assert (tmp_path / "made").exists()
    assert found.stats() == {"ok": 2, "changed": 1, "ignored": 1}


def test_a_file_made_by_an_earlier_task_is_read_after_it(tmp_path: Path) -> None:
    """On this machine a task may make the file that a later one copies."""
    made = tmp_path / "made"
    found = tasks(
        tmp_path,
        f"""
        - shell: echo fresh > {made}
        - copy: {{src: {made}, dest: {tmp_path}/copied}}
        - shell: echo later > {made}
        - set_fact: {{seen: "{{{{ lookup('file', '{made}') }}}}"}}
        """,
    )
    assert (tmp_path / "copied").read_text() == "fresh\n"
    assert found.vars()["seen"] == "later"


# handlers

HANDLERS = "  handlers:\n    - name: one\n      command: touch {0}/one-{{{{ inventory_hostname }}}}\n    - name: two\n      listen: topic\n      command: touch {0}/two\n"


def test_a_lost_notification_is_told(tmp_path: Path) -> None:
    """The host that fails loses it and says so; the other one runs it."""
    text = (
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: 'true'\n      notify: one\n    - command: \"{{ 'false' if inventory_hostname == 'h1' else 'true' }}\"\n"
        + HANDLERS.format(tmp_path)
    )
    found = play(tmp_path, text, hosts="h1 h2")
    assert not (tmp_path / "one-h1").exists()
    assert (tmp_path / "one-h2").exists()
    assert found.result.hosts["h1"].lost == ("one",)
    assert [event.host for event in found.seen.of("lost")] == ["h1"]
    play(tmp_path, text, hosts="h1", force_handlers=True)
    assert (tmp_path / "one-h1").exists()


def test_a_failed_result_never_notifies(tmp_path: Path) -> None:
    text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: 'false'\n      changed_when: true\n      ignore_errors: true\n      notify: one\n"
    play(tmp_path, text + HANDLERS.format(tmp_path))
    assert not (tmp_path / "one-h1").exists()


def test_listen_order_and_flush(tmp_path: Path) -> None:
    text = """
    - hosts: all
      gather_facts: false
      tasks:
        - command: 'true'
          notify: [topic, first]
        - meta: flush_handlers
        - command: 'true'
          changed_when: false
          notify: first
        - debug: {msg: end}
      handlers:
        - name: first
          debug: {msg: 1}
        - name: second
          listen: topic
          debug: {msg: 2}
    """
    assert play(tmp_path, text).seen.order() == ["command:changed", "first:ok", "second:ok", "command:ok", "debug:ok"]


# blocks


def test_rescue_and_always(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        """
        - block:
            - {name: breaks, command: 'false'}
            - {name: never, debug: {}}
          rescue:
            - name: sees
              set_fact: {seen: "{{ ansible_failed_task.action }} {{ ansible_failed_result.rc }}"}
          always:
            - {name: always, debug: {}}
        - {name: goes on, debug: {}}
        """,
    )
    assert found.seen.order() == ["breaks:failed", "sees:ok", "always:ok", "goes on:ok"]
    assert found.vars()["seen"] == "command 1"
    assert found.stats() == {"ok": 3, "rescued": 1}
    assert found.result.exit_code == 0


def test_a_rescue_that_fails(tmp_path: Path) -> None:
    found = tasks(
        tmp_path,
        """
        - block:
            - fail: {msg: one}
          rescue:
            - fail: {msg: two}
          always:
            - {name: always, debug: {}}
        - {name: never, debug: {}}
        """,
    )
    assert found.seen.order() == ["fail:failed", "fail:failed", "always:ok"]
    assert found.stats() == {"ok": 1, "failed": 1, "rescued": 1}
    assert found.result.exit_code == 1


@pytest.mark.parametrize("hosts", ["h1", "h1 h2"])
def test_nested_blocks(tmp_path: Path, hosts: str) -> None:
    found = tasks(
        tmp_path,
        """
        - block:
            - block:
                - fail: {}
              always:
                - {name: inner, debug: {}}
          rescue:
            - {name: outer, debug: {}}
        """,
        hosts=hosts,
    )
    assert found.seen.order("h1") == ["fail:failed", "inner:ok", "outer:ok"]
    assert found.result.exit_code == 0


def test_unreachable_is_not_rescued(tmp_path: Path) -> None:
    text = """
    - hosts: all
      gather_facts: false
      tasks:
        - block:
            - {name: t, command: 'true'}
          rescue:
            - {name: rescue, debug: {}}
          always:
            - {name: always, debug: {}}
    - hosts: all
      gather_facts: false
      tasks:
        - {name: second, debug: {}}
    """
    found = play(tmp_path, text, hosts={"gone": GONE, "h1": HERE})
    assert found.seen.order("gone") == ["t:unreachable"]
    assert found.seen.order("h1") == ["t:changed", "always:ok", "second:ok"]
    assert found.result.exit_code == 4
    assert found.stats("gone") == {"unreachable": 1}


def test_all_of_one_play_unreachable_the_next_play_goes_on(tmp_path: Path) -> None:
    text = "- hosts: gone\n  gather_facts: false\n  tasks:\n    - command: 'true'\n- hosts: h1\n  gather_facts: false\n  tasks:\n    - {name: second, debug: {}}\n"
    found = play(tmp_path, text, hosts={"gone": GONE, "h1": HERE})
    assert found.seen.order("h1") == ["second:ok"]
    assert found.result.exit_code == 4


@pytest.mark.parametrize("policy", ["max_fail_percentage: 0", "any_errors_fatal: true"])
def test_an_unreachable_host_counts_as_failed(tmp_path: Path, policy: str) -> None:
    text = f"- hosts: all\n  gather_facts: false\n  {policy}\n  tasks:\n    - {{name: one, command: 'true'}}\n    - {{name: two, command: 'true'}}\n"
    found = play(tmp_path, text, hosts={"gone": GONE, "h1": HERE})
    assert found.seen.order("h1") == ["one:changed"]
    assert found.result.exit_code == 4
