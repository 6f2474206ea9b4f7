# SPDX-License-Identifier: Apache-2.0
"""Addresses of guests on a bridge: which network, which address is free, who clashes. Pure."""

from __future__ import annotations

import ipaddress
import json
from typing import Any, Iterable, List, Mapping, Tuple


class AddressError(ValueError):
    """An address that cannot be used; the text says what was found and what to do."""


def interface(text: str) -> ipaddress.IPv4Interface:
    """`10.117.0.1/24` as an address with its network; a missing prefix length is an error, since /32 is never meant."""
    if "/" not in text:
        raise AddressError(f"expected an IPv4 address with its prefix length (10.117.0.2/24), found {text!r}")
    try:
        return ipaddress.IPv4Interface(text.strip())
    except ValueError as error:
        raise AddressError(f"expected an IPv4 address with its prefix length (10.117.0.2/24), found {text!r}: {error}") from None


def check(address: str, bridge_address: str, taken: Mapping[str, str]) -> str:
    """The guest's address, normalised. Outside the bridge's network, not a host's, or someone's: an error that says which."""
    mine, bridge = interface(address), interface(bridge_address)
    network = bridge.network
    if mine.network != network:
        raise AddressError(f"address {mine} is not in the bridge's network {network}")
    if mine.ip in (network.network_address, network.broadcast_address):
        raise AddressError(f"address {mine} is the network's own or its broadcast address")
    if mine.ip == bridge.ip:
        raise AddressError(f"address {mine.ip} is the bridge's own")
    owner = taken.get(str(mine.ip))
    if owner:
        raise AddressError(f"address {mine.ip} belongs to {owner}")
    return str(mine)


def free(bridge_address: str, taken: Mapping[str, str]) -> str:
    """The first free address of the bridge's network."""
    bridge = interface(bridge_address)
    for host in bridge.network.hosts():
        if host != bridge.ip and str(host) not in taken:
            return f"{host}/{bridge.network.prefixlen}"
    raise AddressError(f"no address is free in {bridge.network}")


def _json(text: str) -> List[Mapping[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [entry for entry in found if isinstance(entry, dict)]


def bridge_address(addresses: str, name: str) -> str:
    """The first IPv4 address of an interface in the output of `ip -j -4 addr show`; empty when it has none."""
    for entry in _json(addresses):
        if entry.get("ifname") == name:
            for info in entry.get("addr_info", []):
                return f"{info['local']}/{info['prefixlen']}"
    return ""


def overlaps(wanted: str, addresses: str, routes: str, name: str) -> Tuple[str, ...]:
    """Who on this host already has (part of) the network: `eth0 10.0.0.5/8`, `route 10.0.0.0/8 by wg0`. The bridge itself does not count."""
    network = interface(wanted).network
    seen: List[Tuple[str, str]] = []
    for entry in _json(addresses):
        seen += [(str(entry.get("ifname")), f"{i['local']}/{i['prefixlen']}") for i in entry.get("addr_info", [])]
    for entry in _json(routes):
        if entry.get("dst") not in (None, "default"):
            seen.append((str(entry.get("dev")), str(entry["dst"])))
    return tuple(dict.fromkeys(f"{device} {text}" for device, text in seen if device != name and _meets(network, text)))


def _meets(network: ipaddress.IPv4Network, text: str) -> bool:
    try:
        return ipaddress.IPv4Interface(text).network.overlaps(network)
    except ValueError:
        return False


def taken(configs: Iterable[Tuple[str, str]]) -> Mapping[str, str]:
    """Address -> `container 'NAME'`, from (container, value of lxc.net.N.ipv4.address) pairs."""
    out = {}
    for container, text in configs:
        try:
            out[str(ipaddress.IPv4Interface(text.split()[0] if text.split() else "").ip)] = f"container {container!r}"
        except ValueError:
            continue
    return out
