# SPDX-License-Identifier: Apache-2.0
"""A command as an ordinary user who can read the toolchain: root's home is closed to others, so a private mount namespace shows them only what they need."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

UID = 64123  # nobody's


def as_ordinary_user(argv: Sequence[str], home: Path, environment: Mapping[str, str], shown: Sequence[Path] = ()) -> list[str]:
    """The argument vector that runs `argv` as UID with HOME=home. `shown`: folders below /root that stay visible (Python's own is)."""
    kept = [path for path in [Path(sys.base_prefix), *shown] if path.is_relative_to("/root") and path.exists()]
    steps = ["set -e", "stage=$(mktemp -d)", "mount --make-rprivate /"]
    for number, path in enumerate(kept):
        steps += [f"mkdir $stage/{number}", f"mount --bind {shlex.quote(str(path))} $stage/{number}"]
    steps += ["chmod 755 $stage"]
    if kept:
        steps += ["mount -t tmpfs -o mode=755 tmpfs /root"]
    for number, path in enumerate(kept):
        steps += [f"mkdir -p {shlex.quote(str(path))}", f"mount --bind $stage/{number} {shlex.quote(str(path))}", f"umount $stage/{number}"]
    variables = {"HOME": str(home), **environment}
    words = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *argv]
    steps += ["rm -rf $stage", f"exec setpriv --reuid {UID} --regid {UID} --clear-groups --no-new-privs {shlex.join(words)}"]
    return ["unshare", "--mount", "sh", "-c", "\n".join(steps)]
