# SPDX-License-Identifier: Apache-2.0
"""Install, upgrade and remove Debian packages."""

from __future__ import annotations

from typing import Any

from flyops.domain import debian
from flyops.domain.debian import DEFAULTS, Packages
from flyops.model.change import Change, Decision
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Install, upgrade and remove Debian packages. Reading the lists anew counts as a change only when they brought something.",
    args={
        "name": Arg("list", "Packages, as name or name=version", aliases=("package", "pkg"), elements="str"),
        "state": Arg("str", "What they should be", default="present", choices=("absent", "latest", "present")),
        "deb": Arg("path", "A package file on the host"),
        "update_cache": Arg("bool", "Read the package lists anew first", default=False, aliases=("update-cache",)),
        "cache_valid_time": Arg("int", "Only when they are older than this many seconds", default=0),
        "upgrade": Arg("str", "Upgrade everything", default="no", choices=("dist", "full", "no", "safe", "yes", "True", "False")),
        "purge": Arg("bool", "With state absent, remove settings, too", default=False),
        "autoremove": Arg("bool", "Remove what nothing needs any more", default=False),
        "install_recommends": Arg("bool", "Install what is recommended; the system's default when not given", aliases=("install-recommends",)),
        "default_release": Arg("str", "Release to prefer", aliases=("default-release",)),
        "only_upgrade": Arg("bool", "Only when it is installed already", default=False),
        "allow_unauthenticated": Arg("bool", "Take packages without a signature", default=False, aliases=("allow-unauthenticated",)),
        "allow_downgrade": Arg(
            "bool", "Take an older version than the one installed", default=False, aliases=("allow-downgrade", "allow_downgrades")
        ),
        "dpkg_options": Arg("str", "Options for dpkg", default=DEFAULTS["dpkg_options"]),
        "lock_timeout": Arg("int", "Seconds to wait while another apt runs", default=60),
    },
    exclusive=(("name", "deb"),),
    examples="""
- apt: {name: [curl, python3], state: present, update_cache: true, cache_valid_time: 3600}
- apt: {deb: /var/cache/flyops/tool_1.0_amd64.deb}
- apt: {name: oldtool, state: absent, purge: true}
""",
    returns={"cache_updated": "whether the lists were read anew", "stdout": "what apt said", "simulated": "check mode: what apt would install"},
)


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """YAML makes `upgrade: no` a boolean."""
    words = {"True": "yes", "False": "no"}
    return {**DEFAULTS, **args, "upgrade": words.get(str(args["upgrade"]), args["upgrade"])}


def read(args: dict[str, Any], host: Host) -> Packages:
    """Ask dpkg and apt."""
    return debian.look(_plain(args), host)


def plan(args: dict[str, Any], state: Packages) -> Decision:
    """The commands that it takes."""
    return debian.decide(_plain(args), state)


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Run them."""
    return debian.perform(_plain(args), change, host)
