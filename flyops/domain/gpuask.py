# SPDX-License-Identifier: Apache-2.0
"""Which cards a guest is to have: one declaration for every kind of guest, and what it means on this host. Pure.

`gpu: true` is every card; a list names cards by UUID, by bus id, or by the index that nvidia-smi prints; `{mig: …}` names MIG instances.
The number in /dev/nvidiaN is the card's Device Minor. It is not nvidia-smi's index: that one counts the cards in the order of their bus ids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Mapping, Sequence, Tuple

from flyops.domain import nvidia

FALSE, TRUE = ("", "false", "no", "off", "none"), ("true", "yes", "on", "all")
BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
UUID = re.compile(r"GPU-[0-9a-f-]{4,36}", re.IGNORECASE)
MIG = re.compile(r"(?:MIG-)?(?P<card>[^/\s]+)/(?:gi)?(?P<gi>\d+)/(?:ci)?(?P<ci>\d+)", re.IGNORECASE)
FORMS = "true, false, a list of UUIDs (GPU-…), bus ids (0000:01:00.0) or nvidia-smi's indexes, or {mig: CARD/GI/CI}"


class GpuError(ValueError):
    """A declaration that means nothing, or nothing on this host; the text says what was found and what to do."""


@dataclass(frozen=True)
class Mig:
    """One MIG instance: the card it is on, its GPU instance, its compute instance."""

    card: str
    gi: int
    ci: int


@dataclass(frozen=True)
class Ask:
    """A declaration, read. Without any of the three no card is asked for."""

    every: bool = False
    cards: Tuple[str, ...] = ()
    mig: Tuple[Mig, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.every or self.cards or self.mig)


@dataclass(frozen=True)
class Card:
    """A card of the host. `minor` is -1 where the driver does not tell it."""

    bus: str
    minor: int
    uuid: str = ""
    model: str = ""


@dataclass(frozen=True)
class Chosen:
    """What was chosen: Device Minors of cards, minors of the nvidia-caps nodes that MIG instances need."""

    minors: Tuple[int, ...]
    caps: Tuple[int, ...] = ()


def ask(value: Any) -> Ask:
    """The declaration as it was typed in YAML or on a command line."""
    if isinstance(value, Mapping):
        if set(value) != {"mig"}:
            raise GpuError(f"gpu: expected {FORMS}; found the keys {', '.join(sorted(map(str, value))) or 'of an empty mapping'}")
        return Ask(mig=tuple(dict.fromkeys(_mig(item) for item in _items(value["mig"]))))
    if isinstance(value, (list, tuple)) or (isinstance(value, int) and not isinstance(value, bool)):
        return Ask(cards=tuple(dict.fromkeys(_name(item) for item in _items(value))))
    word = "" if value is None or value is False else "true" if value is True else str(value).strip()
    if word.lower() in FALSE + TRUE:
        return Ask(every=word.lower() in TRUE)
    return Ask(cards=tuple(dict.fromkeys(_name(item) for item in word.split(","))))


def _items(value: Any) -> List[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    return value.split(",") if isinstance(value, str) else [value]


def _name(value: Any) -> str:
    text = str(value).strip()
    if isinstance(value, bool) or not ((text.isascii() and text.isdigit()) or BUS.fullmatch(text) or UUID.fullmatch(text)):
        raise GpuError(f"gpu: expected {FORMS}; found {value!r}")
    return text


def _mig(value: Any) -> Mig:
    if isinstance(value, Mapping) and set(value) == {"gpu", "gi", "ci"}:
        value = f"{value['gpu']}/{value['gi']}/{value['ci']}"
    found = MIG.fullmatch(str(value).strip())
    if not found:
        more = " (its UUID alone does not say which card and instances it has: `nvidia-smi -L` and `nvidia-smi mig -lci` do)" if str(value).startswith("MIG-") else ""  # fmt: skip
        raise GpuError(f"gpu: expected a MIG instance as CARD/GI/CI (0/1/0) or {{gpu: 0, gi: 1, ci: 0}}, found {value!r}{more}")
    return Mig(_name(found["card"]), int(found["gi"]), int(found["ci"]))


def bus_id(text: str) -> str:
    """A bus id with its domain in the four digits of sysfs and /proc (nvidia-smi prints eight); empty when it is none."""
    found = BUS.fullmatch(text.strip())
    return f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}.{found[4]}".lower() if found else ""


def cards(information: Mapping[str, str]) -> Tuple[Card, ...]:
    """The cards, in nvidia-smi's order, from bus id -> text of /proc/driver/nvidia/gpus/BUS/information; excluded cards do not count."""
    out = []
    for bus, text in information.items():
        found = nvidia.information(text)
        minor = found.get("Device Minor", "")
        if found.get("GPU Excluded", "No") == "No":
            out.append(Card(bus_id(bus) or bus, int(minor) if minor.isdigit() else -1, found.get("GPU UUID", ""), found.get("Model", "")))
    return tuple(sorted(out, key=lambda card: card.bus))


