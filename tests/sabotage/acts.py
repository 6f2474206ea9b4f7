# SPDX-License-Identifier: Apache-2.0
"""What is done to a guest, and undone. Driver-side ones lie over the guest's own mounts, so the machine's nodes and driver are never touched."""

from __future__ import annotations

import re
import struct
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from tests.beds import doublecard
from tests.sabotage.box import PLACE, Box
from tests.sabotage.case import Outcome

Act = Callable[[Box], AbstractContextManager[None]]
Run = Callable[[Box], Outcome]
UNITS = "/etc/systemd/system"


def nothing(box: Box) -> AbstractContextManager[None]:
    """All is well, or the release itself is what is wrong."""
    return nullcontext()


def shell(do: str, undo: str) -> Act:
    """Two shell scripts in the guest; nvidia0 stands for the card's node."""

    @contextmanager
    def act(box: Box) -> Iterator[None]:
        node = box.node
        try:
            box.sh(do.replace("nvidia0", node))
            yield
        finally:
            box.sh(undo.replace("nvidia0", node), check=False)

    return act


def over(path: str, make: str) -> Act:
    """`make` writes $it, which then lies over `path` until it is undone."""
    it = f"{PLACE}/over-{path.strip('/').replace('/', '-')}"
    return shell(f"it={it}; rm -rf $it; {make}; mount --bind $it {path}", f"umount {path}; rm -rf {it}")


def without(node: str) -> Act:
    """A node that is not there; a new one of the same number comes afterwards."""

    @contextmanager
    def act(box: Box) -> Iterator[None]:
        name = box.node if node == "nvidia0" else node
        major, minor = (int(word, 16) for word in box.sh(f"stat -c '%t %T' /dev/{name}").split())
        box.sh(f"while mountpoint -q /dev/{name}; do umount /dev/{name}; done; rm -f /dev/{name}")
        try:
            yield
        finally:
            box.sh(f"mknod -m 666 /dev/{name} c {major} {minor}")

    return act


def own_node(node: str, mode: str, group: str = "root") -> Act:
    """The same number, on a node of the guest's own with another mode."""
    make = f"set -- $(stat -c '0x%t 0x%T' /dev/{node}); mknod $it c $(($1)) $(($2)); chgrp {group} $it; chmod {mode} $it"
    return over(f"/dev/{node}", make)


def driver(change: str) -> Act:
    """The folder of the driver's libraries as a folder of links, changed by a script that runs in it; $V is its version."""
    lib, real, copy = "/usr/local/nvidia/lib64", f"{PLACE}/real", f"{PLACE}/copy"
    version = f"V=$(ls {real} | sed -n 's/^libcuda\\.so\\.\\([0-9]*\\.[0-9.]*\\)$/\\1/p' | head -1)"
    do = f"mkdir -p {real} {copy} && mount --bind {lib} {real} && ln -s {real}/* {copy}/ && {version} && cd {copy} && {change} && mount --bind {copy} {lib} && ldconfig"
    return shell(do, f"umount {lib}; umount {real}; rm -rf {copy} {PLACE}/compat; rm -f /etc/ld.so.conf.d/000-sabotage.conf; ldconfig")


def drop_in(unit: str, text: str, name: str = "99-other.conf") -> Act:
    """Somebody else's drop-in, in force."""
    path = f"{UNITS}/{unit}.service.d/{name}"
    do = f"mkdir -p {UNITS}/{unit}.service.d; printf '{text}' >{path}; systemctl daemon-reload; systemctl restart {unit}"
    return shell(
        do, f"rm -f {path}; rmdir --ignore-fail-on-non-empty {UNITS}/{unit}.service.d; systemctl daemon-reload; systemctl restart {unit}; sleep 1"
    )


def live_on_gpu(act: Act = nothing) -> Act:
    """The same, on a guest whose GPU backend is on (switched on first where it is not), and on the CPU again afterwards where it is still on."""

    @contextmanager
    def both(box: Box) -> Iterator[None]:
        if "FLY_LIF_CUDA=1" not in box.sh("cat /etc/fly/backend.env"):
            found = box.deploy()
            assert found.code == 0, found.text[-2000:]
        with act(box):
            yield

    return both


def deploy(*more: str) -> Run:
    """`deploy --gpu` of the right release."""
    return lambda box: box.deploy(None, *more)


