# SPDX-License-Identifier: Apache-2.0
"""The config of a Proxmox VE container (`/etc/pve/lxc/ID.conf`): read, and converge the lines that give it a card and cpus. Pure.

What Proxmox does to the file decides the shape of this. It drops what it cannot read, moves comments, sorts keys, keeps raw `lxc.*`
keys in the file's order after them: so lines are compared by meaning, nothing of ours lives in a comment, and a new line is put where
Proxmox itself would write it. Only the main section counts and changes: `[pve:pending]` and snapshots bound it and stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from flyops.domain import cpuset, lxcconf
from flyops.domain.lxcconf import Converged, Pair

HEADER = re.compile(r"\[(pve:pending|[a-z][a-z0-9_-]*)\]\s*", re.IGNORECASE)
RAW = re.compile(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*")
KEY = re.compile(r"([a-z][a-z_]*\d*):\s*(.+?)\s*")
DEV_KEY = re.compile(r"dev(\d+)")
DEV_MAX = 255
DEV_STYLE_SINCE = (5, 0, 7)  # of pve-container: the first with devN
PVE_MODE = 0o660  # what Proxmox gives a node whose entry names no mode
ID_BASE, ID_COUNT = 100000, 65536  # the default map of an unprivileged guest
NVIDIA_NODE = re.compile(r"/dev/(?:nvidia\d+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-caps(?:/nvidia-cap\d+)?)")
CPUSET_KEYS = {
    "cpus": {"v1": "lxc.cgroup.cpuset.cpus", "v2": "lxc.cgroup2.cpuset.cpus"},
    "mems": {"v1": "lxc.cgroup.cpuset.mems", "v2": "lxc.cgroup2.cpuset.mems"},
}
# The group that owns a node of this kind on an ordinary Linux; nodes of the NVIDIA driver are everybody's (0666) and need none.
CLASSES = (
    (re.compile(r"/dev/dri/card\d+"), "video"),
    (re.compile(r"/dev/dri/renderD\d+"), "render"),
    (re.compile(r"/dev/kfd"), "render"),
)


class PveConfError(ValueError):
    """Something that cannot stand in a guest's config; the text says what was found and what to do."""


@dataclass(frozen=True)
class Dev:
    """A `devN:` entry. `uid` and `gid` are the guest's own numbers: Proxmox maps them to the host's."""

    path: str
    mode: int = PVE_MODE
    uid: int = 0
    gid: int = 0
    deny_write: bool = False

    def __str__(self) -> str:
        words = [self.path]
        words += ["deny-write=1"] if self.deny_write else []
        words += [f"gid={self.gid}"] if self.gid else []
        words += [f"mode={self.mode:04o}"] if self.mode != PVE_MODE else []
        words += [f"uid={self.uid}"] if self.uid else []
        return ",".join(words)


@dataclass(frozen=True)
class Wanted:
    """The lines that should stand in the main section."""

    devs: Tuple[Dev, ...] = ()
    raw: Tuple[Pair, ...] = ()


@dataclass(frozen=True)
class Ownership:
    """Which lines are ours: of the card (with the majors of /proc/devices), binds of the driver's user part, nodes named one by one (`rules`: theirs),
    and whole keys."""

    card: bool = False
    driver: bool = False
    majors: Mapping[str, int] = field(default_factory=dict)
    nodes: Tuple[str, ...] = ()
    rules: Tuple[str, ...] = ()
    keys: Tuple[str, ...] = ()

    def __call__(self, key: str, value: str) -> bool:
        if key in self.keys:
            return True
        if DEV_KEY.fullmatch(key):
            entry = parse_dev(value)
            return entry is not None and self._node(entry.path)
        if key == "lxc.mount.entry":
            source, target = [*value.split(), "", ""][:2]
            return self._node(source) or (self.driver and f"/{target.lstrip('/')}".startswith(f"{lxcconf.DRIVER}/"))
        if key in lxcconf.DEVICE_KEYS.values():
            return (self.card and lxcconf.owned_rule(value, self.majors)) or value in self.rules
        return False

    def _node(self, path: str) -> bool:
        return path in self.nodes or (self.card and NVIDIA_NODE.fullmatch(path) is not None)


# reading


def split(text: str) -> Tuple[str, str]:
    """The main section, and everything from the first `[section]` on."""
    at = 0
    for line in text.split("\n"):
        if HEADER.fullmatch(line):
            return text[:at], text[at:]
        at += len(line) + 1
    return text, ""


