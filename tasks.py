# SPDX-License-Identifier: Apache-2.0
"""The tasks of `./fly` and `invoke`: options in, one call, exit code out. What they do is in playbooks/ and flyops/operations/."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, cast

# Invoke turns bytecode off for what it loads; a second call would compile everything again.
sys.dont_write_bytecode = False

from invoke import Context, Task, task  # noqa: E402

from flyops import cli  # noqa: E402


def operation(helps: dict[str, str] | None = None) -> Callable[[Callable[..., None]], Task[Any]]:
    """A task whose options about hosts are the same everywhere, with their help."""

    def make(body: Callable[..., None]) -> Task[Any]:
        names = {name.replace("_", "-") for name in inspect.signature(body).parameters}
        many = [name for name in ("inventory", "extra") if name in names]
        texts = {name: text for name, text in {**cli.TARGET_HELP, **(helps or {})}.items() if name in names}
        positional = [name for name in ("file", "name", "action") if name in names]
        return cast("Task[Any]", task(body, iterable=many, positional=positional, help=texts))

    return make


@operation(cli.DEPLOY_HELP)
def deploy(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", gpu: bool = False, release: str = "", connectome: str = "", allow_jit: bool = False,
    accept: str = "", archive_state: bool = False, force: bool = False, wait: str = "0", record: str = "",
) -> None:  # fmt: skip
    """
    Build, publish and run flysim; with no inventory or limit: on this machine.

    Example: ./fly deploy --gpu --limit dev1 --record records/
    """
    cli.operation("deploy", "DeployOptions", locals())


@operation(cli.ROLLBACK_HELP)
def rollback_cpu(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", force: bool = False, wait: str = "0",
) -> None:  # fmt: skip
    """
    The GPU backend off: threads and CPUs as they were, proof that real time holds.

    Example: ./fly rollback-cpu --limit dev1
    """
    cli.operation("rollback_cpu", "RollbackOptions", locals())


@operation(cli.ROLLBACK_HELP)
def rollback(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", force: bool = False, wait: str = "0",
) -> None:  # fmt: skip
    """
    The release before, after the checkpoint gate.

    Example: ./fly rollback --limit dev1
    """
    cli.operation("rollback", "RollbackOptions", locals())


@operation({"allow-jit": "accept PTX that the driver compiles itself", "record": "folder for the dated report"})
def verify(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", allow_jit: bool = False, record: str = "",
) -> None:  # fmt: skip
    """
    The five checks, on a trial beside the live unit.

    Example: ./fly verify --limit dev1 --json
    """
    cli.operation("verify", "VerifyOptions", locals())


@operation({"window": "seconds of each window (default 30)", "wait": cli.ROLLBACK_HELP["wait"], "record": "folder for the JSON"})
def cost(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", json: bool = False, verbose: bool = False, forks: str = "20",
    window: str = "30", wait: str = "0", record: str = "",
) -> None:  # fmt: skip
    """
    Host cores over a fixed window, GPU against the CPU kernel, in the same container.

    Example: ./fly cost --limit dev1 --window 30
    """
    cli.operation("cost", "CostOptions", locals())


@operation(cli.WATCH_HELP)
def watch(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", every: str = "10", hours: str = "3", out: str = "", judge: str = "", detach: bool = False,
    stop: bool = False, plot: bool = True,
) -> None:  # fmt: skip
    """
    The drift watch: samples every N minutes for H hours, then plot and verdict.

    Example: ./fly watch --limit dev1 --every 10 --hours 3
    """
    cli.operation("watch", "WatchOptions", locals())


@operation()
def start(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20",
) -> None:  # fmt: skip
    """
    Start flysim and its page where they are deployed.

    Example: ./fly start
    """
    cli.operation("start", "Target", locals())


@operation()
def stop(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20",
) -> None:  # fmt: skip
    """
    Stop flysim and its page; the brain's state is saved first.

    Example: ./fly stop --limit dev1
    """
    cli.operation("stop", "Target", locals())


@operation()
def status(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", json: bool = False, verbose: bool = False, forks: str = "20",
) -> None:  # fmt: skip
    """
    Backend, realtime factor, release and page of each host; changes nothing.

    Example: ./fly status --json
    """
    cli.operation("status", "Target", locals())


@operation({"lines": "how many of the last lines (default 50)"})
def logs(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", json: bool = False, verbose: bool = False, forks: str = "20",
    lines: str = "50",
) -> None:  # fmt: skip
    """
    The last log lines of flysim and its page.

    Example: ./fly logs --limit dev1 --lines 200
    """
    cli.operation("logs", "LogsOptions", locals())


@operation()
def facts(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", json: bool = False, verbose: bool = False, forks: str = "20",
) -> None:  # fmt: skip
    """
    What flyops sees on each host (the facts of `setup`); changes nothing.

    Example: ./fly facts --limit dev1 --json
    """
    cli.operation("facts", "InventoryOptions", locals())


@operation()
def inventory(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", json: bool = False, verbose: bool = False,
) -> None:  # fmt: skip
    """
    The hosts, their groups and their variables.

    Example: ./fly inventory --inventory inventory/example
    """
    cli.operation("inventory", "InventoryOptions", locals())


@operation(cli.PLAY_HELP)
def play(
    c: Context, file: str, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False,
    json: bool = False, verbose: bool = False, forks: str = "20", tags: str = "", skip_tags: str = "", start_at_task: str = "",
    list_hosts: bool = False, list_tasks: bool = False, syntax_check: bool = False, step: bool = False, stats: bool = False,
) -> None:  # fmt: skip
    """
    Run any playbook.

    Example: ./fly play site.yml --inventory inventory/example --check --diff
    """
    cli.operation("play", "PlayOptions", locals())


@operation(cli.HOST_HELP)
def host(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", hold_driver: bool = False, remove: bool = False,
) -> None:  # fmt: skip
    """
    A container host kept right: the driver's nodes, its guests' device rules, a boot unit, a drift timer.

    Example: ./fly host --check --diff -e '{"managed_guests": [101]}'
    """
    cli.operation("host", "HostOptions", locals())


@operation(cli.DRIVER_HELP)
def driver(
    c: Context, inventory: list[str], extra: list[str], limit: str = "", check: bool = False, diff: bool = False, json: bool = False,
    verbose: bool = False, forks: str = "20", strategy: str = "", runfile: str = "", sha256: str = "", version: str = "", packages: str = "",
    verify: bool = False, remove: bool = False,
) -> None:  # fmt: skip
    """
    The driver's libraries of guests in lockstep with the module that their host has loaded.

    Example: ./fly driver --limit dev1 --runfile NVIDIA-Linux-x86_64-570.148.08.run
    """
    cli.operation("driver", "DriverOptions", locals())


@operation(cli.PROVISION_HELP)
def provision(
    c: Context, name: str, gpu: bool = False, gpu_ids: str = "", mig: str = "", no_gpu: bool = False, cpus: str = "", mems: str = "",
    memory: str = "", disk: str = "", unprivileged: bool = False, rootfs: str = "", network: str = "", address: str = "",
    autostart: str = "", manager: str = "", id: str = "", on: str = "",
    plan: bool = False, deploy: bool = False, release: str = "", json: bool = False, verbose: bool = False,
) -> None:  # fmt: skip
    """
    A new dev container on this machine (root), added to the inventory; again with other words: it is changed.

    Example: ./fly provision dev1 --cpus 0-3 --memory 4G --deploy
    """
    cli.operation("provision", "ProvisionOptions", locals())


@operation({"name": "the container", "plan": "only show what would be done", "json": "events as JSON lines"})
def retire(c: Context, name: str, plan: bool = False, json: bool = False, verbose: bool = False) -> None:
    """
    Remove a dev container; the service's state is archived first.

    Example: ./fly retire dev1
    """
    cli.operation("retire", "RetireOptions", locals())


@operation(
    {"gpu": "with the CUDA backend (FLY_CARGO_FEATURES=cuda does the same)", "arch": "add PTX for this card, as sm_90", "json": "the release as JSON"}
)
def build(c: Context, gpu: bool = False, arch: str = "", json: bool = False) -> None:
    """
    Build a release of flysim; quick when nothing changed.

    Example: ./fly build --gpu --arch sm_90
    """
    cli.operation("build", "BuildOptions", locals())


@operation(
    {
        "arch": "sm_75, sm_90 … (default: this machine's card, else sm_75)",
        "out": "where to write it",
        "driver": "must load in this driver (535)",
        "json": "as JSON",
    }
)
def ptx(c: Context, arch: str = "", out: str = "", driver: str = "", json: bool = False) -> None:
    """
    Build and check the PTX of the kernels, with nvcc or NVRTC.

    Example: ./fly ptx --arch sm_90 --out sm_90.ptx
    """
    cli.operation("ptx", "PtxOptions", locals())


@operation(
    {"only": "a pytest -k expression", "quick": "without guests, root, card and slow tests", "python": "the Python tests", "rust": "the cargo tests"}
)
def test(c: Context, only: str = "", quick: bool = False, python: bool = True, rust: bool = True) -> None:
    """
    Run the tests, Rust and Python.

    Example: ./fly test --quick --no-rust
    """
    cli.operation("test", "TestOptions", locals())


@operation({"fix": "mend what can be mended", "python": "the Python side", "rust": "the Rust side"})
def lint(c: Context, fix: bool = False, python: bool = True, rust: bool = True) -> None:
    """
    Style, types, layers, tidiness; Python and Rust.

    Example: ./fly lint --fix --no-rust
    """
    cli.operation("lint", "LintOptions", locals())


@operation({"name": "the bench, a file of bench/", "out": "folder of the record (default bench/records)"})
def bench(c: Context, name: str, out: str = "") -> None:
    """
    Measure and write a record; the last line is one JSON object.

    Example: ./fly bench parity
    """
    cli.operation("bench", "BenchOptions", locals())


@operation({"action": "check: recompute every figure from the raw samples"})
def records(c: Context, action: str) -> None:
    """
    Recompute every figure of bench/records from its raw samples.

    Example: ./fly records check
    """
    cli.operation("records", "RecordsOptions", locals())
