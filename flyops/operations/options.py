# SPDX-License-Identifier: Apache-2.0
"""What an operator typed for an operation, as frozen dataclasses: the command line fills them, operations read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Which hosts an operation is for, and how its run is shown. `inventory` empty and `limit` empty mean the group `local`."""

    inventory: tuple[str, ...] = ()
    limit: str = ""
    extra: tuple[str, ...] = ()  # each `k=v`, JSON or `@file`
    check: bool = False
    diff: bool = False
    json: bool = False
    forks: int = 20
    verbose: bool = False


@dataclass(frozen=True)
class DeployOptions:
    """`invoke deploy`."""

    target: Target = Target()
    gpu: bool = False
    release: str = ""  # a prebuilt release tar; empty: build
    connectome: str = ""  # a name or a path; empty: the inventory's fly_connectome
    allow_jit: bool = False
    accept: str = ""  # a compatibility segment that may differ; the state is archived
    force: bool = False
    wait_s: float = 0.0
    record: str = ""  # folder for the dated report


@dataclass(frozen=True)
class RollbackOptions:
    """`invoke rollback-cpu` and `invoke rollback`."""

    target: Target = Target()
    force: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True)
class VerifyOptions:
    """`invoke verify`."""

    target: Target = Target()
    allow_jit: bool = False
    record: str = ""


@dataclass(frozen=True)
class LogsOptions:
    """`invoke logs`."""

    target: Target = Target()
    lines: int = 50