def sections(text: str) -> Dict[str, str]:
    """Name -> body of the sections below the main one, as Proxmox reads them (`pve:pending`, snapshots)."""
    out: Dict[str, str] = {}
    name = ""
    for line in split(text)[1].split("\n"):
        head = HEADER.fullmatch(line)
        if head:
            name = head.group(1)
        out[name] = out.get(name, "") + ("" if head else line + "\n")
    return {found: body for found, body in out.items() if found}


def pair(line: str) -> Pair | None:
    """Key and value of a line as Proxmox reads it: `key: value`, and for raw keys also `lxc.key = value`."""
    found = RAW.fullmatch(line) or KEY.fullmatch(line)
    return (found.group(1), found.group(2)) if found else None


def parse(text: str) -> Tuple[Pair, ...]:
    """Keys and values of the main section, in order."""
    found = (pair(line) for line in split(text)[0].split("\n"))
    return tuple(one for one in found if one)


def value(text: str, key: str, default: str = "") -> str:
    """The last value of a key in the main section."""
    return next((found for name, found in reversed(parse(text)) if name == key), default)


def unreadable(text: str) -> Tuple[str, ...]:
    """Lines of the main section that Proxmox drops, with a warning only, at its next write."""
    lines = split(text)[0].split("\n")
    return tuple(line for line in lines if line.strip() and not line.startswith("#") and pair(line) is None)


def parse_dev(text: str) -> Dev | None:
    """A `devN` value; None when Proxmox would not take it."""
    found: Dict[str, str] = {}
    for word in text.split(","):
        key, equals, rest = word.partition("=")
        key, rest = (key, rest) if equals else ("path", word)
        if key in found or key not in ("path", "deny-write", "gid", "mode", "uid"):
            return None
        found[key] = rest
    path = found.get("path", "")
    numbers = [found[key] for key in ("gid", "uid") if key in found]
    wrong = (
        check_path(path)
        or not all(number.isascii() and number.isdigit() for number in numbers)
        or not re.fullmatch(r"0[0-7]{3}", found.get("mode", "0660"))
        or found.get("deny-write", "0") not in ("0", "1")
    )
    if wrong:
        return None
    return Dev(path, int(found.get("mode", "0660"), 8), int(found.get("uid", "0")), int(found.get("gid", "0")), found.get("deny-write") == "1")


def check_path(path: str) -> str:
    """Empty when a `devN` entry may name this path; else what is wrong."""
    inside = f"{path}/"
    if path.startswith("/dev/") and path != "/dev/" and not any(bad in inside for bad in ("/./", "/../", "//")) and not re.search(r"[,\s]", path):
        return ""
    return f"a device is named as an absolute path below /dev, without '.', '..', commas and blanks; found {path!r}"


def unprivileged(text: str) -> bool:
    """Has the guest a user namespace of its own? Any `lxc.idmap` makes it one."""
    return value(text, "unprivileged") == "1" or bool(value(text, "lxc.idmap"))


def is_guests_id(text: str, kind: str, number: int) -> bool:
    """Can this be a uid (`kind` u) or gid (g) inside the guest? A number of the host (100044 for 44) cannot."""
    if not unprivileged(text):
        return True
    ranges = _id_ranges(text, kind) + _id_ranges(text, "b")
    return any(first <= number < first + count for first, count in ranges or [(0, ID_COUNT)])


def _id_ranges(text: str, kind: str) -> List[Tuple[int, int]]:
    """First id inside and how many, of each `lxc.idmap` line of a kind, in order."""
    maps = [found.split() for key, found in parse(text) if key == "lxc.idmap"]
    return sorted((int(words[1]), int(words[3])) for words in maps if len(words) == 4 and words[0] == kind and (words[1] + words[3]).isdigit())


def torn(seen: str, before: str, new: str) -> bool:
    """Is `seen` what a write of `new` over `before` leaves when it is cut off? A cut inside a line; whole lines may be somebody's own removal."""
    return seen not in (before, new) and new.startswith(seen) and not seen.endswith("\n")


# choosing


