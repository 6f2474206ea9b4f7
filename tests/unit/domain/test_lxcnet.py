# SPDX-License-Identifier: Apache-2.0
"""Addresses on a bridge: the first free one, clashes by name, networks that the host already has."""

from __future__ import annotations

import json

import pytest

from flyops.domain import lxcnet
from flyops.domain.lxcnet import AddressError

BRIDGE = "10.117.0.1/24"
ADDR = json.dumps(
    [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "flybr0", "addr_info": [{"local": "10.117.0.1", "prefixlen": 24}]},
    ]
)


def test_the_first_free_address() -> None:
    assert lxcnet.free(BRIDGE, {}) == "10.117.0.2/24"
    assert lxcnet.free(BRIDGE, {"10.117.0.2": "a", "10.117.0.4": "b"}) == "10.117.0.3/24"
    with pytest.raises(AddressError, match="no address is free"):
        lxcnet.free("10.0.0.1/30", {"10.0.0.2": "a"})


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.117.0.9", "with its prefix length"),
        ("10.117.1.9/24", "is not in the bridge's network"),
        ("10.117.0.9/16", "is not in the bridge's network"),
        ("10.117.0.0/24", "the network's own"),
        ("10.117.0.255/24", "broadcast"),
        ("10.117.0.1/24", "the bridge's own"),
        ("10.117.0.5/24", "belongs to container 'other'"),
        ("fe80::1/64", "expected an IPv4 address"),
        ("10.117.0.300/24", "expected an IPv4 address"),
    ],
)
def test_addresses_that_cannot_be(address: str, why: str) -> None:
    with pytest.raises(AddressError, match=why):
        lxcnet.check(address, BRIDGE, {"10.117.0.5": "container 'other'"})


def test_an_address_that_can_be() -> None:
    assert lxcnet.check(" 10.117.0.6/24", BRIDGE, {"10.117.0.5": "container 'other'"}) == "10.117.0.6/24"


def test_the_bridges_address() -> None:
    assert lxcnet.bridge_address(ADDR, "flybr0") == BRIDGE
    assert lxcnet.bridge_address(ADDR, "lxcbr0") == ""
    assert lxcnet.bridge_address("not json", "flybr0") == ""


def test_who_has_the_network() -> None:
    routes = json.dumps([{"dst": "default", "dev": "eth0"}, {"dst": "10.0.0.0/8", "dev": "wg0"}, {"dst": "192.0.2.7", "dev": "eth1"}])
    assert lxcnet.overlaps("10.117.5.1/24", ADDR, routes, "flybr1") == ("wg0 10.0.0.0/8",)
    assert lxcnet.overlaps("192.0.2.1/24", ADDR, routes, "flybr1") == ("eth1 192.0.2.7",)
    assert lxcnet.overlaps("10.117.0.1/24", ADDR, "[]", "flybr0") == ()
    assert lxcnet.overlaps("10.117.0.1/24", ADDR, "[]", "flybr1") == ("flybr0 10.117.0.1/24",)
    assert lxcnet.overlaps("172.20.0.1/24", ADDR, routes, "flybr1") == ()


def test_addresses_in_configs() -> None:
    assert lxcnet.taken([("a", "10.0.0.2/24"), ("b", "10.0.0.3/24 10.0.0.255"), ("c", ""), ("d", "dhcp")]) == {
        "10.0.0.2": "container 'a'",
        "10.0.0.3": "container 'b'",
    }
