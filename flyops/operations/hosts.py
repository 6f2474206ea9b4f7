# SPDX-License-Identifier: Apache-2.0
"""What the operations share: which hosts, their variables, one run of a playbook of ours."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyops import places
from flyops.executor.run import RunResult
from flyops.loading.extravars import parse_extra
from flyops.loading.inventory import Inventory, limit_hosts
from flyops.loading.templating import render_variable
from flyops.loading.variables import Scope
from flyops.operations import embedded
from flyops.operations.options import Target
from flyops.operations.play import as_inventory, default_inventory, run_playbook

HERE = "local"  # the group that an operation means when neither hosts nor an inventory were named


@dataclass(frozen=True)
class Hosts:
    """The hosts of one operation: their inventory, the limit, what was typed on top."""

    inventory: Inventory
    limit: str
    extra: Mapping[str, Any]
    target: Target

    @property
    def names(self) -> list[str]:
        """The hosts within the limit."""
        within = limit_hosts(self.inventory, self.limit or None)
        return [name for name in self.inventory.hosts if within is None or name in within]

    def value(self, host: str, name: str) -> Any:
        """A host's variable as a task without facts would see it."""
        layers = (self.extra, {"inventory_hostname": host}, self.inventory.variables_of(host))
        return Scope(layers, render_variable)[name]


def find(target: Target) -> Hosts:
    """The hosts that a person named; the group `local` alone when nothing was named."""
    inventory = as_inventory(default_inventory(target.inventory))
    inventory.under(str(places.REPOSITORY / "inventory"))  # what our playbooks ask for; an inventory of one's own says only what differs
    limit = target.limit or ("" if target.inventory else HERE)
    limit_hosts(inventory, limit or None)
    return Hosts(inventory, limit, parse_extra(target.extra), target)


def play(hosts: Hosts, playbook: str, *, display: str = "", look: bool = False, **variables: Any) -> RunResult:
    """Runs playbooks/PLAYBOOK.yml over the hosts. `look` is a run that changes nothing, also in check mode."""
    target = hosts.target
    if not look and not target.check:
        supervise(hosts)
    return run_playbook(
        places.REPOSITORY / "playbooks" / f"{playbook}.yml",
        inventory=hosts.inventory,
        limit=hosts.limit or None,
        extra_vars={**DEFAULTS, "run_holder": holder(), **variables, **hosts.extra},
        check=target.check and not look,
        diff=target.diff and not look,
        forks=target.forks,
        display=display or ("json" if target.json else "brief"),
        verbose=target.verbose,
    )


# What every playbook of ours may ask for; an operation sets what it means.
DEFAULTS: Mapping[str, Any] = {"want_gpu": False, "run_wait": 0, "allow_jit": False, "accept_segments": [], "archive_state": False, "force": False}


def supervise(hosts: Hosts) -> None:
    """A machine without root gets its service manager before the play: one supervisord of this user, adopted when it runs."""
    for host in hosts.names:
        if hosts.value(host, "service_manager") == "supervisor" and hosts.value(host, "ansible_connection") == "local":
            embedded.ensure({name: hosts.value(host, name) for name in embedded.PLACES})


def holder() -> str:
    """Who runs this, for whoever meets our lock."""
    since = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    words = " ".join(["fly", *sys.argv[1:]]) if len(sys.argv) > 1 else "fly"
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        who = f"uid {os.getuid()}"
    return f"pid {os.getpid()}, {who}@{socket.gethostname()}, since {since}, {words}"
