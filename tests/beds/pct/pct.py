# SPDX-License-Identifier: Apache-2.0
"""A double of `pct`, `pveversion` and `pveam` (see README.md beside this): `python pct.py NAME BED WORDS…`. Not Proxmox VE."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.beds.pct import reemit

HOT = {"cores", "memory", "swap", "onboot", "tags", "description"}  # changed in a guest that runs
FLAGS = {"--verbose", "--current", "--force", "--skiplock"}
INIT = """set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$1/root/dev"
for node in null zero full random urandom tty; do cp -a "/dev/$node" "$1/root/dev/$node"; done
mkdir "$1/root/dev/shm"
mount --bind "$3" "$1/root/proc/driver"
if [ -d "$1/passthrough" ]; then cp -a "$1/passthrough/." "$1/root/dev/"; fi
while read -r source target kind access; do
  mkdir -p "$(dirname "$1/root/$target")"
  if [ "$kind" = dir ]; then mkdir -p "$1/root/$target"; else touch "$1/root/$target"; fi
  mount --bind "$source" "$1/root/$target"
  if [ "$access" = ro ]; then mount -o remount,bind,ro "$1/root/$target"; fi
done < "$1/mounts"
hostname "$2"
ip link set lo up 2>/dev/null || true
touch "$1/up"
if [ -e "$1/stubborn" ]; then on_term=:; else on_term="exit 0"; fi
cd "$1/root"
exec chroot . sh -c 'trap "$1" TERM; while :; do sleep 1000 & wait; done' sh "$on_term"
"""


class Failed(Exception):
    """What the tool would print before it ends with an error."""


class Bed:
    """The folders of one double: conf, lock, run, dev, templates."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.settings: dict[str, Any] = json.loads((self.folder / "settings.json").read_text())

    def conf(self, guest: str) -> Path:
        return self.folder / "conf" / f"{guest}.conf"

    def run(self, guest: str) -> Path:
        return self.folder / "run" / guest

    def node(self, path: str) -> Path:
        """The host's node; `dev` stands for /dev."""
        return self.folder / "dev" / path[len("/dev/") :]

    @contextlib.contextmanager
    def open(self, guest: str, *, new: bool = False) -> Iterator[reemit.Conf]:
        """The config under Proxmox's lock; written again in full at the end."""
        with (self.folder / "lock" / f"pve-config-{guest}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            conf = reemit.Conf() if new else self.read(guest)
            yield conf
            self.conf(guest).write_text(conf.text())

    def read(self, guest: str) -> reemit.Conf:
        try:
            conf = reemit.read(self.conf(guest).read_text())
        except FileNotFoundError:
            raise Failed(f"Configuration file 'nodes/double/lxc/{guest}.conf' does not exist") from None
        for warning in conf.warnings:
            print(f"vm {guest} - {warning}", file=sys.stderr)
        return conf

    def pid(self, guest: str) -> int:
        """The guest's init; 0 when it does not run."""
        try:
            pid = int((self.run(guest) / "pid").read_text())
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return 0
        return 0 if state in "ZX" else pid


def options(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Plain words and `--name value`."""
    plain, named = [], {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in FLAGS:
            named[word[2:]] = "1"
        elif word.startswith("-"):
            named[word.lstrip("-")] = rest.pop(0)
        else:
            plain.append(word)
    return plain, named


# commands


def config(bed: Bed, guest: str, *words: str) -> None:
    named = options(words)[1]
    conf = bed.read(guest)
    part = conf.snapshots[named["snapshot"]] if "snapshot" in named else conf.main
    print(part.text(), end="")


def listing(bed: Bed) -> None:
    print("VMID       Status     Lock         Name")
    for path in sorted((bed.folder / "conf").glob("*.conf")):
        conf = bed.read(path.stem).main.keys
        print(f"{path.stem:<10} {'running' if bed.pid(path.stem) else 'stopped':<10} {conf.get('lock', ''):<12} {conf.get('hostname', '')}")


def status(bed: Bed, guest: str, *words: str) -> None:
    bed.read(guest)
    pid = bed.pid(guest)
    if "--verbose" in words:
        print(f"cpus: 1\nname: {guest}\npid: {pid}" if pid else f"name: {guest}")
    print(f"status: {'running' if pid else 'stopped'}")


def set_(bed: Bed, guest: str, *words: str) -> None:
    named = options(words)[1]
    with bed.open(guest) as conf:
        locked(guest, conf)
        for name in named.pop("delete", "").split(","):
            if name:
                (conf.pending.keys.update(delete=name) if bed.pid(guest) and name in conf.main.keys else conf.main.keys.pop(name, None))
        for name, value in named.items():
            if name.startswith("dev"):
                check_device(bed, value)
            live = name in HOT or name not in conf.main.keys or not bed.pid(guest)
            part = conf.main if live else conf.pending
            part.keys[name] = value


def check_device(bed: Bed, value: str) -> Path:
    entry = reemit.dev(value)
    if entry is None:
        raise Failed(f"400 Parameter verification failed. dev: invalid format - {value}")
    node = bed.node(entry["path"])
    if not node.exists():
        raise Failed(f"Device {entry['path']} does not exist")
    if not (stat.S_ISCHR(node.stat().st_mode) or stat.S_ISBLK(node.stat().st_mode)):
        raise Failed(f"{entry['path']} is not a device")
    return node


def locked(guest: str, conf: reemit.Conf) -> None:
    if "lock" in conf.main.keys:
        raise Failed(f"CT is locked ({conf.main.keys['lock']})")


def create(bed: Bed, guest: str, template: str, *words: str) -> None:
    if bed.conf(guest).exists():
        raise Failed(f"unable to create CT {guest} - CT {guest} already exists on node 'double'")
    if template not in templates(bed):
        raise Failed(f"unable to create CT {guest} - volume '{template}' does not exist")
    named = options(words)[1]
    storage, _, size = named.pop("rootfs", "local-lvm:8").partition(":")
    start_now = named.pop("start", "0") == "1"
    named.pop("storage", "")
    with bed.open(guest, new=True) as conf:
        conf.main.keys = {"arch": "amd64", "ostype": "debian", "rootfs": f"{storage}:vm-{guest}-disk-0,size={size}G", **named}
    bed.run(guest).mkdir(parents=True, exist_ok=True)
    print(f"extracting archive '{template}'")
    if start_now:
        start(bed, guest)


def start(bed: Bed, guest: str, *words: str) -> None:
    if bed.pid(guest):
        raise Failed(f"CT {guest} already running")
    with bed.open(guest) as conf:
        locked(guest, conf)
        for name in conf.pending.keys.pop("delete", "").split(","):
            conf.main.keys.pop(name, None)
        conf.main.keys.update(conf.pending.keys)
        conf.pending = reemit.Part()
    folder = bed.run(guest)
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    record = devices(bed, guest, conf.main)
    (bed.folder / "run" / f"{guest}.start.json").write_text(json.dumps(record, indent=1))
    mounts(bed, guest, conf.main)
    (folder / "up").unlink(missing_ok=True)
    with (folder / "log").open("wb") as log:
        argv = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--propagation", "private", "sh", "-c", INIT, "sh"]
        process = subprocess.Popen(
            [*argv, str(folder), conf.main.keys.get("hostname", "ct"), str(bed.folder / "driver")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 30
    while not (folder / "up").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"startup for container '{guest}' failed: {(folder / 'log').read_text()}")
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (folder / "pid").write_text(children[0])


def devices(bed: Bed, guest: str, main: reemit.Part) -> dict[str, Any]:
    """Nodes made anew for this start, and what the device filter would hold."""
    passthrough = bed.run(guest) / "passthrough"
    subprocess.run(["rm", "-rf", str(passthrough)], check=True)
    shifted = main.keys.get("unprivileged") == "1" or any(name == "lxc.idmap" for name, _ in main.raw)
    rules, nodes = [], {}
    for name in sorted(main.keys):
        entry = reemit.dev(main.keys[name]) if name.startswith("dev") and name[3:].isdigit() else None
        if entry is None:
            continue
        there = check_device(bed, main.keys[name]).stat()
        major, minor = os.major(there.st_rdev), os.minor(there.st_rdev)
        made = passthrough / entry["path"][len("/dev/") :]
        made.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(made, stat.S_IFCHR, os.makedev(major, minor))
        made.chmod(int(entry.get("mode", "0660"), 8))
        owner = [int(entry.get(key, "0")) + (100000 if shifted else 0) for key in ("uid", "gid")]
        nodes[entry["path"]] = {"major": major, "minor": minor, "mode": entry.get("mode", "0660"), "uid": owner[0], "gid": owner[1]}
        rules.append(f"c {major}:{minor} {'r' if entry.get('deny-write') == '1' else 'rw'}")
    raw = [value for name, value in main.raw if name == "lxc.cgroup2.devices.allow"]
    pinned = [value for name, value in main.raw if name == "lxc.cgroup2.cpuset.cpus"]
    every = sorted(os.sched_getaffinity(0))
    cores = min(int(main.keys.get("cores", len(every))), len(every))
    import random

    cpus = pinned[-1] if pinned else ",".join(map(str, sorted(random.sample(every, cores))))
    return {"allow": ["a"] if shifted else rules + raw, "rules": rules + raw, "nodes": nodes, "cpus": cpus, "pinned": bool(pinned)}


def mounts(bed: Bed, guest: str, main: reemit.Part) -> None:
    """What `lxc.mount.entry` binds: source, target, kind; an optional one without a source is passed over, another stops the start."""
    rows = []
    for source, target, words in [(*value.split()[:2], value.split()[3].split(",")) for name, value in main.raw if name == "lxc.mount.entry"]:
        real = bed.node(source) if source.startswith("/dev/") else Path(source)
        if real.exists():
            rows.append(f"{real} {target} {'dir' if 'create=dir' in words else 'file'} {'ro' if 'ro' in words else 'rw'}\n")
        elif "optional" not in words:
            raise Failed(f"startup for container '{guest}' failed: Failed to mount {source}: No such file or directory")
    (bed.run(guest) / "mounts").write_text("".join(rows))


def end(bed: Bed, guest: str, number: signal.Signals, wait_s: float) -> bool:
    pid = bed.pid(guest)
    if pid:
        os.kill(pid, number)
    deadline = time.monotonic() + wait_s
    while bed.pid(guest) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not bed.pid(guest)


def stop(bed: Bed, guest: str, *words: str) -> None:
    bed.read(guest)
    if not bed.pid(guest):
        raise Failed(f"CT {guest} not running")
    end(bed, guest, signal.SIGKILL, 10)


def shutdown(bed: Bed, guest: str, *words: str) -> None:
    named = options(words)[1]
    if not bed.pid(guest):
        raise Failed(f"CT {guest} not running")
    if not end(bed, guest, signal.SIGTERM, float(named.get("timeout", "60"))):
        raise Failed(f"container did not stop within {named.get('timeout', '60')} seconds")


def exec_(bed: Bed, guest: str, *words: str) -> NoReturn:
    bed.read(guest)
    pid = bed.pid(guest)
    if not pid:
        raise Failed(f"container '{guest}' not running!")
    command = list(words[1:]) if words and words[0] == "--" else list(words)
    os.execvp("nsenter", ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", *command])


def snapshot(bed: Bed, guest: str, name: str, *words: str) -> None:
    with bed.open(guest) as conf:
        locked(guest, conf)
        if name in conf.snapshots:
            raise Failed(f"snapshot name '{name}' already used")
        part = conf.main.copy()
        part.comment = [options(words)[1].get("description", "")] if "--description" in words else []
        part.keys["snaptime"] = "1790000000"
        conf.snapshots[name] = part
        conf.main.keys["parent"] = name


def rollback(bed: Bed, guest: str, name: str, *words: str) -> None:
    with bed.open(guest) as conf:
        locked(guest, conf)
        if name not in conf.snapshots:
            raise Failed(f"snapshot '{name}' does not exist")
        comment = conf.main.comment
        conf.main = conf.snapshots[name].copy()
        conf.main.comment = comment
        conf.main.keys.pop("snaptime")
        conf.main.keys["parent"] = name
    if bed.pid(guest):
        stop(bed, guest)


def delsnapshot(bed: Bed, guest: str, name: str) -> None:
    with bed.open(guest) as conf:
        gone = conf.snapshots.pop(name)
        if conf.main.keys.get("parent") == name:
            conf.main.keys.pop("parent")
            conf.main.keys.update({"parent": gone.keys["parent"]} if "parent" in gone.keys else {})


def unlock(bed: Bed, guest: str) -> None:
    with bed.open(guest) as conf:
        conf.main.keys.pop("lock", None)


def mount(bed: Bed, guest: str) -> None:
    """The root disk on the host: here what the guest wrote."""
    with bed.open(guest) as conf:
        locked(guest, conf)
        conf.main.keys["lock"] = "mounted"
    (bed.run(guest) / "upper").mkdir(parents=True, exist_ok=True)
    print(f"mounted CT {guest} in '{bed.run(guest) / 'upper'}'")


def unmount(bed: Bed, guest: str) -> None:
    unlock(bed, guest)


def destroy(bed: Bed, guest: str, *words: str) -> None:
    locked(guest, bed.read(guest))
    if bed.pid(guest):
        raise Failed(f"unable to destroy CT {guest} - container is running")
    subprocess.run(["rm", "-rf", str(bed.run(guest))], check=True)
    bed.conf(guest).unlink()


def push(bed: Bed, guest: str, source: str, target: str, *words: str) -> None:
    exec_input(bed, guest, ["sh", "-c", f"cat > {shlex.quote(target)}"], Path(source).read_bytes())


def pull(bed: Bed, guest: str, source: str, target: str, *words: str) -> None:
    Path(target).write_bytes(exec_input(bed, guest, ["cat", source], b""))


def exec_input(bed: Bed, guest: str, command: list[str], data: bytes) -> bytes:
    pid = bed.pid(guest)
    if not pid:
        raise Failed(f"container '{guest}' not running!")
    done = subprocess.run(["nsenter", "-t", str(pid), "-m", "-p", "-r", "-w", "--", *command], input=data, capture_output=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.decode())
    return done.stdout


def templates(bed: Bed) -> list[str]:
    return list(json.loads((bed.folder / "templates.json").read_text()))


def pveam(bed: Bed, words: Sequence[str]) -> None:
    if words[0] == "list":
        print("NAME                                                         SIZE  ")
        for name in templates(bed):
            if name.startswith(f"{words[1]}:"):
                print(f"{name:<60} 123.45MB")
    elif words[0] == "download":
        (bed.folder / "templates.json").write_text(json.dumps([*templates(bed), f"{words[1]}:vztmpl/{words[2]}"]))


COMMANDS = {
    "config": config, "list": listing, "status": status, "set": set_, "create": create, "start": start, "stop": stop, "shutdown": shutdown,
    "exec": exec_, "snapshot": snapshot, "rollback": rollback, "delsnapshot": delsnapshot, "unlock": unlock, "mount": mount, "unmount": unmount, "destroy": destroy, "push": push, "pull": pull,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    name, bed, words = argv[1], Bed(argv[2]), list(argv[3:])
    with (bed.folder / "calls").open("a") as calls:
        calls.write(shlex.join([name, *words]) + "\n")
    try:
        if name == "pveversion":
            print(f"proxmox-ve: 9.0.0 (a double)\npve-container: {bed.settings['pve_container']}\nlxc-pve: 6.0.5-1")
        elif name == "pveam":
            pveam(bed, words)
        elif not words or words[0] not in COMMANDS:
            raise Failed(f"ERROR: unknown command 'pct {' '.join(words[:1])}' (this double has: {', '.join(sorted(COMMANDS))})")
        else:
            COMMANDS[words[0]](bed, *words[1:])  # type: ignore[operator]
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 255 if "400" in str(failed) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
