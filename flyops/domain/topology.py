# SPDX-License-Identifier: Apache-2.0
"""Which cpus are alike and near each other: physical cores, NUMA nodes, and the bands of a machine with faster and slower cores.

Pure. Cpus that are not mentioned in a table are alike: a machine that says nothing of nodes or speeds has one of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Sequence, Tuple

from flyops.domain.cpuset import Cpus, render

# Within one band: favoured cores reach 5.8 where their equals reach 5.5, and the slow ones of the same chip 4.3.
BAND = 0.85


@dataclass(frozen=True)
class Topology:
    """cpu -> its siblings, its node, its speed (cpu_capacity where the kernel has it, else the largest frequency)."""

    siblings: Mapping[int, Cpus] = field(default_factory=dict)
    nodes: Mapping[int, int] = field(default_factory=dict)
    speed: Mapping[int, int] = field(default_factory=dict)


def speeds(capacity: Mapping[int, int], frequency: Mapping[int, int]) -> Mapping[int, int]:
    """`cpu_capacity` first, since it also knows how much a core does in a cycle; the frequency only where no cpu has a capacity."""
    return capacity if any(capacity.values()) else frequency


def bands(cpus: Sequence[int], speed: Mapping[int, int]) -> list[Cpus]:
    """Groups of alike cpus, the fastest first. A band holds what is within 15 % of its fastest, not only what equals the maximum."""
    known = [speed.get(cpu, 0) for cpu in cpus]
    if not cpus or 0 in known:  # half a table is no table
        return [tuple(cpus)] if cpus else []
    out: list[Cpus] = []
    rest = tuple(cpus)
    while rest:
        limit = BAND * max(speed[cpu] for cpu in rest)
        out.append(tuple(cpu for cpu in rest if speed[cpu] >= limit))
        rest = tuple(cpu for cpu in rest if speed[cpu] < limit)
    return out


def by_node(cpus: Sequence[int], nodes: Mapping[int, int]) -> dict[int, Cpus]:
    """node -> its cpus among `cpus`."""
    found = sorted({nodes.get(cpu, 0) for cpu in cpus})
    return {node: tuple(cpu for cpu in cpus if nodes.get(cpu, 0) == node) for node in found}


def choose(cpus: Cpus, need: int, top: Topology) -> Tuple[Cpus, Tuple[str, ...]]:
    """The cpus of an automatic plan, in the order in which the simulator takes them, and notes.

    One node, when one has `need` cpus (the largest; of equal ones the first); else all of them, and it is said. Faster cores come first.
    """
    nodes, notes = by_node(cpus, top.nodes), []
    fits = [node for node, own in nodes.items() if len(own) >= need]
    texts = ", ".join(f"node {node}: {render(own)}" for node, own in nodes.items())
    if len(nodes) > 1 and fits:
        node = max(fits, key=lambda n: (len(nodes[n]), -n))
        notes.append(f"cpus of node {node} only ({texts}); fly_cpus names others")
        nodes = {node: nodes[node]}
    elif len(nodes) > 1:
        notes.append(f"no node has the {need} cpus that are needed ({texts}): the set spans nodes, and some memory is remote")
    order = tuple(cpu for own in nodes.values() for band in bands(own, top.speed) for cpu in band)
    return order, tuple(notes)


def mems(cpus: Sequence[int], nodes: Mapping[int, int]) -> Cpus:
    """Memory nodes that belong to the cpus; none on a machine with one node, where there is nothing to choose."""
    return tuple(by_node(cpus, nodes)) if len(set(nodes.values())) > 1 else ()


def remarks(sim: Cpus, top: Topology) -> Tuple[str, ...]:
    """What is odd about the simulator's set: several nodes, cores of different speed."""
    out = []
    nodes = by_node(sim, top.nodes)
    if len(nodes) > 1:
        out.append(f"the simulator's cpus {render(sim)} are on nodes {render(nodes)}: some of its memory is remote")
    groups = bands(sim, top.speed)
    if len(groups) > 1:
        out.append(f"the simulator has fast and slow cores ({' and '.join(map(render, groups))}): each tick waits for the slow ones")
    return tuple(out)


def remote(allowed: Cpus, cpus: Sequence[int], nodes: Mapping[int, int]) -> str:
    """Empty, or what is wrong when the memory nodes that the guest may use are not those of the cpus."""
    own = mems(cpus, nodes)
    lacking = [node for node in own if allowed and node not in allowed]
    if not lacking:
        return ""
    return (
        f"cpus {render(cpus)} are on nodes {render(own)}, memory may come from nodes {render(allowed)} only: "
        f"every access is remote where node {render(lacking)} is meant; let the guest's memory nodes follow its cpus"
    )
