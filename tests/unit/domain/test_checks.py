# SPDX-License-Identifier: Apache-2.0
"""Each judge from both sides: what it accepts beside what it refuses."""

from __future__ import annotations

import pytest

from flyops.domain import checks, driver, health, nvidia
from flyops.domain.checks import FAILED, NOT_APPLICABLE, PASSED

COMPILED = "cuda feature compiled in (PTX sm_75, sm_90)"
ATTACHED = (
    'cuda backend attached: device 0 "NVIDIA Made Up", GPU-0, compute capability 9.0, driver CUDA 13.0 (580.95.05), '
    "PTX sm_90 exact from /opt/fly/releases/v/ptx/sm_90.ptx, grid 132 x 544, 64 registers, 0 bytes local"
)


def test_the_five_in_their_order():
    assert [check.name for check in checks.CHECKS] == ["feature", "card", "ptx", "bitexact", "cost"]
    assert all(check.title and check.looked_at and check.wanted for check in checks.BY_NAME.values())


@pytest.mark.parametrize(
    ("log", "exit_code", "verdict", "says"),
    [
        (f"{COMPILED}\n{ATTACHED}\n", None, PASSED, "attached"),
        (f"2026-11-30T21:00:00Z INFO flysim: {COMPILED}\nNov 30 21:00:00 guest flysim[7]: {ATTACHED}\n", None, PASSED, "attached"),
        (f"{COMPILED}\n", None, FAILED, "never held the card"),
        (f"{COMPILED}\ncannot attach GPU 0: no device\n", 75, FAILED, "exit code 75"),
        ("cpu backend attached (threads 4, cpus 0-3)\n", None, FAILED, "no such line"),
        ("FLY_LIF_CUDA=1, but this binary was built without the cuda feature: build one\n", 78, FAILED, "exit code 78"),
        ("", None, FAILED, "no log of this start"),
        # The env file, or somebody who quotes the line, is no evidence.
        ("FLY_LIF_CUDA=1\n", None, FAILED, "no such line"),
        (f"the operator's note, which is long and says that it wants to see: {COMPILED} and {ATTACHED}\n", None, FAILED, "no such line"),
        (f"{ATTACHED}\n", None, FAILED, "no such line"),
    ],
)
def test_feature(log, exit_code, verdict, says):
    judged = checks.judge_feature(log, exit_code)
    assert (judged.verdict, says in judged.seen) == (verdict, True), judged
    if says == "no such line":
        assert "FLY_CARGO_FEATURES=cuda" in judged.fix


CPU_ATTACHED = "cpu backend attached (threads 4, cpus 0-3)"
RESTORED = "checkpoint restored: tick 5, x, state hash y, made by cpu, 0 put aside"


@pytest.mark.parametrize(
    ("starts", "verdict"),
    [
        ([[COMPILED, ATTACHED, RESTORED]], PASSED),
        ([[CPU_ATTACHED, RESTORED], [COMPILED, ATTACHED, RESTORED]], PASSED),
        ([[COMPILED, ATTACHED, RESTORED], [CPU_ATTACHED, RESTORED]], FAILED),  # the older start does not count
        ([[COMPILED, ATTACHED, RESTORED], [COMPILED, CPU_ATTACHED, RESTORED]], FAILED),
        ([[COMPILED, ATTACHED, RESTORED], [COMPILED, "cannot attach GPU 0: no device"]], FAILED),
        ([[COMPILED, "cannot attach GPU 0: no device"], [COMPILED, ATTACHED, RESTORED]], PASSED),
        ([[COMPILED, ATTACHED], [COMPILED, ATTACHED], [COMPILED, ATTACHED]], PASSED),
        ([[COMPILED]], FAILED),
    ],
)
def test_only_the_last_start_of_a_shared_log_counts(starts, verdict):
    log = "\n".join(line for start in starts for line in start)
    assert checks.judge_feature(checks.last_start(log)).verdict == verdict


V = "580.95.05"
LIBS = [f"libcuda.so.{V}", f"libnvidia-ml.so.{V}"]
OPENED = {"opened": True, "devices": 1, "name": "NVIDIA Made Up", "cc": 90, "step": "cuDevicePrimaryCtxRelease"}


def verdicts(**states):
    """nvidia0, nvidiactl and uvm right, unless said otherwise."""
    nodes = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (510, 0)}
    words = {name.replace("_", "-"): state for name, state in states.items()}
    return [
        nvidia.Verdict(nvidia.Node(f"/dev/{n}", *numbers), words.get(n, "right"), f"/dev/{n} {words.get(n, 'right')}") for n, numbers in nodes.items()
    ]


