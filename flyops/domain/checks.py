# SPDX-License-Identifier: Apache-2.0
"""The five checks (and the health check) as ordered data, and their judges: texts and numbers in, a verdict out. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence, Tuple

from flyops.domain import driver, nvidia, ptx, symptoms

PASSED, FAILED, NOT_APPLICABLE, NOT_REACHED = "passed", "failed", "not_applicable", "not_reached"
BUILD_HINT = "build with the feature: FLY_CARGO_FEATURES=cuda (invoke build, or invoke deploy --gpu, which does it)"
TICKS_PER_S = 10_000  # dt is 0.1 ms
MIN_FACTOR = 0.99
MIN_HZ = 1.0
MAX_HZ = 100.0  # a brain that spins in its self-sustaining state measures nothing
RESOLUTION_S = 0.03  # /status shows the end of the last batch of ticks, so a read of it may be that late
MAX_GPU_CORES = 1.0
MAX_GPU_SHARE = 0.5


@dataclass(frozen=True)
class Check:
    """One check as people see it."""

    name: str
    title: str
    looked_at: str
    wanted: str
    gpu_only: bool = True


CHECKS: Tuple[Check, ...] = (
    Check("feature", "1 The feature is in the binary", "log lines of this start", "`cuda feature compiled in`, then `cuda backend attached`"),
    Check(
        "card",
        "2 The container sees the card",
        "nodes under /dev, /proc/devices, library file names, a CUDA context",
        "character devices with live majors, libraries of the loaded module's version, a context that opens",
    ),
    Check(
        "ptx",
        "3 The PTX fits the card",
        "the release's PTX and the attached line",
        "built for the card's compute capability, ISA the driver loads, exact",
    ),
    Check(
        "bitexact",
        "4 Bit-exact",
        "version strings, replay of one live checkpoint, thirds on CPU, GPU, CPU",
        "equal strings, equal hashes, spikes in each third",
    ),
    Check(
        "cost",
        "5 Cost",
        "host cores, realtime factor and activity over a fixed window",
        f"factor >= {MIN_FACTOR} in both, GPU < {MAX_GPU_CORES:g} core and <= {MAX_GPU_SHARE:g} of the CPU kernel's, mean activity > {MIN_HZ:g} Hz in both",
    ),
)
HEALTH = Check(
    "health",
    "The service is well",
    "two reads of /status, by an outside clock",
    f"ticks grow, factor >= {MIN_FACTOR}, backend as wanted, pid stable",
    False,
)
WINDOW = Check("window", "One window of cost", "host cores, realtime factor and activity over a fixed window", "measured, not judged", False)
BY_NAME: Mapping[str, Check] = {check.name: check for check in (*CHECKS, HEALTH, WINDOW)}


@dataclass(frozen=True)
class Judged:
    """A verdict with what it rests on. `fix` says what to do about a failure."""

    verdict: str
    seen: str
    fix: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def values(name: str, judged: Judged) -> dict[str, Any]:
    """The result of a check as the module returns it and the report reads it."""
    check = BY_NAME[name]
    return {
        "check": name,
        "title": check.title,
        "looked_at": check.looked_at,
        "wanted": check.wanted,
        "seen": judged.seen,
        "verdict": judged.verdict,
        "to_do": judged.fix,
        "details": dict(judged.details),
    }


def not_applicable(name: str, why: str = "does not apply to a CPU deploy") -> Judged:
    """For a deploy in which this check has nothing to look at."""
    return Judged(NOT_APPLICABLE, why) if BY_NAME[name].gpu_only else Judged(NOT_REACHED, why)


def weigh(problems: Sequence[str], seen: str, fix: str = "", **details: Any) -> Judged:
    """Failed with all the problems there are, else passed with what was seen."""
    return Judged(FAILED, "; ".join(problems), fix, details) if problems else Judged(PASSED, seen, "", details)


# 1 feature

FEATURE_LINE = "cuda feature compiled in"
ATTACHED_LINE = "cuda backend attached"
CPU_ATTACHED_LINE = "cpu backend attached"


def said(log: str, words: str) -> str:
    """The last line in which the program itself says `words` (at its start, after any timestamp and level), not one that quotes them."""
    pattern = re.compile(r"^(?:\S+ ){0,6}?(?P<text>" + re.escape(words) + r"\b.*)$")
    found = [match.group("text") for match in map(pattern.match, log.splitlines()) if match]
    return found[-1] if found else ""


def last_start(log: str) -> str:
    """The lines of the last start in a log that several starts share.

    Every start of a binary with the feature says so first, and every start that gets so far says what it attached, once. So the last start
    begins after the attached line before the last one; when words of a start follow the last one, that later start never attached.
    """
    lines = log.splitlines()
    attached = [number for number, line in enumerate(lines) if said(line, ATTACHED_LINE) or said(line, CPU_ATTACHED_LINE)]
    if not attached:
        return log
    later = [number for number in range(attached[-1] + 1, len(lines)) if said(lines[number], FEATURE_LINE)]
    if later:
        return "\n".join(lines[later[-1] :])
    before = attached[-2] + 1 if len(attached) > 1 else 0
    own = [number for number in range(before, attached[-1]) if said(lines[number], FEATURE_LINE)]
    return "\n".join(lines[own[-1] if own else attached[-1] :])


def last_lines(log: str, count: int = 5) -> str:
    """The end of a log, for a failure's text."""
    return "\n".join([line for line in log.splitlines() if line.strip()][-count:])


