# SPDX-License-Identifier: Apache-2.0
"""`invoke host`: a container host gives its card to managed guests, now and after each boot (playbooks/host.yml); `--remove` takes all of it away."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from flyops import places
from flyops.errors import UsageError
from flyops.model.target import GUESTS
from flyops.operations import hosts, needs
from flyops.operations.deploy import bundle_file
from flyops.operations.options import HostOptions
from flyops.operations.play import run_playbook
from flyops.spec.arguments import to_bool

WORDS = {"changed": "changed (in force at its next start)"}


def run(options: HostOptions) -> int:
    """The exit code of the play. Not through hosts.play: a container host is root's and systemd's, also where flysim runs as a user."""
    chosen = hosts.find(options.target)
    refuse_guests(chosen)
    extra = {"host_state": "absent"} if options.remove else {}
    if options.hold_driver:
        extra["host_hold_driver"] = "true"
    target = options.target
    result = run_playbook(
        places.REPOSITORY / "playbooks" / "host.yml",
        inventory=chosen.inventory,
        limit=chosen.limit or None,
        extra_vars={**hosts.DEFAULTS, "run_holder": hosts.holder(), "agent_bundle": str(bundle_file()), **extra, **chosen.extra},
        check=target.check,
        diff=target.diff,
        forks=target.forks,
        display="json" if target.json else "brief",
        verbose=target.verbose,
    )
    for name, host in result.hosts.items() if not target.json else ():
        for line in summary(host.vars):
            print(f"{name}: {line}")
    return result.exit_code


def refuse_guests(chosen: hosts.Hosts) -> None:
    """A guest has its nodes and rules from its host: there is nothing to keep right inside, unless it is said to be a host itself."""
    kinds = {name: str(chosen.inventory.variables_of(name).get("ansible_connection", "ssh")) for name in chosen.names}
    guests = [name for name, kind in kinds.items() if kind in GUESTS and not to_bool(chosen.value(name, "container_host"))]
    if guests or not kinds:
        said = f"{', '.join(guests)}: a guest, and `host` is for what guests run on" if guests else "no host to keep right"
        raise UsageError(said, fix="name container hosts: --limit HOST (./fly inventory shows them); a nested one has container_host: true")
    if "local" in kinds.values() and os.geteuid() != 0:
        needs.root("keep this machine's guests right")


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    """What a person should know, a line each; nothing of what is as it should be beyond the guests."""
    majors = found.get("host_majors") or {}
    if "guests" in majors:
        listed = ", ".join(f"{name} {WORDS.get(status, status)}" for name, status in majors["guests"].items())
        yield f"guests: {listed or 'none managed'}"
    for key in ("strays", "dead", "notes"):
        yield from majors.get(key) or ()
    yield from (found.get("preflight") or {}).get("warnings") or ()
    warning = (found.get("driver_hold") or {}).get("warning")
    if warning:
        yield str(warning)
