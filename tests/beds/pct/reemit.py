# SPDX-License-Identifier: Apache-2.0
"""How Proxmox VE reads a container's config and writes it again. Part of the double; shares no code with flyops/domain/pveconf.py."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SCALARS = set(
    "arch cmode console cores cpulimit cpuunits debug description entrypoint env features hookscript hostname lock memory nameserver onboot "
    "ostype parent protection rootfs searchdomain snapstate snaptime startup swap tags template timezone tty unprivileged".split()
)
NUMBERED = ("dev", "mp", "net", "unused")
RAW_ALLOWED = ("mount.entry", "mount.auto", "mount.fstab", "idmap", "signal.", "prlimit.", "sysctl.", "cap.", "seccomp.", "environment", "tty.")
RAW_ALLOWED += ("hook.", "apparmor.", "selinux.", "cgroup2.", "cgroup.", "log.", "pty.", "autodev", "console.", "init", "keyring.", "proc.", "uts.")
RAW_REFUSED = ("rootfs.path", "rootfs.options")


@dataclass
class Part:
    """One section."""

    comment: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    raw: list[tuple[str, str]] = field(default_factory=list)

    def text(self) -> str:
        """As it is written: comment, keys in order of their names, raw keys as they came."""
        out = [f"#{quote(line)}" for line in self.comment]
        out += [f"{name}: {self.keys[name]}" for name in sorted(self.keys)]
        out += [f"{name}: {value}" for name, value in self.raw if name.startswith("lxc.environment.runtime")]
        out += [f"{name}: {value}" for name, value in self.raw if not name.startswith("lxc.environment.runtime")]
        return "".join(line + "\n" for line in out)

    def copy(self) -> Part:
        """A twin."""
        return Part(list(self.comment), dict(self.keys), list(self.raw))


@dataclass
class Conf:
    """A whole config."""

    main: Part = field(default_factory=Part)
    pending: Part = field(default_factory=Part)
    snapshots: dict[str, Part] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The file."""
        out = self.main.text()
        if self.pending.keys or self.pending.raw:
            out += "\n[pve:pending]\n" + self.pending.text()
        for name in sorted(self.snapshots):
            out += f"\n[{name}]\n" + self.snapshots[name].text()
        return out


def quote(text: str) -> str:
    """A comment's bytes: colon, percent, control characters and all that is no ASCII become %XX."""
    return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b":%" else f"%{byte:02X}" for byte in text.encode())


def unquote(text: str) -> str:
    """The other way."""
    data = re.sub(rb"%([0-9A-Fa-f]{2})", lambda hit: bytes([int(hit.group(1), 16)]), text.encode())
    return data.decode("utf-8", "replace")


def read(text: str) -> Conf:
    """A file as Proxmox understands it; what it does not goes to `warnings` and is lost."""
    conf = Conf()
    part = conf.main
    for line in text.splitlines():
        if not line.strip():
            continue
        if line.startswith("#"):
            part.comment.append(unquote(line[1:]))
        elif re.match(r"\[pve:pending\]\s*$", line, re.IGNORECASE):
            part = conf.pending
        elif section := re.match(r"\[([a-z][a-z0-9_-]+)\]\s*$", line, re.IGNORECASE):
            part = conf.snapshots.setdefault(section.group(1), Part())
        elif line.startswith("lxc."):
            _raw(line, part, conf.warnings)
        else:
            _key(line, part, conf)
    return conf


def _raw(line: str, part: Part, warnings: list[str]) -> None:
    hit = re.match(r"lxc\.([a-z0-9_\-.]+)(?::|\s*=)\s*(.*)$", line)
    name = hit.group(1) if hit else ""
    if not hit or name in RAW_REFUSED or not name.startswith(RAW_ALLOWED):
        warnings.append(f"skipping raw key: {line}")
        return
    if name.startswith("cgroup."):
        warnings.append(f"lxc.{name} is of cgroup v1 and has no effect")
    part.raw.append((f"lxc.{name}", hit.group(2).strip()))


def _key(line: str, part: Part, conf: Conf) -> None:
    name, colon, value = line.partition(":")
    value = value.strip()
    known = name in SCALARS or any(re.fullmatch(rf"{stem}\d+", name) for stem in NUMBERED) or (name == "delete" and part is conf.pending)
    if not colon or not value or not known:
        conf.warnings.append(f"unable to parse config: {line}")
    elif name.startswith("dev") and dev(value) is None:
        conf.warnings.append(f"unable to parse value of '{name}': {value}")
    elif name == "description":
        part.comment += unquote(value).splitlines()
    else:
        part.keys[name] = value


def dev(value: str) -> dict[str, str] | None:
    """A device entry as a mapping; None when it is not one."""
    out = {}
    for number, word in enumerate(value.split(",")):
        name, equals, rest = word.partition("=")
        if not equals:
            if number:
                return None
            name, rest = "path", word
        out[name] = rest
    path = out.get("path", "")
    good = path.startswith("/dev/") and len(path) > 5 and not re.search(r"/\.{1,2}(/|$)", path)
    good = good and set(out) <= {"path", "deny-write", "gid", "mode", "uid"} and bool(re.fullmatch(r"0[0-7]{3}", out.get("mode", "0660")))
    return out if good and all(out.get(key, "0").isdigit() for key in ("uid", "gid")) else None


def reemit(text: str) -> str:
    """The file after any command that writes it."""
    return read(text).text()
