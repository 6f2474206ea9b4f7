# SPDX-License-Identifier: Apache-2.0
"""A trial run of a staged release beside the live one: own folder, own copy of the newest checkpoint, own port, given cpus."""

from __future__ import annotations

import time
from typing import Any

from flyops.domain import cpuset, paths, probes, systemd, trial
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Completed, Host
from flyops.spec import Arg, Spec

COPY_TRIES = 5
LOG_BYTES = 200_000

SPEC = Spec(
    doc="Start a staged release as a trial, wait until it answers (or ends), and end exactly what was started. The live run is never touched.",
    args={
        "state": Arg("str", default="started", choices=("started", "stopped", "absent", "read"), help="absent also removes the folder"),
        "dir": Arg("path", required=True, help="folder of the trial, ours alone"),
        "binary": Arg("path", help="started: the staged flysim"),
        "env_files": Arg("list", elements="str", default=[], help="started: the live settings, in order"),
        "env": Arg("dict", default={}, help="started: settings on top of them (FLY_LIF_CUDA, RAYON_NUM_THREADS, FLY_CONNECTOME, FLY_PTX)"),
        "state_dir": Arg("path", default="", help="started: the live state, of which the newest valid checkpoint is copied; empty: a fresh brain"),
        "cpus": Arg("str", default="", help="started: list of cpus; empty: as the agent"),
        "min_cpus": Arg("int", default=1, help="started: refuse fewer"),
        "cgroup": Arg("str", default="v2", choices=("v1", "v2"), help="started under systemd: AllowedCPUs= or CPUAffinity="),
        "manager": Arg(
            "str", default="systemd", choices=("systemd", "supervisor"), help="systemd: a transient unit; supervisor: a child of its own session"
        ),
        "user": Arg("str", default="", help="started: user that it runs as (as root only)"),
        "unit": Arg("str", default="flytrial", help="name of the transient unit"),
        "port": Arg("int", default=0, help="started: loopback port; 0: a free one"),
        "wait": Arg("float", default=60.0, help="started: seconds until it must answer"),
        "max_s": Arg("int", default=1800, help="started: it ends by itself after so long, whatever happens to us"),
        "args": Arg("list", elements="str", default=["run"], help="started: arguments of the binary"),
        "fail": Arg("bool", default=True, help="started: an end before the first answer is a failure; false: report it in values"),
    },
    required_if=(("state", "started", ("binary",)),),
    examples="- name: The staged release runs beside the live one\n  trial:\n    dir: /var/lib/flyops/trial\n    binary: /opt/fly/releases/V/bin/flysim\n"
    "    env_files: [/etc/fly/flysim.env, /etc/fly/backend.env]\n    env: {FLY_LIF_CUDA: 1, RAYON_NUM_THREADS: 1}\n    state_dir: /var/lib/fly\n    cpus: 4-7\n  register: trial\n",
    returns={
        "running": "it answers",
        "url": "its /status",
        "pid": "its process",
        "start": "start time of that process in clock ticks (with pid its identity)",
        "exit_code": "when it ended: with what",
        "log": "everything that this trial has said",
        "checkpoint": "file that it started from, or empty",
        "state_dir": "its own state folder",
    },
)


def _probe(host: Host, name: str, asked: dict[str, Any], *, query: bool, timeout: float) -> dict[str, Any]:
    return probes.answer(host.run(probes.argv(name, asked, host), query=query, stdin=probes.text(name), timeout=timeout))


def _text(done: Completed) -> str:
    return (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-800:]


