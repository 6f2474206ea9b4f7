# SPDX-License-Identifier: Apache-2.0
"""Where a run may write: what is covered and what is not, and whose a refused path is."""

from __future__ import annotations

import pytest

from flyops.domain import fence

PLACES = ("/opt/fly", "/run/lock/flyops", "/etc/systemd/system/fly*", "/srv/*/own/")


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/opt/fly", True),
        ("/opt/fly/releases/v/bin/flysim", True),
        ("/opt/flyer", False),
        ("/opt", False),
        ("/etc/systemd/system/flysim.service.d/50-flyops-cpus.conf", True),
        ("/etc/systemd/system/fly", True),
        ("/etc/systemd/system/ssh.service", False),
        ("/etc/systemd/system", False),
        ("/etc/systemd/other/flysim.service", False),
        ("/srv/a/own/x", True),
        ("/srv/a/other/own/x", False),
        ("/var/lib/lxc/other/config", False),
        ("/", False),
    ],
)
def test_what_a_run_may_write_to(path: str, inside: bool) -> None:
    assert fence.outside(PLACES, path) is not inside


def test_folders_above_a_place_may_be_made_but_not_changed() -> None:
    assert not fence.outside(["/srv/user/.config/flyops"], "/srv/user/.config", making=True)
    assert fence.outside(["/srv/user/.config/flyops"], "/srv/user/.config")
    assert fence.outside(["/srv/user/.config/flyops"], "/srv/user/.cache", making=True)
    assert fence.outside([], "/tmp") and not fence.outside(["/"], "/tmp")


@pytest.mark.parametrize(
    ("path", "guest"),
    [
        ("/var/lib/lxc/dev2/config", "dev2"),
        ("/srv/lxc/dev2/rootfs/etc/passwd", "dev2"),
        ("/etc/pve/lxc/902.conf", "902"),
        ("/etc/pve/nodes/pve1/lxc/902.conf", "902"),
        ("/var/lib/incus/devices/dev3/x", "dev3"),
        ("/etc/passwd", ""),
    ],
)
def test_a_refusal_names_whose_it_is(path: str, guest: str) -> None:
    assert fence.guest_of(path) == guest
    said = fence.refusal("write", path, PLACES)
    assert path in said and "/opt/fly" in said and (f"belongs to the guest {guest}:" in said) == bool(guest)
