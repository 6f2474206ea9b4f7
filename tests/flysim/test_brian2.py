# SPDX-License-Identifier: Apache-2.0
"""Brian2, the authors' equations, beside flysim: the same spikes, tick for tick.

Both get the same fixed spike sources. Brian2 adds each weight in floating point and flysim adds integers and
multiplies once, so v may differ in its last bits; spikes may not differ at all.
"""

from __future__ import annotations

import json
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

with warnings.catch_warnings():
    # Brian2 2.9 calls names that newer pyparsing warns about; our suite turns warnings into errors.
    warnings.simplefilter("ignore")
    import brian2
    from brian2 import ms, mV

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

brian2.prefs.codegen.target = "numpy"

SEED = 20_26
Spikes = list[tuple[int, int]]

EQUATIONS = """
dv/dt = (v_0 - v + g) / t_mbr : volt (unless refractory)
dg/dt = -g / tau : volt (unless refractory)
rfc : second
"""
CONSTANTS = {"v_0": -52 * mV, "v_rst": -52 * mV, "v_th": -45 * mV, "t_mbr": 20 * ms, "tau": 5 * ms}


@dataclass(frozen=True)
class Network:
    """Pairs as arrays, as both sides read them."""

    neurons: int
    sources: np.ndarray
    targets: np.ndarray
    contacts: np.ndarray


def read_fly(path: Path) -> Network:
    """Read the edges of a .fly file: the layout is documented in flysim's connectome module."""
    raw = path.read_bytes()
    assert raw[:8] == b"FLYCON1\n"
    count, neurons = int.from_bytes(raw[12:16], "little"), int.from_bytes(raw[16:24], "little")
    sections = {}
    for at in range(64, 64 + 64 * count, 64):
        name = raw[at : at + 16].rstrip(b"\0").decode()
        start, length = (int.from_bytes(raw[at + k : at + k + 8], "little") for k in (16, 24))
        sections[name] = raw[start : start + length]
    offsets = np.frombuffer(sections["offsets"], "<u8").astype(np.int64)
    return Network(
        neurons=neurons,
        sources=np.repeat(np.arange(neurons), np.diff(offsets)),
        targets=np.frombuffer(sections["targets"], "<u4").astype(np.int64),
        contacts=np.frombuffer(sections["counts"], "<i2").astype(np.int64),
    )


def run_brian(network: Network, kicks: Spikes, ticks: int) -> Spikes:
    """Run the published model on `network`, with one event of 68.75 mV on v per kick."""
    brian2.start_scope()
    brian2.defaultclock.dt = 0.1 * ms
    group = brian2.NeuronGroup(
        network.neurons,
        EQUATIONS,
        method="linear",
        threshold="v > v_th",
        reset="v = v_rst; g = 0 * mV",
        refractory="rfc",
        namespace=CONSTANTS,
    )
    group.v, group.g, group.rfc = -52 * mV, 0 * mV, 2.2 * ms
    synapses = brian2.Synapses(group, group, "w : volt", on_pre="g += w", delay=1.8 * ms)
    synapses.connect(i=network.sources, j=network.targets)
    synapses.w = network.contacts * 0.275 * mV
    times, neurons = zip(*kicks, strict=True)
    sources = brian2.SpikeGeneratorGroup(network.neurons, np.array(neurons), np.array(times) * 0.1 * ms)
    inputs = brian2.Synapses(sources, group, on_pre="v += 68.75 * mV")
    inputs.connect(j="i")
    monitor = brian2.SpikeMonitor(group)
    brian2.Network(group, synapses, sources, inputs, monitor).run(ticks * 0.1 * ms)
    found = np.round(np.asarray(monitor.t / (0.1 * ms))).astype(int)
    return sorted(zip(found.tolist(), np.asarray(monitor.i).tolist(), strict=True))


def run_flysim(binary: Path, file: Path, kicks: Spikes, ticks: int, folder: Path) -> Spikes:
    """Run `flysim spikes` on the same sources."""
    sources, out = folder / "sources.csv", folder / "spikes.csv"
    sources.write_text("".join(f"{tick},{neuron}\n" for tick, neuron in kicks))
    command = [binary, "spikes", file, "--ticks", str(ticks), "--sources", sources, "--out", out, "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spikes = [tuple(map(int, line.split(","))) for line in out.read_text().splitlines()]
    assert json.loads(done.stdout.splitlines()[-1])["spikes"] == len(spikes)
    return spikes


def random_kicks(driven: list[int], hz: float, ticks: int) -> Spikes:
    """Draw fixed sources: each driven neuron at `hz` on average."""
    chosen = np.random.default_rng(SEED).random((ticks, len(driven))) < hz / 10_000
    return [(int(tick), driven[int(i)]) for tick, i in zip(*np.nonzero(chosen), strict=True)]


def group_members(binary: Path, file: Path, network: Network) -> list[int]:
    """The 314 cells that the default drive uses: those that come first in the file, LPLC2 then LC4."""
    info = json.loads(subprocess.run([binary, "info", file, "--json"], capture_output=True, check=True).stdout)
    sizes = {group["name"]: group["members"] for group in info["groups"]}
    assert info["neurons"] == network.neurons == 668
    return list(range(sizes["LC4"] + sizes["LPLC2"]))


def test_the_real_circuit_spikes_tick_for_tick(flysim_bin: Path, circuit668: Path, tmp_path: Path) -> None:
    """One second of 668 real neurons under 50 Hz on 314 cells: every spike at the same tick."""
    ticks = 10_000
    network = read_fly(circuit668)
    driven = group_members(flysim_bin, circuit668, network)
    kicks = random_kicks(driven, 50, ticks)

    expected = run_brian(network, kicks, ticks)
    found = run_flysim(flysim_bin, circuit668, kicks, ticks, tmp_path)

    own = sum(neuron not in set(driven) for _, neuron in expected)
    assert len(expected) > 15_000, "the circuit was nearly silent: this would prove nothing"
    assert own > 3_000, f"{own} spikes outside the driven set: this would prove little"
    differing = sorted(set(expected) ^ set(found))
    assert not differing, f"first of {len(differing)} differing spikes: {differing[:5]}"
    assert found == expected


def test_a_made_up_brain_spikes_tick_for_tick(flysim_bin: Path, tmp_path: Path) -> None:
    """A random graph of 1,000 neurons, strongly driven, so that refractory drops and inhibition all happen."""
    ticks = 3_000
    file = tmp_path / "synth.fly"
    command = [flysim_bin, "synth", "--neurons", "1000", "--edges", "30000", "--seed", "3", file]
    subprocess.run(command, capture_output=True, check=True)
    network = read_fly(file)
    kicks = random_kicks(list(range(0, 1000, 2)), 120, ticks)

    expected = run_brian(network, kicks, ticks)
    found = run_flysim(flysim_bin, file, kicks, ticks, tmp_path)

    assert sum(neuron % 2 == 1 for _, neuron in expected) > 500
    assert found == expected
