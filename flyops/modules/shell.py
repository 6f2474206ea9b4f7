# SPDX-License-Identifier: Apache-2.0
"""Run a line through a shell. Values that come from outside belong through `| quote`."""

from __future__ import annotations

from typing import Any

from flyops.domain import running
from flyops.domain.running import RETURNS, RUN_ARGS, Prepared
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Run a line through /bin/sh. Put values that come from outside through the filter `quote`.",
    args={
        "cmd": Arg("str", "The line", required=True, aliases=("_raw_params",)),
        **RUN_ARGS,
        "executable": Arg("path", "The shell to use", default="/bin/sh"),
    },
    free_form="cmd",
    examples="""
- shell: journalctl -u flysim | tail -n 20
- shell: {cmd: "make > build.log 2>&1", chdir: /srv/src, creates: /srv/src/out}
""",
    returns=RETURNS,
)


def read(args: dict[str, Any], host: Host) -> Prepared:
    """Look whether the line has to run."""
    return running.prepare(args, host, [args["executable"], "-c", args["cmd"]], args["cmd"])


def plan(args: dict[str, Any], state: Prepared) -> Decision:
    """Run, or say why not."""
    return running.decide(args, state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run it."""
    return running.execute(args, change, host)
