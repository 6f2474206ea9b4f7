# SPDX-License-Identifier: Apache-2.0
"""`invoke driver`: the driver's user part of guests in lockstep with the loaded module (playbooks/driver.yml); `--verify` only looks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyops.errors import Refused, UsageError
from flyops.operations import hosts
from flyops.operations.options import DriverOptions

STRATEGIES = ("bind", "runfile", "package")


def run(options: DriverOptions) -> int:
    """The exit code of the play."""
    chosen = hosts.find(options.target)
    variables = choose(options)
    if variables["driver_state"] != "verified":
        refuse_hosts(chosen)
    result = hosts.play(chosen, "driver", **variables)
    for name, host in result.hosts.items() if not options.target.json else ():
        found = host.vars.get("driver_after") or host.vars.get("driver_now") or host.vars.get("driver_before") or {}
        if found.get("verdict"):
            print(f"{name}: {told(found, options.remove)}")
    return result.exit_code


def choose(options: DriverOptions) -> dict[str, Any]:
    """The playbook's variables."""
    strategy = options.strategy or ("runfile" if options.runfile else "bind")
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy: expected {', '.join(STRATEGIES)}, found {strategy!r}")
    if options.verify and options.remove:
        raise UsageError("--verify and --remove say different things", fix="type one of them")
    state = "verified" if options.verify else "absent" if options.remove else "present"
    if strategy == "runfile" and state == "present" and not options.runfile:
        raise UsageError("--strategy runfile needs the installer", fix="--runfile NVIDIA-Linux-x86_64-VERSION.run")
    return {
        "driver_state": state,
        "driver_strategy": strategy,
        "driver_runfile": str(Path(options.runfile).resolve()) if options.runfile else "",
        "driver_sha256": checked(options) if options.runfile else "",
        "driver_version": options.version,
        "driver_packages": [name.strip() for name in options.packages.split(",") if name.strip()],
    }


def checked(options: DriverOptions) -> str:
    """The installer's digest: the publisher's, when it was typed, is compared before anything is sent; the target compares again."""
    path = Path(options.runfile)
    if not path.is_file():
        raise UsageError(f"--runfile {options.runfile}: no such file here")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if options.sha256 and options.sha256.lower() != found:
        raise Refused(f"{options.runfile}: expected sha256 {options.sha256}, found {found}: it is not sent", fix="fetch it again")
    return found


def refuse_hosts(chosen: hosts.Hosts) -> None:
    """A host's own driver has a kernel part, and its owner decides on that."""
    found = [name for name in chosen.names if chosen.value(name, "driver_side") == "host"]
    if found or not chosen.names:
        said = f"{', '.join(found)}: a host, and its driver is its owner's" if found else "no guest to put in lockstep"
        raise UsageError(
            said, fix="name guests: --limit NAME; --verify looks at hosts, too; -e driver_side=guest for a guest that is reached as a host is"
        )


def told(found: Mapping[str, Any], removed: bool = False) -> str:
    """One line for a person."""
    if removed:
        return f"taken away; libraries that are left: {', '.join(found.get('found') or ()) or 'none'}"
    seen = ", ".join(found.get("found") or ()) or "no libraries"
    more = f"; persistence {', '.join(found['persistence'])}" if found.get("persistence") else ""
    return f"{found['verdict']} (module {found.get('module') or 'not visible'}, found {seen}{more})"