def find(name: str, there: Sequence[Card]) -> Card:
    """The card of that name; none, or more than one, is an error that lists what there is."""
    if name.isdigit():
        hits = [there[int(name)]] if int(name) < len(there) else []
    elif BUS.fullmatch(name):
        hits = [card for card in there if card.bus == bus_id(name)]
    else:
        hits = [card for card in there if card.uuid.lower() == name.lower()]
        hits = hits or [card for card in there if card.uuid.lower().startswith(name.lower())]
    if len(hits) != 1:
        listed = "; ".join(f"{number}: {card.uuid or 'no UUID'} at {card.bus}" for number, card in enumerate(there)) or "none"
        unread = ", some UUIDs are not known before the card's first use: run nvidia-smi once" if any("?" in c.uuid for c in there) else ""
        raise GpuError(f"gpu: {'no card is' if not hits else 'more than one card is'} {name!r}; found {listed}{unread}")
    if hits[0].minor < 0:
        raise GpuError(f"gpu: the driver does not tell the Device Minor of {name!r} (too old for that): give every card (gpu: true)")
    return hits[0]


def choose(asked: Ask, there: Sequence[Card], mig_minors: Mapping[str, int]) -> Chosen | None:
    """The minors that the declaration means here; None means every node.

    `mig_minors`: /proc/driver/nvidia-caps/mig-minors, which also lists instances that could be; one that is has its node in /dev.
    """
    if asked.every or not asked:
        return None
    minors = [find(name, there).minor for name in asked.cards]
    caps: List[int] = []
    for one in asked.mig:
        minor = find(one.card, there).minor
        wanted = (f"gpu{minor}/gi{one.gi}/access", f"gpu{minor}/gi{one.gi}/ci{one.ci}/access")
        lacking = [name for name in wanted if name not in mig_minors]
        if lacking:
            have = ", ".join(sorted(name for name in mig_minors if name.startswith(f"gpu{minor}/"))[:6]) or "none"
            raise GpuError(f"gpu: card {one.card} has no MIG instance gi {one.gi}, ci {one.ci}: expected {' and '.join(lacking)}, found {have}")
        minors.append(minor)
        caps += [mig_minors[name] for name in wanted]
    return Chosen(tuple(sorted(set(minors))), tuple(sorted(set(caps))))


def given(names: Sequence[str], chosen: Chosen | None) -> Tuple[str, ...]:
    """Among the names below /dev those that the guest gets: the control nodes, and the chosen cards' and instances' own.

    A chosen one that is not there is an error.
    """
    if chosen is None:
        return tuple(names)
    own = {f"nvidia{minor}" for minor in chosen.minors} | {f"nvidia-caps/nvidia-cap{minor}" for minor in chosen.caps}
    lacking = sorted(own - set(names))
    if lacking:
        raise GpuError(f"gpu: expected the nodes {', '.join(f'/dev/{name}' for name in lacking)}, found none (no such instance, or nobody made them)")
    shared = {name for name in names if not re.fullmatch(r"nvidia\d+|nvidia-caps/.*|nvidia-caps-imex-channels/.*", name)}
    return tuple(name for name in names if name in shared | own)
