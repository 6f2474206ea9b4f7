# SPDX-License-Identifier: Apache-2.0
"""Diffs, paths, attributes and the editing of lines."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyops.domain import attributes, diff, facts, lines, paths, running
from flyops.domain.attributes import Attributes
from flyops.domain.lines import BlockRule, LineRule
from flyops.errors import ModuleError
from flyops.model.host import Host, Stat
from flyops.testing.fakehost import FakeHost


def test_a_missing_newline_is_said() -> None:
    """On both sides, each for itself."""
    assert diff.unified("a\n", "a", "x") == "--- before: x\n+++ after: x\n@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n"
    assert diff.unified("a", "b\n", "x").count(diff.NO_NEWLINE) == 1
    assert diff.NO_NEWLINE not in diff.unified("a\n", "b\n", "x")
    assert diff.unified("same", "same", "x") == ""


def test_other_controls_do_not_end_a_line() -> None:
    """A form feed or a carriage return inside a line is content."""
    shown = diff.unified("a\x0cb\r\n", "a\x0cc\r\n", "x")

    assert "-a\x0cb\r\n+a\x0cc\r\n" in shown


def test_binary_and_long_content_is_summed_up() -> None:
    """Text is shown as it is."""
    assert diff.readable(b"text\n") == "text\n"
    assert diff.readable(None) == diff.readable(b"") == ""
    assert diff.readable(b"\0").startswith("(1 bytes, sha256 6e34")
    assert diff.readable(b"x" * (diff.SHOW_BYTES + 1)).startswith(f"({diff.SHOW_BYTES + 1} bytes")
    assert diff.readable(b"x" * diff.SHOW_BYTES) == "x" * diff.SHOW_BYTES


def fake(**tree: Any) -> tuple[FakeHost, Host]:
    """A host with a few paths."""
    host = FakeHost()
    host.add_file("/srv/a.txt", b"1")
    host.add_file("/srv/b.txt", b"2")
    host.add_file("/srv/.hidden.txt", b"3")
    host.add_file("/srv/sub/c.txt", b"4")
    host.add_link("/srv/l", "sub")
    host.add_link("/srv/loop", "loop")
    return host, cast(Host, host)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/srv/*.txt", ["/srv/a.txt", "/srv/b.txt"]),
        ("*.txt", ["/srv/a.txt", "/srv/b.txt"]),
        ("/srv/.*.txt", ["/srv/.hidden.txt"]),
        ("/srv/s*/c.txt", ["/srv/sub/c.txt"]),
        ("/srv/[ab].txt", ["/srv/a.txt", "/srv/b.txt"]),
        ("/srv/a.txt", ["/srv/a.txt"]),
        ("/srv/l/*", ["/srv/l/c.txt"]),
        ("/srv/z*", []),
        ("/nope/*", []),
        ("/srv/a.txt/*", []),
        ("/", ["/"]),
    ],
)
def test_glob(pattern: str, found: list[str]) -> None:
    """As a shell would, from a folder."""
    assert paths.glob(fake()[1], pattern, "/srv") == found


def test_walk_and_follow() -> None:
    """A loop ends with an error; links are entered only when asked."""
    _, host = fake()

    assert [p for p, _ in paths.walk(host, "/srv/sub")] == ["/srv/sub/c.txt"]
    assert "/srv/l/c.txt" not in [p for p, _ in paths.walk(host, "/srv")]
    assert paths.follow(host, "/srv/l") == "/srv/sub"
    assert paths.follow(host, "/srv/none") == "/srv/none"
    with pytest.raises(ModuleError, match="too many links"):
        paths.follow(host, "/srv/loop")


@pytest.mark.parametrize(
    ("path", "wanted"), [("~/x", "/root/x"), ("~", "/root"), ("~root/x", "/root/x"), ("~nobody-here/x", "~nobody-here/x"), ("/a/~", "/a/~")]
)
def test_home(path: str, wanted: str) -> None:
    """Only in front, and only for users that exist."""
    assert paths.expand_home(path, fake()[1]) == wanted


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("$HOME/a", "/root/a"), ("${HOME}x", "/rootx"), ("$NOPE", "$NOPE"), ("a$", "a$"), ("$5", "$5"), ("~/$HOME", "/root//root"), ("a~", "a~")],
)
def test_expand(word: str, wanted: str) -> None:
    """Names that are set, and a leading ~."""
    assert running.expand(word, fake()[1]) == wanted


def test_drift_and_new_files() -> None:
    """What differs has a diff each; a new file's symbolic mode starts at 0644."""
    stat = Stat("file", 0o644, 0, 0, 1, 0.0)

    assert attributes.drift("/a", stat, Attributes(0o644, 0, 0)) == []
    assert [d.header for d in attributes.drift("/a", stat, Attributes("a+x", 1, 2))] == ["mode of /a", "owner of /a", "group of /a"]
    assert Attributes("g+w").mode_for(None) == 0o664
    assert Attributes().mode_for(None) is None
    assert Attributes().mode_for(stat) == 0o644
    assert attributes.drift("/a", Stat("link", 0o777, 0, 0, 1, 0.0), Attributes(0o600)) == []


