# SPDX-License-Identifier: Apache-2.0
"""A real sshd on the loopback: own host key, own port, own authorized_keys, all in one folder; no file of the machine is touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
WAIT_S = 10.0


@dataclass(frozen=True)
class Sshd:
    """A running sshd and what a client needs for it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        """The client's key."""
        return self.folder / "client"

    @property
    def known_hosts(self) -> Path:
        """A file that knows the server's key."""
        return self.folder / "known_hosts"

    def host_vars(self, **more: Any) -> dict[str, Any]:
        """Connection variables of an inventory host."""
        values: dict[str, Any] = {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_known_hosts_file": str(self.known_hosts),
        }
        return {**values, **more}

    def children(self) -> list[int]:
        """Process ids of the sshd processes that serve connections, children first."""
        found = [self.process.pid]
        for pid in found:
            listed = Path(f"/proc/{pid}/task/{pid}/children")
            found += [int(word) for word in listed.read_text().split()] if listed.exists() else []
        return list(reversed(found[1:]))


def make_key(path: Path) -> None:
    """A fresh ed25519 key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, stdin=subprocess.DEVNULL)


def know(folder: Path, port: int, public: Path, name: str = "known_hosts") -> Path:
    """Write a known_hosts file that holds one key."""
    kind, key = public.read_text().split()[:2]
    target = folder / name
    target.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    return target


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def sshd(folder: Path, environment: dict[str, str] | None = None) -> Iterator[Sshd]:
    """Start one, stop it at the end. `environment` is set for every command it starts."""
    assert SSHD, "openssh-server is not installed"
    folder.mkdir(parents=True, exist_ok=True)
    make_key(folder / "host")
    make_key(folder / "client")
    (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
    (folder / "authorized_keys").chmod(0o600)
    port = free_port()
    know(folder, port, folder / "host.pub")
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        "MaxStartups": "100",
        "UseDNS": "no",
    }
    lines = [f"{name} {value}" for name, value in settings.items()]
    pairs = " ".join(f'"{name}={value}"' for name, value in (environment or {}).items())
    lines += [f"SetEnv {pairs}"] if pairs else []
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own compiled-in wish
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=(folder / "log").open("wb"))
    try:
        _wait(port, process, folder)
        yield Sshd(folder, port, process)
    finally:
        for pid in Sshd(folder, port, process).children():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "log").read_text()
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"sshd did not listen: {(folder / 'log').read_text()}")
