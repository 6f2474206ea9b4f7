# SPDX-License-Identifier: Apache-2.0
"""A real sshd inside a real guest: Debian's own package and unit, a host key and users' keys that the test makes.

The guests' base has no openssh-server. Its packages are fetched once, by apt, into the user's cache, and unpacked in the guest.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyops import places
from flyops.operations import rootfs
from tests.beds.lxc import Guest
from tests.beds.ssh import make_key

PACKAGES = ("openssh-server", "openssh-sftp-server", "openssh-client", "libwrap0", "runit-helper", "ucf")
BRIDGE = {"bridge": "flyt-ssh", "bridge_address": "10.119.0.1/24"}
WAIT_S = 20.0
CONFIG = """\
HostKey /etc/ssh/test_host
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
MaxStartups 100
Subsystem sftp /usr/lib/openssh/sftp-server
"""


def packages() -> list[Path]:
    """The .deb files, from the cache; fetched when they are not there. The suite is that of the guests' base."""
    final = places.cache("test-packages", f"openssh-{rootfs.SUITE}")
    if not final.exists():
        if not shutil.which("apt-get") or f"VERSION_CODENAME={rootfs.SUITE}" not in Path("/etc/os-release").read_text():
            pytest.skip(f"openssh-server of {rootfs.SUITE} is not in the cache, and this machine's apt has another suite")
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent) as work:
            made = Path(work, "debs")
            made.mkdir()
            done = subprocess.run(["apt-get", "download", *PACKAGES], cwd=made, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"openssh-server is not in the cache and cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
            made.rename(final)
    return sorted(final.glob("*.deb"))


def put(guest: Guest, path: str, data: bytes, mode: str = "0644", owner: str = "root") -> None:
    """A file in the guest."""
    script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1" && chown "$3" "$1"'
    words = ["lxc-attach", "--clear-env", "-n", guest.name, "--", "sh", "-c", script, "sh", path, mode, owner]
    subprocess.run(words, input=data, check=True)


@dataclass(frozen=True)
class SshGuest:
    """A guest whose sshd runs, and what a client needs for it."""

    guest: Guest
    folder: Path
    address: str

    @property
    def key(self) -> Path:
        """The client's key; root and ops accept it."""
        return self.folder / "client"

    @property
    def known_hosts(self) -> Path:
        """A file that knows the guest's host key."""
        return self.folder / "known_hosts"

    def know(self, public: Path, name: str = "known_hosts") -> Path:
        """Write a known_hosts file that holds one key for this guest."""
        kind, key = public.read_text().split()[:2]
        target = self.folder / name
        target.write_text(f"{self.address} {kind} {key}\n")
        return target

    def inventory(self, file: str = "hosts.yml", **more: Any) -> Path:
        """An inventory file with this guest as the ssh host `box`."""
        values: dict[str, Any] = {
            "ansible_connection": "ssh",
            "ansible_host": self.address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_known_hosts_file": str(self.known_hosts),
            "ansible_python_interpreter": "/usr/bin/python3",
            **more,
        }
        path = self.folder / file
        path.write_text(yaml.safe_dump({"all": {"hosts": {"box": values}}}))
        return path


def start(guest: Guest, folder: Path) -> SshGuest:
    """Install sshd in a guest with a bridge, and wait until it listens."""
    folder.mkdir(parents=True, exist_ok=True)
    make_key(folder / "host")
    make_key(folder / "client")
    for path in packages():
        put(guest, f"/root/debs/{path.name}", path.read_bytes())
    # Unpacked, not configured: dpkg's scripts would ask for debconf's answers and make keys of their own.
    guest.run("sh", "-c", "dpkg --force-depends --unpack /root/debs/*.deb && rm -r /root/debs")
    guest.run("sh", "-c", "id sshd >/dev/null 2>&1 || useradd --system --home-dir /run/sshd --shell /usr/sbin/nologin sshd")
    guest.run("useradd", "--create-home", "--shell", "/bin/sh", "--password", "*", "ops")  # no password, and not locked: sshd asks
    put(guest, "/etc/sudoers.d/ops", b"ops ALL=(ALL) NOPASSWD: ALL\n", "0440")
    public = (folder / "client.pub").read_bytes()
    put(guest, "/root/.ssh/authorized_keys", public, "0600")
    put(guest, "/home/ops/.ssh/authorized_keys", public, "0600", "ops:ops")
    guest.run("sh", "-c", "chmod 700 /root/.ssh /home/ops/.ssh && chown ops:ops /home/ops/.ssh")
    put(guest, "/etc/ssh/test_host", (folder / "host").read_bytes(), "0600")
    put(guest, "/etc/ssh/sshd_config", CONFIG.encode())
    put(guest, "/etc/default/ssh", b"SSHD_OPTS=\n")
    guest.run("systemctl", "daemon-reload")
    guest.run("systemctl", "start", "ssh")
    made = SshGuest(guest, folder, str(guest.made["address"]).partition("/")[0])
    made.know(folder / "host.pub")
    _wait(made)
    return made


def _wait(made: SshGuest) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((made.address, 22)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(made.guest.run("journalctl", "-u", "ssh", "--no-pager", check=False).stdout)
