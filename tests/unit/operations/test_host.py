# SPDX-License-Identifier: Apache-2.0
"""What `invoke host` says, whom it refuses, and the order in which its unit stands at boot (run for real in tests/e2e/test_host.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyops import places
from flyops.errors import UsageError
from flyops.operations import host, hosts
from flyops.operations.options import HostOptions, Target

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
