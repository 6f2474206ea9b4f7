# SPDX-License-Identifier: Apache-2.0
"""How one host is reached, as its variables say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

# connection -> the variable that holds the guest's name there; the inventory's name when it is not set
GUESTS: Mapping[str, str] = {
    "lxc": "ansible_lxc_name",
    "pct": "ansible_pct_id",
    "incus": "ansible_incus_name",
    "podman": "ansible_podman_name",
}


@dataclass(frozen=True)
class Target:
    """An agent's address: two equal targets share one agent. `via` is the parent host of a guest."""

    name: str  # inventory name
    connection: str = "local"  # local, ssh or one of GUESTS
    address: str = ""
    port: int = 0
    user: str = ""
    key_file: str = ""
    known_hosts_file: str = ""
    accept_new: bool = False  # take and write down the key of a host that no file knows; a changed key is refused all the same
    python: str = "python3"
    become: bool = False
    become_user: str = "root"
    guest: str = ""  # its name, to the manager that the connection is named after
    lxc_path: str = ""
    incus_binary: str = ""  # incus, or LXD's client lxc
    via: Optional[Target] = None
    connect_s: float = 10.0
    silence_s: float = 30.0  # the agent says something at least every few seconds; a longer silence is a lost connection

    @property
    def is_local(self) -> bool:
        """Whether tasks there may change files that this controller reads."""
        return self.connection == "local"

    def describe(self) -> str:
        """For people."""
        place = "local"
        if self.connection == "ssh":
            place = f"ssh {self.user + '@' if self.user else ''}{self.address}:{self.port or 22}"
        elif self.connection in GUESTS:
            place = f"{self.connection} {self.guest}"
        if self.via is not None:
            place += f" via {self.via.describe()}"
        return f"{place} as {self.become_user}" if self.become else place