# flysim's own words when it held the card and then refused, or could not load, the PTX: that is for check 3 to name.
REFUSED_PTX = re.compile(r"^.*cannot attach [^:]*: (?P<why>(?:loading )?PTX\b.*|setting up: .*NOT_FOUND.*)$", re.MULTILINE)


def refused_ptx(log: str) -> str:
    """Why flysim did not take its PTX; empty when that is not what went wrong."""
    found = REFUSED_PTX.search(log)
    return found.group("why") if found else ""


def judge_feature(
    log: str, exit_code: int | None = None, confirm: bool = True, status: Mapping[str, Any] | None = None, maps: str | None = None
) -> Judged:
    """`log` holds the lines of one start only. The env file is no evidence and is not asked.

    The check passes on the first line; the second one confirms it (`confirm`), once check 2 has shown that there is a card to hold. Where the
    process answers (`status`), its answer must agree with its log, and its memory (`maps`) must hold the driver: lines can be printed by anybody.
    """
    compiled, attached = said(log, FEATURE_LINE), said(log, ATTACHED_LINE)
    details = {"compiled": compiled, "attached": attached, "exit_code": exit_code, "tail": last_lines(log)}
    if not compiled:
        seen = "no such line: this binary has no cuda feature" if log.strip() else "no log of this start"
        if exit_code is not None:
            seen += f" (it ended with exit code {exit_code})"
        return Judged(FAILED, seen, BUILD_HINT, details)
    if not attached and not confirm:
        return Judged(PASSED, f"`{compiled}`; to be confirmed by `{ATTACHED_LINE}`", "", details)
    if not attached and refused_ptx(log):
        return Judged(PASSED, f"`{compiled}`; it held no card because of its PTX, which check 3 looks at", "", details)
    if not attached:
        ended = f" and ended with exit code {exit_code}" if exit_code is not None else ""
        why = "FLY_LIF_CUDA=1 must be in its settings, and the guest must have the card (check 2); its last lines:\n" + last_lines(log)
        return Judged(FAILED, f"`{compiled}`, but it never held the card{ended}", why, details)
    answer = status or {}
    if answer and (answer.get("backend") != "cuda" or "cuda" not in answer.get("features", ["cuda"])):
        seen = f"the log says `{ATTACHED_LINE}`, and the process that answers runs the {answer.get('backend')} backend (features {answer.get('features')})"
        return Judged(FAILED, seen, f"do not deploy this binary: it says what it does not do; {BUILD_HINT}", details)
    if maps and "/libcuda.so" not in maps:
        seen = f"the log says `{ATTACHED_LINE}`, and the process has not opened libcuda"
        return Judged(FAILED, seen, "do not deploy this binary: it says what it does not do", details)
    return Judged(PASSED, f"`{compiled}`; `{attached}`", "", details)


# 2 card


