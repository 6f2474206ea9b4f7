# SPDX-License-Identifier: Apache-2.0
"""Driver packages kept from unattended upgrades: reported, done, undone. A driver that moves by itself breaks every guest at its next start."""

from __future__ import annotations

from typing import Any, Dict

from flyops.domain import hold
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Diff, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Keep packages from unattended upgrades by a file of apt's that is wholly ours, take it away again, or only report.",
    args={
        "state": Arg(default="read", choices=("read", "held", "free"), help="read only reports; free removes our file, nobody else's hold"),
        "patterns": Arg(
            "list",
            default=("nvidia-.*", "libnvidia-.*", "cuda-.*"),
            elements="str",
            help="regular expressions, from the beginning of a package's name",
        ),
        "file": Arg("path", default="/etc/apt/apt.conf.d/52flyops-hold", help="our file"),
    },
    examples="- name: The driver moves when we say so\n  package_hold: {state: held}\n",
    returns={
        "supported": "this host has dpkg and apt",
        "packages": "installed packages that the patterns mean, with version and what dpkg is to do",
        "exposed": "those that an unattended upgrade may move",
        "unattended": "unattended-upgrades is installed",
        "held": "no package is exposed, or our file keeps them",
        "warning": "what a reader should know; empty when all is well",
    },
)
QUERY = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"


def read(args: Dict[str, Any], host: Host) -> Dict[str, Any]:
    """Packages, apt's list, our file."""
    wrong = hold.wrong_pattern(args["patterns"])
    if wrong:
        raise ModuleError(f"patterns: {wrong}")
    seen = host.stat(args["file"])
    if seen is not None and seen.kind != "file":
        raise ModuleError(f"{args['file']} is a {seen.kind}, expected a file or nothing")
    supported = host.which("dpkg-query") is not None and host.which("apt-config") is not None
    state = {"supported": supported, "text": host.read_text(args["file"], missing=""), "packages": (), "listed": ()}
    if supported:
        state["packages"] = hold.parse_packages(_said(host, "dpkg-query", "-W", f"-f={QUERY}"))
        state["listed"] = hold.blacklist(_said(host, "apt-config", "dump"))
    return state


def _said(host: Host, *argv: str) -> str:
    done = host.run(list(argv), query=True, env={"LC_ALL": "C"})
    if done.rc != 0:
        raise ModuleError(f"{argv[0]} ended with {done.rc}: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
    return done.stdout.decode("utf-8", "replace")


def _values(args: Dict[str, Any], state: Dict[str, Any], listed: Any) -> Dict[str, Any]:
    ours = [p for p in state["packages"] if hold.matches(args["patterns"], p.name)]
    exposed = hold.exposed(state["packages"], args["patterns"], listed)
    unattended = any(p.name == "unattended-upgrades" for p in state["packages"])
    warning = ""
    if exposed and unattended:
        warning = f"unattended upgrades may move {', '.join(exposed)}: guests would break at their next start; to do: invoke host --hold-driver"
    return {
        "supported": state["supported"],
        "packages": {p.name: f"{p.version} ({p.want})" for p in ours},
        "exposed": list(exposed),
        "unattended": unattended,
        "held": state["supported"] and not exposed,
        "warning": warning,
    }


def plan(args: Dict[str, Any], state: Dict[str, Any]) -> Decision:
    """The file is written where something else does not say the same already; it is removed when it is ours."""
    if args["state"] == "read":
        return Same(_values(args, state, state["listed"]))
    foreign = bool(state["text"]) and not state["text"].startswith(hold.HEAD)
    if foreign:
        raise ModuleError(f"{args['file']} was not written by flyops", fix="name another file, or put its lines elsewhere")
    if args["state"] == "held" and not state["supported"]:
        raise ModuleError("dpkg-query or apt-config is not on this host: it is no Debian", fix="hold the driver by its own package manager")
    wanted = hold.render(args["patterns"]) if args["state"] == "held" else ""
    lines = set(hold.blacklist(state["text"]))
    others = [pattern for pattern in state["listed"] if pattern not in lines]
    if args["state"] == "held" and set(args["patterns"]) <= set(others):
        wanted = state["text"]  # somebody else's list has them all
    listed = [*others, *(args["patterns"] if wanted else ())]
    values = _values(args, state, listed)
    if wanted == state["text"]:
        return Same(values)
    return Change(before=state["text"], after=wanted, diff=(Diff(args["file"], state["text"], wanted),), values=values)


def apply(args: Dict[str, Any], change: Change, host: Host) -> None:
    """Write our file, or remove it."""
    if change.after:
        host.write_text(args["file"], change.after, mode=0o644)
    else:
        host.remove(args["file"])
