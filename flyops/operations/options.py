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
    accept: str = ""  # one compatibility segment that may differ; the state is archived
    archive_state: bool = False  # the state is archived whatever differs
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
class CostOptions:
    """`invoke cost`."""

    target: Target = Target()
    window: float = 30.0  # seconds of each window
    wait_s: float = 0.0
    record: str = ""  # folder for the JSON


@dataclass(frozen=True)
class WatchOptions:
    """`invoke watch`."""

    target: Target = Target()
    every: float = 10.0  # minutes between samples
    hours: float = 3.0
    out: str = ""  # folder of TSV and plot; empty: this user's state folder
    judge: str = ""  # a recorded watch to judge, in place of a new one
    detach: bool = False
    stop: bool = False
    plot: bool = True


@dataclass(frozen=True)
class LogsOptions:
    """`invoke logs`."""

    target: Target = Target()
    lines: int = 50


@dataclass(frozen=True)
class PlayOptions:
    """`invoke play FILE`."""

    file: str
    target: Target = Target()
    tags: str = ""  # comma separated, as in Ansible
    skip_tags: str = ""
    start_at_task: str = ""
    list_hosts: bool = False
    list_tasks: bool = False
    syntax_check: bool = False
    step: bool = False
    stats: bool = False


@dataclass(frozen=True)
class ProvisionOptions:
    """`invoke provision NAME`."""

    name: str
    gpu: bool = False
    gpu_ids: str = ""  # UUIDs, bus ids or nvidia-smi's indexes
    mig: str = ""  # CARD/GI/CI
    no_gpu: bool = False
    cpus: str = ""  # a list as 0-3,6; all: no limit. Here and below, empty is what the inventory says of the guest
    mems: str = ""  # memory nodes, auto, or none: no limit
    memory: str = ""  # as 2G
    disk: str = ""  # as 8G
    unprivileged: bool = False  # ids of its own
    rootfs: str = ""  # a prebuilt root file system (tar); empty: the cached one is made
    network: str = ""  # bridge | none
    address: str = ""  # with its prefix length
    autostart: str = ""  # yes | no: with the host
    plan: bool = False  # only show what would be done
    deploy: bool = False  # then deploy and verify
    release: str = ""  # for deploy: a prebuilt release
    manager: str = ""  # lxc | pve | incus; empty: what the inventory says of the guest, else lxc
    id: str = ""  # pve: its number
    on: str = ""  # pve, incus: the node, a host of the inventory; empty: this machine
    json: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class RetireOptions:
    """`invoke retire NAME`."""

    name: str
    plan: bool = False
    json: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class HostOptions:
    """`invoke host`."""

    target: Target = Target()
    hold_driver: bool = False  # keep the driver's packages from unattended upgrades
    remove: bool = False  # take away all that `host` brought


@dataclass(frozen=True)
class DriverOptions:
    """`invoke driver`."""

    target: Target = Target()
    strategy: str = ""  # bind | runfile | package; empty: runfile with a runfile, else bind
    runfile: str = ""  # the installer, here
    sha256: str = ""  # its digest by its publisher
    version: str = ""  # of the host's module; empty: what the guest sees in /proc
    packages: str = ""  # names, comma separated; empty: the known ones, as they are offered
    verify: bool = False  # only look
    remove: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """`invoke build`."""

    gpu: bool = False
    arch: str = ""  # with gpu: also put PTX for this arch (sm_90) into the release
    json: bool = False


@dataclass(frozen=True)
class PtxOptions:
    """`invoke ptx`."""

    arch: str = ""  # empty: what the card is, sm_75 where there is none
    out: str = ""
    driver: str = ""  # the driver that must load it (535.54.03); empty: this machine's, if it has one
    json: bool = False


@dataclass(frozen=True)
class TestOptions:
    """`invoke test`."""

    __test__ = False  # a class of options, not of tests

    only: str = ""  # a pytest -k expression
    quick: bool = False  # leave out what needs a guest, root, a card or minutes
    python: bool = True
    rust: bool = True


@dataclass(frozen=True)
class LintOptions:
    """`invoke lint`."""

    fix: bool = False
    python: bool = True
    rust: bool = True


@dataclass(frozen=True)
class InventoryOptions:
    """`invoke inventory` and `invoke facts`."""

    target: Target = Target()


@dataclass(frozen=True)
class BenchOptions:
    """`invoke bench NAME`."""

    name: str
    out: str = ""  # folder of the record; empty: bench/records


@dataclass(frozen=True)
class RecordsOptions:
    """`invoke records check`."""

    action: str = "check"
