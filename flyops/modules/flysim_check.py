# SPDX-License-Identifier: Apache-2.0
"""One of the five checks of a release on a card, or the health of the service. It looks and judges; it changes nothing."""

from __future__ import annotations

import json
import posixpath
from typing import Any, Mapping

from flyops.domain import cardload, checks, cpuset, driver, driverlook, health, nvidia, probes
from flyops.domain.systemd import unit_name
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Completed, Host
from flyops.spec import Arg, Spec

WORDS = ("log", "log_file", "unit", "url")
EVIDENCE = {"feature": WORDS, "ptx": WORDS, "cost": ("url",), "window": ("url",), "health": ("url",)}  # what check mode may lack

SPEC = Spec(
    doc="Judge one thing about flysim: feature, card, ptx, bitexact, cost (the five, in this order), health, or one window of cost.",
    args={
        "check": Arg("str", required=True, choices=("feature", "card", "ptx", "bitexact", "cost", "health", "window"), help="what to look at"),
        "backend": Arg(
            "str", default="cuda", choices=("cuda", "cpu", ""), help="the backend that is wanted; for cpu the five do not apply; empty (health): any"
        ),
        "fail": Arg("bool", default=True, help="refuse when the verdict is failed; false: only say so in values"),
        "log": Arg("str", help="feature, ptx: the log of this start only (trial's)"),
        "log_file": Arg("path", help="feature, ptx: or a file with it"),
        "log_offset": Arg("int", default=0, help="feature, ptx: byte at which this start begins in log_file; 0: found by its words"),
        "unit": Arg("str", help="feature, ptx: or the journal of this unit since its last start"),
        "exit_code": Arg("int", help="feature: how the trial ended, when it did"),
        "confirm": Arg("bool", default=True, help="feature: the attached line must be there too; false before check 2 has looked for a card"),
        "url": Arg("str", help="/status of what is judged"),
        "pid": Arg("int", help="cost, window: its process; default: the one that /status names. feature: look into its memory for the driver"),
        "dev": Arg("path", default="/dev", help="card: folder of the nodes"),
        "proc_devices": Arg("path", default="/proc/devices", help="card: majors of the running kernel"),
        "proc_driver": Arg("path", default="/proc/driver/nvidia", help="card, ptx: the loaded module's version"),
        "lib_dirs": Arg("list", elements="str", help="card: where the driver's libraries may be; default: the usual folders and the linker's"),
        "user": Arg("str", default="", help="card: open the context as this user, the service's; empty: as the agent"),
        "gpu": Arg("int", default=0, help="card, ptx: index of the device to open"),
        "ptx_dir": Arg("path", help="ptx: the release's folder of sm_XX.ptx"),
        "cc": Arg("str", help="ptx: the card's compute capability (9.0); default: asked of the driver"),
        "allow_jit": Arg("bool", default=False, help="ptx: take PTX of a lower arch; the report says JIT"),
        "binary": Arg("path", help="bitexact: this release's flysim"),
        "old_binary": Arg("path", help="bitexact: flysim of the release before"),
        "connectome": Arg("path", help="bitexact: the .fly file that runs"),
        "state_dir": Arg("path", help="bitexact: the live state, of which the newest checkpoint is copied"),
        "ticks": Arg("int", default=2000, help="bitexact: ticks of the replay"),
        "thirds_ticks": Arg("int", default=3001, help="bitexact: ticks of the thirds (not a multiple of 18: cut inside a delay window)"),
        "old_backend": Arg("str", default="cpu", choices=("cpu", "cuda"), help="bitexact: what the release before replays on"),
        "drive": Arg("str", default="", help="bitexact: FLY_DRIVE of the runs"),
        "seed": Arg("str", default="", help="bitexact: FLY_SEED of the runs"),
        "cpus": Arg("str", default="", help="bitexact: cpus to run on (those of the trial); empty: as the agent"),
        "limit": Arg("float", default=600.0, help="seconds that any one command may take"),
        "cpu_window": Arg("dict", help="cost: values.window of an earlier check: window on the CPU kernel"),
        "cpu_url": Arg("str", help="cost: or /status of the CPU kernel that runs now"),
        "cpu_pid": Arg("int", help="cost: its process"),
        "card": Arg("dict", help="cost: who was on the card before the trial (card_processes); a busy neighbour is told, and explains"),
        "warmup": Arg("float", default=10.0, help="cost, window: seconds before the first sample"),
        "window": Arg("float", default=30.0, help="cost, window: seconds of the window"),
        "interval": Arg("float", default=1.0, help="cost, window: seconds between samples"),
        "max_cores": Arg("float", default=checks.MAX_GPU_CORES, help="cost: the GPU run must take fewer host cores"),
        "max_share": Arg("float", default=checks.MAX_GPU_SHARE, help="cost: and at most this share of the CPU kernel's"),
        "gap": Arg("float", default=3.0, help="health: seconds between the two reads"),
        "env": Arg("dict", help="health: settings that the running process must have in its environment (an empty value is not compared)"),
        "home": Arg("path", help="health: folder of the releases; the process must run what its `current` points to"),
        "min_factor": Arg("float", default=checks.MIN_FACTOR, help="health: lowest realtime factor"),
    },
    required_if=(
        ("check", "health", ("url",)),
        ("check", "window", ("url",)),
        ("check", "ptx", ("ptx_dir",)),
        ("check", "bitexact", ("binary", "connectome", "state_dir")),
    ),
    examples="- name: Check 1, the feature is in the binary\n  flysim_check: {check: feature, log: '{{ trial.log }}', exit_code: '{{ trial.exit_code }}'}\n  register: check_feature\n",
    returns={
        "check": "its name",
        "title": "its title",
        "looked_at": "what was looked at",
        "wanted": "what was wanted",
        "seen": "what was seen",
        "verdict": "passed, failed, not_applicable or not_reached",
        "to_do": "what to do about a failure",
        "details": "raw values",
        "window": "cost, window: the summary of the window; samples: its raw rows",
    },
)


