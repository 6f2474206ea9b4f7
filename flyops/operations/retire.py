# SPDX-License-Identifier: Apache-2.0
"""`fly retire NAME`: the container goes, and leaves nothing behind but the archived state of its service."""

from __future__ import annotations

import time

from flyops import places
from flyops.operations import guests, incus, needs, pve
from flyops.operations.options import RetireOptions

ON_NODE = "/var/lib/flyops/archive"  # of a Proxmox node or a host of Incus, where a guest's disk is


def run(options: RetireOptions) -> int:
    """The exit code of the play."""
    inventory = guests.checked(options.name)
    known = guests.variables(inventory, options.name)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    if pve.is_pve(known):
        return pve.retire(options, inventory, known, f"{ON_NODE}/{options.name}-{stamp}.tar.gz")
    if incus.is_incus(known):
        return incus.retire(options, inventory, known, f"{ON_NODE}/{options.name}-{stamp}.tar.gz")
    needs.root(f"remove the container {options.name}")
    chosen = {
        "guest_name": options.name,
        "guest_state": known.get("fly_state", "/var/lib/fly"),
        "guest_bridge": known.get("container_bridge") or guests.BRIDGE,
        "guest_lxc_path": guests.LXC_PATH,
        "archive_file": str(places.state("archive", f"{options.name}-{stamp}.tar.gz")),
        "inventory_file": str(guests.inventory_file(options.name)),
    }
    return guests.retired(options, guests.play("retire", inventory, chosen, options))
