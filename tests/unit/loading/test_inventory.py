# SPDX-License-Identifier: Apache-2.0
"""Inventory, precedence, patterns, --limit and -e, as Ansible means them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyops.errors import LoadError, UsageError
from flyops.loading.extravars import parse_extra
from flyops.loading.inventory import expand, limit_hosts, load_inventory
from flyops.loading.patterns import select
from tests.beds.play import write

GROUPS = {"all": ["w1", "w2", "w3", "d1"], "web": ["w1", "w2", "w3"], "db": ["d1"], "g": ["w2", "d1"], "dev-a": ["w3"]}
HOSTS = ["w1", "w2", "w3", "d1"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("all", "w1 w2 w3 d1"),
        ("*", "w1 w2 w3 d1"),
        ("web:!w1", "w2 w3"),
        ("web:&g", "w2"),
        ("web[0]", "w1"),
        ("web[-1]", "w3"),
        ("web[0:1]", "w1 w2"),
        ("web[1:]", "w2 w3"),
        ("~w[12]", "w1 w2"),
        ("w1,d1", "w1 d1"),
        ("!web:all", "d1"),
        ("!web", "d1"),
        ("all,!db", "w1 w2 w3"),
        ("dev-*", "w3"),
        ("d*", "w3 d1"),  # the group dev-a and the group db: the union
        ("web:db", "w1 w2 w3 d1"),
    ],
)
def test_patterns(pattern: str, wanted: str) -> None:
    assert sorted(select(pattern, GROUPS, HOSTS)[0]) == sorted(wanted.split())


def test_a_pattern_that_names_nothing_is_told() -> None:
    assert select("web,nope", GROUPS, HOSTS) == (["w1", "w2", "w3"], ["nope"])


def test_hosts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# mine\nw1\nd1\n")
    assert select(f"@{tmp_path / 'hosts'}", GROUPS, HOSTS)[0] == ["w1", "d1"]
    with pytest.raises(UsageError, match="cannot read"):
        select("@/absent", GROUPS, HOSTS)


def test_ranges() -> None:
    assert expand("web[08:10]-[a:b]") == ["web08-a", "web08-b", "web09-a", "web09-b", "web10-a", "web10-b"]


def test_precedence(tmp_path: Path) -> None:
    """Siblings by name, deeper over shallower, files over inline, host over group, playbook's over the inventory's."""
    write(
        tmp_path,
        """
        all:
          vars: {v_all: all, v_sib: all, v_deep: all, v_file: all, v_host: all}
          children:
            b_group: {hosts: {h1: }, vars: {v_sib: b, v_deep: shallow}}
            a_group: {hosts: {h1: {v_host: line, v_line: line}}, vars: {v_sib: a, v_file: inline}}
            parent:
              vars: {v_deep: parent, v_child: parent}
              children:
                child: {hosts: {h1: }, vars: {v_deep: child, v_child: child}}
        """,
        "inv/hosts.yml",
    )
    write(tmp_path, "v_file: file\nv_book: inventory\n", "inv/group_vars/a_group.yml")
    write(tmp_path, "v_line: host_vars\n", "inv/host_vars/h1.yml")
    write(tmp_path, "v_book: playbook\n", "book/group_vars/a_group/main.yml")
    found = load_inventory([tmp_path / "inv" / "hosts.yml"]).variables_of("h1", str(tmp_path / "book"))
    assert {key: str(value) for key, value in found.items()} == {
        "v_all": "all",
        "v_sib": "b",
        "v_deep": "child",
        "v_child": "child",
        "v_file": "file",
        "v_host": "line",
        "v_line": "host_vars",
        "v_book": "playbook",
    }


def test_group_priority_within_a_depth(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a: {hosts: {h: }, vars: {v: a, ansible_group_priority: 10}}\nb: {hosts: {h: }, vars: {v: b}}\n",
        "i.yml",
    )
    assert load_inventory([tmp_path / "i.yml"]).variables_of("h")["v"] == "a"


def test_folder_with_generated_hosts(tmp_path: Path) -> None:
    write(tmp_path, "all: {hosts: {h1: }}\n", "inv/a.yml")
    write(tmp_path, "containers: {hosts: {dev1: {ansible_connection: lxc}}}\n", "inv/hosts.d/dev1.yml")
    write(tmp_path, "all: {hosts: {other: }}\n", "inv/example/hosts.yml")
    found = load_inventory([tmp_path / "inv"])
    assert found.hosts == ["h1", "dev1"]
    assert found.members()["containers"] == ["dev1"]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("all: {hosts: [a]}\n", "1:7", "hosts must be a mapping"),
        ("all:\n  host: {a: }\n", "2:3", "did you mean 'hosts'?"),
        ("all:\n  hosts:\n    a: 5\n", "3:5", "expected variables"),
        ("all: {hosts: {a: }}\nall: {hosts: {b: }}\n", "2:1", "given twice"),
        ("- a\n", "1:1", "expected groups"),
        ("all: {children: {x: {children: {x: }}}}\n", "", "contain each other"),
        ("all: {hosts: {a: }\n", "2:1", "not valid YAML"),
    ],
)
def test_errors_have_a_place(tmp_path: Path, text: str, place: str, says: str) -> None:
    path = write(tmp_path, text, "i.yml")
    with pytest.raises(LoadError, match=says) as caught:
        load_inventory([path])
    assert caught.value.exit_code == 2
    assert caught.value.where == (f"{path}:{place}" if place else "")


def test_no_inventory_and_other_formats(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no inventory at"):
        load_inventory([tmp_path / "absent.yml"])
    (tmp_path / "hosts.ini").write_text("[web]\n")
    with pytest.raises(LoadError, match="not supported yet"):
        load_inventory([tmp_path / "hosts.ini"])
    assert load_inventory(["a,b,"]).hosts == ["a", "b"]


def test_limit(tmp_path: Path) -> None:
    found = load_inventory([write(tmp_path, "web: {hosts: {w1: , w2: }}\n", "i.yml")])
    assert limit_hosts(found, None) is None
    assert limit_hosts(found, "w2") == {"w2"}
    with pytest.raises(UsageError, match="leaves no hosts to target; did you mean 'web'"):
        limit_hosts(found, "wbe")


def test_extra_variables(tmp_path: Path) -> None:
    path = write(tmp_path, "d: [1]\n", "e.yml")
    found = parse_extra(["a=1 b='x y'", '{"c": 2}', f"@{path}", "a=3"])
    assert found == {"a": "3", "b": "x y", "c": 2, "d": [1]}
    for wrong in ("a", "1a=2", "a='x", "[1]"):
        with pytest.raises(UsageError):
            parse_extra([wrong])
    with pytest.raises(UsageError, match="cannot read"):
        parse_extra(["@/absent"])
