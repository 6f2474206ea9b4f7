# SPDX-License-Identifier: Apache-2.0
"""`inventory` and `facts`: what is shown, and what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hosts(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text(
        "all:\n  children:\n    web: {hosts: {one: {}, two: {db_password: s3cret, ansible_ssh_private_key_file: k}}}\n  hosts:\n    here: {ansible_connection: local}\n"
    )
    return path


def fly(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "fly"), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def test_inventory_lists_hosts_groups_and_variables(hosts):
    done = fly("inventory", "--inventory", str(hosts), "--json", "-e", "x=1")

    rows = {row["host"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: row["groups"] for name, row in rows.items()} == {"one": ["web"], "two": ["web"], "here": ["ungrouped"]}
    assert rows["one"]["vars"]["x"] == "1"
    assert rows["two"]["vars"]["ansible_ssh_private_key_file"] == "k"


def test_secrets_are_masked(hosts):
    for words in (["--json"], ["--verbose"]):
        shown = fly("inventory", "--inventory", str(hosts), *words).stdout

        assert "s3cret" not in shown
        assert "********" in shown


def test_a_limit_narrows_and_an_unknown_host_is_exit_2(hosts):
    assert fly("inventory", "--inventory", str(hosts), "--limit", "web,!two").stdout == "one  [web]\n"
    assert fly("inventory", "--inventory", str(hosts), "--limit", "three").returncode == 2


def test_facts_are_of_this_machine_and_change_nothing(hosts):
    done = fly("facts", "--inventory", str(hosts), "--limit", "here", "--json")

    row = json.loads(done.stdout)
    assert (done.returncode, row["host"]) == (0, "here")
    assert row["facts"]["system"] == "Linux"