def _record(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """What the folder says of its trial. The trial's own user can write there: a unit that is no unit's name is nobody's."""
    record = trial.load(host.read_text(f"{args['dir']}/{trial.RECORD}", missing=""))
    return {} if record.get("manager") == "systemd" and not systemd.NAME.fullmatch(str(record.get("unit"))) else record


def _ours(args: dict[str, Any], host: Host) -> bool:
    """A folder that is cleared must be a trial's: it holds a record or settings that this module wrote, or nothing at all."""
    seen = host.stat(args["dir"])
    if seen is None or any(host.stat(f"{args['dir']}/{name}") is not None for name in (trial.RECORD, trial.SETTINGS)):
        return True
    return seen.kind == "dir" and not host.listdir(args["dir"])


def _alive(record: dict[str, Any], host: Host) -> bool:
    """The recorded process, by pid and start time; under systemd the unit's state."""
    if record.get("manager") == "systemd":
        shown = trial.show(_show(record["unit"], host))
        return shown.get("ActiveState") not in ("", None, *trial.ENDED)
    text = host.read_text(f"/proc/{record.get('pid', 0)}/stat", missing="")
    fields = text.rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in "ZX" and int(fields[19]) == record.get("start")


def _show(unit: str, host: Host) -> str:
    words = ["systemctl", "show", f"{unit}.service", "-p", "ActiveState,MainPID,ExecMainStatus,ExecMainCode,LoadState,Result"]
    return host.run(words, query=True, timeout=30).stdout.decode("utf-8", "replace")


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """What runs already by our record, and whether what was asked can be."""
    if not args["dir"].startswith("/") or paths.tidy(args["dir"]) == "/":
        raise ModuleError(f"dir: expected an absolute path of a folder of its own, found {args['dir']!r}")
    systemd.unit_name(args["unit"])
    record = _record(args, host)
    state = {"record": record, "there": host.stat(args["dir"]) is not None, "alive": bool(record) and _alive(record, host)}
    if args["state"] in ("started", "absent") and not _ours(args, host):
        raise ModuleError(
            f"dir: {args['dir']} is no folder of a trial (it has neither {trial.RECORD} nor {trial.SETTINGS}), and it would be removed",
            fix="name a folder that is not there yet, or an empty one",
        )
    if args["state"] == "started":
        _check(args, host)
    return state


def _check(args: dict[str, Any], host: Host) -> None:
    if host.stat(args["binary"], follow=True) is None and not host.check:
        raise ModuleError(f"there is no {args['binary']}", fix="stage the release first (module release)")
    try:
        cpus = cpuset.parse(args["cpus"])
    except cpuset.CpusetError as err:
        raise ModuleError(str(err)) from err
    if cpus and len(cpus) < args["min_cpus"]:
        raise ModuleError(
            f"the trial needs {args['min_cpus']} cpus beside the live run, found {len(cpus)} ({args['cpus']})",
            fix="give the guest more cpus, or lower rayon_threads",
        )


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """A start always begins anew; a stop of nothing is nothing."""
    if args["state"] == "read":
        return Same({"running": state["alive"], **{k: state["record"].get(k) for k in ("pid", "start", "url")}})
    if args["state"] == "started":
        return Change(
            before=state["record"] if state["alive"] else None, after="started", diff=(Diff(args["dir"], "", f"trial of {args['binary']}\n"),)
        )
    if state["alive"] or (args["state"] == "absent" and state["there"]):
        return Change(before=state["record"], after=args["state"], diff=(Diff(args["dir"], "trial\n", ""),))
    return Same({"running": False})


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """End the old one (only what the record names); then start, or clear."""
    if host.check:  # nothing is started, so nothing is known of it
        return {"running": False, "url": "", "log": "", "pid": 0, "exit_code": None}
    record = change.before or {}
    stopped = _stop(args, record, host) if record else {}
    if args["state"] != "started":
        if args["state"] == "absent" and host.stat(args["dir"]) is not None:
            host.remove(args["dir"])
        elif record and host.stat(f"{args['dir']}/{trial.RECORD}") is not None:
            host.remove(f"{args['dir']}/{trial.RECORD}")
        return {"running": False, **stopped}
    return _start(args, host)


def _stop(args: dict[str, Any], record: dict[str, Any], host: Host) -> dict[str, Any]:
    if record.get("manager") == "systemd":
        host.run(["systemctl", "stop", f"{record['unit']}.service"], timeout=90)
        host.run(["systemctl", "reset-failed", f"{record['unit']}.service"], timeout=30)
        return {"was": "stopped"}
    if not record.get("pid"):
        return {}
    asked = {"pid": record["pid"], "start": record["start"], "wait_s": 30, "keeper": record.get("keeper"), "exit": f"{args['dir']}/exit.json"}
    return _probe(host, "stop", asked, query=False, timeout=60)


def _owner(args: dict[str, Any], host: Host) -> tuple[int, int] | None:
    if not args["user"]:
        return None
    found = host.user(args["user"])
    if found is None:
        raise ModuleError(f"user: there is no user {args['user']!r} here")
    return int(found["uid"]), int(found["gid"])


def _settings(args: dict[str, Any], host: Host) -> tuple[int, dict[str, str], str]:
    """The port, the trial's settings, and their file's text."""
    port = args["port"] or _probe(host, "port", {}, query=True, timeout=30).get("port")
    if not port:
        raise ModuleError("there is no free loopback port")
    texts = [host.read_text(path) for path in args["env_files"]]
    settings = trial.settings(texts, args["env"], args["dir"], int(port), args["cpus"])
    try:
        return int(port), settings, trial.render_env(settings)
    except ValueError as err:
        raise ModuleError(f"env: {err}") from err


def _start(args: dict[str, Any], host: Host) -> dict[str, Any]:
    folder, owner = args["dir"], _owner(args, host)
    port, settings, env_text = _settings(args, host)  # what is refused is refused before there is a folder
    if host.stat(folder) is not None:
        host.remove(folder)
    host.mkdir(folder, mode=0o755)
    host.write_text(f"{folder}/{trial.RECORD}", trial.dump({}), mode=0o644)  # from now on the folder is known as ours
    host.mkdir(f"{folder}/state", mode=0o755)
    if owner:
        for path in (folder, f"{folder}/state"):
            host.chown(path, *owner)
    try:
        checkpoint = _copy_checkpoint(args, owner, host) if args["state_dir"] else ""
    except ModuleError:
        host.remove(folder)
        raise
    host.write_text(f"{folder}/{trial.SETTINGS}", env_text, mode=0o600, uid=owner[0] if owner else None, gid=owner[1] if owner else None)
    url = f"http://127.0.0.1:{port}/status"
    record = {"manager": args["manager"], "unit": args["unit"], "url": url, "binary": args["binary"]}
    started = _start_unit(args, record, host) if args["manager"] == "systemd" else _start_child(args, record, settings, owner, host)
    return {"checkpoint": checkpoint, "state_dir": f"{folder}/state", "cpus": args["cpus"], "url": url, **_await(args, {**record, **started}, host)}


def _copy_checkpoint(args: dict[str, Any], owner: tuple[int, int] | None, host: Host) -> str:
    """The newest checkpoint while the live run goes on: it may be pruned under our hands, then the next newest is there."""
    target = f"{args['dir']}/state"
    why = f"there is no checkpoint in {args['state_dir']}"
    for _ in range(COPY_TRIES):
        names = trial.newest_checkpoints(host.listdir(args["state_dir"]) if host.stat(args["state_dir"], follow=True) else [])
        if not names:
            break
        try:
            data = host.read_bytes(f"{args['state_dir']}/{names[0]}")
        except FileNotFoundError:
            continue
        host.write_bytes(f"{target}/{names[0]}", data, mode=0o644, uid=owner[0] if owner else None, gid=owner[1] if owner else None)
        done = host.run([args["binary"], "--print-state-compatibility", target], query=True, timeout=120)
        if done.rc == 0 and done.stdout.strip() not in (b"", b"none"):
            return names[0]
        why = f"the copied checkpoint {names[0]} does not validate: {_text(done)}"
        host.remove(f"{target}/{names[0]}")
    raise ModuleError(why, fix="deploy on the CPU first, so that there is a checkpoint to go on from; or look at the state folder")


def _start_unit(args: dict[str, Any], record: dict[str, Any], host: Host) -> dict[str, Any]:
    folder = args["dir"]
    # Only what is left of an earlier trial of ours is cleared; a unit that runs and that no record of ours names is somebody's.
    shown = trial.show(_show(args["unit"], host))
    if shown.get("ActiveState") == "active":
        raise ModuleError(
            f"unit {args['unit']}.service is active and was not started by this trial's record", fix=f"look at it: systemctl status {args['unit']}"
        )
    host.run(["systemctl", "reset-failed", f"{args['unit']}.service"], timeout=30)
    host.write_text(f"{folder}/{trial.RECORD}", trial.dump(record), mode=0o644)
    words = trial.unit_argv(
        args["unit"],
        [args["binary"], *args["args"]],
        env_file=f"{folder}/{trial.SETTINGS}",
        log=f"{folder}/log",
        cpus=args["cpus"],
        cgroup=args["cgroup"],
        user=args["user"],
        folder=folder,
        max_s=args["max_s"],
    )
    done = host.run(words, timeout=60)
    # A program that ends at once may make the start itself fail: that is its exit code's story, not systemd-run's.
    if done.rc != 0 and trial.show(_show(args["unit"], host)).get("LoadState") != "loaded":
        raise ModuleError(f"systemd-run ended with exit code {done.rc}: {_text(done)}", fix="nothing of the live run was touched")
    pid = trial.show(_show(args["unit"], host)).get("MainPID", "0")
    start = host.read_text(f"/proc/{pid}/stat", missing="").rpartition(")")[2].split()
    found = {"pid": int(pid), "start": int(start[19]) if len(start) > 19 else 0}
    host.write_text(f"{folder}/{trial.RECORD}", trial.dump({**record, **found}), mode=0o644)
    return found


def _start_child(args: dict[str, Any], record: dict[str, Any], settings: dict[str, str], owner: tuple[int, int] | None, host: Host) -> dict[str, Any]:
    folder = args["dir"]
    asked = {
        "argv": [args["binary"], *args["args"]],
        "env": {"PATH": host.getenv("PATH", "/usr/bin:/bin"), "HOME": host.getenv("HOME", "/"), **settings},
        "cwd": folder,
        "log": f"{folder}/log",
        "exit": f"{folder}/exit.json",
        "cpus": list(cpuset.parse(args["cpus"])),
        "max_s": args["max_s"],
        "uid": owner[0] if owner else None,
        "gid": owner[1] if owner else None,
    }
    found = _probe(host, "keep", asked, query=False, timeout=60)
    if not found.get("pid"):
        raise ModuleError(f"the trial did not start: {found.get('error', 'no pid')}", fix="nothing of the live run was touched")
    host.write_text(f"{folder}/{trial.RECORD}", trial.dump({**record, **found}), mode=0o644)
    return found


def _await(args: dict[str, Any], record: dict[str, Any], host: Host) -> dict[str, Any]:
    """Until it answers, ends, or the time is up; an end is told with its exit code and last words."""
    asked = {"url": record["url"], "pid": record["pid"], "start": record["start"], "wait_s": args["wait"]}
    seen = _probe(host, "await", asked, query=True, timeout=args["wait"] + 30) if record["pid"] else {"ended": True}
    log = host.read_text(f"{args['dir']}/log", missing="")[-LOG_BYTES:]
    running = bool(seen.get("status"))
    values = {
        "pid": record["pid"],
        "start": record["start"],
        "running": running,
        "log": log,
        "exit_code": None,
        "seconds": seen.get("seconds"),
        "status": seen.get("status"),
    }
    if running:
        return values
    values["exit_code"] = _exit_code(args, record, host)
    tail = "\n".join(log.splitlines()[-8:])
    ended = seen.get("ended") or values["exit_code"] is not None
    words = (
        f"ended with exit code {values['exit_code']}"
        if ended
        else f"did not answer at {record['url']} within {args['wait']:g} s ({seen.get('error')})"
    )
    if not ended:
        _stop(args, record, host)
    if args["fail"]:
        raise ModuleError(f"the trial {words}; its last lines:\n{tail}", fix="the live run was not touched", **values)
    return {**values, "msg": f"the trial {words}"}


def _exit_code(args: dict[str, Any], record: dict[str, Any], host: Host) -> int | None:
    if record["manager"] == "systemd":
        shown = trial.show(_show(record["unit"], host))
        code = shown.get("ExecMainStatus", "")
        return int(code) if code.isdigit() and shown.get("ActiveState") in trial.ENDED and shown.get("LoadState") == "loaded" else None
    return _wait_exit(args, host)


def _wait_exit(args: dict[str, Any], host: Host) -> int | None:
    """The keeper writes the exit code just after the end that we saw."""
    for _ in range(20):
        found = trial.load(host.read_text(f"{args['dir']}/exit.json", missing=""))
        if "exit_code" in found:
            return int(found["exit_code"])
        if _alive({**_record(args, host), "manager": "supervisor"}, host):
            return None
        time.sleep(0.1)
    return None
