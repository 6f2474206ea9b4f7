# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from flyops.domain import checks, report
from flyops.domain.checks import FAILED, NOT_APPLICABLE, NOT_REACHED, PASSED, Judged


def entry(name, verdict=PASSED, seen="seen", fix=""):
    return checks.values(name, Judged(verdict, seen, fix, {"raw": 1}))


ALL = [entry(check.name) for check in checks.CHECKS]
NAMES = [check.name for check in checks.CHECKS]


def test_all_passed():
    found = report.complete(ALL)
    assert [e["check"] for e in found] == NAMES
    assert {e["verdict"] for e in found} == {PASSED}
    assert report.verdict(found) == PASSED


@pytest.mark.parametrize("number", range(5))
def test_what_comes_after_a_failure_is_not_reached(number):
    given = [entry(name, FAILED if n == number else PASSED, fix="do it") for n, name in enumerate(NAMES)]
    found = report.complete(given)
    assert [e["verdict"] for e in found] == [PASSED] * number + [FAILED] + [NOT_REACHED] * (4 - number)
    assert all("failed" in e["seen"] for e in found[number + 1 :])
    assert report.verdict(found) == FAILED
    table = report.table(found)
    assert "FAILED" in table
    assert ("not reached" in table) is (number < 4)
    assert "to do" in table


def test_order_of_what_is_given_does_not_matter():
    assert report.complete(ALL[::-1]) == report.complete(ALL)


def test_nothing_given():
    assert [e["verdict"] for e in report.complete([])] == [NOT_REACHED] * 5
    assert report.verdict(report.complete([])) == NOT_REACHED


def test_a_cpu_deploy():
    found = report.complete([], backend="cpu")
    assert {e["verdict"] for e in found} == {NOT_APPLICABLE}
    assert report.verdict(found) == PASSED
    assert "does not apply to a CPU deploy" in report.table(found)
    assert "n/a" in report.table(found)


def test_table_is_plain_and_narrow():
    text = report.table(report.complete([entry("feature", FAILED, "word " * 60, "fix " * 50)]), width=90)
    assert max(map(len, text.splitlines())) <= 90
    assert "\x1b" not in text


def test_json():
    found = json.loads(report.to_json(report.complete(ALL), host="dev1", date="2026-11-30"))
    assert (found["verdict"], found["host"], len(found["checks"])) == (PASSED, "dev1", 5)


def test_markdown():
    text = report.markdown(report.complete([entry("feature", FAILED, "a|b\nc", "build it")]), date="2026-11-30", host="dev1", release="1.0")
    assert text.startswith("# Five checks: dev1, 2026-11-30\n")
    assert "a\\|b<br>c" in text
    assert "To do: build it" in text
    assert text.count("| not reached |") == 4
    assert '"raw": 1' in text
