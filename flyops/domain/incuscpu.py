# SPDX-License-Identifier: Apache-2.0
"""Which cpus an Incus or LXD instance is pinned to. Pure.

Their scheduler drops cpus that are offline or isolated from an explicit list without a word, and leaves an instance unpinned when none is
left; a bare number is a count, placed anew at each start or stop of any instance. So the list is made here, checked against the same facts,
and what they would drop is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from flyops.domain import cpuset, topology
from flyops.domain.cpuset import Cpus, CpusetError, render


@dataclass(frozen=True)
class Machine:
    """The cpus as the daemon's `/1.0/resources` tells them. `allowed`: what its own cgroup leaves it; empty: all that are online."""

    online: Cpus
    isolated: Cpus = ()
    allowed: Cpus = ()
    top: topology.Topology = field(default_factory=topology.Topology)

    @property
    def automatic(self) -> Cpus:
        """What may be taken unasked."""
        return tuple(c for c in self.online if c not in self.isolated and (not self.allowed or c in self.allowed))


def machine(resources: Mapping[str, Any], allowed: str = "") -> Machine:
    """From the JSON of `/1.0/resources`."""
    cores = [core for socket in resources.get("cpu", {}).get("sockets") or [] for core in socket.get("cores") or []]
    threads = [thread for core in cores for thread in core.get("threads") or []]
    siblings = {t["id"]: tuple(sorted(s["id"] for s in core["threads"])) for core in cores for t in core.get("threads") or []}
    return Machine(
        tuple(sorted(t["id"] for t in threads if t.get("online"))),
        tuple(sorted(t["id"] for t in threads if t.get("isolated"))),
        cpuset.parse(allowed),
        topology.Topology(siblings, {t["id"]: int(t.get("numa_node", 0)) for t in threads}),
    )


def explicit(cpus: Cpus, here: Machine, nodes: Cpus = ()) -> Tuple[Cpus, Tuple[str, ...]]:
    """The asked cpus, all of them, and notes; CpusetError where one would be dropped, or where they span nodes that were not named."""
    reasons = (
        ("offline or not there", [c for c in cpus if c not in here.online]),
        ("isolated (isolcpus)", [c for c in cpus if c in here.isolated and c in here.online]),
        ("outside the daemon's own set", [c for c in cpus if here.allowed and c in here.online and c not in here.allowed]),
    )
    dropped = [f"{render(found)} {'is' if len(found) == 1 else 'are'} {why}" for why, found in reasons if found]
    if dropped:
        raise CpusetError(
            f"cpus {render(cpus)}: {', '.join(dropped)}; the daemon would drop them without a word. Ask for cpus of {render(here.automatic)}"
        )
    spans = topology.by_node(cpus, here.top.nodes)
    if len(spans) > 1 and not set(spans) <= set(nodes):
        texts = ", ".join(f"node {node}: {render(own)}" for node, own in spans.items())
        raise CpusetError(f"cpus {render(cpus)} span nodes ({texts}), and some memory would be remote; take one node's, or name the nodes: mems")
    return cpus, tuple(remarks(cpus, here))


def remarks(cpus: Cpus, here: Machine) -> Iterable[str]:
    """What is odd about a set: two threads of one core in place of two cores, and cores that are shared with who is not in the set."""
    for core in cpuset.cores(cpus, here.top.siblings):
        whole = here.top.siblings.get(core[0], core)
        others = [c for c in whole if c not in core]
        if others:
            yield f"cpu {render(core)} shares its physical core with {render(others)}, which others may use"
        elif len(core) > 1 and len(core) < len(cpus):
            yield f"cpus {render(core)} are one physical core"


def pick(count: int, here: Machine, *, nodes: Cpus = (), taken: Cpus = (), now: Cpus = ()) -> Tuple[Cpus, Tuple[str, ...]]:
    """`count` cpus in whole cores of one node (of `nodes`, when named), of those that no other instance is pinned to first.

    A set that the instance has and that still fits stays: a second run changes nothing.
    """
    spans = topology.by_node(here.automatic, here.top.nodes)
    rooms: Dict[Tuple[int, ...], Cpus] = {(node,): own for node, own in spans.items() if not nodes or node in nodes}
    if len(nodes) > 1:
        rooms[tuple(nodes)] = tuple(c for node in nodes for c in spans.get(node, ()))
    fits = {room: own for room, own in rooms.items() if len(own) >= count}
    if not fits:
        found = ", ".join(f"node {node}: {len(own)} ({render(own)})" for node, own in spans.items())
        raise CpusetError(
            f"{count} cpus were asked for, and no node has as many; found {found or 'none'}. Ask for fewer, or name the nodes to span: mems"
        )
    if any(set(now) <= set(own) for own in fits.values()) and _enough(now, count, here):
        return now, ()
    return _best(count, fits, here, taken)


def _enough(now: Cpus, count: int, here: Machine) -> bool:
    """Whole cores, as many as are needed and none more."""
    cores = cpuset.cores(now, here.top.siblings)
    whole = all(set(core) >= {s for s in here.top.siblings.get(core[0], core) if s in here.automatic} for core in cores)
    return bool(now) and whole and len(now) - min(map(len, cores)) < count <= len(now)


def _best(count: int, fits: Mapping[Tuple[int, ...], Cpus], here: Machine, taken: Cpus) -> Tuple[Cpus, Tuple[str, ...]]:
    choices: List[Tuple[int, int, Cpus]] = []
    for order, own in enumerate(fits.values()):
        chosen = _take(count, own, here, taken)
        choices.append((len(set(chosen) & set(taken)), order, chosen))
    shared, _, chosen = min(choices)
    notes = []
    if shared:
        notes.append(f"cpus {render(set(chosen) & set(taken))} are pinned to other instances, too: no {count} free ones are left on a node")
    if len(chosen) != count:
        notes.append(f"{len(chosen)} cpus in place of {count}, so that no physical core is shared")
    return chosen, tuple(notes)


def _take(count: int, cpus: Cpus, here: Machine, taken: Cpus) -> Cpus:
    cores = sorted(cpuset.cores(cpus, here.top.siblings), key=lambda core: (bool(set(core) & set(taken)), core))
    out: List[int] = []
    for core in cores:
        if len(out) < count:
            out += core
    return tuple(sorted(out))


def limit(cpus: Sequence[int]) -> str:
    """The value of `limits.cpu`. One cpu is a range, too: a bare number would be a count."""
    return f"{cpus[0]}-{cpus[0]}" if len(cpus) == 1 else render(cpus)


def pinned(value: str) -> Cpus:
    """The cpus of a `limits.cpu`; empty for a count, and for what is no list."""
    if not value or value.isdigit():
        return ()
    try:
        return cpuset.parse(value)
    except CpusetError:
        return ()