def version(text: str) -> Tuple[int, ...]:
    """The version of pve-container in the output of `pveversion -v`; empty when it does not say."""
    found = re.search(r"^pve-container:\s*(\d+(?:\.\d+)*)", text, re.MULTILINE)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def style(asked: str, installed: Tuple[int, ...]) -> str:
    """`dev` or `raw`. `auto` takes `devN:` where Proxmox has it: it looks the majors up at every start, so none can be stale."""
    known = installed >= DEV_STYLE_SINCE
    if asked == "dev" and not known:
        has = ".".join(map(str, installed)) or "of unknown version"
        raise PveConfError(f"devN: entries need pve-container 5.0.7 or newer, this host's is {has}; upgrade it, or use nodes: raw")
    return asked if asked != "auto" else ("dev" if known else "raw")


def group_of(path: str) -> str:
    """The group that a node of this class belongs to; empty for the NVIDIA driver's, and for what we do not know."""
    return next((group for pattern, group in CLASSES if pattern.fullmatch(path)), "")


def cpuset_lines(asked: Mapping[str, str], text: str, controller: str) -> Tuple[Pair, ...]:
    """The cpuset lines for `cpus` and `mems` (an empty one: no line). A line that names the same set in other words is kept."""
    out: List[Pair] = []
    for name, listed in asked.items():
        numbers = sorted(cpuset.parse(listed))
        if numbers:
            key = CPUSET_KEYS[name][controller]
            same = [has for found, has in parse(text) if found == key and _numbers(has) == numbers]
            out.append((key, same[0] if same else listed.replace(" ", "")))
    return tuple(out)


def _numbers(listed: str) -> List[int]:
    try:
        return sorted(cpuset.parse(listed))
    except cpuset.CpusetError:
        return []


# converging


def converge(text: str, wanted: Wanted, owned: Callable[[str, str], bool]) -> Converged:
    """The text with each wanted line once and no other line that is ours; all else, and every byte below the main section, as it was."""
    main, rest = split(text)
    lines, added, removed = _devs(main.split("\n"), rest, wanted.devs, owned)
    lines, more, gone = _raws(lines, wanted.raw, owned)
    added, removed = [*added, *more], [*removed, *gone]
    if not added and not removed:
        return Converged(text, (), ())
    body = "\n".join(lines)
    return Converged(body + ("" if body.endswith("\n") or not body else "\n") + rest, tuple(added), tuple(removed))


def _devs(lines: Sequence[str], rest: str, wanted: Sequence[Dev], owned: Callable[[str, str], bool]) -> Tuple[List[str], List[Pair], List[Pair]]:
    """`devN` lines: right ones stay as they are written, one with other options is replaced under its number, new ones get a free number."""
    paths = {entry.path: entry for entry in wanted}
    entries = {at: parse_dev(found[1]) for at, line in enumerate(lines) for found in [pair(line)] if found and DEV_KEY.fullmatch(found[0])}
    place: Dict[str, int] = {}
    for at, entry in entries.items():
        if entry and paths.get(entry.path) == entry:
            place.setdefault(entry.path, at)
    for at, entry in entries.items():
        if entry and entry.path in paths:
            place.setdefault(entry.path, at)
    out, added, removed = [], [], []
    for at, line in enumerate(lines):
        found, entry = pair(line), entries.get(at)
        if found and entry and place.get(entry.path) == at:
            if entry != paths[entry.path]:
                removed.append(found)
                added.append((found[0], str(paths[entry.path])))
                line = f"{found[0]}: {paths[entry.path]}"
        elif found and at in entries and ((entry and entry.path in paths) or owned(*found)):
            removed.append(found)
            continue
        out.append(line)
    taken = {int(number) for number in re.findall(r"^dev(\d+):", "\n".join([*out, sections(rest).get("pve:pending", "")]), re.MULTILINE)}
    for path, entry in paths.items():
        if path not in place:
            key = f"dev{free_number(taken)}"
            taken.add(int(key[3:]))
            out.insert(_sorted_place(out, key), f"{key}: {entry}")
            added.append((key, str(entry)))
    return out, added, removed


def free_number(taken: Iterable[int]) -> int:
    """The lowest N of `devN` that nobody has."""
    used = set(taken)
    found = next((number for number in range(DEV_MAX + 1) if number not in used), None)
    if found is None:
        raise PveConfError(f"all entries dev0 to dev{DEV_MAX} are taken; remove one")
    return found


def _sorted_place(lines: Sequence[str], key: str) -> int:
    """Where Proxmox would write a key: before the first that sorts after it, and before every raw one."""
    last = 0
    for at, line in enumerate(lines):
        found = pair(line)
        if found and (found[0].startswith("lxc.") or found[0] > key):
            return at
        last = at + 1 if line.strip() else last
    return last


