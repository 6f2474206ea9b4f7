# SPDX-License-Identifier: Apache-2.0
"""The words that run a command in a guest, by its manager; none of them hands this machine's environment on. Pure."""

from __future__ import annotations

from flyops.model.target import Target

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = (f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8")

# what a manager's client says when there is no agent to talk to -> what to do; the first that fits
HINTS = (
    (".conf' does not exist", "no such guest on that node: look at `pct list`, set ansible_pct_id to its number, or make it first"),
    ("not running!", "start it: pct start ID"),
    ("instance not found", "no such instance there: look at `incus list` (LXD: `lxc list`), set ansible_incus_name, or make it first"),
    ("instance is not running", "start it: incus start NAME (LXD: lxc start NAME)"),
    ("unix.socket", "the daemon is not running, or this user may not talk to it: start it (systemctl start incus, or lxd), or connect as root"),
    ("no such container", "no such container there: look at `podman ps -a` of that user, set ansible_podman_name, or make it first"),
    ("container state improper", "it does not run: podman start NAME"),
)


def attach(target: Target) -> list[str]:
    """Words before a command, as the guest's host must be given them; none for a target that is no guest."""
    kinds = {"lxc": _lxc, "pct": _pct, "incus": _incus, "podman": _podman}
    return kinds[target.connection](target) if target.connection in kinds else []


def hint(said: str) -> str:
    """What to do about a client's complaint; empty when it is not known."""
    return next((fix for pattern, fix in HINTS if pattern in said.lower()), "")


def _lxc(target: Target) -> list[str]:
    path = ["-P", target.lxc_path] if target.lxc_path else []
    # --clear-env: without it the whole environment of this machine would leak into the guest.
    return ["lxc-attach", "-n", target.guest, *path, "--clear-env", *(word for pair in ENVIRONMENT for word in ("-v", pair)), "--"]


def _pct(target: Target) -> list[str]:
    # pct has no word for it that all its versions know, so the guest's own env drops what pct would hand on.
    return ["pct", "exec", target.guest, "--", "env", "-i", *ENVIRONMENT]


def _incus(target: Target) -> list[str]:
    # -T: bytes as they are. With a terminal on our side the client would else ask for one on the other, which eats and doubles bytes.
    environment = [word for pair in ENVIRONMENT for word in ("--env", pair)]
    return [target.incus_binary or "incus", "exec", target.guest, "-T", *environment, "--"]


def _podman(target: Target) -> list[str]:
    # An image may name another user; an agent is root there, and `become` is for the others.
    environment = [word for pair in ENVIRONMENT for word in ("--env", pair)]
    return ["podman", "exec", "-i", "--user", "0", *environment, target.guest]
