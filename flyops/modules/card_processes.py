# SPDX-License-Identifier: Apache-2.0
"""The card's process list as its host sees it: by NVML (pynvml, where flyops itself is), else by nvidia-smi. It only reads."""

from __future__ import annotations

import json
import sys
from typing import Any

from flyops.domain import cardload
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

TIME_LIMIT_S = 30.0

SPEC = Spec(
    doc="Read who is on the card: pids, names, guests, device memory, utilisation. Where it cannot be read, that is said and is no failure.",
    args={
        "own": Arg("list", elements="str", default=[], help="names of the run's own guests: their processes are no neighbours"),
        "python": Arg("str", default="", help="an interpreter that has pynvml; default: the agent's own"),
        "proc": Arg("path", default="/proc", help="processes of the host"),
    },
    examples="- name: Who is on the card\n  card_processes: {own: [dev1]}\n  delegate_to: localhost\n  register: card_before\n",
    returns={
        "readable": "whether the list could be read",
        "why": "why not",
        "by": "NVML or nvidia-smi",
        "cards": "index, name, busy_pct, used_mib of each",
        "processes": "pid, name, guest, mib of each",
        "neighbours": "those of them that are not ours",
        "said": "all of it in one line",
    },
)


def _run(argv: list[str], stdin: str, host: Host) -> tuple[int, str]:
    """A program that only looks. One that is not there, or that hangs in the driver, answers nothing."""
    try:
        done = host.run(argv, query=True, stdin=stdin.encode(), timeout=TIME_LIMIT_S)
    except Exception as err:  # the agent's TimedOut is out of a module's reach, and an OSError says the same here
        return 127, str(err)
    return done.rc, (done.stdout if done.rc == 0 else done.stderr or done.stdout).decode("utf-8", "replace").strip()


def _by_nvml(args: dict[str, Any], host: Host) -> dict[str, Any]:
    code, text = _run([args["python"] or sys.executable or "python3", "-I", "-"], cardload.NVML, host)
    try:
        found: dict[str, Any] = json.loads(text.splitlines()[-1]) if code == 0 and text else {"error": text}
    except ValueError:
        found = {"error": text[-200:]}
    return found


def _by_smi(host: Host) -> dict[str, Any]:
    program = host.which("nvidia-smi")
    if program is None:
        return {"error": "no nvidia-smi"}
    (code, processes), (other, cards) = (_run([program, *words], "", host) for words in (cardload.PROCESSES, cardload.CARDS))
    return {"error": (processes or cards)[-200:]} if code or other else cardload.by_smi(processes, cards)


def _named(one: dict[str, Any], args: dict[str, Any], host: Host) -> dict[str, Any]:
    place = f"{args['proc']}/{one['pid']}"
    name = one.get("name") or host.read_text(f"{place}/comm", missing="").strip()
    return {**one, "name": name.rpartition("/")[2], "guest": cardload.guest_of(host.read_text(f"{place}/cgroup", missing=""))}


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Both ways, the second only when the first has no answer."""
    found = _by_nvml(args, host)
    if "error" in found:
        first, found = found["error"], _by_smi(host)
        if "error" in found:
            return {"readable": False, "why": f"NVML: {first or 'no answer'}; nvidia-smi: {found['error']}", "processes": []}
    return {**found, "readable": True, "processes": [_named(one, args, host) for one in found["processes"]]}


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """Who of them is a neighbour."""
    values = {**state, "neighbours": [dict(one) for one in cardload.others(state, args["own"])]}
    return Same({**values, "said": cardload.said(values)})


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Never reached: it only reads."""
