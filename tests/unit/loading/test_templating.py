# SPDX-License-Identifier: Apache-2.0
"""Jinja2 with Ansible's meaning: the cases that users of the peer complained about, with their right values."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.errors import PlanError
from flyops.loading.positions import Text
from flyops.loading.templating import condition, render, render_file, render_variable
from flyops.loading.variables import Scope
from flyops.loading.yamlfile import parse_yaml


def scope(**variables: Any) -> Scope:
    return Scope((variables,), render_variable)


def value_of(yaml_text: str, **variables: Any) -> Any:
    return render(parse_yaml(f"v: {yaml_text}", "f.yml")["v"], scope(**variables))


TYPES = [
    ('"Yes"', "Yes"),
    ("yes", True),
    ("on", True),
    ('"{{ 5 }}"', 5),
    ('"{{ 5 }} "', "5 "),
    ("\"{{ '0644' }}\"", "0644"),
    ("\"{{ '[1,2]' }}\"", "[1,2]"),
    ('"{{ none }}"', None),
    ('"{{ true }}"', True),
    ('"{{ [1, 2] }}"', [1, 2]),
    ("\"{{ {'a': 1} }}\"", {"a": 1}),
    ('"a{{ none }}b"', "ab"),
    ('"{{ 1 }}{{ 2 }}"', "12"),
    ("12:30:45", 45045),
    ("1_000", 1000),
    ("0644", 420),
    ("\"{{ nope.b.c | default('x') }}\"", "x"),
    ("\"{{ [1][5] | default('i') }}\"", "i"),
    ('"{{ nope is defined }}"', False),
    ('!unsafe "{{ 5 }}"', "{{ 5 }}"),
]


@pytest.mark.parametrize(("text", "wanted"), TYPES)
def test_types_are_kept(text: str, wanted: Any) -> None:
    found = value_of(text)
    assert found == wanted
    assert type(found) is type(wanted) or isinstance(found, type(wanted))


@pytest.mark.parametrize("content", ['"{{ var }}\\ngoodbye\\n"', '"hello\\ngoodbye\\n"'])
def test_the_last_newline_stays(content: str) -> None:
    assert value_of(content, var="hello") == "hello\ngoodbye\n"


@pytest.mark.parametrize(
    ("text", "settings", "wanted"),
    [
        ("foo: {% if false %}bla{% endif %}\nother: x\n", {}, "foo: other: x\n"),
        ("foo: {% if false %}bla{% endif %}\nother: x\n", {"trim_blocks": False}, "foo: \nother: x\n"),
        ("foo: {% if false %}bla{% endif +%}\nother: x\n", {}, "foo: \nother: x\n"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", {}, "a\n  b\n  c\n"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", {"lstrip_blocks": True}, "a\nb\nc\n"),
        ("#jinja2: trim_blocks: False\n{% if true %}\nx\n{% endif %}\n", {}, "\nx\n\n"),
    ],
)
def test_blocks_and_newlines_in_files(text: str, settings: dict[str, Any], wanted: str) -> None:
    assert render_file(text, "t.j2", scope(), **settings) == wanted


def test_an_undefined_name_is_told_with_its_line() -> None:
    with pytest.raises(PlanError, match="'nope' is undefined") as caught:
        render(parse_yaml("a: 1\nb: |\n  one\n  two {{ nope }}\n", "f.yml")["b"], scope())
    assert caught.value.where.startswith("f.yml:3:") or caught.value.where.startswith("f.yml:4:") or caught.value.where.startswith("f.yml:2:")


def test_an_undefined_name_inside_a_list_fails() -> None:
    with pytest.raises(PlanError, match="'nope' is undefined"):
        value_of('["{{ nope }}"]')


def test_a_broken_part_of_a_variable_hurts_only_who_uses_it() -> None:
    found = scope(**parse_yaml('cfg: {x: "{{ 1 }}", y: "{{ nope }}"}\na: "{{ cfg.x }}"\nb: "{{ cfg.y }}"\n', "f.yml"))
    assert found["a"] == 1
    with pytest.raises(PlanError, match="nope"):
        found["b"]


def test_a_variable_that_needs_itself() -> None:
    with pytest.raises(PlanError, match="needs itself: r -> s -> r"):
        scope(r=Text("{{ s }}"), s=Text("{{ r }}"))["r"]


@pytest.mark.parametrize("value", ["False", [1], 0, {"a": 1}, "text", None])
def test_a_condition_must_be_a_boolean(value: Any) -> None:
    with pytest.raises(PlanError, match="must have a boolean result") as caught:
        condition(parse_yaml("when: v", "f.yml")["when"], scope(v=value))
    assert caught.value.where == "f.yml:1:7"


@pytest.mark.parametrize(
    ("text", "wanted"), [("v | bool", True), ("not (v | bool)", False), ("v == 'yes'", True), ("", True), ("v is defined and v != 'x'", True)]
)
def test_conditions(text: str, wanted: bool) -> None:
    assert condition(Text(text), scope(v="yes")) is wanted


def test_what_a_host_returned_is_never_a_template() -> None:
    assert render(Text("{{ r.stdout }}"), scope(r={"stdout": "{{ 1 + 1 }}"})) == "{{ 1 + 1 }}"


FILTERS = [
    ("'no' | bool", False),
    ("'5' | int", 5),
    ("[1, 2] | join('-')", "1-2"),
    ('"it\'s" | quote', "'it'\"'\"'s'"),
    ("{'a': [1]} | to_json", '{"a": [1]}'),
    ("'[1, 2]' | from_json", [1, 2]),
    ("{'b': 1, 'a': 2} | to_yaml", "{a: 2, b: 1}\n"),
    ("{'a': 1} | to_nice_json", '{\n    "a": 1\n}'),
    ("'abc' | regex_replace('b(.)', '\\\\1x')", "acx"),
    ("'abc12' | regex_search('[0-9]+')", "12"),
    ("'abc' | regex_search('[0-9]+')", None),
    ("'/a/b' | basename", "b"),
    ("'/a/b' | dirname", "/a"),
    ("{'a': {'x': 1}} | combine({'a': {'y': 2}}, recursive=true)", {"a": {"x": 1, "y": 2}}),
    ("{'a': 1} | combine({'a': 2}, {'b': 3})", {"a": 2, "b": 3}),
    ("{'a': 1} | dict2items", [{"key": "a", "value": 1}]),
    ("[{'key': 'a', 'value': 1}] | items2dict", {"a": 1}),
    ("true | ternary('y', 'n')", "y"),
    ("'hi' | b64encode", "aGk="),
    ("'aGk=' | b64decode", "hi"),
    ("[1, 2, 3] | select('>', 1) | list", [2, 3]),
    ("[{'a': 1}, {'a': 2}] | map(attribute='a') | list", [1, 2]),
    ("[[1, [2]], 3] | flatten", [1, 2, 3]),
    ("'1.10' is version('1.9', '>')", True),
    ("'1.0' is version('1.0.0', '==')", True),
    ("'abc' is match('b')", False),
    ("'abc' is search('b')", True),
    ("{'failed': true} is failed", True),
    ("{'failed': true} is success", False),
    ("{'skipped': true, 'failed': false} is skipped", True),
    ("{'changed': true} is changed", True),
    ("lookup('vars', 'v')", 7),
    ("query('vars', 'v')", [7]),
]


@pytest.mark.parametrize(("text", "wanted"), FILTERS)
def test_filters_tests_and_lookups(text: str, wanted: Any) -> None:
    assert render(Text("{{ " + text + " }}"), scope(v=7)) == wanted


def test_mandatory_and_lookup_errors() -> None:
    with pytest.raises(PlanError, match="mandatory"):
        render(Text("{{ nope | mandatory }}"), scope())
    with pytest.raises(PlanError, match="no such file"):
        render(Text("{{ lookup('file', 'absent.txt') }}"), scope())
    with pytest.raises(PlanError, match="not supported yet"):
        render(Text("{{ lookup('pipe', 'id') }}"), scope())