def ptx(number: int, change: Callable[[str, str], str], *more: str) -> Run:
    """`deploy --gpu` of a release whose PTX for this card was changed: (text, arch) -> text."""
    return lambda box: box.deploy(box.doctored(number, {f"ptx/{box.arch}.ptx": change(box.ptx, box.arch).encode()}), *more)


def wrapped(number: int, script: str, more: dict[str, bytes] | None = None) -> Run:
    """`deploy --gpu` of a release whose flysim is a script before the real one ($real)."""

    def run(box: Box) -> Outcome:
        text = f'#!/bin/sh\nreal="$(dirname "$0")/real"\n{script}\nexec "$real" "$@"\n'
        return box.deploy(box.doctored(number, {"bin/flysim": text.encode(), "bin/real": box.cuda.binary.read_bytes(), **(more or {})}))

    return run


def patched(number: int, old: float, new: float) -> Run:
    """`deploy --gpu` of a release whose binary has another constant, and says the same versions."""

    def run(box: Box) -> Outcome:
        data = box.cuda.binary.read_bytes()
        assert struct.pack("<d", old) in data, old
        return box.deploy(box.doctored(number, {"bin/flysim": data.replace(struct.pack("<d", old), struct.pack("<d", new))}))

    return run


def beside(pattern: str, do: Callable[[Box], None], *more: str) -> Run:
    """`deploy --gpu`, and something happens when a line of its progress matches."""

    def run(box: Box) -> Outcome:
        with box.during(pattern, lambda: do(box)) as look:
            return box.deploy(None, *more, on_line=look)

    return run


# what happens beside a deploy

# Let go for 2 ms in every 250: a card that makes a second of brain in 20 ms would catch up after any longer breath.
DUTY = """
import ctypes, glob, os, subprocess, time
pid = subprocess.run(['systemctl', 'show', '-p', 'MainPID', '--value', 'flytrial'], capture_output=True, text=True).stdout.strip()
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
(thread,) = [int(os.path.basename(task)) for task in glob.glob('/proc/%s/task/*' % pid) if open(task + '/comm').read().strip() == 'flysim-sim']
end = time.monotonic() + 12
while time.monotonic() < end and libc.ptrace(16, thread, None, None) == 0:  # PTRACE_ATTACH
    os.waitpid(thread, 0x40000000)  # __WALL: a thread that is no child of ours
    time.sleep(0.25)
    libc.ptrace(17, thread, None, None)  # PTRACE_DETACH
    time.sleep(0.002)
"""


def starved(box: Box) -> None:
    """The trial's simulating thread gets the card for a moment at a time only."""
    box.script(DUTY)


HALT = """
import ctypes, glob, os, subprocess, time
pid = subprocess.run(['systemctl', 'show', '-p', 'MainPID', '--value', 'flytrial'], capture_output=True, text=True).stdout.strip()
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for task in glob.glob('/proc/%s/task/*' % pid):
    if open(task + '/comm').read().strip() == 'flysim-sim':
        libc.ptrace(16, int(os.path.basename(task)), None, None)  # PTRACE_ATTACH: this thread alone stands still until we end
time.sleep(12)
"""


def halt(box: Box) -> None:
    """The trial's simulating thread stands still; the process answers."""
    box.script(HALT)


def restart_live(box: Box) -> None:
    """Somebody restarts the live unit in the middle."""
    time.sleep(1)
    box.sh("systemctl restart flysim")


# texts of PTX


def retarget(arch: str) -> Callable[[str, str], str]:
    """Another card's PTX under this card's name."""
    return lambda text, own: text.replace(f".target {own}", f".target {arch}", 1)


def newer_isa(text: str, arch: str) -> str:
    """An ISA that no driver reads yet."""
    return re.sub(r"^\.version \S+", ".version 9.9", text, count=1, flags=re.MULTILINE)


def fused(text: str, arch: str) -> str:
    """One product and sum in one rounding."""
    return re.sub(r"add\.rn\.f64\s+(%\w+),", r"fma.rn.f64 \1, \1, \1, \1;\n\tadd.rn.f64 \1,", text, count=1)


def embedded(text: str, arch: str) -> str:
    """The PTX that every binary carries, which a newer card has to translate."""
    return (doublecard.KERNELS / "flysim.sm_75.ptx").read_text()


