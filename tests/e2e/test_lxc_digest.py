# SPDX-License-Identifier: Apache-2.0
"""The digest of a guest sees a change of any kind, and nothing where nothing changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.beds.digest import differences, digest
from tests.beds.lxc import Guest

pytestmark = [pytest.mark.lxc, pytest.mark.root]
STATE = ("/var/lib/fly",)


def test_looking_changes_nothing_and_what_is_left_out_does_not_count(lxc_guest: Guest) -> None:
    before = digest(lxc_guest.name, STATE)
    assert len(before) > 3000
    lxc_guest.run(
        "sh",
        "-c",
        "mkdir -p /var/lib/fly /var/cache/flyops; echo x > /var/lib/fly/ck; echo x > /var/cache/flyops/a; echo x > /var/log/x; echo x > /run/x",
    )
    assert differences(before, digest(lxc_guest.name, STATE)) == []


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("echo x > /opt/new", "/opt/new came"),
        ("rm /etc/debian_version", "/etc/debian_version went"),
        ("chmod 600 /etc/debian_version", "/etc/debian_version: "),
        ("chown 5 /etc/debian_version", "/etc/debian_version: "),
        ("tr a-z b-za < /etc/debian_version > /tmp/t && cat /tmp/t > /etc/debian_version && rm /tmp/t; printf 99 | dd of=/etc/debian_version conv=notrunc 2>&1", "/etc/debian_version: "),
        ("ln -sfn /nowhere /etc/os-release", "/etc/os-release: "),
        ("rm /etc/debian_version && mkdir /etc/debian_version", "/etc/debian_version: "),
        ("systemctl restart systemd-journald", "unit: systemd-journald.service: "),
        ("systemctl stop dbus.socket dbus.service", "unit: dbus.socket: "),
        ("systemctl mask -q e2scrub_all.timer", "unit: e2scrub_all.timer: "),
    ],
)  # fmt: skip
def test_a_change_is_seen(lxc_guest: Guest, command: str, seen: str) -> None:
    before = digest(lxc_guest.name, STATE)
    lxc_guest.run("sh", "-c", command)
    found = differences(before, digest(lxc_guest.name, STATE))
    assert any(line.startswith(seen) for line in found), found


def test_the_hosts_config_and_a_restart_are_seen(lxc_make: Any, lxc_base: str) -> None:
    guest = lxc_make()
    before = digest(guest.name, STATE)
    with (guest.folder / "config").open("a") as stream:
        stream.write("# by hand\n")
    assert [line.split(":")[1].strip() for line in differences(before, digest(guest.name, STATE))] == ["config"]
