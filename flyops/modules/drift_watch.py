# SPDX-License-Identifier: Apache-2.0
"""The drift watch of a running flysim: a sampler on the target that goes on without us, and what it has written so far."""

from __future__ import annotations

import json
from typing import Any

from flyops.domain import probes, watch
from flyops.domain.systemd import unit_name
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

RECORD = "watch.json"
TICKS_PER_S = 10_000

SPEC = Spec(
    doc="Start, read or end a drift watch: samples of a running flysim at fixed times, written on the target, whoever is connected.",
    args={
        "state": Arg(
            "str",
            default="read",
            choices=("started", "read", "collected", "stopped"),
            help="started adopts one that runs or waits to be collected; collected: its samples were fetched, the next start begins a new one",
        ),
        "dir": Arg("path", required=True, help="folder of the samples on the target; made when missing"),
        "url": Arg("str", help="started: /status of the run to watch"),
        "every": Arg("float", default=600.0, help="started: seconds between samples"),
        "seconds": Arg("float", default=10800.0, help="started: length of the watch"),
        "unit": Arg("str", default="", help="started: systemd unit whose restarts count; empty: none counts them"),
        "gpu": Arg("int", default=0, help="started: index of the card whose memory is read"),
        "label": Arg("str", default="", help="started: name of the host, for the file"),
        "proc": Arg("path", default="/proc", help="where processes are"),
    },
    required_if=(("state", "started", ("url",)),),
    examples="- name: Watch it for three hours\n  drift_watch: {state: started, dir: /var/lib/flyops/watch, url: 'http://127.0.0.1:8700/status', unit: flysim.service}\n",
    returns={
        "running": "the sampler lives",
        "waiting": "a watch that ended and was not collected yet",
        "file": "its samples on the target",
        "samples": "how many there are",
        "expected": "how many a whole watch has",
        "text": "the samples, as TSV",
        "adopted": "started: it was running or waiting before",
    },
)


