# SPDX-License-Identifier: Apache-2.0
"""Words for people: headlines, details, diffs, the recap; order of events; masking."""

from __future__ import annotations

import io
from typing import Any

import pytest

from flyops.display.plain import Plain
from flyops.display.text import details, diff_lines, headline, recap, unified
from flyops.executor.sequencer import Sequencer
from flyops.model.event import Event
from flyops.model.secrets import Masker


def event(status: str, kind: str = "result", **more: Any) -> Event:
    return Event(kind, "p", "t", "h", status, **more)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (event("ok"), "ok: [h]"),
        (event("changed"), "changed: [h]"),
        (event("skipped"), "skipping: [h]"),
        (event("failed"), "fatal: [h]: FAILED!"),
        (event("refused"), "refused: [h]: REFUSED"),
        (event("ignored"), "fatal: [h]: FAILED! ...ignoring"),
        (event("unreachable", "unreachable"), "fatal: [h]: UNREACHABLE!"),
        (event("changed", "item", label="x"), "changed: [h] => (item=x)"),
        (event("failed", "item", label="x"), "failed: [h] => (item=x)"),
        (event("retry", "retry", label="2 tries left"), "retrying: [h]: 2 tries left"),
    ],
)
def test_headlines(made: Event, wanted: str) -> None:
    assert headline(made) == wanted


def test_details_of_a_failure() -> None:
    made = event("failed", result={"msg": "bad", "stdout": "out", "rc": 2, "stdout_lines": ["out"]}, where="f.yml:1:2")
    assert details(made) == ["  bad", "  stdout: out", "  rc: 2", "  at f.yml:1:2"]
    assert details(event("ok", result={"msg": "quiet"})) == []
    assert details(event("ok", result={"path": "/x"}), verbose=True) == ["  path: /x"]
    assert details(event("ok", result={"msg": "loud"}, module="debug")) == ["  loud"]
    assert details(event("failed", result={"censored": "hidden"})) == ["  hidden"]
    many = details(event("failed", result={"msg": "\n".join(map(str, range(100)))}))
    assert len(many) < 50
    assert any("left out" in line for line in many)


def test_diffs() -> None:
    assert unified("a\nb\n", "a\nc\n", "/f")[-3:] == [" a", "-b", "+c"]
    assert unified("a", "a\n", "/f")[-3:] == ["-a", "\\ No newline at end of file", "+a"]
    assert unified("a\n", "a\n", "/f") == []
    both = diff_lines({"diff": [{"header": "/f", "before": "", "after": "x\n"}, {"header": "mode of /f", "before": "0644\n", "after": "0600\n"}]})
    assert "+x" in both
    assert "-0644" in both


def test_recap() -> None:
    numbers = dict.fromkeys(("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored", "refused", "unknown"), 0)
    assert recap({"h": {**numbers, "ok": 3}, "longer": {**numbers, "unknown": 2}}) == [
        "h      : ok=3    changed=0    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0",
        "longer : ok=0    changed=0    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0    unknown=2",
    ]


def test_lost_notifications_come_last() -> None:
    out = io.StringIO()
    plain = Plain(out)
    plain.handle(Event("lost", host="h", text="notified but not run: x"))
    plain.handle(Event("stats", result={}))
    assert out.getvalue().splitlines()[-1] == "lost notifications: h: notified but not run: x"


def test_the_sequencer_holds_back_what_comes_too_early() -> None:
    shown: list[tuple[str, str, str]] = []
    made = Sequencer(lambda e: shown.append((e.kind, e.task, e.host)), ["a", "b"])

    def add(host: str, number: int) -> None:
        made.add((number,), Event("result", task=f"t{number}", host=host))

    add("a", 1)
    add("a", 2)
    assert shown == []
    add("b", 1)
    assert shown == [("task", "t1", ""), ("result", "t1", "a"), ("result", "t1", "b")]
    made.done("b")
    assert shown[3:] == [("task", "t2", ""), ("result", "t2", "a")]
    add("a", 3)
    assert shown[-1] == ("result", "t3", "a")


def test_masking() -> None:
    masker = Masker()
    assert masker.mask({"a": ["secret"]}) == {"a": ["secret"]}
    masker.add({"k": ["secret", "x"], "n": 12345})
    masker.add("secret-longer")
    assert masker.mask({"a": ["my secret-longer", "x"], "secret": 12345, "b": True, "c": 1}) == {
        "a": ["my ********", "x"],
        "********": "********",
        "b": True,
        "c": 1,
    }
    masker.add("-----BEGIN-----\nline of the key\n")
    assert masker.text("has line of the key inside") == "has ******** inside"