def loose(text: str, arch: str) -> str:
    """No rounding mode: the assembler may fuse."""
    return text.replace("mul.rn.f64", "mul.f64").replace("add.rn.f64", "add.f64")


def cut(text: str, arch: str) -> str:
    """The second half is missing."""
    return text[: len(text) // 2]


def renamed(text: str, arch: str) -> str:
    """The entry has another name."""
    return text.replace("fly_windows", "fly_vindows")


def foreign_source(text: str, arch: str) -> str:
    """Made from another flysim.cu."""
    return re.sub(r"(// source sha256: )\w{4}", r"\g<1>0000", text, count=1)


def heavier(text: str, arch: str) -> str:
    """Another weight of a contact: 0.275 mV and a little."""
    assert "0d3FD199999999999A" in text
    return text.replace("0d3FD199999999999A", "0d3FD199999999A000")


def slower_decay(text: str, arch: str) -> str:
    """Another decay of the conductance."""
    assert "0d3FEF5DC99BADEC5B" in text
    return text.replace("0d3FEF5DC99BADEC5B", "0d3FEF5DC99BADEC00")


# releases and state


def broken_manifest(box: Box) -> Outcome:
    """The tar's binary is not the one in its MANIFEST."""
    source, target = box.cuda.tar, box.out / "releases" / box.cuda.tar.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            data = old.extractfile(member)
            if member.name.endswith("bin/flysim") and data:
                swapped = bytearray(data.read())
                swapped[len(swapped) // 2] ^= 1
                Path(box.out, "swapped").write_bytes(swapped)
                with Path(box.out, "swapped").open("rb") as file:
                    new.addfile(member, file)
            else:
                new.addfile(member, data)
    words = ["deploy", "--gpu", "--limit", box.name, *box.words, "--release", str(target)]
    return box.invoke(*words)


@contextmanager
def foreign_checkpoint(box: Box) -> Iterator[None]:
    """The newest checkpoint is of another graph."""
    run = "FLY_CONNECTOME=other.fly FLY_DRIVE=KC:45 FLY_STATE_DIR=state FLY_LISTEN=127.0.0.1:18999 FLY_CHECKPOINT_S=1 RAYON_NUM_THREADS=1"
    box.sh(
        f"cd {PLACE} && rm -rf state && mkdir state && /opt/fly/current/bin/flysim synth --neurons 2000 --edges 40000 --seed 99 other.fly"
        f" && (env {run} timeout 4 /opt/fly/current/bin/flysim run >other.log 2>&1 || true); ls state/*.flyck"
    )
    box.sh(
        f"cd {PLACE} && f=$(ls state/*.flyck | tail -1) && cp $f /var/lib/fly/ckpt-99999999999999999999.flyck && chown fly: /var/lib/fly/ckpt-99999999999999999999.flyck"
    )
    try:
        yield
    finally:
        box.sh("rm -f /var/lib/fly/ckpt-99999999999999999999.flyck")


@contextmanager
def turned_link(box: Box) -> Iterator[None]:
    """`current` leads to another release than the one that runs."""
    was = box.sh("readlink /opt/fly/current")
    box.sh("ln -sfn $(readlink /opt/fly/previous) /opt/fly/current")
    try:
        yield
    finally:
        box.sh(f"ln -sfn {was} /opt/fly/current")


@contextmanager
def swapped_binary(box: Box) -> Iterator[None]:
    """The file of the release that runs is exchanged."""
    box.sh("cd /opt/fly/current/bin && mv flysim /opt/sabotage/kept && cp /opt/sabotage/kept flysim && printf x >>flysim && chmod 755 flysim")
    try:
        yield
    finally:
        box.sh("cd /opt/fly/current/bin && mv -f /opt/sabotage/kept flysim")


@contextmanager
def group_access(box: Box) -> Iterator[None]:
    """0660 on every node, and the service's group may."""
    with own_node("nvidia0", "660", "fly")(box), own_node("nvidia-uvm", "660", "fly")(box), own_node("nvidiactl", "660", "fly")(box):
        yield


@contextmanager
def extra_nodes(box: Box) -> Iterator[None]:
    """What a host with a display and MIG shows as well."""
    box.sh("mknod -m 666 /dev/nvidia-modeset c 195 254; mkdir -p /dev/nvidia-caps")
    try:
        yield
    finally:
        box.sh("rm -f /dev/nvidia-modeset; rmdir /dev/nvidia-caps 2>/dev/null || true")