def judge_card(nodes: Sequence[nvidia.Verdict], library: driver.Survey, context: Mapping[str, Any]) -> Judged:
    """Nodes, libraries and an opened context, in that order: the first cause is named first, all of them are told."""
    problems = [v.text for v in nodes if not v.right and v.state != "mode"]
    # Another mode than the usual one is no fault by itself: the context below shows whether this user may use it.
    if not any(re.search(r"/nvidia\d+$", v.node.path) and v.state in ("right", "mode") for v in nodes):
        problems.append("no usable card node (/dev/nvidiaN)")
    # A program that opened a context found its libraries without the linker's cache.
    known = library.problems if not context.get("opened") else [text for text in library.problems if text not in library.unlinked]
    problems += [f"{library.verdict}: {'; '.join(known)}"] if known else []
    taken = driver.file_version(str(context.get("library") or ""))
    if taken and library.wanted and taken != library.wanted:
        problems.append(f"the linker gave a program {context['library']}, the loaded module is {library.wanted}")
    opened = judge_context(context)
    if opened:
        problems.append(opened)
        # Modes matter where the context did not open: the nodes are there, and this user may not use them.
        right = {v.node.path for v in nodes if v.state in ("right", "mode")}
        problems += [f"{path}: {why}: {symptoms.hint(f'{path}: {why}')}" for path, why in (context.get("closed") or {}).items() if path in right]
        problems += [v.text for v in nodes if v.state == "mode" and "nvidia-caps" not in v.node.path and context.get("user")]
    fix = "give the guest the card: invoke provision NAME --gpu (deploy never edits a container's config)"
    card = context.get("name", "")
    seen = f"{len(nodes)} nodes right, libraries {library.verdict}, context opened on {card} (cc {context.get('cc', '?')})"
    return weigh(
        problems,
        seen,
        fix if problems else "",
        nodes=[v.text for v in nodes],
        module=library.wanted,
        found=list(library.versions),
        context=dict(context),
    )


def judge_context(context: Mapping[str, Any]) -> str:
    """Empty when a CUDA context opened; else the step, the code and its meaning."""
    if context.get("error"):
        return f"CUDA context: {context['error']}"
    if context.get("code"):
        return f"CUDA context: {context.get('step', '?')} gave {symptoms.cuda_error(int(context['code']))}"
    if not context.get("devices"):
        return "CUDA context: the driver answers and shows no device"
    return "" if context.get("opened") else "CUDA context: the program ended before it opened one"


# 3 ptx


def pick_ptx(names: Sequence[str], cc: int) -> str:
    """Name of the release's PTX that a card would take: that of its own arch, else of the highest below it (JIT), else none."""
    numbered = {ptx.number(name.rpartition("/")[2][: -len(".ptx")]): name for name in names if name.endswith(".ptx")}
    below = [arch for arch in numbered if 0 < arch <= cc]
    return numbered[max(below)] if below else ""


def _taken(attached: str) -> tuple[str, str]:
    """(`JIT`, `exact` or nothing; the target it was said of): flysim's own word on how the card took the PTX."""
    found = re.search(r"\b(sm_\d+[af]?)[ ,:(]+(exact|JIT)\b", attached)
    return (found.group(2), found.group(1)) if found else ("", "")


@dataclass(frozen=True)
class Loaded:
    """What check 3 looks at: the file, its text, the card's compute capability (90), the driver and the attached line."""

    name: str
    text: str
    cc: int
    driver: str
    attached: str
    refused: str = ""  # flysim's words when it did not take it


def judge_ptx(looked: Loaded, allow_jit: bool = False) -> Judged:
    """The file against card and driver, and flysim's own word on whether it was exact. Both have to agree."""
    arch = f"sm_{looked.cc}"
    header, how = ptx.header(looked.text), ptx.loads(looked.text, arch)
    taken, target = _taken(looked.attached)
    details: dict[str, Any] = {
        "file": looked.name,
        "card": arch,
        "driver": looked.driver,
        "attached": looked.attached,
        "jit": how == "jit" or taken == "JIT",
    }
    build = f"build it: invoke ptx ARCH={arch} (deploy --gpu does)"
    if header is None:
        why = f"; {looked.refused}" if looked.refused else ""
        return Judged(FAILED, f"no PTX for {arch} in the release ({looked.name or 'none that this card could take'}){why}", build, details)
    details.update(version="{}.{}".format(*header.isa), target=header.target)
    problems = [text for text in ptx.problems(looked.text, header.target, looked.driver or "unknown") if text]
    if problems or how == "no":
        problems += [f".target: {header.target} does not run on {arch}"] if how == "no" else []
        return Judged(
            FAILED,
            f"{looked.name}: " + "; ".join(problems),
            f"{build}; where the driver is too old for it: an older toolkit (NVRTC 12.0), or a newer driver",
            details,
        )
    seen = f"{looked.name}: .version {details['version']} for driver {looked.driver}, .target {header.target} on {arch}"
    if not taken and looked.refused:
        return Judged(FAILED, f"{seen}; flysim or the driver refused it: {looked.refused}", build, details)
    if not taken:
        return Judged(
            FAILED, f"{seen}; flysim's attached line says neither exact nor JIT: {looked.attached or 'no such line'}", "look at check 1", details
        )
    if target != header.target:
        return Judged(FAILED, f"{seen}; flysim loaded {target} ({taken}): another PTX", "look at FLY_PTX and at the release's ptx folder", details)
    if how == "exact" and taken == "exact":
        return Judged(PASSED, f"{seen}; flysim says exact", "", details)
    jit = f"JIT: {seen}; flysim says JIT"
    return Judged(PASSED, f"{jit} (allowed by --allow-jit)", "", details) if allow_jit else Judged(FAILED, jit, f"{build}, or --allow-jit", details)


