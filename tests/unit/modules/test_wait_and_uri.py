# SPDX-License-Identifier: Apache-2.0
"""uri and wait_for against real servers on the loopback and on a unix socket."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyops.agent.host import RealHost
from flyops.agent.overlay import OverlayHost
from flyops.agent.run import run_module
from flyops.modules import uri, wait_for


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with what it got."""

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _answer(self, code: int, data: bytes, kind: str = "application/json", **more: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """By path."""
        if self.path == "/moved":
            self._answer(302, b"", Location="/json")
        elif self.path == "/evil":
            self._answer(302, b"", Location="file:///etc/passwd")
        elif self.path == "/slow":
            time.sleep(3)
            self._answer(200, b"{}")
        elif self.path == "/bad":
            self._answer(503, b"no feature", "text/plain")
        elif self.path == "/auth":
            self._answer(200, json.dumps({"auth": self.headers.get("Authorization")}).encode())
        else:
            self._answer(200, b'{"ticks": 7}', X_Two="b")

    def do_POST(self) -> None:
        """Echo."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer(201, json.dumps({"body": body.decode(), "type": self.headers.get("Content-Type"), "x": self.headers.get("X")}).encode())


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The url of a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def ask(**args: Any) -> dict[str, Any]:
    """Run uri here."""
    return run_module(uri, args, RealHost(), diff=True)


def test_get_gives_json_headers_and_content_when_asked(base: str) -> None:
    """The keys that Ansible has."""
    result = ask(url=f"{base}/json", return_content=True)

    assert (result["status"], result["changed"], result["json"], result["content"]) == (200, False, {"ticks": 7}, '{"ticks": 7}')
    assert (result["content_type"], result["x_two"], result["redirected"]) == ("application/json", "b", False)
    assert "content" not in ask(url=f"{base}/json")


def test_post_formats(base: str) -> None:
    """JSON, form and raw bodies arrive as such."""
    as_json = ask(url=f"{base}/", method="POST", body={"a": 1}, body_format="json", status_code=201, headers={"X": 5})["json"]
    as_form = ask(url=f"{base}/", method="post", body={"a": "b c"}, body_format="form-urlencoded", status_code=[200, 201])["json"]
    as_text = ask(url=f"{base}/", method="POST", body="plain", status_code=201, headers={"content-type": "text/x"})["json"]

    assert as_json == {"body": '{"a": 1}', "type": "application/json", "x": "5"}
    assert as_form == {"body": "a=b+c", "type": "application/x-www-form-urlencoded", "x": None}
    assert as_text == {"body": "plain", "type": "text/x", "x": None}


def test_code_that_is_not_wanted_fails_with_the_body(base: str) -> None:
    """And the same code is fine when it is."""
    bad = ask(url=f"{base}/bad")

    assert bad["failed"]
    assert (bad["status"], bad["content"]) == (503, "no feature")
    assert "not [200]" in bad["msg"]
    assert ask(url=f"{base}/bad", status_code=[503])["failed"] is False


def test_redirects(base: str) -> None:
    """Followed when safe, not followed when told so, and never to a file."""
    assert ask(url=f"{base}/moved")["json"] == {"ticks": 7}
    assert ask(url=f"{base}/moved")["redirected"] is True
    assert ask(url=f"{base}/moved", follow_redirects="none", status_code=302)["status"] == 302
    assert "file:///etc/passwd' is not allowed" in ask(url=f"{base}/evil")["msg"]


def test_user_and_password_go_with_the_first_request(base: str) -> None:
    """Basic authentication; the password is in no result."""
    result = ask(url=f"{base}/auth", url_username="u", url_password="p:q")

    assert result["json"]["auth"] == "Basic dTpwOnE="
    assert "p:q" not in json.dumps(result)


def test_timeout_and_nobody_there(base: str) -> None:
    """Both fail with status -1."""
    slow = ask(url=f"{base}/slow", timeout=0.3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = ask(url=f"http://127.0.0.1:{free.getsockname()[1]}/")

    assert (slow["failed"], slow["status"]) == (True, -1)
    assert (nobody["failed"], nobody["status"]) == (True, -1)


def test_dest_is_written_once(base: str, tmp_path: Path) -> None:
    """A file or a folder as dest; the second time nothing changes."""
    first = ask(url=f"{base}/a.json", dest=str(tmp_path), mode="0600")
    second = ask(url=f"{base}/a.json", dest=str(tmp_path), mode="0600")

    assert (first["changed"], second["changed"]) == (True, False)
    assert (tmp_path / "a.json").read_bytes() == b'{"ticks": 7}'
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600


def test_check_mode_makes_no_request() -> None:
    """Nothing listens there, and that is fine."""
    result = run_module(uri, {"url": "http://127.0.0.1:9/"}, OverlayHost(RealHost()))

    assert (result["failed"], result["unknown"], result["changed"]) == (False, True, False)


def test_unix_socket(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The url's host is only a name then."""
    path = str(tmp_path_factory.mktemp("u") / "s")

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

        def get_request(self) -> tuple[Any, Any]:
            connection, _ = super().get_request()
            return connection, ("local", 0)

    with Server(path, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        good = ask(url="http://feed/json", unix_socket=path)
        bad = ask(url="http://feed/bad", unix_socket=path)
        server.shutdown()

    assert good["json"] == {"ticks": 7}
    assert bad["status"] == 503
    assert ask(url="http://feed/json", unix_socket=path + ".no")["status"] == -1


def wait(**args: Any) -> dict[str, Any]:
    """Run wait_for here."""
    return run_module(wait_for, {"sleep": 0.05, "timeout": 5, **args}, RealHost())


def test_port_that_opens_later() -> None:
    """Started waits for it; stopped waits for its end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    timer = threading.Timer(0.3, listener.listen)
    timer.start()
    began = time.monotonic()

    opened = wait(port=port)
    took = time.monotonic() - began
    still = wait(port=port, state="stopped", timeout=0.2)
    listener.close()
    closed = wait(port=port, state="stopped")
    timer.join()

    assert (opened["failed"], opened["changed"]) == (False, False)
    assert took >= 0.25
    assert still["failed"]
    assert closed["failed"] is False


def test_port_that_never_opens() -> None:
    """The message names it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        assert f"127.0.0.1:{port}" in wait(port=port, timeout=0.2)["msg"]


def test_what_a_port_says() -> None:
    """search_regex reads the greeting."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"SSH-2.0-fly\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Greeter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        good = wait(port=port, search_regex=r"SSH-2\.0-(\w+)")
        bad = wait(port=port, search_regex="HTTP", timeout=0.2)
        server.shutdown()

    assert good["match_groups"] == ["fly"]
    assert bad["failed"]
