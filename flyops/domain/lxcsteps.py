# SPDX-License-Identifier: Apache-2.0
"""The steps that change an LXC guest, through the Host that is handed in. Each may be run again after a run that was cut off."""

from __future__ import annotations

import json
import posixpath
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

from flyops.domain import cpuset, lxccard, lxcconf, lxcdisk, lxcguest, lxcids, lxcplace, symptoms
from flyops.domain.lxcplace import Place
from flyops.domain.lxcplan import Asked, Todo
from flyops.errors import ModuleError
from flyops.model.host import Host

GONE_S = 5.0


def _must(host: Host, argv: list[str], what: str, fix: str = "") -> None:
    done = host.run(argv)
    if done.rc != 0:
        raise ModuleError(f"{what}: {argv[0]} ended with {done.rc}: {lxcplace.words(done)}", fix=fix, cmd=argv)


def _bridge(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    name = args["bridge"]
    _must(host, ["ip", "link", "add", name, "type", "bridge"], f"making bridge {name}")
    # The alias first: a run cut off after it leaves a bridge that is known to be ours.
    _must(host, ["ip", "link", "set", name, "alias", lxcguest.ALIAS, "up"], f"marking bridge {name}")
    _must(host, ["ip", "addr", "add", todo.asked.bridge_address, "dev", name], f"giving bridge {name} its address")


def _no_bridge(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    name = lxcconf.value(todo.seen.config, "lxc.net.0.link") or args["bridge"]
    ports = f"{lxcguest.INTERFACES}/{name}/brif"
    deadline = time.monotonic() + GONE_S  # a stopped guest's end of the cable goes with its network namespace, a little later
    while host.stat(ports) is not None and host.listdir(ports) and time.monotonic() < deadline:
        time.sleep(0.1)
    if host.stat(ports) is None or not host.listdir(ports):
        _must(host, ["ip", "link", "del", name], f"removing bridge {name}")


def _ids(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    for path in lxcids.FILES:
        text = host.read_text(path, missing="")
        host.write_text(path, lxcids.with_root(text, todo.asked.guest.ids), mode=0o644)


def _no_ids(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    for path in lxcids.FILES:
        host.write_text(path, lxcids.without_root(host.read_text(path, missing=""), todo.seen.ids), mode=0o644)


def _base(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    guest = todo.asked.guest
    lxcplace.make_folders(host, place.bases, 0o711)
    part = f"{guest.base}.part"
    command = lxcids.shift_command(host.which("python3") or "python3", args["rootfs"].rstrip("/"), part, guest.ids.first)
    _must(host, command, f"copying the base for the ids {guest.ids.text}")
    host.rename(part, guest.base)


def _create(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    guest = todo.asked.guest
    lxcplace.make_folders(host, place.folder, 0o755)
    # The marker before everything else: whatever is cut off later, the folder is known to be ours.
    _mark(host, place, todo, {})
    if todo.asked.disk_bytes:
        _make_disk(todo.asked.disk_bytes, place, host)
    files = {"etc/hostname": f"{place.name}\n", "etc/hosts": f"127.0.0.1 localhost {place.name}\n::1 localhost\n"}
    folders = ["", "etc", *(["etc/systemd", "etc/systemd/system"] if guest.ids else [])]
    for folder in folders:
        lxcplace.make_folders(host, posixpath.join(guest.upper, folder).rstrip("/"), 0o755)
    for path, text in files.items():
        host.write_text(posixpath.join(guest.upper, path), text, mode=0o644)
    if guest.ids:
        _give(guest, folders, list(files), host)


def _give(guest: lxcconf.Guest, folders: Sequence[str], files: Sequence[str], host: Host) -> None:
    """Everything in the guest's own layer belongs to its root; and the overlay's work folder, which its root cannot make itself."""
    masked = [f"etc/systemd/system/{unit}" for unit in lxcids.MASKED]
    for path in masked:
        host.symlink("/dev/null", posixpath.join(guest.upper, path))
    work = posixpath.join(posixpath.dirname(guest.upper), "work")
    lxcplace.make_folders(host, work, 0o755)
    for path in [work, *(posixpath.join(guest.upper, path).rstrip("/") for path in [*folders, *files, *masked])]:
        host.chown(path, guest.ids.first, guest.ids.first)


def _make_disk(size: int, place: Place, host: Host) -> None:
    image, point = place.path("disk.img"), place.path("disk")
    if host.stat(image) is None:
        _must(host, lxcdisk.make_command(image, size), f"making the image for {place.name}'s own files")
    lxcplace.make_folders(host, point, 0o755)
    host.write_text(place.path(lxcdisk.HOOK), lxcdisk.hook(image, point), mode=0o755)
    _mount_disk(place, host)


def _mount_disk(place: Place, host: Host) -> None:
    _must(host, ["sh", "-c", lxcdisk.mount_script(place.path("disk.img"), place.path("disk"))], f"mounting the image of {place.name}")


def _grow(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    image, point, wanted = place.path("disk.img"), place.path("disk"), todo.asked.disk_bytes
    if todo.seen.running and "restart" not in todo.steps:
        command = lxcdisk.grow_live(image, point, wanted, todo.seen.disk_bytes)
        _must(host, command, f"growing the image of {place.name} while it runs", fix="stop the guest (state: stopped) and run again")
    else:
        _must(host, lxcdisk.grow_still(image, point, wanted), f"growing the image of {place.name}")


def _mark(host: Host, place: Place, todo: Todo, more: Mapping[str, Any]) -> None:
    """Whose the folder is. `ids`: the range was written down for a guest of ours, and goes with the last of them."""
    ours = todo.asked is not None and bool(todo.asked.guest.ids) and (todo.asked.guest.ids.add or todo.seen.marker.get("ids") or todo.seen.ids_ours)
    kept = {"ids": True} if ours else {}
    host.write_text(place.path("flyops.json"), json.dumps({"owner": "flyops", "name": place.name, **kept, **more}, sort_keys=True) + "\n", mode=0o644)


def _stop(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    _must(host, place.lxc("lxc-stop", "-t", str(args["stop_wait"])), f"stopping {place.name}")


def _limits(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    assert todo.asked is not None
    guest, control = todo.asked.guest, todo.asked.guest.controllers
    settings = [
        (lxcconf.CPUSET_KEYS[control.cpuset], cpuset.render(todo.asked.cpus)),
        *([(lxcconf.MEMS_KEYS[control.cpuset], cpuset.render(todo.asked.mems))] if todo.asked.mems else []),
        (lxcconf.MEMORY_KEYS[control.memory], str(guest.memory_bytes)),
    ]
    for key, found in settings:
        name = key.split(".", 2)[2]
        _must(host, place.lxc("lxc-cgroup", name, found), f"setting {name} of {place.name} to {found} (its config is as it was)")


def _start(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> Dict[str, Any]:
    _mark(host, place, todo, {"started": todo.digest})
    if host.stat(place.path("log")) is not None:
        host.remove(place.path("log"))
    done = host.run(place.lxc("lxc-start", "-d"))
    if done.rc != 0:
        log = host.read_text(place.path("log"), missing="")
        errors = [line.split(" - ", 1)[-1] for line in log.splitlines() if " ERROR " in line]
        known = symptoms.find("\n".join(errors))
        raise ModuleError(
            f"container {place.name!r} did not start: {'; '.join(errors[:4]) or lxcplace.words(done)}",
            fix=known.advice if known else f"see {place.path('log')}",
            log=log[-4000:],
        )
    return _wait(args, todo, place, host)


def _wait(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> Dict[str, Any]:
    deadline = time.monotonic() + args["wait"]
    found = ""
    while time.monotonic() < deadline:
        found = lxcguest.systemd_state(host, place)
        if found in ("running", "degraded"):
            failed = (
                host.run(place.inside("systemctl", "--failed", "--plain", "--no-legend", "list-units"), query=True) if found == "degraded" else None
            )
            return {"systemd": found, "failed_units": [line.split()[0] for line in lxcplace.text(failed).splitlines() if line] if failed else []}
        time.sleep(0.2)
    raise ModuleError(
        f"systemd in container {place.name!r} is {found or 'silent'} after {args['wait']} s, expected running",
        fix=f"lxc-attach -n {place.name} -- systemctl list-jobs",
    )


def _driver(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    card = todo.seen.card
    _must(host, place.inside(*lxccard.gpu_files(card.tools)), f"telling {place.name}'s linker about the driver")
    found, wanted = lxccard.linker(host, place), lxccard.linker_wanted(card)
    if found != wanted:
        raise ModuleError(
            f"the driver {card.version} is bound into {place.name!r}, and its linker does not know it: expected {wanted.split()}, found {found.split()}"
        )


def _no_driver(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    _must(host, place.inside(*lxccard.gpu_files_gone()), f"taking the driver out of {place.name}'s linker")


def _check_nodes(card: lxccard.Card, place: Place, host: Host) -> None:
    broken = lxccard.broken(host, place, card)
    if broken:
        raise ModuleError(
            f"container {place.name!r} does not have its card: {'; '.join(broken)}",
            fix="look at the nodes on this host (fly host), and run again: the guest is restarted when they are right",
        )


def read_back(asked: Asked, card: lxccard.Card, place: Place, host: Host) -> Dict[str, Any]:
    """What the kernel enforces; an error when it is not what was asked (cgroup v2 widens an impossible set without a word)."""
    cpus, memory = lxcguest.effective(host, place, asked.guest.controllers)
    wrong = [cpuset.mismatch(asked.cpus, lxcguest.listed(cpus))]
    if not lxcconf.same_memory(asked.guest.memory_bytes, memory):
        wrong.append(f"expected memory limit {asked.guest.memory_bytes}, found {memory or 'none'}")
    mems = lxcguest.effective_mems(host, place, asked.guest.controllers) if asked.mems else ""
    if asked.mems and set(asked.mems) != set(lxcguest.listed(mems)):
        wrong.append(f"expected mems {cpuset.render(asked.mems)}, found {mems or 'none'}")
    if any(wrong):
        raise ModuleError(
            f"container {place.name!r} runs with other limits than asked: {'; '.join(w for w in wrong if w)}",
            fix="see which cgroup above the guest's is narrower (cpuset.cpus.effective, memory.max)",
        )
    if asked.guest.gpu:
        _check_nodes(card, place, host)
    done = host.run(place.lxc("lxc-info", "-p", "-H"), query=True)
    pid = lxcplace.text(done)
    return {"cpus": cpus, "memory": int(memory), "pid": int(pid) if pid.isdigit() else 0}


def _archive(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> Dict[str, Any]:
    target, upper = args["archive_to"], place.upper(todo.seen.disk_bytes > 0)
    if todo.seen.disk_bytes:
        _mount_disk(place, host)
    lxcplace.make_folders(host, posixpath.dirname(target), 0o700)
    part = target + ".part"
    folders = [folder.strip("/") for folder in todo.seen.state_folders if host.stat(upper + folder) is not None]
    if not folders:
        return {"archive": None}
    host.write_bytes(part, b"", mode=0o600)
    _must(host, _tar("c", upper, part, todo, folders), f"archiving {', '.join(folders)} of {place.name}")
    # Reads every byte of the archive back and compares it with the files, before anything is removed.
    _must(host, _tar("d", upper, part, todo, []), f"the archive {part} differs from the files of {place.name}")
    host.rename(part, target)
    stat = host.stat(target)
    return {"archive": {"path": target, "sha256": host.sha256(target), "size": stat.size if stat else 0, "folders": list(todo.seen.state_folders)}}


def _tar(verb: str, upper: str, part: str, todo: Todo, folders: Sequence[str]) -> List[str]:
    """tar over the guest's own layer. That of an unprivileged guest is read with its own ids, so that the archive has them, too."""
    words = ["tar", "--force-local", "--numeric-owner", "-C", upper, f"-{verb}zf"]
    if not todo.seen.ids:
        return [*words, part, *(["--", *folders] if folders else [])]
    ids = todo.seen.ids
    mapped = ["lxc-usernsexec", "-m", f"b:0:{ids.first}:{ids.count}", "--", *words, "-", *(["--", *folders] if folders else [])]
    way = ">" if verb == "c" else "<"
    return ["sh", "-c", f'part=$1; shift; exec "$@" {way} "$part"', "sh", part, *mapped]


def _destroy(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    if todo.seen.disk_bytes and place.path("disk") in lxcplace.mounted_below(host, place.folder):
        _must(host, ["umount", place.path("disk")], f"unmounting the image of {place.name}")
    held = lxcplace.mounted_below(host, place.folder)
    if held:
        raise ModuleError(
            f"{', '.join(held)} is still mounted: removing {place.folder} could reach what is behind it", fix="unmount it and run again"
        )
    # The marker last, so that a removal that was cut off still knows whose folder it is.
    for name in sorted(host.listdir(place.folder), key=lambda child: child == "flyops.json"):
        host.remove(place.path(name))
    host.remove(place.folder)
    used = any(f":{todo.seen.base}:" in text for text in todo.seen.neighbours.values())
    if posixpath.dirname(todo.seen.base) == place.bases and not used:
        for path in (todo.seen.base, f"{todo.seen.base}.part"):
            host.remove(path)
        if not host.listdir(place.bases):
            host.remove(place.bases)


def _config(args: Mapping[str, Any], todo: Todo, place: Place, host: Host) -> None:
    host.write_text(place.path("config"), todo.config, mode=0o644)


STEPS: Mapping[str, Callable[[Mapping[str, Any], Todo, Place, Host], Dict[str, Any] | None]] = {
    "bridge": _bridge,
    "ids": _ids,
    "no-ids": _no_ids,
    "base": _base,
    "grow": _grow,
    "no-bridge": _no_bridge,
    "create": _create,
    "restart": _stop,
    "stop": _stop,
    "limits": _limits,
    "config": _config,
    "start": _start,
    "wait": _wait,
    "driver": _driver,
    "no-driver": _no_driver,
    "archive": _archive,
    "destroy": _destroy,
}