@pytest.mark.parametrize(
    ("nodes", "version", "libs", "context", "says"),
    [
        (verdicts(), V, LIBS, OPENED, ""),
        (verdicts(nvidia0="mode"), V, LIBS, OPENED, ""),
        (verdicts(nvidia0="regular"), V, LIBS, OPENED, "no usable card node"),
        (verdicts(nvidia_uvm="stale"), V, LIBS, OPENED, "/dev/nvidia-uvm stale"),
        (verdicts(nvidia_uvm="regular"), V, LIBS, OPENED, "/dev/nvidia-uvm regular"),
        (verdicts(nvidiactl="missing"), V, LIBS, OPENED, "/dev/nvidiactl missing"),
        (verdicts()[:1], V, LIBS, OPENED, "no usable card node"),
        (verdicts(), "580.95.06", LIBS, OPENED, "expected 580.95.06, found 580.95.05"),
        (verdicts(), "", LIBS, OPENED, "not loaded"),
        pytest.param(verdicts(), V, LIBS, {"code": 999, "step": "cuInit"}, "cuInit gave CUDA error 999", id="case-14"),
        pytest.param(
            verdicts(),
            V,
            LIBS,
            {"code": 999, "step": "cuInit", "closed": {"/dev/nvidia-uvm": "Operation not permitted"}},
            "/dev/nvidia-uvm: Operation not permitted: the device rule",
            id="case-14-34-which-node",
        ),
        pytest.param(verdicts(), V, LIBS, {**OPENED, "closed": {"/dev/nvidia-uvm": "Permission denied"}}, "", id="opened-all-the-same"),
        (verdicts(), V, LIBS, {"code": 803, "step": "cuInit"}, "libraries"),
        (verdicts(), V, LIBS, {"opened": False, "devices": 0, "step": "cuDeviceGetCount"}, "shows no device"),
        (verdicts(), V, LIBS, {"opened": False, "devices": 1}, "ended before it opened"),
        (verdicts(), V, LIBS, {"error": "libcuda.so.1 cannot be loaded"}, "cannot be loaded"),
        (verdicts(), V, LIBS, {**OPENED, "library": f"/x/libcuda.so.{V}"}, ""),
        (verdicts(), V, LIBS, {**OPENED, "library": "/x/libcuda.so.580.95.04"}, "gave a program /x/libcuda.so.580.95.04"),
        (verdicts(), V, LIBS[:1], OPENED, "libnvidia-ml.so: expected 580.95.05, found none"),
        (verdicts(), V, [*LIBS, "libnvcuvid.so.535.1.2"], OPENED, "leftovers of 535.1.2"),
    ],
)
def test_card(nodes, version, libs, context, says):
    files = tuple(driver.File(f"/usr/lib64/{name}", "file", 1) for name in libs)
    judged = checks.judge_card(nodes, driver.survey(driver.Seen(files), version), context)
    assert judged.verdict == (FAILED if says else PASSED)
    assert says in judged.seen
    assert ("provision NAME --gpu" in judged.fix) is bool(says)


def ptx_text(version="8.0", target="sm_90", body="mul.rn.f64 %fd1, %fd2, %fd3;"):
    return f"//\n.version {version}\n.target {target}\n.address_size 64\n{body}\n"


JIT = ATTACHED.replace("sm_90 exact", "sm_75 JIT")


@pytest.mark.parametrize(
    ("name", "text", "cc", "driver", "attached", "allow", "verdict", "says"),
    [
        ("sm_90.ptx", ptx_text(), 90, V, ATTACHED, False, PASSED, "exact"),
        ("sm_90.ptx", ptx_text("9.0"), 90, V, ATTACHED, False, PASSED, "exact"),
        ("sm_90.ptx", ptx_text("9.1"), 90, V, ATTACHED, False, FAILED, "reads up to 9.0"),
        ("sm_90.ptx", ptx_text("9.0"), 90, "525.60.13", ATTACHED, False, FAILED, "reads up to 8.0"),
        ("sm_90.ptx", ptx_text(), 90, "470.63.01", ATTACHED, False, FAILED, "driver: expected 525"),
        ("sm_90.ptx", ptx_text(), 90, "", ATTACHED, False, FAILED, "driver"),
        ("sm_75.ptx", ptx_text(target="sm_75"), 90, V, JIT, False, FAILED, "JIT"),
        ("sm_75.ptx", ptx_text(target="sm_75"), 90, V, JIT, True, PASSED, "allowed by --allow-jit"),
        ("sm_75.ptx", ptx_text(target="sm_75"), 90, V, ATTACHED, True, FAILED, "flysim loaded sm_90 (exact): another PTX"),
        ("sm_90.ptx", ptx_text(), 90, V, JIT, False, FAILED, "JIT"),
        ("sm_90.ptx", ptx_text(), 90, V, "", False, FAILED, "neither exact nor JIT"),
        ("sm_90.ptx", ptx_text(target="sm_100"), 90, V, ATTACHED, False, FAILED, "does not run on sm_90"),
        ("sm_90.ptx", ptx_text(body="fma.rn.f64 %fd1, %fd2, %fd3, %fd4;"), 90, V, ATTACHED, False, FAILED, "fused"),
        ("", "", 90, V, ATTACHED, True, FAILED, "no PTX for sm_90"),
        ("sm_90.ptx", "rubbish", 90, V, ATTACHED, True, FAILED, "no PTX for sm_90"),
    ],
)
def test_ptx(name, text, cc, driver, attached, allow, verdict, says):
    judged = checks.judge_ptx(checks.Loaded(name, text, cc, driver, attached), allow)
    assert (judged.verdict, says in judged.seen) == (verdict, True), judged
    assert bool(judged.fix) is (verdict == FAILED)


