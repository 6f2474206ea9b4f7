# SPDX-License-Identifier: Apache-2.0
"""`invoke verify`: the checks on what runs now (playbooks/verify.yml)."""

from __future__ import annotations

from flyops.operations import hosts, reports
from flyops.operations.options import VerifyOptions


def run(options: VerifyOptions) -> int:
    """The exit code: 3 when a check failed."""
    result = hosts.play(hosts.find(options.target), "verify", allow_jit=options.allow_jit)
    for name, host in result.hosts.items():
        live = host.vars.get("live", {}).get("json") or {}
        found = reports.from_vars(host.vars)
        if found:
            version = host.vars.get("release_now", {}).get("current", "")
            reports.show(options.target, found, host=name, release=version, backend=str(live.get("backend", "cpu")), record=options.record)
    return result.exit_code