def _raws(lines: Sequence[str], wanted: Sequence[Pair], owned: Callable[[str, str], bool]) -> Tuple[List[str], List[Pair], List[Pair]]:
    missing = list(dict.fromkeys(wanted))
    out, removed = [], []
    for line in lines:
        found = pair(line)
        if found in missing:
            missing.remove(found)
        elif found and found[0].startswith("lxc.") and (found in wanted or owned(*found)):
            removed.append(found)
            continue
        out.append(line)
    # After the last line with something in it: blank lines before a section stay where they are.
    end = max((at + 1 for at, line in enumerate(out) if line.strip()), default=0)
    out[end:end] = [f"{key}: {found}" for key, found in missing]
    return out, missing, removed


# telling


def dead(text: str, controller: str) -> Tuple[str, ...]:
    """Keys of the other cgroup version than the one that has the controllers here: LXC passes over them. Told, and not obeyed."""
    wrong, right = ("lxc.cgroup.", "lxc.cgroup2.") if controller == "v2" else ("lxc.cgroup2.devices.", "lxc.cgroup.devices.")
    found = [(key, has) for key, has in parse(text) if key.startswith(wrong)]
    return tuple(
        f"{key}: {has} is dead: this host's controllers are on cgroup {controller}, which reads {right}{key[len(wrong) :]}" for key, has in found
    )


def strays(text: str, majors: Mapping[str, int]) -> Tuple[str, ...]:
    """Rules that look like the driver's and are not: a number that another driver has now, or one that is no decimal number. Never deleted."""
    out = list(lxcconf.strays("".join(f"{key}: {has}\n" for key, has in parse(text)), majors))
    for key, has in parse(text):
        hexadecimal = re.match(r"[bc] (?=[0-9]*[a-f])([0-9a-f]+):", has) if key in lxcconf.DEVICE_KEYS.values() else None
        if hexadecimal:
            number = hexadecimal.group(1)
            out.append(f"{key}: {has} names a number in hex, as `stat -c %t` prints it; majors are decimal here ({number} is {int(number, 16)})")
    return tuple(out)


def host_ids(text: str) -> Tuple[str, ...]:
    """`devN` entries whose uid or gid is a number of the host: the group would not exist in the guest."""
    out = []
    for key, has in parse(text):
        entry = parse_dev(has) if DEV_KEY.fullmatch(key) else None
        for name, number in (("uid", entry.uid), ("gid", entry.gid)) if entry else ():
            if not is_guests_id(text, name[0], number):
                out.append(f"{key}: {has} has a {name} of the host: inside the guest it is {number - ID_BASE if number >= ID_BASE else 'another'}")
    return tuple(out)


def hazards(text: str) -> Tuple[str, ...]:
    """What stops a start, or changes it without a word: maps of ids that are half or overlap, a profile that turns features off."""
    out = []
    maps = [found.split() for key, found in parse(text) if key == "lxc.idmap"]
    kinds = {words[0] for words in maps if words}
    if maps and "b" not in kinds and kinds != {"u", "g"}:
        out.append(f"lxc.idmap has lines for {' and '.join(sorted(kinds))} only: any line replaces Proxmox' whole map, so u and g are both needed")
    for kind in sorted(kinds):
        ranges = _id_ranges(text, kind)
        for at in range(1, len(ranges)):
            (first, count), (second, _) = ranges[at - 1 : at + 1]
            if first + count > second:
                out.append(f"lxc.idmap: the {kind} lines that begin at {first} and {second} overlap, and Proxmox refuses the start")
    if value(text, "lxc.apparmor.profile") and value(text, "features"):
        out.append(f"lxc.apparmor.profile of its own turns off the rules of features: {value(text, 'features')}")
    return tuple(out)


def why(text: str, removed: Sequence[Pair], added: Sequence[Pair], written: Sequence[Pair]) -> str:
    """The likely reason of a change, where the file tells it: a rollback, or a restore that lost the raw keys. `written`: raw lines of ours before."""
    raw = [found for found in parse(text) if found[0].startswith("lxc.")]
    if written and not raw and any(found in added for found in written):
        return f"restore lost raw keys: {len(written)} lines that stood here are gone (a restore by another user than root, or a remote migration)"
    parent = value(text, "parent")
    snapshot = set(parse(sections(text).get(parent, ""))) if parent else set()
    if removed and set(removed) <= snapshot:
        return f"a rollback to {parent} brought its lines back, or they were never converged since: {len(removed)} of them are not today's"
    return ""
