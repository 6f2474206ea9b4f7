# SPDX-License-Identifier: Apache-2.0
"""What a new Proxmox guest is made from, and what of an existing one may be set. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from flyops.domain import lxcconf

HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
STORAGE = re.compile(r"[a-z][a-z0-9._-]*[a-z0-9]", re.IGNORECASE)
WORD = re.compile(r"[^\s]+")
SETTABLE = ("cores", "memory", "swap", "onboot")  # Proxmox changes these in a guest that runs, too


class PveCreateError(ValueError):
    """A guest that cannot be made as asked; the text says what was found and what to do."""


@dataclass(frozen=True)
class Guest:
    """A guest as it should be. Sizes in MiB and GiB, as Proxmox counts them."""

    number: str
    hostname: str
    cores: int
    memory_mib: int
    swap_mib: int
    storage: str
    disk_gib: int
    network: str
    features: str
    unprivileged: bool
    onboot: bool

    @property
    def settings(self) -> Mapping[str, str]:
        """What may be set later as well."""
        return {"cores": str(self.cores), "memory": str(self.memory_mib), "swap": str(self.swap_mib), "onboot": str(int(self.onboot))}


def mebibytes(text: str) -> int:
    """`4G` or `512M` as MiB; a bare number is MiB already, as in `pct`."""
    return int(text) if text.isdigit() else lxcconf.memory_bytes(text) >> 20


def check(guest: Guest) -> Tuple[str, ...]:
    """All that is wrong with a guest's words."""
    out = []
    if not HOSTNAME.fullmatch(guest.hostname):
        out.append(f"hostname: expected 1 to 63 of letters, digits and '-', found {guest.hostname!r}")
    if not STORAGE.fullmatch(guest.storage):
        out.append(f"storage: expected the name of a storage (pvesm status), found {guest.storage!r}")
    for name, word in (("network", guest.network), ("features", guest.features)):
        if word and not WORD.fullmatch(word):
            out.append(f"{name}: expected KEY=VALUE,… without blanks, found {word!r}")
    for name, number, least in (
        ("cores", guest.cores, 1),
        ("memory", guest.memory_mib, 64),
        ("swap", guest.swap_mib, 0),
        ("disk", guest.disk_gib, 1),
    ):
        if number < least:
            out.append(f"{name}: expected at least {least}, found {number}")
    return tuple(out)


def templates(listing: str) -> Tuple[str, ...]:
    """Volumes in the output of `pveam list STORAGE`."""
    words = [line.split()[0] for line in listing.splitlines() if line.split()]
    return tuple(word for word in words if ":vztmpl/" in word)


def newest(volumes: Sequence[str], system: str) -> str:
    """The newest template of a system (`debian-13-standard`), numbers compared as numbers (13.10 is newer than 13.9); empty when there is none."""
    fitting = [volume for volume in volumes if volume.partition(":vztmpl/")[2].startswith(f"{system}_")]
    return max(fitting, key=_by_number, default="")


def _by_number(volume: str) -> List[Tuple[int, str]]:
    return [(int(digits), "") if digits else (-1, rest) for digits, rest in re.findall(r"(\d+)|(\D+)", volume)]


def create(guest: Guest, template: str, tag: str) -> List[str]:
    """The command that makes it. The tag says whose it is, and stays with the guest."""
    words = ["pct", "create", guest.number, template, "--hostname", guest.hostname, "--rootfs", f"{guest.storage}:{guest.disk_gib}"]
    for key, value in guest.settings.items():
        words += [f"--{key}", value]
    words += ["--unprivileged", str(int(guest.unprivileged)), "--tags", tag]
    words += ["--net0", guest.network] if guest.network else []
    return words + (["--features", guest.features] if guest.features else [])


def differing(guest: Guest, has: Mapping[str, str]) -> Dict[str, str]:
    """Settings whose value is another one now. `has`: keys of the config; what it does not say is Proxmox' default."""
    defaults = {"memory": "512", "swap": "512", "onboot": "0"}
    return {key: value for key, value in guest.settings.items() if has.get(key, defaults.get(key, "")) != value}


def fixed(guest: Guest, has: Mapping[str, str]) -> Tuple[str, ...]:
    """What was decided when the guest was made and is another now than asked: told, never changed."""
    out = []
    disk = re.search(r"size=(\w+)", has.get("rootfs", ""))
    pairs = (
        ("hostname", guest.hostname, has.get("hostname", "")),
        ("unprivileged", str(int(guest.unprivileged)), has.get("unprivileged", "0")),
        ("disk", f"{guest.disk_gib}G", disk.group(1) if disk else ""),
        ("net0", guest.network, has.get("net0", "")),
        ("features", guest.features, has.get("features", "")),
    )
    for name, asked, found in pairs:
        if name == "net0" and set(asked.split(",")) <= set(found.split(",")):
            continue  # Proxmox adds hwaddr and type
        if asked != found:
            out.append(f"{name} is {found or 'not set'}, asked was {asked or 'none'}")
    return tuple(out)
