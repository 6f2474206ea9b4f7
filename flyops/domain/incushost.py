# SPDX-License-Identifier: Apache-2.0
"""The Incus or LXD daemon of a host, by its client's `query`, and what the kernel gives an instance; seen through the Host that is handed in."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple
from urllib.parse import quote

from flyops.domain import cpuset, gpuask, incus, incuscpu, lxcconf, symptoms
from flyops.errors import ModuleError
from flyops.model.host import Completed, Host

HOOKS = ("/usr/share/lxc/hooks/nvidia", "/opt/incus/share/lxc/hooks/nvidia", "/snap/lxd/current/lxc/hooks/nvidia")
TOOLS = ("/opt/incus/bin/nvidia-container-cli", "/snap/lxd/current/bin/nvidia-container-cli")  # beside the PATH
GPUS = "/proc/driver/nvidia/gpus"
POLL_S = 0.5
BUSY_S = 60.0


@dataclass(frozen=True)
class Client:
    """The client's binary (incus, or lxc for LXD) and a project."""

    host: Host
    binary: str
    project: str = ""

    def get(self, path: str, *, missing: Any = ...) -> Any:
        """A JSON document; `missing` in place of one that is not there."""
        done = self.host.run([self.binary, "query", self._at(path)], query=True)
        said = _said(done)
        if done.rc == 0:
            return json.loads(done.stdout or b"null")
        if missing is not ... and "not found" in said.lower():
            return missing
        raise ModuleError(f"{self.binary} query {path}: {said}", fix=self._fix(said))

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """A change, waited for; what went wrong, or an empty text."""
        data = ["-d", json.dumps(body, sort_keys=True)] if body is not None else []
        deadline = time.monotonic() + BUSY_S
        while True:
            done = self.host.run([self.binary, "query", "-X", method, "--wait", *data, self._at(path)])
            # After a start that failed the daemon is still cleaning up.
            if done.rc == 0 or b"is busy running" not in done.stderr or time.monotonic() >= deadline:
                return "" if done.rc == 0 else _said(done)
            time.sleep(POLL_S)

    def call(self, *words: str, query: bool = False) -> Completed:
        """Another word of the client."""
        project = ["--project", self.project] if self.project else []
        return self.host.run([self.binary, *words[:1], *project, *words[1:]], query=query)

    def _at(self, path: str) -> str:
        return f"{path}{'&' if '?' in path else '?'}project={quote(self.project, safe='')}" if self.project else path

    def _fix(self, said: str) -> str:
        if "unix.socket" in said or "connect" in said:
            return f"start the daemon of {self.binary}, or run as a user who may talk to it (become: true)"
        return symptoms.hint(said)


def _said(done: Completed) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return text[len("Error: ") :] if text.startswith("Error: ") else text or f"exit code {done.rc}"


@dataclass(frozen=True)
class Seen:
    """Everything that the decision needs."""

    extensions: Tuple[str, ...] = ()
    instance: Mapping[str, Any] | None = None
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pool_driver: str = ""
    machine: incuscpu.Machine = field(default_factory=lambda: incuscpu.Machine(()))
    taken: cpuset.Cpus = ()
    cards: Tuple[gpuask.Card, ...] = ()
    lacking: Tuple[str, ...] = ()
    cpuset_on: str = ""
    pid: int = 0
    cpus: cpuset.Cpus = ()
    memory: str = ""

    @property
    def running(self) -> bool:
        """Does it run?"""
        return bool(self.instance) and str((self.instance or {}).get("status", "")).lower() == "running"

    @property
    def record(self) -> incus.Record:
        """What flyops wrote about it."""
        return incus.record((self.instance or {}).get("config") or {})

    def expanded(self) -> Tuple[Dict[str, str], Dict[str, Mapping[str, str]]]:
        """Config and devices of the profiles together, the later over the earlier."""
        config: Dict[str, str] = {}
        devices: Dict[str, Mapping[str, str]] = {}
        for profile in self.profiles.values():
            config.update(profile.get("config") or {})
            devices.update(profile.get("devices") or {})
        return config, devices


def path(name: str) -> str:
    """Of an instance."""
    return f"/1.0/instances/{name}"


def look(client: Client, args: Mapping[str, Any]) -> Seen:
    """One look at everything."""
    host = client.host
    if host.which(client.binary) is None:
        raise ModuleError(f"{client.binary} not found on this host", fix="install Incus, or for LXD set binary: lxc")
    server = client.get("/1.0")
    instance = client.get(path(args["name"]), missing=None)
    if args["state"] == "absent":
        return Seen(instance=instance)
    names = args["profiles"] if args["profiles"] is not None else instance["profiles"] if instance else ["default"]
    profiles = {name: client.get(f"/1.0/profiles/{quote(name, safe='')}") for name in names}
    control = controllers(host)
    seen = Seen(
        tuple(server.get("api_extensions") or ()), instance, profiles, cpuset_on=control.cpuset, cards=_cards(host), lacking=lacking_tools(host)
    )
    return Seen(**{**seen.__dict__, **_cpus(client, args, control), **_disk(client, args, seen), **_inside(client, args, seen, control)})