TEXT = st.lists(st.sampled_from(["a", "b", "x=1", "x=2", "", "# BEGIN", "# END"]), max_size=6).flatmap(
    lambda parts: st.sampled_from(["\n".join(parts), "\n".join(parts) + "\n", "\r\n".join(parts) + "\r\n"])
)
ANCHOR = st.sampled_from([None, "EOF", "BOF", "^a", "^zz"])


@given(TEXT, st.sampled_from(["a", "x=9", "new"]), st.sampled_from([None, "^x", "^q"]), ANCHOR, ANCHOR, st.booleans())
def test_a_line_is_put_once(text: str, line: str, regexp: str | None, after: str | None, before: str | None, first: bool) -> None:
    """The second time there is nothing to do, and the line is there."""
    rule = LineRule(line, re.compile(regexp) if regexp else None, insertafter=after, insertbefore=None if after else before, firstmatch=first)

    once, _ = lines.ensure(text, rule)

    if regexp != "^x" or line.startswith("x"):
        assert lines.ensure(once, rule) == (once, "")
    assert line in [lines.bare(each) for each in lines.split(once)]


@given(TEXT, st.sampled_from(["^x", "^$", "a"]))
def test_removed_lines_are_gone_and_the_others_stay(text: str, regexp: str) -> None:
    """Nothing else is touched."""
    rule = LineRule(regexp=re.compile(regexp))

    rest, count = lines.remove(text, rule)

    assert lines.remove(rest, rule) == (rest, 0)
    assert len(lines.split(text)) - len(lines.split(rest)) == count


@given(TEXT, st.sampled_from(["", "one", "one\ntwo\n", "\n"]), ANCHOR, st.booleans(), st.booleans())
def test_a_block_is_put_once(text: str, block: str, after: str | None, append: bool, prepend: bool) -> None:
    """The second time there is nothing to do; an empty block leaves no marker of its own behind."""
    text = text.replace("# END", "").replace("# BEGIN", "")
    rule = BlockRule(block, "# BEGIN", "# END", insertafter=after, append_newline=append, prepend_newline=prepend)

    once, _ = lines.set_block(text, rule)
    gone, _ = lines.set_block(once, BlockRule("", "# BEGIN", "# END"))

    assert lines.set_block(once, rule) == (once, "")
    assert "# BEGIN" not in gone
    if not append and not prepend and (not text or text.endswith("\n")):
        assert gone == text


def test_groups_of_facts() -> None:
    """What gather_subset means."""
    assert facts.groups(["all"]) == set(facts.GROUPS)
    assert facts.groups(["!hardware"]) == set(facts.GROUPS) - facts.SUBSETS["hardware"]
    assert facts.groups(["!all"]) == facts.SUBSETS["min"]
    assert facts.groups(["!all", "network"]) == facts.SUBSETS["min"] | {"network"}
    assert facts.groups(["min", "!fly"]) == facts.SUBSETS["min"] - {"fly"}
    assert facts.unknown_subsets(["min", "!nope", "fly"]) == ["!nope"]
    assert facts.chosen({"ansible_a": 1, "fly_b": 2}, ["a"]) == {"ansible_a": 1}
    assert facts.chosen({"ansible_a": 1, "fly_b": 2}, ["fly_*"]) == {"fly_b": 2}


def test_default_route() -> None:
    """The line whose destination is 0 and that is up."""
    route = "Iface\tDestination\tGateway\tFlags\neth0\t0000A8C0\t00000000\t0001\neth0\t00000000\t0102A8C0\t0003\n"

    assert facts.default_route(route) == {"interface": "eth0", "gateway": "192.168.2.1"}
    assert facts.default_route("Iface\n") == {}