def _record(args: dict[str, Any], host: Host) -> dict[str, Any]:
    try:
        found = json.loads(host.read_text(f"{args['dir']}/{RECORD}", missing="{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _alive(record: dict[str, Any], args: dict[str, Any], host: Host) -> bool:
    """By pid and start time: a number that was given again is another process."""
    text = host.read_text(f"{args['proc']}/{record.get('pid', 0)}/stat", missing="")
    fields = text.rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in "ZX" and int(fields[19]) == record.get("start")


def read(args: dict[str, Any], host: Host) -> dict[str, Any]:
    """The watch that is here, and for a start what flysim says of itself."""
    if args["every"] < 1 or args["seconds"] < args["every"]:
        raise ModuleError(f"expected every >= 1 s and seconds >= every, found every {args['every']:g} and seconds {args['seconds']:g}")
    if args["unit"]:
        unit_name(args["unit"])  # one that begins with a dash would be an option
    record = _record(args, host)
    state: dict[str, Any] = {"record": record, "alive": bool(record) and _alive(record, args, host), "text": ""}
    if record:
        state["text"] = host.read_text(record["file"], missing="")
    waiting = bool(record) and not record.get("collected") and not state["alive"]
    state["waiting"] = waiting
    if args["state"] == "started" and not state["alive"] and not waiting:
        done = host.run(probes.argv("reads", {"url": args["url"], "count": 1}, host), query=True, stdin=probes.text("reads"), timeout=60)
        reads = probes.answer(done).get("reads") or [{"t": 0, "status": {}}]
        state["status"] = reads[0]["status"]
        if "tick" not in state["status"]:
            raise ModuleError(
                f"nothing to watch: {args['url']} did not answer ({state['status'].get('error', 'no tick in it')})",
                fix="start it first: invoke start",
            )
    return state


def _values(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    record, text = state["record"], state["text"]
    rows = max(0, text.count("\n") - text.count("\n#") - text.startswith("#") - bool(text))
    expected = int(record["seconds"] / record["every"] + 1e-9) + 1 if record else 0
    return {
        "running": state["alive"],
        "waiting": state["waiting"],
        "file": record.get("file", ""),
        "every": record.get("every", 0),
        "samples": rows,
        "expected": expected,
        "text": text,
        **more,
    }


def plan(args: dict[str, Any], state: dict[str, Any]) -> Decision:
    """A watch that runs or waits is adopted, when it is the one that is asked for."""
    record, values = state["record"], _values(state)
    path = f"{args['dir']}/{RECORD}"
    if args["state"] == "started":
        if state["alive"] or state["waiting"]:
            _same_asked(args, record)
            return Same({**values, "adopted": True})
        name = f"every {args['every']:g} s for {args['seconds']:g} s\n"
        return Change(before=None, after=state.get("status", {}), diff=(Diff(path, "", name),), values={**values, "adopted": False})
    if args["state"] == "stopped" and (state["alive"] or state["waiting"]):
        return Change(before=record, after=None, diff=(Diff(path, "running\n" if state["alive"] else "ended\n", "stopped\n"),), values=values)
    if args["state"] == "collected" and state["waiting"]:
        return Change(before=record, after=None, diff=(Diff(path, "ended\n", "collected\n"),), values=values)
    return Same(values)


def _same_asked(args: dict[str, Any], record: dict[str, Any]) -> None:
    if (record.get("every"), record.get("seconds")) != (args["every"], args["seconds"]):
        raise ModuleError(
            f"another watch is here: every {record.get('every'):g} s for {record.get('seconds'):g} s, in {record.get('file')}; "
            f"asked for every {args['every']:g} s for {args['seconds']:g} s",
            fix="ask for the same to go on with it, or end it first (invoke watch --stop)",
        )


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Start the sampler; or end it (by pid and start time), or note that its samples were fetched."""
    if host.check:
        return {}
    if args["state"] != "started":
        record = dict(change.before)
        if args["state"] == "stopped" and change.values["running"]:
            asked = {"pid": record["pid"], "start": record["start"], "wait_s": 10, "exit": ""}
            host.run(probes.argv("stop", asked, host), stdin=probes.text("stop"), timeout=60)
        _write(args, {**record, "collected": True}, host)
        return {"running": False, "waiting": False}
    return _start(args, change.after, host)


def _start(args: dict[str, Any], status: dict[str, Any], host: Host) -> dict[str, Any]:
    if host.stat(args["dir"]) is None:
        host.mkdir(args["dir"], mode=0o755)
    number = 1 + sum(name.endswith(".tsv") for name in host.listdir(args["dir"]))
    file = f"{args['dir']}/watch-{number:04d}.tsv"
    head = {
        "host": args["label"],
        "backend": status.get("backend", ""),
        "release": status.get("version", ""),
        "neurons": status.get("neurons", ""),
        "speed": status.get("speed", 1),
        "ticks_per_s": TICKS_PER_S,
        "every_s": args["every"],
        "seconds": args["seconds"],
    }
    host.write_text(file, watch.render_head(head), mode=0o644)
    asked = {
        "url": args["url"], "file": file, "every_s": args["every"], "seconds": args["seconds"],
        "unit": args["unit"], "gpu": args["gpu"], "columns": list(watch.COLUMNS),
    }  # fmt: skip
    found = probes.answer(host.run(probes.argv("watch", asked, host), stdin=probes.text("watch"), timeout=60))
    if "pid" not in found:
        raise ModuleError(f"the watch did not begin: {found.get('error', 'no pid')}")
    _write(
        args,
        {"pid": found["pid"], "start": found["start"], "file": file, "every": args["every"], "seconds": args["seconds"], "collected": False},
        host,
    )
    return {"running": True, "file": file, "every": args["every"], "expected": int(args["seconds"] / args["every"] + 1e-9) + 1}


def _write(args: dict[str, Any], record: dict[str, Any], host: Host) -> None:
    host.write_text(f"{args['dir']}/{RECORD}", json.dumps(record, sort_keys=True) + "\n", mode=0o644)