@pytest.mark.parametrize(
    ("names", "cc", "picked"),
    [
        (["sm_75.ptx", "sm_90.ptx"], 90, "sm_90.ptx"),
        (["sm_75.ptx", "sm_90.ptx"], 86, "sm_75.ptx"),
        (["sm_90.ptx"], 86, ""),
        ([], 90, ""),
        (["README", "sm_x.ptx"], 90, ""),
    ],
)
def test_pick_ptx(names, cc, picked):
    assert checks.pick_ptx(names, cc) == picked


PARTS = [{"backend": "cpu", "spikes": 5}, {"backend": "cuda", "spikes": 6}, {"backend": "cpu", "spikes": 7}]
THIRDS = {"ok": True, "hash": "aa", "unbroken_hash": "aa", "spikes": 18, "unbroken_spikes": 18, "parts": PARTS}
RUN = {"hash": "cafe", "hash_chain": "f00d", "ticks": 2000}


def exactness(**change):
    base = {"compatibility": ("a/b", "a/b"), "kernel": ("k", "k"), "replay": (RUN, RUN), "thirds": THIRDS, "ticks": 2000}
    return checks.Exactness(**{**base, **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"compatibility": ("a/b", "a/c")}, "compatibility string changed: a/b -> a/c"),
        ({"kernel": ("k", "k2")}, "kernel version changed"),
        ({"kernel": ("", "k")}, "the release before did not print one"),
        ({"kernel": ("k", "")}, "this release did not print one"),
        ({"replay": (RUN, {**RUN, "hash": "beef"})}, "cafe before, beef now"),
        ({"replay": ({"error": "no"}, RUN)}, "the release before gave no hash"),
        ({"replay": (RUN, {"hash": "cafe", "ticks": 1000})}, "ran 1000 ticks, asked were 2000"),
        ({"thirds": {**THIRDS, "hash": "bb"}}, "the unbroken CPU run at aa"),
        ({"thirds": {**THIRDS, "ok": False}}, "does not call them equal"),
        ({"thirds": {**THIRDS, "unbroken_spikes": 19}}, "18 spikes in parts, 19 unbroken"),
        ({"thirds": {"error": "exit code 75: no device"}}, "exit code 75"),
        ({"thirds": {**THIRDS, "parts": [{**PARTS[0], "inside_window": False}, *PARTS[1:]]}}, "third 1 ends at a window's end"),
        ({"replay": (RUN, {**RUN, "hash_chain": "f11d"})}, "chain over every tick: f00d before, f11d now"),
        ({"thirds": {}}, "expected three parts"),
        ({"thirds": {**THIRDS, "parts": [*PARTS[:2], {"backend": "cpu", "spikes": 0}]}}, "no spikes in third 3"),
        ({"thirds": {**THIRDS, "parts": [{"backend": "cpu", "spikes": 6}] * 3}}, "none of them ran on the GPU"),
    ],
)
def test_bitexact(change, says):
    judged = checks.judge_bitexact(exactness(**change))
    assert judged.verdict == (FAILED if says else PASSED)
    assert says in judged.seen


def row(t, **change):
    base = {
        "t": t, "cpu_s": 2.0 * t, "start": 5, "pid": 7, "tick": int(10_000 * t), "spikes": int(3 * 668 * t), "neurons": 668, "threads": 4, "backend": "cpu",
        "busy_jiffies": int(200 * t), "all_jiffies": int(400 * t),
    }  # fmt: skip
    return {**base, **change}


