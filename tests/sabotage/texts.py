# SPDX-License-Identifier: Apache-2.0
"""Sabotages that are texts: what a host would show, judged by the same functions as in a deploy, wrong and put right. Needs nothing; CI runs all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyops.domain import cardload, checks, driver, fence, gate, lxcconf, manifest, neighbours, nvidia, receipt
from flyops.domain.checks import Judged
from flyops.domain.health import Process, judge_health
from flyops.model.host import Stat

PTX = (Path(__file__).parents[2] / "flysim/crates/cuda/kernels/flysim.sm_75.ptx").read_text()
COMPILED = "cuda feature compiled in (PTX sm_75)"
ATTACHED = (
    'cuda backend attached: device 0 "Made Up", GPU-0, compute capability 7.5, driver CUDA 12.4 (570.148.08), PTX sm_75 exact from x, grid 2 x 1024'
)
CPU_LINE = "cpu backend attached (threads 8, cpus 0-7)"
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n509 mei\n\nBlock devices:\n510 blkext\n"
DRIVER = "570.148.08"
BANNER = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Wed Apr  1 20:04:33 UTC 2026\nGCC version:\n"
OPENED = {"opened": True, "devices": 1, "name": "Made Up", "cc": 75}
LIBRARIES = [f"/usr/local/nvidia/lib64/{name}" for name in (f"libcuda.so.{DRIVER}", f"libnvidia-ml.so.{DRIVER}")]
RUN = {"hash": "cafe", "hash_chain": "f00d", "ticks": 2000}
PARTS = [{"backend": name, "spikes": 9} for name in ("cpu", "cuda", "cpu")]
THIRDS = {"ok": True, "hash": "aa", "unbroken_hash": "aa", "spikes": 27, "unbroken_spikes": 27, "parts": PARTS}
CPU = {"backend": "cpu", "pid_stable": True, "factor": 1.0, "hz": 3.0, "cores": 2.0, "threads": 8, "utilisation": 0.3}
GPU = {**CPU, "backend": "cuda", "cores": 0.02, "threads": 1}
STATUS = {"pid": 7, "backend": "cuda", "tick": 10_000, "features": ["cuda"]}


@dataclass(frozen=True)
class Text:
    """`wrong` is what the sabotage shows, `right` what is left of it when it is undone."""

    name: str
    does: str
    caught_by: str
    words: str
    wrong: Callable[[], Judged]
    right: Callable[[], Judged]


# judges with everything right but what is named


def feature(log: str, **more: Any) -> Callable[[], Judged]:
    """Check 1 on a log that several starts share."""
    return lambda: checks.judge_feature(checks.last_start(log), **more)


def stat(kind: str = "char", rdev: tuple[int, int] = (0, 0), mode: int = 0o666, size: int = 0) -> Stat:
    """What is at a path."""
    return Stat(kind=kind, mode=mode, uid=0, gid=0, size=size, mtime=0.0, rdev=rdev)  # type: ignore[arg-type,unused-ignore]


NODES: dict[str, Stat] = {
    "nvidiactl": stat(rdev=(195, 255)),
    "nvidia0": stat(rdev=(195, 0)),
    "nvidia-uvm": stat(rdev=(511, 0)),
    "nvidia-uvm-tools": stat(rdev=(511, 1)),
}


def card(
    devices: str = DEVICES, banner: str = BANNER, libraries: list[str] | None = None, context: dict[str, Any] | None = None, **nodes: Stat | None
) -> Callable[[], Judged]:
    """Check 2; nodes by name with `_` for `-`, None: not there."""

    def judge() -> Judged:
        majors, seen = nvidia.live_majors(devices), dict(NODES)
        for name, found in nodes.items():
            seen.pop(name.replace("_", "-"), None)
            if found is not None:
                seen[name.replace("_", "-")] = found
        verdicts = []
        for name in sorted({*seen, "nvidiactl", "nvidia-uvm"}):
            expected = nvidia.expected_device(name, majors)
            node = nvidia.Node(f"/dev/{name}", *(expected or (0, 0)))
            verdicts.append(
                nvidia.judge_node(node, seen.get(name))
                if expected
                else nvidia.Verdict(node, "stale", f"/proc/devices has no {name}: the module is not loaded")
            )
        files = tuple(driver.File(path, "file", 1) for path in (LIBRARIES if libraries is None else libraries))
        return checks.judge_card(verdicts, driver.survey(driver.Seen(files), nvidia.module_version(banner)), context or OPENED)

    return judge


def ptx(
    text: str = PTX,
    driver_version: str = DRIVER,
    attached: str = ATTACHED,
    cc: int = 75,
    name: str = "sm_75.ptx",
    allow: bool = False,
    refused: str = "",
) -> Callable[[], Judged]:
    """Check 3."""
    return lambda: checks.judge_ptx(checks.Loaded(name, text, cc, driver_version, attached, refused), allow)


def exact(**change: Any) -> Callable[[], Judged]:
    """Check 4."""
    base = {"compatibility": ("k/i/c/none/s",) * 2, "kernel": ("lif-1",) * 2, "replay": (RUN, RUN), "thirds": THIRDS, "ticks": 2000}
    return lambda: checks.judge_bitexact(checks.Exactness(**{**base, **change}))


def cost(cpu: dict[str, Any] | None = None, gpu: dict[str, Any] | None = None) -> Callable[[], Judged]:
    """Check 5."""
    return lambda: checks.judge_cost({**CPU, **(cpu or {})}, {**GPU, **(gpu or {})})


def neighbour(gpu: dict[str, Any]) -> Callable[[], Judged]:
    """Check 5 on a card that somebody else keeps busy: no failure by itself, the cause of one."""
    look = {"readable": True, "cards": [{"busy_pct": 97.0}], "neighbours": [{"pid": 9, "name": "trainer", "guest": "dev9", "mib": 900}]}
    return lambda: cardload.told(cost(gpu=gpu)(), look)


def health(second: dict[str, Any] | None = None, seconds: float = 3.0, **process: Any) -> Callable[[], Judged]:
    """The proof after a switch."""
    later = {**STATUS, "tick": 40_000, **(second or {})}
    return lambda: judge_health(STATUS, later, seconds, "cuda", process=Process(**process))


def alarm(found: object, said: str) -> Judged:
    """A judge that answers with a list, a text or nothing."""
    return Judged(checks.FAILED if found else checks.PASSED, said)


# PVE and LXC: what counts is the main section of the config, as the guest will get it

RULE = "lxc.cgroup2.devices.allow: c 511:* rwm\n"
CONF = "arch: amd64\ncores: 8\nhostname: made-up\n"
SNAPSHOT = "\n[before]\narch: amd64\n" + RULE


def allowed(text: str) -> Callable[[], Judged]:
    """Would converging the config have to add the rule?"""
    pairs = [("lxc.cgroup2.devices.allow", "c 511:* rwm")]
    return lambda: alarm(
        lxcconf.converge(text, pairs, lxcconf.owned({"nvidia-uvm": 511}), sep=": ").changed,
        "the rule for nvidia-uvm (511) is not in the guest's own section",
    )


def written(path: str) -> Callable[[], Judged]:
    """The write log of a run against the neighbours' digests."""
    changes = neighbours.moved({"/etc/pve/lxc/900.conf": "a"}, {"/etc/pve/lxc/900.conf": "b"})
    ours = neighbours.by_us(changes, [{"kind": "write", "path": path}])
    return lambda: alarm(ours, "; ".join(neighbours.said({"/etc/pve/lxc/900.conf": "a"}, changes, ours)))