def _probe(args: dict[str, Any], name: str, asked: dict[str, Any], host: Host, timeout: float) -> dict[str, Any]:
    done = host.run(probes.argv(name, asked, host), query=True, stdin=probes.text(name), timeout=timeout)
    return probes.answer(done)


def _out(done: Completed) -> str:
    return done.stdout.decode("utf-8", "replace")


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Everything that the judge needs, and nothing judged."""
    check = checks.BY_NAME[args["check"]]
    if check.gpu_only and args["backend"] == "cpu" and not (args["check"] == "cost" and args["url"]):
        return {"skip": checks.not_applicable(args["check"])}
    if host.check and (args["check"] == "bitexact" or not any(args[name] for name in EVIDENCE.get(args["check"], ("check",)))):
        return {"skip": checks.Judged(checks.NOT_REACHED, "check mode starts no trial and stages no release")}
    return {
        "feature": _look_feature,
        "card": _look_card,
        "ptx": _look_ptx,
        "bitexact": _look_bitexact,
        "cost": _look_cost,
        "window": _look_cost,
        "health": _look_health,
    }[args["check"]](args, host)


# feature, ptx: the program's own words


def _status(url: str, args: dict[str, Any], host: Host) -> dict[str, Any]:
    reads = _probe(args, "reads", {"url": url, "count": 1}, host, 60).get("reads") or [{"status": {}}]
    return dict(reads[0]["status"])


def _journal(unit: str, host: Host) -> str:
    """What a unit has said since its last start: an older start has another invocation id."""
    unit_name(unit)  # one that begins with a dash would be an option
    done = host.run(["systemctl", "show", "-p", "InvocationID", "--value", unit], query=True, timeout=30)
    invocation = _out(done).strip()
    if not invocation:
        return ""
    return _out(host.run(["journalctl", f"_SYSTEMD_INVOCATION_ID={invocation}", "-o", "cat", "--no-pager"], query=True, timeout=60))


def _log(args: dict[str, Any], host: Host) -> str:
    """The lines of one start; from /status when no log is at hand (the same words of the same live process)."""
    if args["log"] is not None:
        return str(args["log"])
    if args["unit"]:
        return _journal(args["unit"], host)
    if args["log_file"]:
        text = host.read_bytes(args["log_file"], missing=b"")[args["log_offset"] :].decode("utf-8", "replace")
        return text if args["log_offset"] else checks.last_start(text)
    if not args["url"]:
        raise ModuleError(f"{args['check']}: expected log, log_file, unit or url: the words of one start")
    status = _status(args["url"], args, host)
    gpu = status.get("gpu") or {}
    lines = [f"{checks.FEATURE_LINE} (/status of pid {status.get('pid')})"] if "cuda" in (status.get("features") or []) else []
    lines += [f"{checks.ATTACHED_LINE} ({gpu['attached']})"] if status.get("backend") == "cuda" and gpu.get("attached") else []
    return "\n".join(lines)


def _look_feature(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The words, and beside a log what the process itself answers."""
    told = args["log"] is not None or args["log_file"] or args["unit"]
    maps = host.read_bytes(f"/proc/{args['pid']}/maps", missing=b"").decode("utf-8", "replace") if args["pid"] else ""
    return {"log": _log(args, host), "maps": maps, "status": _status(args["url"], args, host) if told and args["url"] and args["confirm"] else {}}


