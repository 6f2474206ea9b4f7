# SPDX-License-Identifier: Apache-2.0
"""What a new Proxmox guest is made from."""

from __future__ import annotations

import dataclasses

import pytest

from flyops.domain import pvecreate
from flyops.domain.pvecreate import Guest

GUEST = Guest("101", "dev1", 4, 8192, 0, "local-lvm", 32, "name=eth0,bridge=vmbr0,ip=dhcp", "nesting=1", True, False)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["13.1-2_amd64", "13.9-1_amd64", "13.10-1_amd64"], "13.10-1_amd64"),
        (["13.1-9_amd64", "13.1-10_amd64"], "13.1-10_amd64"),
        ([], ""),
    ],
)
def test_the_newest_template(names: list[str], wanted: str) -> None:
    volumes = [f"local:vztmpl/debian-13-standard_{name}.tar.zst" for name in names]
    decoys = [
        "local:vztmpl/debian-13-turnkey_99.1_amd64.tar.zst",
        "local:vztmpl/debian-130-standard_1_amd64.tar.zst",
        "local:iso/debian-13-standard_9.iso",
    ]
    found = pvecreate.newest([*decoys, *volumes], "debian-13-standard")
    assert found == (f"local:vztmpl/debian-13-standard_{wanted}.tar.zst" if wanted else "")


def test_the_listing_of_pveam() -> None:
    assert pvecreate.templates("NAME  SIZE\nlocal:vztmpl/a_1.tar.zst   1MB\n\n") == ("local:vztmpl/a_1.tar.zst",)


@pytest.mark.parametrize(("text", "wanted"), [("4G", 4096), ("512M", 512), ("2048", 2048), ("0", 0)])
def test_sizes(text: str, wanted: int) -> None:
    assert pvecreate.mebibytes(text) == wanted


def test_what_differs_and_what_cannot_be_set() -> None:
    has = {"cores": "4", "memory": "8192", "swap": "0", "hostname": "dev1", "unprivileged": "1", "features": "nesting=1"}
    has |= {"rootfs": "x:vm-101-disk-0,size=32G", "net0": "name=eth0,bridge=vmbr0,hwaddr=02:00:00:00:00:01,ip=dhcp,type=veth"}
    assert pvecreate.differing(GUEST, has) == {}
    assert pvecreate.differing(dataclasses.replace(GUEST, cores=6, onboot=True), has) == {"cores": "6", "onboot": "1"}
    assert pvecreate.differing(GUEST, {}) == {"cores": "4", "memory": "8192", "swap": "0"}
    assert pvecreate.fixed(GUEST, has) == ()
    assert pvecreate.fixed(GUEST, {**has, "unprivileged": "0", "net0": "name=eth0,bridge=vmbr1,ip=dhcp"}) == (
        "unprivileged is 0, asked was 1",
        "net0 is name=eth0,bridge=vmbr1,ip=dhcp, asked was name=eth0,bridge=vmbr0,ip=dhcp",
    )