def fenced(path: str) -> Callable[[], Judged]:
    """The fence around a run."""
    places = ("/etc/fly", "/opt/fly", "/var/lib/fly*")
    return lambda: alarm(fence.outside(places, path), fence.refusal("write", path, places))


def gated(state: str) -> Callable[[], Judged]:
    """The gate before the checks."""
    verdict = gate.judge("k/i/c/none/s", state)
    return lambda: alarm(not verdict.passes, gate.refusal(verdict) if not verdict.passes else "")


def whole(name: str, digest: str) -> Callable[[], Judged]:
    """A release's files against its MANIFEST."""
    listed = manifest.Manifest({"version": "v"}, {"bin/flysim": "aa", "ptx/sm_75.ptx": "bb"})
    seen = {"bin/flysim": "aa", "ptx/sm_75.ptx": "bb", name: digest}
    return lambda: alarm(manifest.differences(listed, seen), "; ".join(manifest.differences(listed, seen)))


def receipt_text(edit: Callable[[str], str]) -> Callable[[], Judged]:
    """A receipt as it is read before anything is put back."""
    before = {"content": "FLY_LIF_CUDA=0\nRAYON_NUM_THREADS=8\n", "mode": 0o644, "uid": 0, "gid": 0}
    made = receipt.applied(
        None, "gpu", {"/etc/fly/backend.env": before}, {"/etc/fly/backend.env": {**before, "content": "x"}}, "2026-12-01T00:00:00Z"
    )

    def judge() -> Judged:
        try:
            receipt.load(edit(receipt.dump(made)))
        except receipt.ReceiptError as err:
            return Judged(checks.FAILED, str(err))
        return Judged(checks.PASSED, "")

    return judge