# 4 bitexact


def _thirds_problems(thirds: Mapping[str, Any]) -> list[str]:
    parts = thirds.get("parts") or []
    out = []
    if len(parts) != 3:
        return [f"thirds: {thirds['error']}" if thirds.get("error") else f"thirds: expected three parts, found {len(parts)}"]
    if thirds.get("hash") != thirds.get("unbroken_hash") or not thirds.get("hash"):
        out.append(
            f"thirds: on {', '.join(str(p.get('backend')) for p in parts)} they end at hash {thirds.get('hash')}, the unbroken CPU run at {thirds.get('unbroken_hash')}"
        )
    if thirds.get("spikes") != thirds.get("unbroken_spikes"):
        out.append(f"thirds: {thirds.get('spikes')} spikes in parts, {thirds.get('unbroken_spikes')} unbroken")
    if thirds.get("ok") is not True and not out:
        out.append("thirds: flysim does not call them equal")
    out += [
        f"thirds: third {number} ends at a window's end, which proves less"
        for number, p in enumerate(parts[:2], 1)
        if p.get("inside_window") is False
    ]
    out += [f"thirds: no spikes in third {number} ({p.get('backend')})" for number, p in enumerate(parts, 1) if not p.get("spikes")]
    if "cuda" not in [p.get("backend") for p in parts]:
        out.append("thirds: none of them ran on the GPU")
    return out


@dataclass(frozen=True)
class Exactness:
    """What check 4 looks at. A hash is what `flysim replay` printed for one copied checkpoint; `thirds` is `flysim thirds`' JSON."""

    compatibility: Tuple[str, str]  # release before, this release
    kernel: Tuple[str, str]
    replay: Tuple[Mapping[str, Any], Mapping[str, Any]]
    thirds: Mapping[str, Any]
    ticks: int


def judge_bitexact(looked: Exactness) -> Judged:
    """Strings, replay and thirds; every difference is told."""
    problems = []
    for what, (old, new) in (("compatibility string", looked.compatibility), ("kernel version", looked.kernel)):
        if not old or not new:
            problems.append(f"{what}: {'the release before' if not old else 'this release'} did not print one")
        elif old != new:
            problems.append(f"{what} changed: {old} -> {new}")
    old_run, new_run = looked.replay
    for who, run in (("the release before", old_run), ("this release", new_run)):
        if not run.get("hash"):
            problems.append(f"replay: {who} gave no hash")
        elif run.get("ticks", looked.ticks) != looked.ticks:
            problems.append(f"replay: {who} ran {run.get('ticks')} ticks, asked were {looked.ticks}")
    for key, what in (("hash", "state"), ("hash_chain", "chain over every tick")):
        if old_run.get(key) and new_run.get(key) and old_run[key] != new_run[key]:
            problems.append(f"replay of {looked.ticks} ticks from one checkpoint, {what}: {old_run[key]} before, {new_run[key]} now")
    problems += _thirds_problems(looked.thirds)
    fix = "do not deploy this build: its trajectory is another. A wanted change goes through a new kernel version and a plain deploy with --accept kernel"
    seen = (
        f"strings equal; {looked.ticks} ticks end at {new_run.get('hash')} on both releases; thirds end at {looked.thirds.get('hash')}, as unbroken"
    )
    details = {
        "compatibility": list(looked.compatibility),
        "kernel": list(looked.kernel),
        "replay": [dict(old_run), dict(new_run)],
        "thirds": dict(looked.thirds),
    }
    return weigh(problems, seen, fix if problems else "", **details)


# 5 cost