def _cpus(client: Client, args: Mapping[str, Any], control: lxcconf.Controllers) -> Dict[str, Any]:
    allowed = "/sys/fs/cgroup/cpuset.cpus.effective" if control.cpuset == "v2" else "/sys/fs/cgroup/cpuset/cpuset.effective_cpus"
    found: Dict[str, Any] = {"machine": incuscpu.machine(client.get("/1.0/resources"), client.host.read_text(allowed, missing=""))}
    if args["cpu_count"]:
        others = [one for one in client.get("/1.0/instances?recursion=1") if one.get("name") != args["name"]]
        limits = [(one.get("expanded_config") or {}).get("limits.cpu", "") for one in others]
        found["taken"] = tuple(sorted({cpu for limit in limits for cpu in incuscpu.pinned(limit)}))
    return found


def _disk(client: Client, args: Mapping[str, Any], seen: Seen) -> Dict[str, Any]:
    if not args["disk"]:
        return {}
    _, device = incus.root_device({**seen.expanded()[1], **((seen.instance or {}).get("devices") or {})})
    return {"pool_driver": client.get(f"/1.0/storage-pools/{quote(device.get('pool', ''), safe='')}").get("driver", "")}


def _inside(client: Client, args: Mapping[str, Any], seen: Seen, control: lxcconf.Controllers) -> Dict[str, Any]:
    if not seen.running:
        return {}
    pid = int(client.get(f"{path(args['name'])}/state").get("pid") or 0)
    return {"pid": pid, **given(client.host, pid, control)}


def given(host: Host, pid: int, control: lxcconf.Controllers) -> Dict[str, Any]:
    """What the kernel gives the instance with this first process: cpus and the memory limit, read back."""
    status = host.read_text(f"/proc/{pid}/status", missing="")
    cpus = cpuset.allowed_list(status) if "Cpus_allowed_list" in status else ()
    return {"cpus": cpus, "memory": _memory(host, host.read_text(f"/proc/{pid}/cgroup", missing=""), control.memory)}


def _memory(host: Host, cgroup: str, version: str) -> str:
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        names, _, place = rest.partition(":")
        if ("memory" in names.split(",")) if version == "v1" else number == "0":
            # The instance's own group: its init may have gone into one below it.
            parts = place.strip("/").split("/")
            upto = next((at + 1 for at, part in enumerate(parts) if part.startswith("lxc.payload")), len(parts))
            folder = "/".join(parts[:upto])
            file = f"/sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes" if version == "v1" else f"/sys/fs/cgroup/{folder}/memory.max"
            return host.read_text(file, missing="").strip()
    return ""


def controllers(host: Host) -> lxcconf.Controllers:
    """Where cpuset and memory are mounted."""
    return lxcconf.controllers(host.read_text("/proc/mounts", missing=""), host.read_text("/sys/fs/cgroup/cgroup.controllers", missing=""))


def _cards(host: Host) -> Tuple[gpuask.Card, ...]:
    folder = host.stat(GPUS)
    names = host.listdir(GPUS) if folder and folder.kind == "dir" else []
    return gpuask.cards({name: host.read_text(f"{GPUS}/{name}/information", missing="") for name in names})


def lacking_tools(host: Host) -> Tuple[str, ...]:
    """What of nvidia.runtime's tools is not on this host."""
    out = (
        []
        if host.which("nvidia-container-cli") or any(host.stat(p, follow=True) for p in TOOLS)
        else ["nvidia-container-cli (libnvidia-container-tools)"]
    )
    return tuple(out + ([] if any(host.stat(p, follow=True) for p in HOOKS) else [f"LXC's hook {HOOKS[0]}"]))


def why(client: Client, name: str, said: str) -> Tuple[str, str]:
    """(what happened, what to do) of a start that failed: the instance's log, and where a hook failed, the words that it lost."""
    log = client.call("info", name, "--show-log", query=True).stdout.decode("utf-8", "replace")
    errors = incus.lxc_errors(log)
    lines = [said, *errors[:3]]
    if incus.hook_failed(said + log):
        lines.append(_hook_words(client.host))
    text = "; ".join(line for line in lines if line)
    return text, symptoms.hint(text) or f"look at {client.binary} info {name} --show-log"


def _hook_words(host: Host) -> str:
    if host.which("nvidia-container-cli") is None:
        return "nvidia-container-cli is not on this host's PATH"
    done = host.run(["nvidia-container-cli", "--debug=/dev/stderr", "info"], query=True, timeout=30)
    found = incus.first_bad_line((done.stderr + b"\n" + done.stdout).decode("utf-8", "replace"))
    return (
        f"nvidia-container-cli says: {found}" if found else f"nvidia-container-cli info says nothing wrong (exit code {done.rc}): another hook failed"
    )


def wait_systemd(client: Client, name: str, wait_s: float) -> str:
    """running or degraded; what it was when the time was over; empty where there is no systemd."""
    deadline = time.monotonic() + wait_s
    while True:
        done = client.call("exec", name, "--", "systemctl", "is-system-running", query=True)
        said = done.stdout.decode("utf-8", "replace").strip()
        if said in ("running", "degraded") or done.rc == 127 or "not found" in done.stderr.decode("utf-8", "replace"):
            return said
        if time.monotonic() >= deadline:
            return said
        time.sleep(POLL_S)
