# SPDX-License-Identifier: Apache-2.0
"""`invoke records`: every figure of every record recomputed from its raw samples."""

from __future__ import annotations

from flyops.errors import UsageError
from flyops.operations import bench
from flyops.operations.options import RecordsOptions


def run(options: RecordsOptions) -> int:
    """The exit code: 1 when a record disagrees with its raw samples."""
    if options.action != "check":
        raise UsageError(f"records: expected `check`, found {options.action!r}", fix="./fly records check")
    return bench.run_records()
