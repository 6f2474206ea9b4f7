# SPDX-License-Identifier: Apache-2.0
"""`module: text`: options are taken out, and what is left is the author's text to the byte."""

from __future__ import annotations

import pytest

from flyops.errors import LoadError
from flyops.loading import freeform
from flyops.loading.positions import Text
from flyops.planning import registry
from tests.beds.play import play

CASES = [
    ("shell", "echo a\necho b\n", {"cmd": "echo a\necho b\n"}),
    ("shell", "cat <<E\na   b\nE\nchdir=/t\n", {"cmd": "cat <<E\na   b\nE\n", "chdir": "/t"}),
    ("shell", "chdir=/t\ncat <<E\n  a   b\nE\n", {"cmd": "cat <<E\n  a   b\nE\n", "chdir": "/t"}),
    ("shell", "echo a chdir=/t creates='/x y'  b\n", {"cmd": "echo a  b\n", "chdir": "/t", "creates": "/x y"}),
    ("shell", "make chdir={{ a + '/b c' }} all", {"cmd": "make all", "chdir": "{{ a + '/b c' }}"}),
    ("shell", "chdir=/a make chdir=/b", {"cmd": "make", "chdir": "/b"}),
    ("shell", "chdir=/t\n", {"chdir": "/t"}),
    ("shell", 'echo "chdir=/t" \\" x', {"cmd": 'echo "chdir=/t" \\" x'}),
    ("command", "cmd=3 env", {"cmd": "cmd=3 env"}),
    ("include_tasks", "x.yml", {"file": "x.yml"}),
    ("include_tasks", "file=x.yml", {"file": "x.yml"}),
    ("include_tasks", "file='{{ a }}/x y.yml'", {"file": "{{ a }}/x y.yml"}),
    ("include_tasks", "a=b.yml", {"file": "a=b.yml"}),
    ("include_vars", "file=x.yml name=all", {"file": "x.yml", "name": "all"}),
    ("file", "path='/a b' state=absent", {"path": "/a b", "state": "absent"}),
]


@pytest.mark.parametrize(("module", "text", "expected"), CASES)
def test_a_free_form_is_options_and_the_rest_as_it_was(module, text, expected):
    spec = registry.find_spec(module)
    assert spec is not None

    assert freeform.parse(spec, Text(text)) == expected


def test_words_that_are_not_closed_are_told():
    for text in ("echo 'a", "echo {{ a"):
        with pytest.raises(ValueError, match="expected a closing"):
            freeform.split_words(text)
    assert freeform.split_words("a 'b c' \"d  e\" {{ f g }} h\\ i") == ["a", "'b c'", '"d  e"', "{{ f g }}", "h\\ i"]


def test_a_script_of_several_lines_arrives_with_its_options_taken_out(tmp_path):
    text = (
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - shell: |\n        cat <<E\n          a   b\n        E\n        pwd\n"
        f"        chdir={tmp_path}\n      register: r\n"
    )
    found = play(tmp_path, text)

    assert found.vars()["r"]["cmd"] == "cat <<E\n  a   b\nE\npwd\n"
    assert found.vars()["r"]["stdout_lines"] == ["  a   b", str(tmp_path)]


@pytest.mark.parametrize("keyword", ["include_tasks", "import_tasks"])
def test_a_file_of_tasks_may_be_given_as_file(tmp_path, keyword):
    (tmp_path / "x.yml").write_text("- set_fact: {seen: 1}\n")
    text = f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {keyword}: file=x.yml\n"

    assert play(tmp_path, text).vars()["seen"] == 1
    with pytest.raises(LoadError, match="no such file"):
        play(tmp_path, text.replace("file=x", "file=y").replace("include", "import"))
