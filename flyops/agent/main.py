# SPDX-License-Identifier: Apache-2.0
"""The agent: answers request frames until its stdin ends, then ends its children and itself. Also a one-shot program.

One-shot, with no controller: `python3 BUNDLE --module NAME --args FILE.json [--check] [--diff]` prints the result as JSON;
`--steps FILE.json` runs several. Exit 0 (fine), 1 (failed), 3 (refused), 2 (usage).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from flyops.agent import registry
from flyops.agent.command import end_children
from flyops.agent.frames import Frame, FrameError, decode, encode
from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import Result, failure, run_module
from flyops.errors import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE, ModuleError

BEAT_S = 5.0  # the controller counts a longer silence as a lost connection
QUEUE_FRAMES = 16


class Agent:
    """Serves one controller on two file descriptors."""

    def __init__(self, fd_in: int, fd_out: int, early: List[Frame], folder: str) -> None:
        self._in = fd_in
        self._out = fd_out
        self._folder = folder  # of this process alone; removed at the end
        self._inbox: queue.Queue[Frame] = queue.Queue(QUEUE_FRAMES)
        for frame in early:
            self._inbox.put(frame)
        self._write_lock = threading.Lock()
        self._spoke = time.monotonic()
        self._task: Any = None
        self._blobs: Dict[str, str] = {}
        self.real = RealHost(self.fetch_blob, self.note)
        self.overlay = OverlayHost(self.real)

    # the pipe

    def send(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        """One frame, whole; the controller's end is ours."""
        data = memoryview(encode(header, payload))
        with self._write_lock:
            self._spoke = time.monotonic()
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:
                self.end(1)

    def _read_exactly(self, size: int) -> Optional[bytes]:
        parts = []
        while size:
            data = os.read(self._in, min(size, 1 << 20))
            if not data:
                return None
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def watch(self) -> None:
        """Thread: takes frames in, and is the first to know that the controller has gone."""
        try:
            while True:
                frame = decode(self._read_exactly)
                if frame is None or frame[0].get("t") == "bye":
                    break
                self._inbox.put(frame)
        except (OSError, FrameError):
            pass
        self.end(0)

    def beat(self) -> None:
        """Thread: says that we live while a long task is silent."""
        while True:
            time.sleep(BEAT_S / 5)
            if self._task is not None and time.monotonic() - self._spoke > BEAT_S:
                self.send({"t": "beat"})

    def end(self, code: int) -> None:
        """Nothing of ours stays: no child, no folder."""
        end_children()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(code)

    # what a task may ask for

    def note(self, text: str) -> None:
        """A line of progress of the running task."""
        self.send({"t": "note", "id": self._task, "text": text})

    def fetch_blob(self, sha256: str) -> str:
        """Ask the controller for a file by its digest, keep it for this run."""
        if sha256 in self._blobs:
            return self._blobs[sha256]
        self.send({"t": "need", "sha256": sha256})
        path = os.path.join(self._folder, sha256)
        digest = hashlib.sha256()
        with open(path, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as stream:
            while True:
                header, payload = self._inbox.get()
                if header.get("error"):
                    raise ModuleError(str(header["error"]))
                stream.write(payload)
                digest.update(payload)
                if header["last"]:
                    break
        if digest.hexdigest() != sha256:
            raise ModuleError(f"expected a file with sha256 {sha256}, got {digest.hexdigest()}: it changed on the controller during the run")
        self._blobs[sha256] = path
        return path

    # tasks

    def host_for(self, mode: str) -> RealHost | OverlayHost:
        """`run`: the overlay of this whole check run. `task`: one for a single checked task. Else the real host."""
        if mode == "run":
            return self.overlay
        return OverlayHost(self.real) if mode == "task" else self.real

    def run_task(self, task: Dict[str, Any]) -> Result:
        """One task of a request."""
        self.real.env = {str(k): str(v) for k, v in (task.get("env") or {}).items()}
        module = registry.find(task["module"])
        if module is None:
            return failure(f"module {task['module']!r} is not in this agent's bundle")
        host = self.host_for(task.get("check", ""))
        host.write_log.begin(task.get("paths"))
        result = run_module(module, task["args"], host, bool(task.get("diff")))
        return result if host.check else host.write_log.into(result)

    def run_request(self, tasks: List[Dict[str, Any]]) -> None:
        """Tasks in order; those of one group (the items of a loop) all run, then a failure stops the rest."""
        failed_group = None
        for task in tasks:
            if failed_group is not None and task["group"] != failed_group:
                break
            self._task = task["id"]
            started = time.monotonic()
            result = self.run_task(task)
            seconds = round(time.monotonic() - started, 4)
            if result.get("failed") and task.get("stop", True):
                failed_group = task["group"]
            last = task is tasks[-1]
            self.send({"t": "result", "id": task["id"], "result": result, "s": seconds, "end": last})
            if last:
                self._task = None
                return
        self._task = None
        self.send({"t": "stopped"})

    def serve(self) -> None:
        """Until the controller goes."""
        for target in (self.watch, self.beat):
            threading.Thread(target=target, daemon=True).start()
        while True:
            header, _ = self._inbox.get()
            if header.get("t") == "run":
                self.run_request(header["tasks"])


def serve(early: List[Frame]) -> None:
    """Entry of the loader. Our pipe moves to private descriptors, so that nothing a module prints can get into it."""
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    Agent(fd_in, fd_out, early, tempfile.mkdtemp(prefix="flyops-agent-")).serve()


def main(argv: Optional[List[str]] = None) -> int:
    """The one-shot program."""
    parser = argparse.ArgumentParser(prog="flyops-agent", description="Run flyops modules on this machine and print their results as JSON.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--module", help="one module, with --args")
    what.add_argument("--steps", help="a JSON file with a list of {module, args}: all are run, whatever one of them says")
    parser.add_argument("--args", help="a JSON file with the module's arguments, or - for stdin")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--diff", action="store_true")
    options = parser.parse_args(argv)
    if options.module and options.args is None:
        parser.error("the following arguments are required: --args")
    try:
        steps = _steps(options)
    except (OSError, ValueError) as err:
        print(f"flyops-agent: {err}", file=sys.stderr)
        return EXIT_USAGE
    real = RealHost()
    host = OverlayHost(real) if options.check else real
    return max((_one_shot(module, args, host, options) for module, args in steps), key=(EXIT_OK, EXIT_REFUSED, EXIT_FAILED).index, default=EXIT_OK)


def _steps(options: argparse.Namespace) -> List[Tuple[str, Any]]:
    """Modules and their arguments as they were asked for; one that is not here is a ValueError before anything is run."""
    path = options.steps or options.args
    try:
        found = json.loads(sys.stdin.read() if path == "-" else RealHost().read_text(path))
    except (OSError, ValueError) as err:
        raise ValueError(f"--{'steps' if options.steps else 'args'} {path}: {err}") from err
    try:
        steps = [(step["module"], step["args"]) for step in found] if options.steps else [(options.module, found)]
    except (TypeError, KeyError) as err:
        raise ValueError(f"--steps {path}: expected a list of {{module, args}}, found {json.dumps(found)[:120]}") from err
    unknown = [module for module, _ in steps if registry.find(module) is None]
    if unknown:
        raise ValueError(f"no module {', '.join(map(repr, unknown))}; there are: {', '.join(registry.names())}")
    return steps


def _one_shot(module: str, args: Any, host: Any, options: argparse.Namespace) -> int:
    """One line of JSON, and for a journal's reader the failure in words (`<3>` is systemd's mark of an error)."""
    host.write_log.begin(None)
    result = run_module(registry.find(module), args, host, options.diff)
    result = result if options.check else host.write_log.into(result)
    print(json.dumps({"module": module, **result} if options.steps else result, sort_keys=True), flush=True)
    if options.steps and result.get("failed"):
        print(f"<3>{module}: {result['msg']}", file=sys.stderr, flush=True)
    if result.get("refused"):
        return EXIT_REFUSED
    return EXIT_FAILED if result.get("failed") else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(main())
