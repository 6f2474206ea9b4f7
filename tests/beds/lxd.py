# SPDX-License-Identifier: Apache-2.0
"""A real LXD of the test's own: a daemon in its own mount namespace with its own folder, a pool, and an image made of the guests' cached base.

LXD 5.0.2 of Debian is the stand-in for Incus: the same API, hooks and scheduler, another name. It is never the LXD of this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.modules import incus_guest

METADATA = "architecture: x86_64\ncreation_date: 1700000000\nproperties: {description: flyops test}\n"
WAIT_S = 120


def why_not() -> str:
    """Why LXD cannot run here; empty when it can."""
    if os.geteuid() != 0:
        return "a daemon of containers needs root"
    lacking = [tool for tool in ("lxd", "lxc", "tar", "unshare") if not shutil.which(tool)]
    return f"not installed here: {', '.join(lacking)}" if lacking else ""


@dataclass(frozen=True)
class Lxd:
    """The daemon's folder; `tools` is on its PATH."""

    folder: Path
    tools: Path
    pool: str

    def __call__(self, *argv: str, check: bool = True) -> str:
        """A call of the client; what it printed."""
        done = subprocess.run(["lxc", *argv], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=WAIT_S)
        assert not check or done.returncode == 0, f"lxc {argv}: {done.stderr}"
        return (done.stdout + done.stderr).strip()

    def get(self, path: str) -> Any:
        """A document of the API."""
        return json.loads(self("query", path))

    def converge(self, check: bool = False, **args: Any) -> dict[str, Any]:
        """The module, as the agent runs it."""
        host = RealHost()
        full = {"binary": "lxc", "image": "fly", "stop_wait": 20, **args}
        found: dict[str, Any] = run_module(incus_guest, full, OverlayHost(host) if check else host, diff=True)
        return found

    def shape(self, name: str) -> dict[str, Any]:
        """What an operator set on an instance, without the daemon's own keys."""
        found = self.get(f"/1.0/instances/{name}")
        config = {key: value for key, value in found["config"].items() if not key.startswith(("volatile.", "image."))}
        return {"config": config, "devices": found["devices"], "profiles": found["profiles"]}


@pytest.fixture(scope="module")
def lxd(lxc_base: str) -> Iterator[Lxd]:
    """A daemon with one image; everything it had is gone afterwards."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    # Its socket's path must stay short, so pytest's own folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="flyt-lxd-", dir="/tmp"))
    folder.chmod(0o755)  # an unprivileged instance must come through to its files
    tools = folder / "tools"
    tools.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LXD_DIR", str(folder / "d"))
        patch.setenv("LXD_CONF", str(folder / "conf"))
        (folder / "d").mkdir(mode=0o711)
        process = _daemon(folder)
        try:
            made = Lxd(folder, tools, _furnish(folder, lxc_base))
            yield made
            _empty(made)
        finally:
            subprocess.run(["lxd", "shutdown", "--timeout", "30"], capture_output=True, check=False, timeout=WAIT_S)
            process.wait(WAIT_S)
            shutil.rmtree(folder, ignore_errors=True)
    assert not folder.exists(), f"{folder} is still there"


def _daemon(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PATH": f"{folder / 'tools'}:{os.environ['PATH']}"}
    log = (folder / "log").open("wb")
    argv = ["unshare", "--mount", "--propagation", "private", "lxd", "--group", "root"]
    process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    ready = subprocess.run(["lxd", "waitready", "--timeout", str(WAIT_S)], capture_output=True, check=False, timeout=WAIT_S + 10)
    if ready.returncode:
        process.kill()
        pytest.skip(f"LXD does not start here: {(folder / 'log').read_text(errors='replace')[-300:]}")
    return process


def _furnish(folder: Path, base: str) -> str:
    """A pool (btrfs in a file where that works: it keeps sizes, and copies at once; else a folder) and the image `fly`."""
    (folder / "metadata.yaml").write_text(METADATA)
    # The same base as the LXC guests', without what no test reads.
    drop = [f"--exclude=./usr/share/{name}" for name in ("doc", "man", "locale", "info")]
    image = folder / "image.tar"
    subprocess.run(["tar", "-cf", image, "-C", folder, "metadata.yaml", "--transform", "s,^\\./,rootfs/,", *drop, "-C", base, "."], check=True)
    subprocess.run(["lxc", "image", "import", image, "--alias", "fly", "--quiet"], check=True, capture_output=True)
    image.unlink()
    for driver, options in (("btrfs", ["size=3GiB"]), ("dir", [])):
        if subprocess.run(["lxc", "storage", "create", "pool", driver, *options], capture_output=True, check=False).returncode == 0:
            subprocess.run(["lxc", "profile", "device", "add", "default", "root", "disk", "path=/", "pool=pool"], check=True, capture_output=True)
            return driver
    pytest.fail("no pool could be made")


def _empty(made: Lxd) -> None:
    """Instances first: a pool in use cannot be removed, and its file would stay mounted."""
    deadline = time.monotonic() + WAIT_S
    while (names := [one["name"] for one in made.get("/1.0/instances?recursion=1")]) and time.monotonic() < deadline:
        for name in names:
            made("delete", "--force", name, check=False)  # one that just failed to start may be busy for a moment
    for image in made.get("/1.0/images?recursion=1"):
        made("image", "delete", image["fingerprint"])
    made("profile", "device", "remove", "default", "root")
    made("storage", "delete", "pool")
