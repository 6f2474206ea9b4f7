# SPDX-License-Identifier: Apache-2.0
"""ssh through Fabric: ~/.ssh/config, agents, keys and ProxyJump work; host keys are checked, always."""

from __future__ import annotations

import functools
import os
import shlex
import socket
import threading
from collections.abc import Sequence
from typing import Any

from flyops.errors import ConnectError
from flyops.model.target import Target
from flyops.transport.streams import ChannelStream

KEEPALIVE_S = 15
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


class SshLink:
    """One ssh connection; a channel for each command. Opened at the first one."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._connection: Any = None

    def open(self, argv: Sequence[str]) -> ChannelStream:
        """Start a command. Quoted once, here: ssh hands a text to the login shell."""
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._target)
            transport = self._connection.client.get_transport()
        from paramiko import SSHException

        try:
            channel = transport.open_session(timeout=self._target.connect_s)
            channel.exec_command(shlex.join(argv))
        except (SSHException, OSError, EOFError, AttributeError) as err:
            raise ConnectError(f"the ssh connection does not take a command: {err}", where=self._target.name, fix="try it by hand") from err
        return ChannelStream(channel)

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def connect(target: Target) -> Any:
    """An open Fabric connection with checked keys, or a ConnectError that says what to do."""
    from fabric import Config, Connection
    from paramiko import AuthenticationException, BadHostKeyException, SSHException

    kwargs: dict[str, Any] = {"banner_timeout": target.connect_s, "auth_timeout": target.connect_s}
    if target.key_file:
        kwargs |= {"key_filename": os.path.expanduser(target.key_file), "look_for_keys": False}
    connection = Connection(
        target.address,
        user=target.user or None,
        port=target.port or None,
        connect_timeout=int(target.connect_s) or 1,
        connect_kwargs=kwargs,
        config=Config(),
    )
    files = known_hosts_files(target, connection)
    _check_keys(connection, files, files[0] if target.accept_new else "")
    place = f"{connection.user}@{connection.host}:{connection.port}"
    try:
        connection.open()
    except BadHostKeyException as err:
        name = _known_name(connection)
        raise ConnectError(
            f"the host key of {place} has CHANGED: expected {_fingerprint(err.expected_key)}, found {_fingerprint(err.key)}; it is in {_holder(files, name)}",
            where=target.name,
            fix=f"if the change is meant, remove the old key (ssh-keygen -f {_holder(files, name)} -R {shlex.quote(name)}) and add the new one; if not, someone may be in between",
        ) from err
    except _unknown_key() as err:
        raise ConnectError(
            f"the host key of {place} is unknown: {err}; looked in {', '.join(files) or 'no file'}",
            where=target.name,
            fix=f"compare that fingerprint with the host's own, then: ssh-keyscan -p {connection.port} {connection.host} >> {files[0] if files else '~/.ssh/known_hosts'}",
        ) from err
    except AuthenticationException as err:
        raise ConnectError(
            f"{place} does not accept our key: {err}", where=target.name, fix="set ansible_user and ansible_ssh_private_key_file"
        ) from err
    except (SSHException, OSError, EOFError) as err:
        raise ConnectError(f"cannot connect to {place}: {err}", where=target.name, fix="is it up, and are address and port right?") from err
    _tune(connection)
    return connection


def known_hosts_files(target: Target, connection: Any) -> list[str]:
    """The files that hold known keys: ours when given, else ssh's own."""
    if target.known_hosts_file:
        return [os.path.expanduser(target.known_hosts_file)]
    own = connection.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts")
    return [os.path.expanduser(path) for path in (*shlex.split(own), SYSTEM_KNOWN_HOSTS)]


def _check_keys(connection: Any, files: list[str], new_file: str) -> None:
    """Fabric accepts any key by default; this refuses unknown and changed ones, on jump hosts, too. `new_file` takes new ones when asked."""
    from fabric import Connection

    hop = connection
    while isinstance(hop, Connection):
        for path in files:
            if os.path.exists(path):
                hop.client.load_system_host_keys(path)
        hop.client.set_missing_host_key_policy(_write_down(new_file) if new_file else _refuse())
        hop = hop.gateway


def _unknown_key() -> Any:
    return type(_refuse()).Unknown


@functools.cache
def _refuse() -> Any:
    """Made at the first connection: paramiko takes a third of a second to import."""
    from paramiko import MissingHostKeyPolicy, SSHException

    class Refuse(MissingHostKeyPolicy):
        """Says which key was offered."""

        class Unknown(SSHException):
            """A host that no file knows."""

        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            raise self.Unknown(f"it offers {_fingerprint(key)}")

    return Refuse()


def _write_down(file: str) -> Any:
    """accept-new: the key of a host that no file knows is added to the file; paramiko still refuses a changed one."""
    from paramiko import MissingHostKeyPolicy

    class WriteDown(MissingHostKeyPolicy):
        """Adds a line."""

        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            os.makedirs(os.path.dirname(os.path.abspath(file)), mode=0o700, exist_ok=True)
            with open(file, "a", encoding="utf-8") as stream:
                stream.write(f"{hostname} {key.get_name()} {key.get_base64()}\n")

    return WriteDown()


def _fingerprint(key: Any) -> str:
    return f"{key.get_name()} {key.fingerprint}"


def _known_name(connection: Any) -> str:
    return str(connection.host) if connection.port == 22 else f"[{connection.host}]:{connection.port}"


def _holder(files: list[str], name: str) -> str:
    """The file that knows this host (hashed names are not looked through)."""
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                if any(line.split(" ", 1)[0].split(",").count(name) for line in stream):
                    return path
        except OSError:
            continue
    return next((path for path in files if os.path.exists(path)), files[0])


def _tune(connection: Any) -> None:
    transport = connection.client.get_transport()
    transport.set_keepalive(KEEPALIVE_S)
    try:
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (AttributeError, OSError):  # a jump host's channel is no socket
        return
