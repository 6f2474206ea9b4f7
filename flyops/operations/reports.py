# SPDX-License-Identifier: Apache-2.0
"""The report of the checks on a terminal, as JSON, and as a dated record where the operator wants one."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flyops.domain import cardload, neighbours, report
from flyops.domain.checks import BY_NAME, CHECKS
from flyops.errors import EXIT_FAILED, EXIT_OK
from flyops.executor.run import HostResult
from flyops.operations.options import Target

Entries = Sequence[Mapping[str, Any]]


def from_vars(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results that the playbook registered as check_NAME, in the order of the checks."""
    registered = (found.get(f"check_{name}") for name in BY_NAME)
    return [entry for entry in registered if isinstance(entry, Mapping) and entry.get("check")]


def beside(host: HostResult) -> dict[str, Any]:
    """What belongs to a run beside its checks: its writes, the neighbours' configs, and who was on the card."""
    look = host.vars.get("neighbours") or {}
    out: dict[str, Any] = {"writes": [dict(entry) for entry in host.writes]}
    if "digests" in look:
        ours = neighbours.by_us(look["moved"], host.writes)
        said = neighbours.said(look["digests"], look["moved"], ours)
        out["neighbours"] = {"looked_at": look["digests"], "moved": look["moved"], "by_us": ours, "said": said}
    elif look and not look.get("skipped"):
        out["neighbours"] = {"said": [f"their configs could not be read: {look.get('msg', 'no message')}"], "by_us": []}
    looks = {when: host.vars[f"card_{when}"] for when in ("before", "after") if host.vars.get(f"card_{when}")}
    if looks:
        out["card"] = {when: {**found, "said": cardload.said(found)} for when, found in looks.items()}
    return out


def touched(hosts: Mapping[str, HostResult]) -> int:
    """The exit code of a run that wrote a neighbour's config, which must not be; 0 when there was none."""
    wrong = {name: found for name, host in hosts.items() if (found := beside(host).get("neighbours", {}).get("by_us"))}
    for name, paths in wrong.items():
        sys.stderr.write(f"error: {name}: this run changed a neighbour's config: {', '.join(paths)}\n  to do: put it back, and report it\n")
    return EXIT_FAILED if wrong else EXIT_OK


def show(target: Target, found: Entries, *, host: str, release: str, backend: str, record: str = "", more: Mapping[str, Any] | None = None) -> None:
    """Prints the report; `record` is a folder for the dated Markdown and JSON; `more` is what `beside` gave."""
    more = more or {}
    entries = report.complete(found, backend)
    extra = [entry for entry in found if entry["check"] not in {check.name for check in CHECKS}]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = report.to_json([*entries, *extra], date=now, host=host, release=release, backend=backend, **more)
    if target.json:
        print(json.dumps({"kind": "report", **json.loads(text)}))
    else:
        width = min(140, shutil.get_terminal_size((110, 24)).columns)
        print(f"\n{host}, release {release}, backend {backend}\n{report.table([*entries, *extra], width)}", end="")
        print("".join(f"{line}\n" for line in report.lines(more)), end="")
    if record:
        folder = Path(record)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{now.replace(':', '')}-{host}-{backend}"
        (folder / f"{stem}.json").write_text(text + "\n")
        (folder / f"{stem}.md").write_text(report.markdown([*entries, *extra], date=now, host=host, release=release, backend=backend, more=more))
        sys.stderr.write(f"record: {folder / stem}.md and .json\n")


def line(row: Mapping[str, Any]) -> str:
    """One host as a person reads it."""
    if not row.get("backend"):
        return f"{row['host']}: flysim does not answer on {row['url']}"
    age, threads = row.get("checkpoint_age_s"), row["threads"]
    lost = f"\n  the card was lost at {row['card_lost']}: the CPU settings came back by receipt" if row.get("card_lost") else ""
    saved = f"checkpoint {float(age):.0f} s old" if age is not None else "no checkpoint yet"
    return (
        f"{row['host']}: {row['backend']} backend, real time x{float(row.get('realtime_factor') or 0):.3f}, {row['neurons']} neurons, "
        f"{threads} thread{'' if threads == 1 else 's'} on cpus {row['cpus']}, pid {row['pid']}\n"
        f"  release {row['release']}, {saved}\n  page    {row['page_url']}\n  status  {row['url']}/status{lost}"
    )
