# SPDX-License-Identifier: Apache-2.0
"""A trial run of a staged release: its settings, its record and its transient unit. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Iterable, Mapping, Sequence

CHECKPOINT = re.compile(r"ckpt-(\d{1,20})\S*\.flyck")
PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+=-]*")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RECORD, SETTINGS = "trial.json", "trial.env"  # in the trial's folder; one of them says that it is ours
ENDED = ("inactive", "failed", "deactivating")


def parse_env(text: str) -> dict[str, str]:
    """Settings of an environment file: `KEY=value`, quotes taken off, comments and blank lines passed over."""
    out = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if not equals or key.startswith(("#", ";")) or not NAME.fullmatch(key.strip()):
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            quote, value = value[0], value[1:-1]
            value = re.sub(r'\\(["\\$`])', r"\1", value) if quote == '"' else value
        out[key.strip()] = value
    return out


def render_env(settings: Mapping[str, str]) -> str:
    """The same as a file that systemd and flysim read alike."""
    lines = []
    for key, value in sorted(settings.items()):
        if "\n" in value:
            raise ValueError(f"{key}: a setting is one line, found {value!r}")
        quoted = value if PLAIN.fullmatch(value) else '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'
        lines.append(f"{key}={quoted}\n")
    return "".join(lines)


def settings(base: Iterable[str], given: Mapping[str, Any], folder: str, port: int, cpus: str = "") -> dict[str, str]:
    """The live settings with what was given on top, then everything that keeps the trial to itself: own state, port and feed."""
    out: dict[str, str] = {}
    for text in base:
        out.update(parse_env(text))
    out.update({key: str(value) for key, value in given.items() if value is not None})
    had_feed = bool(out.get("FLY_FEED"))
    out.update(FLY_STATE_DIR=f"{folder}/state", FLY_LISTEN=f"127.0.0.1:{port}")
    if had_feed:
        out["FLY_FEED"] = f"{folder}/feed.sock"
    for name in ("FLY_UNTIL_TICK", "FLY_TOKEN_FILE"):
        out.pop(name, None)
    if cpus:
        out["FLY_CPUS"] = cpus
    return out


def newest_checkpoints(names: Iterable[str]) -> list[str]:
    """Checkpoint files of a state folder, newest (highest tick) first."""
    found = ((CHECKPOINT.fullmatch(name), name) for name in names)
    return [name for _, name in sorted(((int(match.group(1)), name) for match, name in found if match), reverse=True)]


def unit_argv(unit: str, command: Sequence[str], *, env_file: str, log: str, cpus: str, cgroup: str, user: str, folder: str, max_s: int) -> list[str]:
    """`systemd-run` for the trial. No --collect: a unit that ended must keep its exit code until we have read it (`reset-failed` clears it)."""
    properties = [
        "Type=exec",
        f"EnvironmentFile={env_file}",
        f"WorkingDirectory={folder}",
        f"StandardOutput=append:{log}",
        f"StandardError=append:{log}",
        f"RuntimeMaxSec={max_s}",
        "Restart=no",
        "TimeoutStopSec=30",
        "NoNewPrivileges=yes",
        "DevicePolicy=closed",
        "DeviceAllow=char-nvidia* rw",
        "DeviceAllow=char-nvidia-uvm rw",
        "DeviceAllow=char-nvidia-caps rw",
    ]
    if cpus:
        properties.append(f"AllowedCPUs={cpus}" if cgroup == "v2" else f"CPUAffinity={cpus.replace(',', ' ')}")
    words = ["systemd-run", f"--unit={unit}", "--quiet", "--description=Trial of a staged flysim release, by flyops"]
    words += [f"--uid={user}"] if user else []
    for text in properties:
        words += ["-p", text]
    return [*words, "--", *command]


def show(text: str) -> dict[str, str]:
    """`systemctl show` output as a mapping."""
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


def dump(record: Mapping[str, Any]) -> str:
    """The record of a running trial, so that any later run ends exactly what this one started."""
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def load(text: str) -> dict[str, Any]:
    """A record; a text that is none is an empty one (then there is nothing of ours to end)."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
