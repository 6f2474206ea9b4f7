# SPDX-License-Identifier: Apache-2.0
"""Who is on the card, by the process list of its host: what NVML or nvidia-smi said, and what a check tells of it. Pure; it only reads.

A neighbour that shares the card is looked at here and nowhere else: never signalled, never limited.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterable, Mapping, Sequence

from flyops.domain.checks import FAILED, Judged

BUSY_PCT = 10.0
PROCESSES = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
CARDS = ("--query-gpu=index,name,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
NOT_READABLE = "the card's process list is not readable here"

# Runs beside the agent, so that a driver that hangs takes only this program along. pynvml is there where flyops itself is.
NVML = r"""
import json
try:
    import pynvml
    pynvml.nvmlInit()
except Exception as err:
    print(json.dumps({"error": "%s: %s" % (type(err).__name__, err)})); raise SystemExit
MIB = 1 << 20
cards, processes = [], []
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError:
        busy = None
    cards.append({"index": index, "name": name if isinstance(name, str) else name.decode(), "busy_pct": busy,
                  "used_mib": pynvml.nvmlDeviceGetMemoryInfo(handle).used // MIB})
    for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        processes.append({"pid": one.pid, "mib": None if one.usedGpuMemory is None else one.usedGpuMemory // MIB})
pynvml.nvmlShutdown()
print(json.dumps({"by": "NVML", "cards": cards, "processes": processes}))
"""


def _number(text: str) -> float | None:
    """`[N/A]` and the like are no numbers."""
    try:
        return float(text)
    except ValueError:
        return None


def by_smi(processes: str, cards: str) -> dict[str, Any]:
    """The two answers of nvidia-smi."""
    found = [[cell.strip() for cell in line.split(",")] for line in processes.splitlines() if line.count(",") >= 2]
    looked = [[cell.strip() for cell in line.split(",")] for line in cards.splitlines() if line.count(",") >= 3]
    return {
        "by": "nvidia-smi",
        "cards": [{"index": int(row[0]), "name": row[1], "busy_pct": _number(row[-2]), "used_mib": _number(row[-1])} for row in looked],
        "processes": [{"pid": int(row[0]), "name": ", ".join(row[1:-1]), "mib": _number(row[-1])} for row in found if row[0].isdigit()],
    }


def guest_of(cgroup: str) -> str:
    """The guest that a process belongs to, by /proc/PID/cgroup of the host; empty for the host's own."""
    found = re.search(r"/(?:lxc\.payload\.|lxc/|lxc\.monitor\.)(?P<name>[^/\s]+)", cgroup)
    return found.group("name") if found else ""


def others(look: Mapping[str, Any], own: Iterable[str] = ()) -> list[Mapping[str, Any]]:
    """Processes that are not ours: another guest's, or the host's own that are no flysim."""
    names = set(own)
    return [
        one
        for one in look.get("processes") or ()
        if not (one.get("guest") in names if one.get("guest") else one.get("name", "").startswith("flysim"))
    ]


def busiest(look: Mapping[str, Any]) -> float:
    """Utilisation of the busiest card, in percent."""
    return max((card.get("busy_pct") or 0.0 for card in look.get("cards") or ()), default=0.0)


def said(look: Mapping[str, Any] | None) -> str:
    """One look as a person reads it."""
    if not look or not look.get("readable"):
        return f"{NOT_READABLE}{': ' + str(look['why']) if look and look.get('why') else ''}"
    neighbours: Sequence[Mapping[str, Any]] = look.get("neighbours") or ()
    named = ", ".join(
        f"pid {one['pid']} {one.get('name') or '?'}{' in ' + one['guest'] if one.get('guest') else ''} ({'?' if one.get('mib') is None else format(one['mib'], '.0f')} MiB)"
        for one in neighbours
    )
    return f"{'beside it on the card: ' + named if named else 'nobody else on the card'}; the card {busiest(look):.0f} % busy"


def told(judged: Judged, look: Mapping[str, Any] | None) -> Judged:
    """Check 5 with the card's neighbours, as they were before our own trial: they explain a failed cost, and are no failure themselves."""
    if look is None:
        return judged
    fix = judged.fix
    if judged.verdict == FAILED and look.get("neighbours") and busiest(look) >= BUSY_PCT:
        fix = f"the card had a busy neighbour ({said(look)}): measure again when it rests, or take another card. {fix}"
    return replace(judged, seen=f"{judged.seen}; before the trial: {said(look)}", fix=fix, details={**judged.details, "card": dict(look)})