def _context(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """A driver that hangs in cuInit is a finding, not our end."""
    try:
        asked: dict[str, Any] = {"index": args["gpu"], "dev": args["dev"]}
        if args["user"] and host.user(args["user"]) is not None:
            asked["user"] = args["user"]
        return _probe(args, "cuda", asked, host, 90)
    except Exception as err:  # the real host's TimedOut lives in the agent, which a module does not import
        if "ran past its limit" not in str(err):
            raise
        return {"step": "cuInit", "error": "the driver did not answer within 90 s; look for Xid in the host's kernel log"}


def _look_ptx(args: dict[str, Any], host: Host) -> dict[str, Any]:
    cc = args["cc"] or ""
    number = int(cc.replace(".", "")) if cc.replace(".", "").isdigit() else int(_context(args, host).get("cc") or 0)
    names = host.listdir(args["ptx_dir"]) if host.stat(args["ptx_dir"], follow=True) else []
    name = checks.pick_ptx(names, number)
    log = _log(args, host)
    return {
        "cc": number,
        "name": name,
        "text": host.read_text(f"{args['ptx_dir']}/{name}") if name else "",
        "driver": nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing="")),
        "attached": checks.said(log, checks.ATTACHED_LINE),
        "refused": checks.refused_ptx(log),
    }


# card


def _dev_names(dev: str, host: Host) -> list[str]:
    """Names below dev that are ours to judge; those in nvidia-caps with their folder."""
    out = []
    for name in host.listdir(dev) if host.stat(dev, follow=True) else []:
        if name.startswith("nvidia"):
            seen = host.stat(f"{dev}/{name}")
            out += [f"{name}/{sub}" for sub in host.listdir(f"{dev}/{name}")] if seen and seen.kind == "dir" else [name]
    return out


def _nodes(args: dict[str, Any], host: Host) -> list[nvidia.Verdict]:
    majors = nvidia.live_majors(host.read_text(args["proc_devices"], missing=""))
    names = _dev_names(args["dev"], host)
    out = []
    for name in sorted({*names, "nvidiactl", "nvidia-uvm"}):
        path = f"{args['dev']}/{name}"
        expected = nvidia.expected_device(name, majors)
        if expected is not None:
            out.append(nvidia.judge_node(nvidia.Node(path, *expected), host.stat(path)))
        elif name in ("nvidiactl", "nvidia-uvm"):
            module = "nvidia" if name == "nvidiactl" else name
            out.append(
                nvidia.Verdict(nvidia.Node(path, 0, 0), "stale", f"/proc/devices has no {module}: the module is not loaded, {path} cannot work")
            )
    return out


def _look_card(args: dict[str, Any], host: Host) -> dict[str, Any]:
    version = nvidia.module_version(host.read_text(f"{args['proc_driver']}/version", missing=""))
    library = driver.survey(driverlook.look(host, args["lib_dirs"] or ()), version)
    return {"nodes": _nodes(args, host), "library": library, "context": _context(args, host)}