def test_summarise():
    found = checks.summarise({"rows": [row(10.0), row(20.0), row(40.0)]})
    assert (found["seconds"], found["cores"], found["factor"], found["hz"], found["utilisation"]) == (30.0, 2.0, 1.0, 3.0, 0.5)
    assert found["pid_stable"]
    assert not checks.summarise({"rows": [row(1.0), row(2.0, start=6)]})["pid_stable"]
    assert not checks.summarise({"rows": [row(1.0), row(2.0, pid=8)]})["pid_stable"]
    assert "error" in checks.summarise({"rows": []})
    assert checks.summarise({"rows": [], "error": "gone"})["error"] == "gone"
    assert checks.summarise({"rows": [row(1.0), row(1.0)]})["factor"] == 0.0


CPU = {"backend": "cpu", "pid_stable": True, "factor": 1.0, "hz": 3.0, "cores": 1.2, "threads": 4, "utilisation": 0.5}
GPU = {**CPU, "backend": "cuda", "cores": 0.05, "threads": 1}


@pytest.mark.parametrize(
    ("cpu", "gpu", "says"),
    [
        ({}, {}, ""),
        ({}, {"cores": 0.6}, ""),  # just half
        ({}, {"cores": 0.61}, "expected <= 0.5"),
        ({"cores": 4.0}, {"cores": 0.999}, ""),
        ({"cores": 4.0}, {"cores": 1.0}, "expected < 1"),
        ({}, {"factor": 0.99}, ""),
        ({}, {"factor": 0.9899}, "GPU: realtime factor"),
        ({"factor": 0.9}, {}, "CPU kernel: realtime factor"),
        ({"hz": 1.0}, {}, "CPU kernel: mean activity"),
        ({}, {"hz": 0.0}, "GPU: mean activity"),
        ({}, {"hz": 450.0}, "spinning"),
        ({}, {"cores": 0.0}, "no CPU time at all"),
        ({}, {"pid_stable": False}, "the process changed"),
        ({}, {"backend": "cpu"}, "expected backend cuda, found cpu"),
        ({"backend": "cuda"}, {}, "expected backend cpu, found cuda"),
    ],
)
def test_cost(cpu, gpu, says):
    judged = checks.judge_cost({**CPU, **cpu}, {**GPU, **gpu})
    assert judged.verdict == (FAILED if says else PASSED), judged
    assert says in judged.seen


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"factor": 0.9}, "realtime factor"),
        ({"hz": 0.1}, "mean activity"),
        ({"backend": "cuda"}, "expected backend cpu"),
        ({"error": "gone"}, "gone"),
    ],
)
def test_cost_of_the_cpu_kernel_alone(change, says):
    judged = checks.judge_cpu_cost({**CPU, **change})
    assert judged.verdict == (FAILED if says else PASSED)
    assert says in judged.seen


def test_cost_without_a_window():
    assert checks.judge_cost({"error": "no window"}, GPU).verdict == FAILED
    assert checks.judge_cost(CPU, {"error": "gone"}).verdict == FAILED


ONE = {"tick": 1000, "pid": 7, "backend": "cpu", "speed": 1.0}
TWO = {**ONE, "tick": 31_000}


@pytest.mark.parametrize(
    ("first", "second", "seconds", "backend", "says"),
    [
        (ONE, TWO, 3.0, "cpu", ""),
        (ONE, TWO, 3.0, "", ""),
        (ONE, {**TWO, "tick": 30_401}, 3.0, "cpu", ""),
        (ONE, {**TWO, "tick": 30_399}, 3.0, "cpu", "realtime factor 0.98"),
        (ONE, {**TWO, "tick": 30_000}, 3.0, "cpu", "realtime factor 0.9667"),
        (ONE, {**TWO, "tick": 1000}, 3.0, "cpu", "ticks stand still"),
        (ONE, {**TWO, "tick": 10}, 3.0, "cpu", "ticks stand still"),
        (ONE, TWO, 3.0, "cuda", "expected backend cuda, found cpu"),
        (ONE, {**TWO, "pid": 8}, 3.0, "cpu", "the process changed: pid 7 -> 8"),
        (ONE, {**TWO, "paused": True}, 3.0, "cpu", "paused"),
        ({"error": "refused"}, TWO, 3.0, "cpu", "first read of /status did not answer: refused"),
        (ONE, {}, 3.0, "cpu", "second read"),
        (ONE, {**TWO, "speed": 2.0}, 3.0, "cpu", "expected >= 1.98"),
        (ONE, {**TWO, "speed": 0}, 3.0, "cpu", ""),
    ],
)
def test_health(first, second, seconds, backend, says):
    judged = health.judge_health(first, second, seconds, backend)
    assert judged.verdict == (FAILED if says else PASSED), judged
    assert says in judged.seen


def test_not_applicable():
    assert all(checks.not_applicable(check.name).verdict == NOT_APPLICABLE for check in checks.CHECKS)
    assert checks.not_applicable("health").verdict != NOT_APPLICABLE
