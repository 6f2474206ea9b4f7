# SPDX-License-Identifier: Apache-2.0
"""A host's card as an LXC guest gets it: the nodes, the driver's user part, and the files in the guest that tell its linker about it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from flyops.domain import driver, gpuask, lxcconf, nvidia
from flyops.domain.lxcplace import Place, text
from flyops.errors import Refused
from flyops.model.host import Host, Stat

GPUS = "/proc/driver/nvidia/gpus"
DRIVER_FOLDERS = ("/usr/local/nvidia",)  # where some machines keep the driver's whole user part


@dataclass(frozen=True)
class Card:
    """The host's nodes and the driver's user part: (path here, path in the guest, dir or file)."""

    devices: Tuple[lxcconf.Device, ...] = ()
    driver: Tuple[Tuple[str, str, str], ...] = ()
    tools: Tuple[str, ...] = ()
    version: str = ""
    some: bool = False  # these nodes and no others, in place of all that the host has


def linker(host: Host, place: Place) -> str:
    """What the guest's linker and its PATH know of the driver, as `gpu_files` leaves it; empty when it lacks something."""
    script = f'cat {driver.LINKER_CONF} 2>/dev/null; ldconfig -p | grep -q "libcuda.so.1 " && echo found; ls -1 /usr/local/bin | grep ^nvidia-'
    return text(host.run(place.inside("sh", "-c", script), query=True))


def linker_wanted(card: Card) -> str:
    """The text of `linker` when all is right."""
    return "\n".join([driver.LINKER_TEXT.strip(), "found", *sorted(card.tools)])


def gpu_files(tools: Sequence[str]) -> List[str]:
    """A command for the guest: linker configuration, tools on the PATH, linker cache. Safe to run again."""
    script = f"""set -e
umask 022
mkdir -p /etc/ld.so.conf.d /usr/local/bin
printf '%s\\n' {driver.FOLDER}/lib64 > {driver.LINKER_CONF}
for tool in "$@"; do ln -sfn "{driver.FOLDER}/bin/$tool" "/usr/local/bin/$tool"; done
ldconfig"""
    return ["sh", "-c", script, "sh", *tools]


def gpu_files_gone() -> List[str]:
    """A command for the guest that undoes `gpu_files`."""
    script = f"""rm -f {driver.LINKER_CONF}
for link in /usr/local/bin/nvidia-*; do
  case "$(readlink "$link")" in {driver.FOLDER}/*) rm -f "$link" ;; esac
done
ldconfig"""
    return ["sh", "-c", script]


def _devices(host: Host) -> Tuple[lxcconf.Device, ...]:
    found = []
    for name in host.listdir("/dev"):
        if not name.startswith("nvidia"):
            continue
        stat = host.stat(f"/dev/{name}")
        below = [f"/dev/{name}/{child}" for child in host.listdir(f"/dev/{name}")] if stat and stat.kind == "dir" else [f"/dev/{name}"]
        for path in below:
            node = host.stat(path)
            if node and node.kind == "char":
                found.append(lxcconf.Device(path, *node.rdev))
    return tuple(found)


def look(host: Host, asked: gpuask.Ask, strategy: str) -> Card:
    """The card; refuses where there is none to give, or no user part of the loaded driver for `bind`."""
    devices = _devices(host)
    names = {device.path[len("/dev/") :] for device in devices}
    lacking = [name for name in ("nvidiactl", "nvidia-uvm") if name not in names]
    if not any(name[len("nvidia") :].isdigit() for name in names):
        lacking.insert(0, "nvidia0 (or another card)")
    if lacking:
        raise Refused(
            f"no card to give: expected character devices /dev/nvidiactl, /dev/nvidia-uvm and at least one /dev/nvidiaN on this host, "
            f"missing {', '.join(lacking)}; found {', '.join(sorted(names)) or 'none'}",
            fix="load the driver (nvidia-smi and nvidia-modprobe -u -c 0 make the nodes), or provision without gpu",
        )
    version = nvidia.module_version(host.read_text("/proc/driver/nvidia/version", missing=""))
    if not version:
        raise Refused("no card to give: /proc/driver/nvidia/version is missing or names no version", fix="load the nvidia module")
    try:
        chosen = gpuask.choose(asked, _cards(host), nvidia.mig_minors(host.read_text("/proc/driver/nvidia-caps/mig-minors", missing="")))
        kept = gpuask.given([device.path[len("/dev/") :] for device in devices], chosen)
    except gpuask.GpuError as error:
        raise Refused(str(error)) from None
    nodes = tuple(device for device in devices if device.path[len("/dev/") :] in kept)
    return Card(nodes, *(user_part(host, version) if strategy == "bind" else ((), ())), version=version, some=chosen is not None)


