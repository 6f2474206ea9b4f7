# SPDX-License-Identifier: Apache-2.0
"""What `invoke host` says, whom it refuses, and the order in which its unit stands at boot (run for real in tests/e2e/test_host.py)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops import places
from flyops.agent import registry
from flyops.errors import UsageError
from flyops.loading.templating import render_file, render_variable
from flyops.loading.variables import Scope
from flyops.operations import host, hosts
from flyops.operations.options import HostOptions, Target
from flyops.spec import validate

UNIT = (places.REPOSITORY / "templates" / "flyops-majors.service.j2").read_text()


def words(key: str) -> set[str]:
    return {word for line in UNIT.splitlines() if line.startswith(f"{key}=") for word in line.partition("=")[2].split()}


def test_case_10_and_13_the_unit_is_ordered_before_whoever_opens_the_card() -> None:
    """An unordered oneshot loses the race: against persistenced (10), and against every engine that starts guests (13)."""
    assert {"nvidia-persistenced.service", "nvidia-cdi-refresh.service"} <= words("Before")
    assert {"lxc.service", "pve-guests.service", "pve-ha-lrm.service", "incus.service", "lxd.service", "docker.service"} <= words("Before")
    assert {"systemd-modules-load.service", "pve-cluster.service"} <= words("After")
    assert {"Type=oneshot", "RemainAfterExit=yes", "Restart=on-failure"} <= set(UNIT.splitlines())


def test_case_13_the_unit_runs_again_when_the_module_comes() -> None:
    rule = (places.REPOSITORY / "templates" / "flyops-majors.rules.j2").read_text()
    assert 'ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia_uvm"' in rule
    assert "--no-block restart flyops-majors.service" in rule


UDEV = """
set -e
mount -t tmpfs rules /etc/udev/rules.d
mount -t tmpfs run /run
cp "$1" /etc/udev/rules.d/71-flyops-majors.rules
for name in $2 $3; do echo "== $name"; udevadm test --action="${4:-add}" "/sys/module/$name" 2>&1 | grep "^run:.*flyops" || true; done
"""


@pytest.mark.root
@pytest.mark.skipif(not shutil.which("udevadm") or not Path("/etc/udev/rules.d").is_dir(), reason="no udev here")
def test_case_13_udev_runs_the_rule_for_that_module_and_for_no_other(tmp_path: Path) -> None:
    """udev's own word, with a module that this kernel has in the driver's place, in a mount namespace of its own."""
    there, other = sorted(path.name for path in Path("/sys/module").iterdir() if "nvidia" not in path.name)[:2]
    rule = (places.REPOSITORY / "templates" / "flyops-majors.rules.j2").read_text()
    (tmp_path / "rules").write_text(rule.replace("nvidia_uvm", there))

    def said(action: str) -> str:
        words = ["unshare", "-m", "sh", "-c", UDEV, "sh", str(tmp_path / "rules"), there, other, action]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    run = "run: '/usr/bin/systemctl --no-block restart flyops-majors.service'"
    assert said("add") == f"== {there}\n{run}\n== {other}\n"
    assert said("remove") == f"== {there}\n== {other}\n"


def steps(**variables: Any) -> list[dict[str, Any]]:
    """What a unit is given, by this checkout's defaults."""
    file = places.REPOSITORY / "templates" / "flyops-majors.json.j2"
    defaults = yaml.safe_load((places.REPOSITORY / "inventory" / "group_vars" / "all.yml").read_text())
    found: list[dict[str, Any]] = json.loads(render_file(file.read_text(), str(file), Scope((variables, defaults), render_variable)))
    return found


@pytest.mark.parametrize("guests", [[101, "dev1"], "101,dev1", ["101", "dev1"]])
def test_what_the_units_are_given_are_arguments_of_the_modules(guests: Any) -> None:
    """The boot unit writes and waits, the drift unit looks and fails; both mean the same guests and places."""
    boot, drift = steps(managed_guests=guests, drift=False), steps(managed_guests=guests, drift=True)
    for found, more in ((boot, {"state": "present", "wait": 30.0, "fail": False}), (drift, {"state": "read", "wait": 0.0, "fail": True})):
        assert [step["module"] for step in found] == ["nvidia_nodes", "nvidia_majors"]
        for step in found:
            values, errors = validate(registry.find(step["module"]).SPEC, step["args"])
            assert errors == []
            assert {name: values[name] for name in more} == more
        assert values["guests"] == ["101", "dev1"]
        assert (values["made"], values["record"]) == (True, "/var/lib/flyops/majors-given.json")


def test_summary_tells_what_a_person_should_know_and_nothing_else() -> None:
    found = {
        "host_majors": {
            "guests": {"101": "changed", "dev1": "unchanged"}, "drift": ["not repeated"], "strays": ["s"], "dead": ["d"], "notes": ["n"],
        },
        "preflight": {"warnings": ["w"]},
        "driver_hold": {"warning": "h"},
    }  # fmt: skip
    assert list(host.summary(found)) == ["guests: 101 changed (in force at its next start), dev1 unchanged", "s", "d", "n", "w", "h"]
    assert list(host.summary({"host_majors": {"guests": {}}})) == ["guests: none managed"]
    assert list(host.summary({})) == []


def hosts_file(folder: Path, variables: str) -> hosts.Hosts:
    file = folder / "hosts.yml"
    file.write_text(f"all:\n  hosts:\n    pve1: {{ansible_host: 192.0.2.1}}\n    dev1: {{{variables}}}\n")
    return hosts.find(Target(inventory=(str(file),)))


def test_guests_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dev1: a guest, and `host` is for what guests run on"):
        host.refuse_guests(hosts_file(tmp_path, "ansible_connection: lxc"))
    host.refuse_guests(hosts_file(tmp_path, "ansible_connection: lxc, container_host: true"))
    host.refuse_guests(hosts_file(tmp_path, "ansible_connection: ssh"))


def test_this_machine_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="root is needed to keep this machine's guests right"):
        host.run(HostOptions(Target(check=True)))
