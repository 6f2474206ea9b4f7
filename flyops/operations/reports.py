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

from flyops.domain import report
from flyops.domain.checks import BY_NAME, CHECKS
from flyops.operations.options import Target

Entries = Sequence[Mapping[str, Any]]


def from_vars(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results that the playbook registered as check_NAME, in the order of the checks."""
    registered = (found.get(f"check_{name}") for name in BY_NAME)
    return [entry for entry in registered if isinstance(entry, Mapping) and entry.get("check")]


def show(target: Target, found: Entries, *, host: str, release: str, backend: str, record: str = "") -> None:
    """Prints the report; `record` is a folder for the dated Markdown and JSON."""
    entries = report.complete(found, backend)
    extra = [entry for entry in found if entry["check"] not in {check.name for check in CHECKS}]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = report.to_json([*entries, *extra], date=now, host=host, release=release, backend=backend)
    if target.json:
        print(json.dumps({"kind": "report", **json.loads(text)}))
    else:
        width = min(140, shutil.get_terminal_size((110, 24)).columns)
        print(f"\n{host}, release {release}, backend {backend}\n{report.table([*entries, *extra], width)}", end="")
    if record:
        folder = Path(record)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{now.replace(':', '')}-{host}-{backend}"
        (folder / f"{stem}.json").write_text(text + "\n")
        (folder / f"{stem}.md").write_text(report.markdown([*entries, *extra], date=now, host=host, release=release, backend=backend))
        sys.stderr.write(f"record: {folder / stem}.md and .json\n")


def line(row: Mapping[str, Any]) -> str:
    """One host as a person reads it."""
    if not row.get("backend"):
        return f"{row['host']}: flysim does not answer on {row['url']}"
    age, threads = row.get("checkpoint_age_s"), row["threads"]
    saved = f"checkpoint {float(age):.0f} s old" if age is not None else "no checkpoint yet"
    return (
        f"{row['host']}: {row['backend']} backend, real time x{float(row.get('realtime_factor') or 0):.3f}, {row['neurons']} neurons, "
        f"{threads} thread{'' if threads == 1 else 's'} on cpus {row['cpus']}, pid {row['pid']}\n"
        f"  release {row['release']}, {saved}\n  page    {row['page_url']}\n  status  {row['url']}/status"
    )