def summarise(sample: Mapping[str, Any], ticks_per_s: int = TICKS_PER_S) -> dict[str, Any]:
    """One window out of the sampler's raw rows: host cores, realtime factor by the outside clock, mean activity, CPU utilisation."""
    rows = sample.get("rows") or []
    if len(rows) < 2:
        return {"error": sample.get("error") or f"expected at least two samples, found {len(rows)}"}
    first, last = rows[0], rows[-1]
    seconds = last["t"] - first["t"]
    brain_s = (last["tick"] - first["tick"]) / ticks_per_s
    neurons = last.get("neurons") or 0
    busy, total = last["busy_jiffies"] - first["busy_jiffies"], last["all_jiffies"] - first["all_jiffies"]
    return {
        "seconds": round(seconds, 3),
        "cores": round((last["cpu_s"] - first["cpu_s"]) / seconds, 4) if seconds > 0 else 0.0,
        "factor": round(brain_s / seconds, 5) if seconds > 0 else 0.0,
        "hz": round((last["spikes"] - first["spikes"]) / neurons / brain_s, 4) if neurons and brain_s > 0 else 0.0,
        "utilisation": round(busy / total, 4) if total > 0 else 0.0,
        "threads": last.get("threads"),
        "backend": last.get("backend"),
        "pid_stable": len({row.get("pid") for row in rows}) == 1 and first["start"] == last["start"],
        "stranger": next((row["pid"] for row in rows if row.get("measured") and row.get("pid") != row["measured"]), 0),
        "tick_before": first["tick"],
        "tick_after": last["tick"],
    }


def _window_problems(who: str, backend: str, window: Mapping[str, Any]) -> list[str]:
    if window.get("error"):
        return [f"{who}: {window['error']}"]
    out = []
    if window["backend"] != backend:
        out.append(f"{who}: expected backend {backend}, found {window['backend']}")
    if not window["pid_stable"]:
        out.append(f"{who}: the process changed within the window")
    if window.get("stranger"):
        out.append(f"{who}: pid {window['stranger']} answers at its /status, which is not the process that was measured")
    if window["cores"] <= 0:
        out.append(f"{who}: no CPU time at all in the window: another process, or a window too short")
    if window["factor"] < MIN_FACTOR:
        out.append(f"{who}: realtime factor {window['factor']:.4f}, expected >= {MIN_FACTOR}")
    if not window["hz"] > MIN_HZ:
        out.append(f"{who}: mean activity {window['hz']:.3f} Hz, expected > {MIN_HZ:g} (a silent brain costs nothing on any kernel)")
    if window["hz"] > MAX_HZ:
        out.append(f"{who}: mean activity {window['hz']:.1f} Hz, expected <= {MAX_HZ:g} (a spinning brain measures another load)")
    return out


def judge_cpu_cost(cpu: Mapping[str, Any]) -> Judged:
    """The CPU kernel alone, for a service that runs on it: it holds real time under a load worth measuring."""
    problems = _window_problems("CPU kernel", "cpu", cpu)
    if cpu.get("error"):
        return Judged(FAILED, "; ".join(problems), "start what is missing and check again", {"cpu": dict(cpu)})
    seen = f"CPU {cpu['cores']:.3f} cores ({cpu['threads']} threads), factor {cpu['factor']:.4f}, {cpu['hz']:.2f} Hz; machine busy {cpu['utilisation']:.0%}"
    return weigh(problems, seen, "give it more threads (rayon_threads) or cpus, or a drive" if problems else "", cpu=dict(cpu))


def judge_cost(cpu: Mapping[str, Any], gpu: Mapping[str, Any], max_cores: float = MAX_GPU_CORES, max_share: float = MAX_GPU_SHARE) -> Judged:
    """Two windows of `summarise`, the CPU kernel's at its own thread count and the GPU's."""
    problems = _window_problems("CPU kernel", "cpu", cpu) + _window_problems("GPU", "cuda", gpu)
    details = {"cpu": dict(cpu), "gpu": dict(gpu), "max_cores": max_cores, "max_share": max_share}
    if cpu.get("error") or gpu.get("error"):
        return Judged(FAILED, "; ".join(problems), "start what is missing and check again", details)
    if not gpu["cores"] < max_cores:
        problems.append(f"the GPU run takes {gpu['cores']:.3f} host cores, expected < {max_cores:g}")
    if gpu["cores"] > max_share * cpu["cores"]:
        problems.append(f"the GPU run takes {gpu['cores']:.3f} host cores, the CPU kernel {cpu['cores']:.3f}: expected <= {max_share:g} of it")
    seen = (
        f"GPU {gpu['cores']:.3f} cores, factor {gpu['factor']:.4f}, {gpu['hz']:.2f} Hz; "
        f"CPU {cpu['cores']:.3f} cores ({cpu['threads']} threads), factor {cpu['factor']:.4f}, {cpu['hz']:.2f} Hz; machine busy {gpu['utilisation']:.0%} / {cpu['utilisation']:.0%}"
    )
    judged = weigh(problems, seen, "the CPU settings stay; see the two windows in details", **details)
    return judged if problems else Judged(PASSED, seen, "", details)
