# SPDX-License-Identifier: Apache-2.0
"""Frames, the module runner, the one-shot program, and the agent's promise to run on an old Python without site-packages."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyops.agent.frames import FrameError, decode, encode
from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost, OverlayStop
from flyops.agent.run import run_module
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Diff, Same
from flyops.spec import Arg, Spec
from flyops.transport.bundle import bundle
from tests.beds.play import OLD_PYTHON

OLD = Path(OLD_PYTHON or "absent")


def reader(data: bytes) -> Any:
    stream = io.BytesIO(data)

    def read_exactly(size: int) -> bytes | None:
        found = stream.read(size)
        return found if len(found) == size else None

    return read_exactly


@pytest.mark.parametrize("payload", [b"", b"x", b"\0" * 1_048_577])
def test_frames_come_back(payload: bytes) -> None:
    read = reader(encode({"t": "x", "é": [1, None]}, payload) + encode({"t": "y"}))
    assert decode(read) == ({"t": "x", "é": [1, None]}, payload)
    assert decode(read) == ({"t": "y"}, b"")
    assert decode(read) is None


@pytest.mark.parametrize("data", [b"Last login: Mon Nov 30 21:00:00", b"\0\0\0\2\0\0\0\0{x"])
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode(reader(data))


def module(**parts: Any) -> Any:
    base = {
        "SPEC": Spec(doc="d", args={"n": Arg("int", required=True), "fast": Arg("bool", default=False)}),
        "read": lambda args, host: None,
        "plan": lambda args, state: None,
        "apply": lambda args, change, host: None,
    }
    return SimpleNamespace(**{**base, **parts})


def raising(error: BaseException) -> Any:
    def act(*args: Any) -> Any:
        raise error

    return act


def changing(values: dict[str, Any] | None = None) -> Any:
    return lambda args, state: Change(diff=(Diff("h", "a", "b"),), values=values or {})


CASES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (module(), {"n": "5"}, {"changed": False, "failed": False}),
    (module(plan=lambda args, state: Same({"v": args["n"]}, msg="m")), {"n": "5"}, {"v": 5, "msg": "m", "changed": False}),
    (module(plan=lambda args, state: Same(skipped=True)), {"n": 1}, {"skipped": True}),
    (module(plan=changing({"a": 1}), apply=lambda args, change, host: {"b": 2}), {"n": 1}, {"changed": True, "a": 1, "b": 2}),
    (module(plan=changing(), apply=lambda args, change, host: {"changed": False}), {"n": 1}, {"changed": False, "failed": False}),
    (module(read=raising(ModuleError("bad", fix="do it", rc=7))), {"n": 1}, {"failed": True, "msg": "bad; to do: do it", "rc": 7}),
    (module(plan=raising(Refused("no"))), {"n": 1}, {"failed": True, "refused": True, "msg": "no"}),
    (module(read=raising(FileNotFoundError(2, "No such file", "/x"))), {"n": 1}, {"failed": True, "msg": "No such file: /x"}),
    (module(read=raising(KeyError("oops"))), {"n": 1}, {"failed": True, "msg": "KeyError: 'oops'"}),
    (module(), {}, {"failed": True, "msg": "missing argument 'n' ()"}),
    (module(), {"n": "x", "m": 1}, {"failed": True}),
]


@pytest.mark.parametrize(("made", "args", "wanted"), CASES)
def test_results(made: Any, args: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = run_module(made, args, RealHost())
    assert {key: found[key] for key in wanted} == wanted
    assert "diff" not in found


def test_diff_comes_when_asked_for() -> None:
    assert run_module(module(plan=changing()), {"n": 1}, RealHost(), diff=True)["diff"] == [{"header": "h", "before": "a", "after": "b"}]


def test_check_mode() -> None:
    overlay = OverlayHost(RealHost())
    acts = module(plan=changing({"a": 1}), apply=lambda args, change, host: host.run(["false"]))
    assert run_module(acts, {"n": 1}, overlay) == {"changed": True, "failed": False, "a": 1, "msg": "would run false"}
    looks = module(read=raising(OverlayStop(["x"])))
    assert run_module(looks, {"n": 1}, overlay)["changed"] is True
    unsure = module(SPEC=Spec(doc="d", args={}, check="unknown"), plan=changing(), apply=raising(AssertionError("applied")))
    assert run_module(unsure, {}, overlay) == {"changed": False, "failed": False, "unknown": True}


@pytest.fixture(params=["folder", "zip"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The bundle as a program."""
    target = tmp_path / "agent.pyz"
    target.write_bytes(bundle()[1])
    if request.param == "folder":
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(target), str(tmp_path / "agent")], check=True)
        target = tmp_path / "agent"
    return target