WRONG: tuple[Text, ...] = (
    Text("old-log-line", "the attached line is of an earlier start", "feature", "no such line", feature(f"{COMPILED}\n{ATTACHED}\n{CPU_LINE}\n"), feature(f"{CPU_LINE}\n{COMPILED}\n{ATTACHED}\n")),
    Text("env-file-as-evidence", "the env file says FLY_LIF_CUDA=1, the program says nothing", "feature", "no such line", feature("FLY_LIF_CUDA=1\n"), feature(f"FLY_LIF_CUDA=1\n{COMPILED}\n{ATTACHED}\n")),
    Text("answer-differs-from-log", "the log says attached, the process answers cpu", "feature", "answers runs the cpu backend", feature(f"{COMPILED}\n{ATTACHED}", status={"backend": "cpu", "features": []}), feature(f"{COMPILED}\n{ATTACHED}", status={"backend": "cuda", "features": ["cuda"]})),
    Text("driver-not-opened", "the process has no libcuda in its memory", "feature", "has not opened libcuda", feature(f"{COMPILED}\n{ATTACHED}", maps="7f00 r-xp /opt/x\n"), feature(f"{COMPILED}\n{ATTACHED}", maps=f"7f00 r-xp /usr/lib/libcuda.so.{DRIVER}\n")),
    Text("uvm-block-device-number", "511 belongs to a block device, nvidia-uvm is not loaded", "card", "nvidia-uvm", card(devices=DEVICES.replace("511 nvidia-uvm\n", "").replace("510 blkext", "511 nvidia-uvm")), card()),
    Text("name-looks-alike", "a module called not-nvidia-uvm", "card", "nvidia-uvm", card(devices=DEVICES.replace("511 nvidia-uvm", "511 not-nvidia-uvm")), card()),
    Text("node-is-a-folder", "a folder in place of /dev/nvidia0", "card", "is a dir", card(nvidia0=stat("dir")), card()),
    Text("uvm-tools-only", "nvidia-uvm-tools is right, nvidia-uvm is missing", "card", "/dev/nvidia-uvm is missing", card(nvidia_uvm=None, context={"code": 999, "step": "cuInit"}), card()),
    Text("version-cut-to-two-parts", "libraries 570.148 beside module 570.148.08", "card", "expected 570.148.08, found 570.148", card(libraries=["libcuda.so.570.148", "libnvidia-ml.so.570.148"]), card()),
    Text("nvml-other-patch", "libcuda right, libnvidia-ml of another patch version", "card", "libnvidia-ml.so", card(libraries=[LIBRARIES[0], "/x/libnvidia-ml.so.570.148.06"]), card()),
    Text("module-not-loaded", "no version file", "card", "not loaded", card(banner=""), card()),
    Text("compat-loaded", "the linker gives programs a compat libcuda", "card", "gave a program /usr/local/cuda/compat/libcuda.so.550.54.14", card(context={**OPENED, "library": "/usr/local/cuda/compat/libcuda.so.550.54.14"}), card(context={**OPENED, "library": LIBRARIES[0]})),
    Text("fabric-manager-absent", "cuInit 802 on a board with switches", "card", "fabric", card(context={"code": 802, "step": "cuInit"}), card()),
    Text("allow-line-only-in-snapshot", "the device rule stands only in a snapshot's section", "card", "not in the guest's own section", allowed(CONF + SNAPSHOT), allowed(CONF + RULE + SNAPSHOT)),
    Text("ptx-missing-jit", "no PTX for this card; the embedded sm_75 is translated", "ptx", "no PTX for sm_90", ptx(text="", name="", cc=90, attached=ATTACHED.replace("exact", "JIT")), ptx()),
    Text("ptx-other-than-loaded", "the release's PTX is right and flysim loaded another", "ptx", "another PTX", ptx(attached=ATTACHED.replace("sm_75 exact", "sm_70 JIT")), ptx()),
    Text("ptx-mad", "one mad.rn.f64 behind another statement of its line", "ptx", "fused multiply-add", ptx(text=PTX.replace("ret;", "mad.rn.f64 %fd1, %fd2, %fd3, %fd4; ret;", 1)), ptx()),
    Text("ptx-too-new-for-driver", "an ISA of a newer toolkit than the driver", "ptx", "reads up to 8.7, found 9.0", ptx(text=PTX.replace(".version 8.0", ".version 9.0")), ptx()),
    Text("ptx-both-halves-refused", "the driver refused it with its own code", "ptx", "INVALID_PTX", ptx(attached="", refused="loading PTX (sm_75, .version 8.0, x): INVALID_PTX"), ptx()),
    Text("delay-changed", "another delay under the same version strings: the replay ends elsewhere", "bitexact", "cafe before, beef now", exact(replay=(RUN, {**RUN, "hash": "beef"})), exact()),
    Text("differs-and-meets-again", "the state ends equal, a tick in between differs", "bitexact", "chain over every tick", exact(replay=(RUN, {**RUN, "hash_chain": "f11d"})), exact()),
    Text("kernel-version-changed", "another kernel version", "bitexact", "kernel version changed", exact(kernel=("lif-1", "lif-2")), exact()),
    Text("thirds-on-cpu-only", "the thirds never ran on the card", "bitexact", "none of them ran on the GPU", exact(thirds={**THIRDS, "parts": [{"backend": "cpu", "spikes": 9}] * 3}), exact()),
    Text("thirds-silent-middle", "no spike while the card computed", "bitexact", "no spikes in third 2", exact(thirds={**THIRDS, "parts": [PARTS[0], {"backend": "cuda", "spikes": 0}, PARTS[2]]}), exact()),
    Text("thirds-at-window-ends", "cut at the end of a delay window", "bitexact", "proves less", exact(thirds={**THIRDS, "parts": [{**PARTS[0], "inside_window": False}, *PARTS[1:]]}), exact()),
    Text("cost-not-halved", "the GPU run takes 0.6 of what the CPU kernel takes", "cost", "expected <= 0.5", cost({"cores": 1.0}, {"cores": 0.6}), cost({"cores": 1.0}, {"cores": 0.4})),
    Text("busy-neighbour", "a neighbour keeps the card busy, and the GPU run falls behind", "cost", "busy neighbour.*trainer in dev9", neighbour({"factor": 0.7}), neighbour({})),
    Text("cost-of-a-stranger", "another process answers at the trial's port", "cost", "not the process that was measured", cost(gpu={"stranger": 99}), cost()),
    Text("cost-other-process", "the process changed within the window", "cost", "the process changed", cost(gpu={"pid_stable": False}), cost()),
    Text("cost-no-cpu-time", "no CPU time at all", "cost", "no CPU time at all", cost(gpu={"cores": 0.0}), cost()),
    Text("clock-stands", "ticks do not grow", "proof", "ticks stand still", health({"tick": 10_000}), health()),
    Text("paused-after-switch", "it was left paused", "proof", "it is paused", health({"paused": True}), health()),
    Text("threads-still-high", "RAYON_NUM_THREADS is still 8", "proof", "RAYON_NUM_THREADS=8, expected 2", health(env={"RAYON_NUM_THREADS": "8"}, wanted_env={"RAYON_NUM_THREADS": "2"}), health(env={"RAYON_NUM_THREADS": "2"}, wanted_env={"RAYON_NUM_THREADS": "2"})),
    Text("program-replaced", "the file of the running program was exchanged", "proof", "replaced after the start", health(exe="/opt/fly/releases/v/bin/flysim (deleted)", wanted_below="/opt/fly/releases/v"), health(exe="/opt/fly/releases/v/bin/flysim", wanted_below="/opt/fly/releases/v")),
    Text("release-beside", "another release runs than the current one", "proof", "expected one below", health(exe="/opt/fly/releases/v1/bin/flysim", wanted_below="/opt/fly/releases/v"), health(exe="/opt/fly/releases/v/bin/flysim", wanted_below="/opt/fly/releases/v/")),
    Text("neighbour-in-write-log", "a neighbour's config is in this run's own write log", "fence", "must never be touched", written("/etc/pve/lxc/900.conf"), written("/etc/fly/backend.env")),
    Text("write-outside", "a run would write into another guest's config", "fence", "belongs to the guest 901", fenced("/etc/pve/lxc/901.conf"), fenced("/etc/fly/backend.env")),
    Text("state-of-other-graph", "the state was made with another connectome", "gate", "connectome", gated("k/i/x/none/s"), gated("k/i/c/none/s")),
    Text("state-of-other-format", "the state has another format", "gate", "state format", gated("k/i/c/none/s2"), gated("none")),
    Text("file-beside-manifest", "a file that the MANIFEST does not list", "release", "lib/preload.so", whole("lib/preload.so", "cc"), whole("bin/flysim", "aa")),
    Text("binary-not-of-manifest", "a binary exchanged after the MANIFEST", "release", "bin/flysim", whole("bin/flysim", "a0"), whole("bin/flysim", "aa")),
    Text("receipt-one-digit", "one digit of a receipt was edited", "receipt", "checksum|sum", receipt_text(lambda text: text.replace("THREADS=8", "THREADS=2")), receipt_text(str)),
    Text("receipt-cut", "half a receipt", "receipt", "", receipt_text(lambda text: text[: len(text) // 2]), receipt_text(str)),
)  # fmt: skip

HEALTHY: tuple[tuple[str, Callable[[], Judged]], ...] = (
    ("words behind a journal's timestamps", feature(f"2026-12-01T00:00:00Z INFO flysim: {COMPILED}\n2026-12-01T00:00:01Z INFO flysim: {ATTACHED}\n")),
    ("a start on the CPU before this one", feature(f"{COMPILED}\n{CPU_LINE}\n{COMPILED}\n{ATTACHED}\n")),
    ("the older name nvidia-frontend", card(devices=DEVICES.replace("195 nvidia\n", "195 nvidia-frontend\n").replace("195 nvidiactl\n", ""))),
    ("a decoy with a block device's number", card(devices=DEVICES + "195 other\n")),
    ("the open kernel module's banner", card(banner=f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (user@host)  Sun Feb  9 11:08:26 UTC 2025\n")),
    ("a version of two parts", card(banner=BANNER.replace(DRIVER, "550.135"), libraries=["libcuda.so.550.135", "libnvidia-ml.so.550.135"])),
    ("a second card and a modeset node", card(nvidia1=stat(rdev=(195, 1)), nvidia_modeset=stat(rdev=(195, 254)))),
    ("nodes that only a group may use, and the service is in it", card(nvidia0=stat(rdev=(195, 0), mode=0o660), context={**OPENED, "user": "fly"})),
    ("the PTX that is committed", ptx()),
    ("a comment that mentions fma.rn", ptx(text="// no fma.rn in here\n" + PTX)),
    ("the newest ISA that the driver reads", ptx(text=PTX.replace(".version 8.0", ".version 8.7"))),
    ("translation, allowed", ptx(cc=90, attached=ATTACHED.replace("exact", "JIT"), allow=True)),
    ("exactly half the cost", cost({"cores": 1.0}, {"cores": 0.5})),
    ("a realtime factor of 0.99", cost(gpu={"factor": 0.99})),
    ("a brain near the upper end", cost({"hz": 99.0}, {"hz": 99.0})),
    ("half speed, as asked", health({"tick": 25_000, "speed": 0.5})),
    ("PVE re-emitted the rule before a snapshot", allowed(CONF + RULE + SNAPSHOT)),
    ("a neighbour's config moved by somebody else", written("/etc/fly/flysim.env")),
    ("a first deploy without a state", gated("none")),
    ("a receipt as it was written", receipt_text(str)),
    ("every thirds' part busy, hashes equal", exact()),
)  # fmt: skip