def _cards(host: Host) -> Tuple[gpuask.Card, ...]:
    folder = host.stat(GPUS)
    names = host.listdir(GPUS) if folder and folder.kind == "dir" else []
    return gpuask.cards({name: host.read_text(f"{GPUS}/{name}/information", missing="") for name in names})


def broken(host: Host, place: Place, card: Card) -> Tuple[str, ...]:
    """What is wrong with the nodes of a running guest: an empty file in the place of one, an old number, none at all."""
    if not card.devices:
        return ()
    paths = [device.path for device in card.devices]
    done = host.run(place.inside("stat", "-c", "%n|%F|%s|%t|%T|%a", "--", *paths), query=True)
    there = {line.split("|")[0]: _stat(line) for line in text(done).splitlines() if line.count("|") == 5}
    verdicts = (nvidia.judge_node(nvidia.Node(d.path, d.major, d.minor), there.get(d.path), check_mode=False) for d in card.devices)
    return tuple(verdict.text for verdict in verdicts if not verdict.right)


def _stat(line: str) -> Stat:
    """From `stat -c`; it prints the numbers of a device in hexadecimal."""
    _, kind, size, major, minor, mode = line.split("|")
    kinds = {"character special file": "char", "regular empty file": "file", "regular file": "file", "directory": "dir"}
    return Stat(kinds.get(kind, "other"), int(mode, 8), 0, 0, int(size), 0.0, rdev=(int(major, 16), int(minor, 16)))


def user_part(host: Host, version: str) -> Tuple[Tuple[Tuple[str, str, str], ...], Tuple[str, ...]]:
    """Binds of the driver's user part of exactly the loaded version, and its tools."""
    for folder in DRIVER_FOLDERS:
        if host.stat(f"{folder}/lib64/libcuda.so.{version}") is not None:
            tools = tuple(tool for tool in driver.TOOLS if host.stat(f"{folder}/bin/{tool}") is not None)
            bins = ((f"{folder}/bin", f"{driver.FOLDER}/bin", "dir"),) if tools else ()
            return ((f"{folder}/lib64", f"{driver.FOLDER}/lib64", "dir"), *bins), tools
    done = host.run(["ldconfig", "-p"], query=True)
    folders = driver.library_folders(text(done))
    binds = [
        (f"{folder}/{name}", f"{driver.FOLDER}/lib64/{name}", "file")
        for folder in folders
        for name in driver.driver_files(host.listdir(folder), version)
    ]
    if not any(posixpath.basename(source) == f"libcuda.so.{version}" for source, _, _ in binds):
        raise Refused(
            f"the loaded module is {version}; expected libcuda.so.{version} in {DRIVER_FOLDERS[0]}/lib64 or where ldconfig knows libcuda.so.1, "
            f"found none in {', '.join(folders) or 'any folder'}",
            fix="install the driver's libraries of the loaded version on this host",
        )
    programs = {tool: found for tool in driver.TOOLS for found in [host.which(tool)] if found}
    binds += [(found, f"{driver.FOLDER}/bin/{tool}", "file") for tool, found in programs.items()]
    return tuple(binds), tuple(programs)