@pytest.mark.parametrize("python", [sys.executable, str(OLD)])
def test_one_shot(program: Path, tmp_path: Path, python: str) -> None:
    if not Path(python).exists():
        pytest.skip("no Python 3.8 here")
    args = tmp_path / "args.json"

    def run(module_name: str, values: dict[str, Any], *more: str) -> tuple[int, dict[str, Any]]:
        args.write_text(json.dumps(values))
        done = subprocess.run(
            [python, "-I", "-S", "-W", "error", str(program), "--module", module_name, "--args", str(args), *more],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr
        return done.returncode, json.loads(done.stdout)

    made = tmp_path / "made"
    code, result = run("file", {"path": str(made), "state": "directory", "mode": "0750"}, "--check")
    assert (code, result["changed"], made.exists()) == (0, True, False)
    code, result = run("file", {"path": str(made), "state": "directory", "mode": "0750"})
    assert (code, result["changed"], made.is_dir()) == (0, True, True)
    code, result = run("file", {"path": str(made), "state": "directory", "mode": "0750"})
    assert (code, result["changed"]) == (0, False)
    code, result = run("file", {"path": str(tmp_path / "no" / "x"), "state": "file"})
    assert (code, result["failed"]) == (1, True)


@pytest.mark.parametrize("python", [sys.executable, str(OLD)])
def test_one_shot_steps(program: Path, tmp_path: Path, python: str) -> None:
    """All are run, the worst counts, and a failure is also said in words; a step that cannot be run stops before the first."""
    if not Path(python).exists():
        pytest.skip("no Python 3.8 here")
    file, made = tmp_path / "steps.json", tmp_path / "made"

    def run(steps: Any, *more: str) -> subprocess.CompletedProcess[str]:
        file.write_text(json.dumps(steps))
        return subprocess.run(
            [python, "-I", "-S", "-W", "error", str(program), "--steps", str(file), *more], capture_output=True, text=True, check=False
        )

    bad = {"module": "file", "args": {"path": str(tmp_path / "no" / "x"), "state": "file"}}
    good = {"module": "file", "args": {"path": str(made), "state": "directory"}}
    gate = {"module": "nvidia_preflight", "args": {"proc_modules": str(tmp_path / "modules")}}
    (tmp_path / "modules").write_text("nouveau 1 0 - Live 0x0\n")

    assert run([bad, good], "--check").returncode == 1
    assert not made.exists()
    done = run([bad, gate, good])
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [result["module"] for result in results] == ["file", "nvidia_preflight", "file"]
    assert (results[2]["changed"], made.is_dir()) == (True, True)
    assert ["mkdir", str(made)] in results[2]["writes"]
    assert done.stderr.splitlines()[0].startswith("<3>file: ")
    assert "<3>nvidia_preflight: module nouveau is loaded" in done.stderr
    assert run([gate, good]).returncode == 3
    assert run([good]).returncode == run([]).returncode == 0
    for wrong in ({"module": "stat"}, [{"module": "nope", "args": {}}], ["stat"], [good, {"module": "stat"}]):
        made.rmdir() if made.exists() else None
        refused = run(wrong)
        assert (refused.returncode, made.exists()) == (2, False)
        assert refused.stderr.startswith("flyops-agent: ")


def test_one_shot_usage(program: Path, tmp_path: Path) -> None:
    for words in (["--module", "nope", "--args", "x"], ["--module", "stat", "--args", str(tmp_path / "absent")]):
        done = subprocess.run([sys.executable, "-I", "-S", str(program), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("flyops-agent: ")


def test_every_module_loads_on_the_oldest_python(tmp_path: Path) -> None:
    if not OLD.exists():
        pytest.skip("no Python 3.8 here")
    (tmp_path / "agent.pyz").write_bytes(bundle()[1])
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom flyops.agent import registry\nnames = registry.names()\n"
        "wrong = [n for n in names if not hasattr(registry.find(n), 'SPEC')]\nprint(len(names), wrong)"
    )
    done = subprocess.run([str(OLD), "-I", "-S", "-c", code, str(tmp_path / "agent.pyz")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, wrong = done.stdout.split(" ", 1)
    assert int(count) > 10
    assert wrong.strip() == "[]"
