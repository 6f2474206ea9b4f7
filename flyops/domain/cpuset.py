# SPDX-License-Identifier: Apache-2.0
"""Lists of cpus: parse, render, divide between simulator, page and encoder, and compare what was asked with what a thread got.

Pure. The grammar is the kernel's (`Documentation/admin-guide/cgroup-v2.rst`, bitmap lists): numbers, ranges, and strides `0-8:2/4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence, Tuple

MAX_CPU = 8191  # the largest NR_CPUS a distribution kernel is built with is 8192
Cpus = Tuple[int, ...]


class CpusetError(ValueError):
    """A list of cpus that cannot be used; the text says what was found and what to do."""


@dataclass(frozen=True)
class Partition:
    """Who runs where. Without a partition all three share `cpus` and `sim`, `page`, `encoder` are that whole set (`encoder` stays empty)."""

    cpus: Cpus
    sim: Cpus
    page: Cpus
    encoder: Cpus
    divided: bool
    notes: tuple[str, ...] = ()


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise CpusetError(f"cpu list {whole!r}: expected a number, a range (0-7) or a stride (0-8:2/4), found {text!r}")
    value = int(text)
    if value > MAX_CPU:
        raise CpusetError(f"cpu list {whole!r}: cpu {value} is above {MAX_CPU}")
    return value


def _group(part: str, whole: str) -> list[int]:
    span, _, stride = part.partition(":")
    first, dash, last = span.partition("-")
    low = _number(first, whole)
    high = _number(last, whole) if dash else low
    if high < low:
        raise CpusetError(f"cpu list {whole!r}: the range {span} runs backwards; write {high}-{low}")
    if ":" not in part:
        return list(range(low, high + 1))
    if not dash or "/" not in stride:
        raise CpusetError(f"cpu list {whole!r}: a stride is FIRST-LAST:USED/GROUP (0-8:2/4), found {part!r}")
    used, group = (_number(n, whole) for n in stride.split("/", 1))
    if not 1 <= used <= group:
        raise CpusetError(f"cpu list {whole!r}: in {part!r} expected 1 <= used <= group, found {used}/{group}")
    return [cpu for cpu in range(low, high + 1) if (cpu - low) % group < used]


def parse(text: str) -> Cpus:
    """The cpus of a list in the order they were typed, each once. An empty text is the empty set."""
    whole = text.strip()
    if not whole:
        return ()
    out: dict[int, None] = {}
    for part in whole.split(","):
        for cpu in _group(part.strip(), whole):
            out[cpu] = None
    return tuple(out)


def render(cpus: Iterable[int]) -> str:
    """The list as the kernel prints it: sorted, neighbours joined (`0-3,8`)."""
    out: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if out and cpu == out[-1][1] + 1:
            out[-1][1] = cpu
        else:
            out.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in out)


def usable(asked: Cpus, *, online: Cpus = (), allowed: Cpus = (), isolated: Cpus = ()) -> tuple[Cpus, tuple[str, ...]]:
    """The cpus to use and notes. An asked cpu that is offline or outside the guest's own set is refused by number, never dropped silently.

    With nothing asked: what is allowed, without the isolated ones (an explicit list may name those, with a note).
    """
    if not asked:
        automatic = tuple(c for c in (allowed or online) if c not in isolated and (not online or c in online))
        if not automatic:
            raise CpusetError("no cpu is left to use: every allowed cpu is offline or isolated; name them explicitly")
        return automatic, ()
    offline = [c for c in asked if online and c not in online]
    if offline:
        raise CpusetError(f"cpus {render(offline)} are offline (online: {render(online)}); take them out of the list or bring them online")
    outside = [c for c in asked if allowed and c not in allowed]
    if outside:
        raise CpusetError(f"cpus {render(outside)} are outside this guest's set (it has {render(allowed)}); ask for those or widen the guest")
    kept_out = [c for c in asked if c in isolated]
    notes = (f"cpus {render(kept_out)} are isolated (isolcpus): taken because they were named",) if kept_out else ()
    return asked, notes


def cores(cpus: Cpus, siblings: Mapping[int, Cpus]) -> list[Cpus]:
    """Physical cores among `cpus`, in the order of their first cpu; a cpu without known siblings is a core of its own."""
    out: list[Cpus] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu not in seen:
            core = tuple(c for c in cpus if c == cpu or c in siblings.get(cpu, ()))
            core = (cpu, *(c for c in core if c != cpu and c not in seen))
            seen.update(core)
            out.append(core)
    return out


def _take(groups: list[Cpus], count: int) -> Cpus:
    """Cpus of the first groups until there are `count`; the last group is taken whole."""
    out: list[int] = []
    while groups and len(out) < count:
        out += groups.pop(0)
    return tuple(out)


def partition(cpus: Cpus, sim: int, encoder: int = 0, siblings: Mapping[int, Cpus] | None = None) -> Partition:
    """The first `sim` cpus for the simulator, the last `encoder` for the encoder, the rest for the page; whole physical cores stay together.

    A count that would cut a core is rounded up to whole cores, with a note; a set too small for that is refused.
    """
    if sim < 1 or encoder < 0:
        raise CpusetError(f"expected at least 1 cpu for the simulator and none or more for the encoder, found {sim} and {encoder}")
    if len(cpus) <= sim:
        raise CpusetError(
            f"no cpus left over: the simulator takes {sim} of {render(cpus)} ({len(cpus)}), the page needs at least one; lower sim or add cpus"
        )
    if len(cpus) - sim <= encoder:
        raise CpusetError(
            f"not enough for ENCODER_CORES: of {render(cpus)} the simulator takes {sim}, which leaves {len(cpus) - sim} for the page and {encoder} of the encoder"
        )
    groups = cores(cpus, siblings or {})
    for_sim = _take(groups, sim)
    groups.reverse()
    for_encoder = _take(groups, encoder)
    kept = set(for_sim) | set(for_encoder)
    page = tuple(c for c in cpus if c not in kept)
    if not page:
        raise CpusetError(
            f"no cpus left over: whole physical cores give the simulator {render(for_sim)} and the encoder {render(for_encoder)}; "
            f"lower sim or encoder to whole cores of {render(cpus)}"
        )
    notes = [
        f"{who}: {len(got)} cpus in place of {asked}, so that no physical core is shared"
        for who, got, asked in (("simulator", for_sim, sim), ("encoder", for_encoder, encoder))
        if len(got) != asked
    ]
    ordered = tuple(c for c in cpus if c in set(for_encoder))
    return Partition(cpus, for_sim, page, ordered, divided=True, notes=tuple(notes))


def divide(
    cpus: Cpus,
    sim: int,
    encoder: int = 0,
    *,
    minimum: int = 4,
    force: bool = False,
    siblings: Mapping[int, Cpus] | None = None,
) -> Partition:
    """`partition`, except below `minimum` cpus, where everyone shares the whole set unless `force` asks for a division."""
    if len(cpus) < minimum and not force:
        note = f"no partition: {len(cpus)} cpus are below the minimum of {minimum}"
        return Partition(cpus, cpus, cpus, (), divided=False, notes=(note,))
    return partition(cpus, sim, encoder, siblings)


def sets(parts: Partition, allowed: Cpus) -> dict[str, Cpus]:
    """Role -> cpus. `other` is everything that the guest has beside the simulator, also what flysim was not given."""
    return {"sim": parts.sim, "page": parts.page, "encoder": parts.encoder, "other": tuple(c for c in allowed or parts.cpus if c not in parts.sim)}


def shared_cores(parts: Sequence[Cpus], siblings: Mapping[int, Cpus]) -> list[str]:
    """One text per physical core that two parts share."""
    out = []
    for number, mine in enumerate(parts):
        for other in parts[number + 1 :]:
            out += [f"cpus {c} and {s} are one physical core" for c in mine for s in siblings.get(c, ()) if s != c and s in other]
    return out


def mismatch(asked: Cpus, found: Cpus) -> str:
    """Empty when they are the same set; else what was expected and what was found, and what kind of difference it is."""
    want, got = set(asked), set(found)
    if not want or want == got:
        return ""
    why = "the kernel gave the parent's whole set, which it does when none of the asked cpus are the parent's" if want < got else ""
    if not got & want:
        why = "none of the asked cpus: the set asked is not within the parent's"
    elif got < want:
        why = f"cpus {render(want - got)} are not within the parent's set or are offline"
    text = f"expected cpus {render(asked)}, found {render(found) or 'none'}"
    return f"{text} ({why})" if why else text


KEYS = {"v2": "AllowedCPUs", "v1": "CPUAffinity"}
HEADS = {"service": "Service", "slice": "Slice", "scope": "Scope"}
ROLES = ("sim", "page", "encoder", "other")


def _kind(unit: str) -> str:
    stem, _, kind = unit.rpartition(".")
    if kind not in HEADS or not stem:
        raise CpusetError(f"expected a unit such as flysim.service, found {unit!r}")
    if kind == "slice" and "-" in stem:
        raise CpusetError(f"{unit}: a dash in a slice name nests it under {stem.split('-')[0]}.slice; use a name without one")
    return kind


def dropin(unit: str, cpus: Cpus, cgroup: str, mems: Cpus = ()) -> str:
    """The text of a systemd drop-in that confines `unit`: AllowedCPUs= where cpuset is on cgroup v2, CPUAffinity= on v1.

    Memory nodes follow the cpus where there are several. Lists of several drop-ins are merged by systemd, so each begins anew.
    """
    if not cpus:
        raise CpusetError(f"{unit}: an empty set would keep the old mask; name the cpus")
    kind = _kind(unit)
    if kind != "service" and cgroup == "v1":
        raise CpusetError(f"{unit}: on cgroup v1 only a service can be confined (CPUAffinity=)")
    if cgroup not in KEYS:
        raise CpusetError(f"expected cgroup v1 or v2, found {cgroup!r}")
    key, value = KEYS[cgroup], render(cpus) if cgroup == "v2" else render(cpus).replace(",", " ")
    lines = [f"{key}=", f"{key}={value}"]
    if mems and cgroup == "v2":
        lines += ["AllowedMemoryNodes=", f"AllowedMemoryNodes={render(mems)}"]
    elif mems:
        lines += ["NUMAPolicy=bind", f"NUMAMask={render(mems).replace(',', ' ')}"]
    text = "\n".join(lines)
    return f"# Written by flyops (cpuset); the receipt in flyops' state folder knows what was here before.\n[{HEADS[kind]}]\n{text}\n"


def dropin_path(unit: str, root: str = "/etc/systemd/system") -> str:
    """Where the drop-in of a unit lives."""
    return f"{root}/{unit}.d/50-flyops-cpus.conf"


def dropins(
    sets: Mapping[str, Cpus],
    units: Mapping[str, str],
    cgroup: str,
    root: str = "/etc/systemd/system",
    mems: Mapping[str, Cpus] | None = None,
) -> dict[str, str]:
    """Path -> text for each unit of `units` (unit -> a role of `sets`). On cgroup v1 services alone: slices and scopes have no cpus there."""
    out = {}
    for unit, role in units.items():
        if role not in ROLES:
            raise CpusetError(f"{unit}: expected a role of {', '.join(ROLES)}, found {role!r}")
        if not sets[role]:
            raise CpusetError(f"{unit}: it is to run on the {role} cpus, and that set is empty")
        if cgroup == "v2" or _kind(unit) == "service":
            out[dropin_path(unit, root)] = dropin(unit, sets[role], cgroup, (mems or {}).get(role, ()))
    return out


def taskset(cpus: Cpus) -> str:
    """The command prefix that confines a program where no service manager does it."""
    return f"taskset --cpu-list {render(cpus)}" if cpus else ""


def allowed_list(status_text: str) -> Cpus:
    """`Cpus_allowed_list` of a /proc/PID/status."""
    for line in status_text.splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return parse(value)
    raise CpusetError("no Cpus_allowed_list line in the status text")


def cpuset_cgroup(cgroup_text: str) -> tuple[str, str]:
    """(`v1` or `v2`, path) of the cpuset controller in a /proc/PID/cgroup text."""
    unified = ""
    for line in cgroup_text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpuset" in controllers.split(","):
            return "v1", path
        if number == "0" and not controllers:
            unified = path
    return "v2", unified
