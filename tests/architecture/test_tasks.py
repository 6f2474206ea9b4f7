# SPDX-License-Identifier: Apache-2.0
"""The command line is a list that a test freezes; each task is thin, documented, and fits the options it fills."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import tasks
from flyops import cli
from flyops.operations import options

ROOT = Path(__file__).resolve().parents[2]
TREE = ast.parse((ROOT / "tasks.py").read_text())
BODIES = {node.name: node for node in TREE.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
# name -> (operation, options class, parameters). A new option is an edit here that a reviewer sees.
TARGET = "inventory extra limit"
RUN = f"{TARGET} check diff json verbose forks"
SURFACE = {
    "deploy": ("deploy", "DeployOptions", f"{RUN} gpu release connectome allow_jit accept archive_state force wait record"),
    "rollback_cpu": ("rollback_cpu", "RollbackOptions", f"{RUN} force wait"),
    "rollback": ("rollback", "RollbackOptions", f"{RUN} force wait"),
    "verify": ("verify", "VerifyOptions", f"{RUN} allow_jit record"),
    "cost": ("cost", "CostOptions", f"{TARGET} json verbose forks window wait record"),
    "watch": ("watch", "WatchOptions", f"{RUN} every hours out judge detach stop plot"),
    "start": ("start", "Target", RUN),
    "stop": ("stop", "Target", RUN),
    "status": ("status", "Target", f"{TARGET} json verbose forks"),
    "logs": ("logs", "LogsOptions", f"{TARGET} json verbose forks lines"),
    "facts": ("facts", "InventoryOptions", f"{TARGET} json verbose forks"),
    "inventory": ("inventory", "InventoryOptions", f"{TARGET} json verbose"),
    "play": ("play", "PlayOptions", f"file {RUN} tags skip_tags start_at_task list_hosts list_tasks syntax_check step stats"),
    "driver": ("driver", "DriverOptions", f"{RUN} strategy runfile sha256 version packages verify remove"),
    "host": ("host", "HostOptions", f"{RUN} hold_driver remove"),
    "provision": (
        "provision",
        "ProvisionOptions",
        "name gpu gpu_ids mig no_gpu cpus mems memory disk unprivileged rootfs network address autostart manager id on plan deploy release json verbose",
    ),
    "retire": ("retire", "RetireOptions", "name plan json verbose"),
    "build": ("build", "BuildOptions", "gpu arch json"),
    "ptx": ("ptx", "PtxOptions", "arch out driver json"),
    "test": ("test", "TestOptions", "only quick python rust"),
    "lint": ("lint", "LintOptions", "fix python rust"),
    "bench": ("bench", "BenchOptions", "name out"),
    "records": ("records", "RecordsOptions", "action"),
}


def test_the_surface_is_what_is_written_here():
    seen = {name: sorted(arg.arg for arg in node.args.args if arg.arg != "c") for name, node in BODIES.items()}

    assert seen == {name: sorted(words.split()) for name, (_, _, words) in SURFACE.items()}


@pytest.mark.parametrize("name", SURFACE)
def test_a_task_is_one_call_of_its_operation(name):
    operation, options_class, _ = SURFACE[name]
    body = BODIES[name].body

    assert len(body) == 2  # a docstring and the call
    assert ast.unparse(body[1]) == f"cli.operation({operation!r}, {options_class!r}, locals())"


@pytest.mark.parametrize("name", SURFACE)
def test_a_task_fits_the_options_it_fills(name):
    _, options_class, words = SURFACE[name]
    typed = {word: ["x"] if word in {"inventory", "extra"} else "7" for word in words.split()}

    made = cli.make_options(options_class, {"c": None, **typed})

    assert type(made) is getattr(options, options_class)
    assert dataclasses.is_dataclass(made)
    if "forks" in typed:
        assert (made if options_class == "Target" else made.target).forks == 7
    if "inventory" in typed:
        assert (made if options_class == "Target" else made.target).inventory == ("x",)


@pytest.mark.parametrize("name", SURFACE)
def test_help_has_an_example_of_the_task_and_a_word_on_each_option(name):
    task = getattr(tasks, name)
    example = re.search(r"Example: \./fly (\S+)", task.__doc__)
    described = {key.replace("-", "_") for key in task.help}

    assert example
    assert example[1] == name.replace("_", "-")
    assert described == set(inspect.signature(task.body).parameters) - {"c"}