# bitexact


def _line(binary: str, words: list[str], args: dict[str, Any], host: Host) -> str:
    done = host.run([binary, *words], query=True, timeout=args["limit"])
    lines = _out(done).strip().splitlines()
    return lines[-1].strip() if done.rc == 0 and lines else ""


def _settings(args: dict[str, Any]) -> dict[str, str]:
    given = {"FLY_DRIVE": args["drive"], "FLY_SEED": args["seed"]}
    return {key: str(value) for key, value in given.items() if value}


def _json(run: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON that a flysim command printed (a comparison that found a difference prints it, too, and ends with 1); else its own words."""
    try:
        found = json.loads(run["out"])
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": f"exit code {run['rc']}: {(run['err'] or run['out']).strip()[-500:]}"}


def _look_bitexact(args: dict[str, Any], host: Host) -> dict[str, Any]:
    old, new, fly = args["old_binary"], args["binary"], args["connectome"]
    binaries = ((old, args["old_backend"]), (new, "cuda"))
    printed = ["--print-compatibility", "--connectome", fly]
    compatibility = [_line(b, printed, args, host) if b else "" for b, _ in binaries]
    kernel = [_line(b, ["--print-kernel-version"], args, host) if b else "" for b, _ in binaries]
    runs = [[b, "replay", "{dir}", fly, "--ticks", str(args["ticks"]), "--backend", backend] for b, backend in binaries if b]
    runs.append([new, "thirds", fly, "--ticks", str(args["thirds_ticks"]), "--backends", "cpu,cuda,cpu"])
    try:
        cpus = list(cpuset.parse(args["cpus"]))
    except cpuset.CpusetError as err:
        raise ModuleError(f"cpus: {err}") from err
    asked = {"state_dir": args["state_dir"], "runs": runs, "env": _settings(args), "limit_s": args["limit"], "cpus": cpus}
    replay = _probe(args, "replay", asked, host, 3 * args["limit"] + 60)
    found = [_json(run) for run in replay.get("runs", [])]
    found = ([] if old else [{"error": "there is no release before: deploy on the CPU first"}]) + found
    found += [{"error": replay.get("error", "it was not run")}] * (3 - len(found))
    pair = ((compatibility[0], compatibility[1]), (kernel[0], kernel[1]), (found[0], found[1]))
    return {"looked": checks.Exactness(*pair, found[2], args["ticks"]), "checkpoint": replay.get("checkpoint", "")}


# cost, window, health


def _sample(url: str, pid: int | None, warmup: float, args: dict[str, Any], host: Host) -> dict[str, Any]:
    """Rows of one window, per second, from /proc/PID/stat (all threads) and /status, by this process's clock."""
    pid = pid or _status(url, args, host).get("pid")
    if not pid:
        return {"rows": [], "error": f"{url} does not answer with a pid"}
    asked = {"url": url, "pid": pid, "warmup_s": warmup, "window_s": args["window"], "interval_s": args["interval"]}
    return _probe(args, "sample", asked, host, warmup + args["window"] + 60)


def _look_cost(args: dict[str, Any], host: Host) -> dict[str, Any]:
    out: dict[str, Any] = {}
    warmup = args["warmup"]
    if args["check"] == "cost" and args["cpu_url"] and not args["cpu_window"]:
        host.note(f"cost: {args['window']:g} s on the CPU kernel")
        out["cpu"] = _sample(args["cpu_url"], args["cpu_pid"], warmup, args, host)
        warmup = 0.0  # both run since before the first window
    host.note(f"cost: {args['window']:g} s on the {args['backend'] or 'present'} backend")
    out["own"] = _sample(args["url"], args["pid"], warmup, args, host)
    return out


def _look_health(args: dict[str, Any], host: Host) -> dict[str, Any]:
    found = _probe(args, "reads", {"url": args["url"], "count": 2, "gap_s": args["gap"]}, host, args["gap"] + 60)
    reads = found.get("reads") or [{"t": 0.0, "status": {"error": found.get("error", "")}}] * 2
    if (
        host.check
        and health.judge_health(reads[0]["status"], reads[1]["status"], reads[1]["t"] - reads[0]["t"], args["backend"]).verdict == checks.FAILED
    ):
        return {"skip": checks.Judged(checks.NOT_REACHED, "check mode: what would run does not run yet")}
    process = _process(args, reads[1]["status"].get("pid"), host)
    return {"first": reads[0]["status"], "second": reads[1]["status"], "seconds": reads[1]["t"] - reads[0]["t"], "process": process}


def _process(args: dict[str, Any], pid: Any, host: Host) -> health.Process | None:
    """The kernel's word on the process that answered."""
    if not pid or not (args["env"] or args["home"]):
        return None
    wanted = {name: str(value) for name, value in (args["env"] or {}).items()}
    pairs = host.read_bytes(f"/proc/{pid}/environ", missing=b"").decode("utf-8", "replace").split("\0") if wanted else []
    current = host.stat(f"{args['home']}/current") if args["home"] else None
    exe = host.stat(f"/proc/{pid}/exe")
    below = posixpath.normpath(posixpath.join(args["home"], current.target)) if current and current.target else args["home"] or ""
    return health.Process(dict(pair.partition("=")[::2] for pair in pairs), exe.target if exe else "", wanted, below)


# judging


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """The verdict; a failed one refuses."""
    judged, extra = _judge(args, state)
    values = {**checks.values(args["check"], judged), **extra}
    if judged.verdict == checks.FAILED and args["fail"]:
        title = checks.BY_NAME[args["check"]].title
        raise Refused(f"{title}: wanted {values['wanted']}; seen {judged.seen}", fix=judged.fix, **values)
    return Same(values, msg=f"{values['title']}: {judged.verdict}: {judged.seen}")


def _judge(args: dict[str, Any], state: dict[str, Any]) -> tuple[checks.Judged, dict[str, Any]]:
    name = args["check"]
    if "skip" in state:
        return state["skip"], {}
    if name == "feature":
        return checks.judge_feature(state["log"], args["exit_code"], args["confirm"], state["status"], state["maps"]), {}
    if name == "card":
        return checks.judge_card(state["nodes"], state["library"], state["context"]), {}
    if name == "ptx":
        looked = checks.Loaded(state["name"], state["text"], state["cc"], state["driver"], state["attached"], state["refused"])
        return checks.judge_ptx(looked, args["allow_jit"]), {}
    if name == "bitexact":
        return checks.judge_bitexact(state["looked"]), {"checkpoint": state["checkpoint"]}
    if name == "health":
        return health.judge_health(state["first"], state["second"], state["seconds"], args["backend"], args["min_factor"], state["process"]), {}
    return _judge_cost(args, state)


def _judge_cost(args: dict[str, Any], state: dict[str, Any]) -> tuple[checks.Judged, dict[str, Any]]:
    own = checks.summarise(state["own"])
    extra: dict[str, Any] = {"window": own, "samples": state["own"].get("rows", []), "pidstat": state["own"].get("pidstat", "")}
    if args["check"] == "window":
        verdict = checks.FAILED if own.get("error") else checks.PASSED
        return checks.Judged(
            verdict, own.get("error") or f"{own['cores']:.3f} cores, factor {own['factor']:.4f}, {own['hz']:.2f} Hz", details=own
        ), extra
    if args["backend"] == "cpu":
        return checks.judge_cpu_cost(own), extra
    cpu = args["cpu_window"] or checks.summarise(state.get("cpu") or {"error": "no window of the CPU kernel: give cpu_window or cpu_url"})
    extra.update(cpu_window=cpu, cpu_samples=(state.get("cpu") or {}).get("rows", []), cpu_pidstat=(state.get("cpu") or {}).get("pidstat", ""))
    return cardload.told(checks.judge_cost(cpu, own, args["max_cores"], args["max_share"]), args["card"]), extra


def apply(args: dict[str, Any], change: Change, host: Host) -> None:
    """Never reached: a check changes nothing."""
