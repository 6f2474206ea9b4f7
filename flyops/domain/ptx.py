# SPDX-License-Identifier: Apache-2.0
"""What a PTX text says of itself, and whether a driver loads it for a card as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_ARCH = "sm_75"  # committed and embedded; any card since then can be reached from it, by JIT
# Oldest driver of a branch -> newest PTX ISA that it reads (release notes of the PTX ISA; each CUDA release names its driver).
_ISA = (
    (525, (8, 0)), (530, (8, 1)), (535, (8, 2)), (545, (8, 3)), (550, (8, 4)), (555, (8, 5)), (560, (8, 5)), (565, (8, 6)),
    (570, (8, 7)), (575, (8, 8)), (580, (9, 0)), (590, (9, 1)),
)  # fmt: skip
_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+(sm_\d+[af]?)", re.MULTILINE)
_START = r"(?:^|[;{}])\s*(?:@!?%\w+\s+)?"  # of a statement; several may share a line
_FMA = re.compile(_START + r"((?:fma|mad)\.(?:rn|rz|rm|rp)[.\w]*)", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Without a rounding mode the assembler may fuse a product and a sum after all.
_LOOSE = re.compile(_START + r"((?:mul|add|sub)\.f64)\b", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+(\w+)")
ENTRIES = ("fly_kick", "fly_windows")  # what flysim asks the driver for
_ARCH = re.compile(r"sm_(\d+)([af]?)")


@dataclass(frozen=True)
class Header:
    """The first lines of a PTX text."""

    isa: tuple[int, int]
    target: str


def header(text: str) -> Header | None:
    """`.version` and `.target` of a PTX text, or None when it has none."""
    version, target = _VERSION.search(text), _TARGET.search(text)
    return Header((int(version[1]), int(version[2])), target[1]) if version and target else None


def arch_of(capability: str) -> str | None:
    """`sm_90` for `9.0`, the form of `nvidia-smi --query-gpu=compute_cap`."""
    found = re.fullmatch(r"\s*(\d+)\.(\d)\s*", capability)
    return "sm_%s%s" % (found[1], found[2]) if found else None


def known_arch(arch: str) -> bool:
    """Whether this is how an arch is written (`sm_90`, `sm_90a`)."""
    return _ARCH.fullmatch(arch) is not None


def virtual(arch: str) -> str:
    """`compute_90` for `sm_90`: what a compiler is asked for to make PTX of that target."""
    return arch.replace("sm_", "compute_", 1)


def number(arch: str) -> int:
    """`90` for `sm_90a`; 0 when it is no arch."""
    found = _ARCH.fullmatch(arch)
    return int(found[1]) if found else 0


def newest_isa(driver: str) -> tuple[int, int] | None:
    """The newest PTX ISA that a driver (`535.54.03` or `535`) reads; None for one older than the table or not understood."""
    found = re.match(r"(\d+)", driver)
    branch = int(found[1]) if found else 0
    known = [isa for oldest, isa in _ISA if oldest <= branch]
    return known[-1] if known else None


def problems(text: str, arch: str, driver: str = "") -> list[str]:
    """Why this PTX must not be shipped for a card of this arch (and driver, when it is known); empty when it may."""
    seen = header(text)
    if seen is None:
        return ["not PTX: no .version and .target line"]
    found = []
    if seen.target != arch:
        found.append(".target: expected %s, found %s" % (arch, seen.target))
    newest = newest_isa(driver) if driver else None
    if driver and newest is None:
        found.append("driver: expected %d or newer, found %s" % (_ISA[0][0], driver))
    if newest and seen.isa > newest:
        found.append(".version: driver %s reads up to %d.%d, found %d.%d" % (driver, *newest, *seen.isa))
    code = _COMMENT.sub("", text)
    fused = _FMA.findall(code)
    if fused:
        found.append(
            "%d fused multiply-adds (%s): floating point would differ from the CPU; compile with --fmad=false" % (len(fused), fused[0].strip())
        )
    return found + _damage(code)


def _damage(text: str) -> list[str]:
    """What a damaged or doctored text still hides behind a right header."""
    found, entries = [], _ENTRY.findall(text)
    loose = _LOOSE.findall(text)
    if loose:
        found.append("%d operations without a rounding mode (%s): the driver may fuse them; compile with --fmad=false" % (len(loose), loose[0]))
    if text.count("{") != text.count("}"):
        found.append("cut off: %d braces opened, %d closed" % (text.count("{"), text.count("}")))
    if 0 < len(set(ENTRIES) & set(entries)) < len(ENTRIES):
        found.append("entries: expected %s, found %s" % (", ".join(ENTRIES), ", ".join(sorted(entries))))
    return found


def loads(text: str, arch: str) -> str:
    """How a card of this arch takes this PTX: `exact`, `jit` (made for a lower one) or `no` (made for a higher one, or not PTX)."""
    seen = header(text)
    if seen is None:
        return "no"
    if seen.target == arch:
        return "exact"
    # An `a` or `f` target is for its own card (or family) only.
    return "jit" if seen.target[-1].isdigit() and number(seen.target) < number(arch) else "no"
