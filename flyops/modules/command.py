# SPDX-License-Identifier: Apache-2.0
"""Run a program. No shell stands between: words reach it as they are."""

from __future__ import annotations

import shlex
from typing import Any

from flyops.domain import running
from flyops.domain.running import RETURNS, RUN_ARGS, Prepared
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Run a program. No shell stands between: words reach it as they are, but for $NAME and ~.",
    args={
        "cmd": Arg("str", "The program and its words, split as a shell would", aliases=("_raw_params",)),
        "argv": Arg("list", "The same as a list of words", elements="str"),
        **RUN_ARGS,
        "executable": Arg("path", "Accepted and not used, as in Ansible; the shell module has it"),
        "expand_argument_vars": Arg("bool", "Replace $NAME and a leading ~ by their values", default=True),
    },
    free_form="cmd",
    exclusive=(("cmd", "argv"),),
    required_one_of=(("cmd", "argv"),),
    examples="""
- command: /opt/fly/current/bin/flysim --version
- command: {argv: [tar, -xf, "a file.tar"], chdir: /srv, creates: /srv/a}
""",
    returns=RETURNS,
)


def read(args: dict[str, Any], host: Host) -> Prepared:
    """Split the words and look whether the command has to run."""
    words = args["argv"] if args["argv"] is not None else _split(args["cmd"])
    if not words:
        raise ModuleError("no command given", fix="name a program in cmd or argv", rc=256)
    if args["expand_argument_vars"]:
        words = [running.expand(word, host) for word in words]
    return running.prepare(args, host, words, words)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as err:
        raise ModuleError(f"cmd cannot be split into words: {err}: {text}", fix="close the quote, or give the words as argv", rc=256) from None


def plan(args: dict[str, Any], state: Prepared) -> Decision:
    """Run, or say why not."""
    return running.decide(args, state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run it."""
    done = running.execute(args, change, host)
    warning = ["'executable' is no longer supported by command and was not used; the shell module has it"]
    return {**done, "warnings": warning} if args["executable"] else done
