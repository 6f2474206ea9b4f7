# SPDX-License-Identifier: Apache-2.0
"""The driver's user part as Debian packages: which of them, in which exact version, and held."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from flyops.domain import debian, driver
from flyops.errors import ModuleError, Refused
from flyops.model.change import Change
from flyops.model.host import Completed, Host

OURS = re.compile(r"(libnvidia-compute|nvidia-utils)-\d+(-server)?|libcuda1|libnvidia-ml1|nvidia-smi|nvidia-driver-cuda")


@dataclass(frozen=True)
class Found:
    """`wanted`: package -> the exact version, with all that it needs in the same version; empty: not offered, `offers` says what is."""

    installed: Mapping[str, str]
    held: Tuple[str, ...]
    wanted: Mapping[str, str]
    offers: str = ""

    @property
    def moving(self) -> Tuple[str, ...]:
        """Packages that are not there in that version."""
        return tuple(name for name, version in self.wanted.items() if self.installed.get(name) != version)

    @property
    def unheld(self) -> Tuple[str, ...]:
        """Packages that an upgrade would move."""
        return tuple(name for name in self.wanted if name not in self.held)

    @property
    def in_the_way(self) -> Tuple[str, ...]:
        """Held packages that must give way: those that move, and the same driver's of another branch."""
        old = [name for name in self.installed if OURS.fullmatch(name) and name not in self.wanted]
        return tuple(name for name in self.held if name in self.moving or (self.moving and name in old))


def _text(done: Completed) -> str:
    return done.stdout.decode("utf-8", "replace")


def _ask(host: Host, *argv: str) -> str:
    return _text(host.run(argv, query=True, env=debian.QUIET))


def look(names: Sequence[str], version: str, host: Host) -> Found:
    """What is installed, held and offered."""
    if host.which("dpkg-query") is None:
        raise ModuleError("dpkg-query is not on this host: it is no Debian", fix="strategy: bind or runfile")
    installed, _, _ = debian.parse_query(_ask(host, "dpkg-query", "-W", f"-f={debian.FORMAT}"))
    held = tuple(_ask(host, "apt-mark", "showhold").split())
    major = version.partition(".")[0]
    sets = [tuple(names)] if names else [tuple(name.format(major=major) for name in one) for one in driver.PACKAGE_SETS]
    asked = list(dict.fromkeys(name for one in sets for name in one))
    offered: Dict[str, List[str]] = {name: list(found) for name, found in driver.madison(_ask(host, "apt-cache", "madison", *asked)).items()}
    for name in asked:
        if name in installed:  # a repository may have moved on since
            offered.setdefault(name, []).insert(0, installed[name])
    chosen = next((found for one in sets for found in [driver.exact(offered, one, version)] if found), {})
    offers = "; ".join(f"{name} {', '.join(found)}" for name, found in sorted(offered.items()))
    return Found(installed, held, _whole(chosen, host), offers)


def _whole(chosen: Mapping[str, str], host: Host) -> Mapping[str, str]:
    """With every package that one of them needs in exactly its own version."""
    out: Dict[str, str] = {}
    todo = list(chosen.items())
    while todo:
        name, version = todo.pop(0)
        if name in out:
            continue
        out[name] = version
        fields = _ask(host, "apt-cache", "show", f"{name}={version}").splitlines()
        needs = " ".join(line.partition(":")[2] for line in fields if line.startswith(("Depends:", "Pre-Depends:")))
        todo += [(sibling, version) for sibling in driver.siblings(needs, version)]
    return out


def check_offer(found: Found, version: str) -> None:
    """An error with what is offered when it is not this version."""
    if not found.wanted:
        raise Refused(
            f"no packages of driver {version} are offered here; offered: {found.offers or 'none of the known names'}",
            fix="read the lists anew (apt: update_cache), add the repository that has it, name the packages, or strategy: runfile",
        )


def asked(found: Found) -> Dict[str, Any]:
    """The apt module's arguments for what has to move."""
    words = [f"{name}={version}" for name, version in found.wanted.items()]
    return {**debian.DEFAULTS, "name": words, "allow_downgrade": True, "install_recommends": False}


def mark(verb: str, names: Sequence[str], host: Host) -> None:
    """apt-mark hold or unhold."""
    if not names:
        return
    done = host.run(["apt-mark", verb, *names], env=debian.QUIET)
    if done.rc != 0:
        raise ModuleError(f"apt-mark {verb} {' '.join(names)} failed: {done.stderr.decode('utf-8', 'replace').strip()}", fix="see apt's message")


def perform(args: Mapping[str, Any], host: Host) -> None:
    """What the apt module would do with these arguments."""
    decision = debian.decide(args, debian.look(args, host))
    if isinstance(decision, Change):
        debian.perform(args, decision, host)


def install(found: Found, host: Host) -> None:
    """The holds go, the packages move, the holds come back. Cut off in between, the next run finds what is left to do."""
    mark("unhold", found.in_the_way, host)
    if found.moving:
        perform(asked(found), host)
    here, _, _ = debian.parse_query(_ask(host, "dpkg-query", "-W", f"-f={debian.FORMAT}"))
    wrong = [f"{name}: expected {version}, found {here.get(name, 'none')}" for name, version in found.wanted.items() if here.get(name) != version]
    if wrong:
        raise ModuleError(f"apt-get ended well, and the packages are not as asked: {'; '.join(wrong)}", fix="look at /var/log/apt/term.log")
    mark("hold", tuple(found.wanted) if found.moving else found.unheld, host)


def installed(names: Sequence[str], found: Found, host: Host) -> Tuple[str, ...]:
    """Packages of the driver that are here, with those that they need in their own version."""
    here = {name: found.installed[name] for name in names or sorted(found.installed) if name in found.installed and (names or OURS.fullmatch(name))}
    return tuple(name for name in _whole(here, host) if name in found.installed)


def remove(names: Sequence[str], found: Found, host: Host) -> None:
    """The packages and their holds go."""
    mark("unhold", [name for name in names if name in found.held], host)
    perform({**debian.DEFAULTS, "name": list(names), "state": "absent"}, host)
