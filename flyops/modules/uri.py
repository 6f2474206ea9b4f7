# SPDX-License-Identifier: Apache-2.0
"""Make one HTTP request from the host."""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Optional

from flyops.domain import attributes, paths, placing, web
from flyops.domain.attributes import ATTRIBUTE_ARGS, Attributes
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec import Arg, Spec

SPEC = Spec(
    doc="Make one HTTP request from the host. Check mode makes none.",
    args={
        "url": Arg("str", "Where to", required=True),
        "method": Arg("str", "What to do there", default="GET"),
        "body": Arg("raw", "What to send"),
        "body_format": Arg("str", "How to send it", default="raw", choices=("form-urlencoded", "json", "raw")),
        "status_code": Arg("list", "Codes that count as success", default=(200,), elements="int"),
        "return_content": Arg("bool", "Return the body as text", default=False),
        "headers": Arg("dict", "Headers to send"),
        "timeout": Arg("float", "Seconds for the whole of it", default=30.0),
        "dest": Arg("path", "File or folder to write the body to"),
        **ATTRIBUTE_ARGS,
        "follow_redirects": Arg("str", "Which redirects to follow", default="safe", choices=("all", "no", "none", "safe", "urllib2", "yes")),
        "validate_certs": Arg("bool", "Check the server's certificate", default=True),
        "ca_path": Arg("path", "Certificates to trust"),
        "url_username": Arg("str", "User for basic authentication", aliases=("user",)),
        "url_password": Arg("str", "Its password", secret=True, aliases=("password",)),
        "force_basic_auth": Arg("bool", "Send them with the first request", default=True),
        "http_agent": Arg("str", "What to call ourselves", default="flyops"),
        "unix_socket": Arg("path", "Connect to this socket in place of the url's host"),
        "use_proxy": Arg("bool", "Use the proxy that the environment names", default=True),
        "creates": Arg("path", "When it exists no request is made"),
        "removes": Arg("path", "When it does not exist no request is made"),
    },
    check="unknown",
    examples="""
- uri: {url: "http://127.0.0.1:8080/status", return_content: true}
- uri: {url: "http://127.0.0.1:8080/pause", method: POST, body: {ticks: 10}, body_format: json, status_code: [200, 202]}
""",
    returns={"status": "the code", "json": "the body, when it is JSON", "content": "the body as text", "url": "where it ended", "elapsed": "seconds"},
)
SAFE = ("GET", "HEAD")
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    reason: str
    url: str
    headers: list[tuple[str, str]]
    content: bytes


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, follow: str) -> None:
        self._follow = follow

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        web.check_url(newurl)
        if self._follow in ("none", "no") or (self._follow in ("safe", "urllib2") and req.get_method() not in SAFE):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _UnixHandler(urllib.request.AbstractHTTPHandler):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> Any:
        path = self._path

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(self.timeout)
                self.sock.connect(path)

        return self.do_open(Connection, req)


@dataclass(frozen=True)
class State:
    """Whether there is a reason to make no request, and the attributes of dest."""

    idle: str = ""
    wanted: Attributes = field(default_factory=Attributes)


def read(args: dict[str, Any], host: Host) -> State:
    """Check the request; everything that can be wrong without asking fails here."""
    web.check_url(args["url"])
    web.body(args)
    web.headers(args)
    if not args["method"].isalpha():
        raise ModuleError(f"method {args['method']!r} is no word", fix="use GET, POST, PUT and the like")
    if args["creates"] and host.stat(paths.expand_home(args["creates"], host), follow=True) is not None:
        return State(f"skipped, since '{args['creates']}' exists")
    if args["removes"] and host.stat(paths.expand_home(args["removes"], host), follow=True) is None:
        return State(f"skipped, since '{args['removes']}' does not exist")
    return State(wanted=attributes.wanted(args, host))


def plan(args: dict[str, Any], state: State) -> Decision:
    """A request, unless there is a reason against it."""
    if state.idle:
        return Same({"stdout": state.idle}, msg=state.idle)
    return Change(after=state, values={"url": args["url"]})


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Make it. Only writing dest is a change."""
    started = time.monotonic()
    answer = _request(args)
    values: dict[str, Any] = {"changed": False, "status": answer.status, "url": answer.url, "redirected": answer.url != args["url"]}
    values.update(web.result_headers(answer.headers))
    values.update(elapsed=int(time.monotonic() - started), msg=f"{answer.reason} ({len(answer.content)} bytes)")
    ok = answer.status in args["status_code"]
    kind = values.get("content_type", "")
    values.update(web.content_values(answer.content, kind, wanted=args["return_content"] or not ok))
    if not ok:
        wanted = ", ".join(map(str, args["status_code"]))
        values.pop("msg")
        raise ModuleError(f"Status code was {answer.status} and not [{wanted}]: {answer.reason}", fix=f"ask {args['url']} by hand", **values)
    if args["dest"]:
        values.update(_store(args, host, answer, change.after.wanted))
    return values


def _opener(args: dict[str, Any]) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=args["ca_path"])
    if not args["validate_certs"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[Any] = [_Redirects(args["follow_redirects"]), urllib.request.HTTPSHandler(context=context)]
    if not args["use_proxy"] or args["unix_socket"]:
        handlers.append(urllib.request.ProxyHandler({}))
    if args["unix_socket"]:
        handlers.append(_UnixHandler(args["unix_socket"]))
    if args["url_username"] is not None and not args["force_basic_auth"]:
        known = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        known.add_password(None, args["url"], args["url_username"], args["url_password"] or "")
        handlers.append(urllib.request.HTTPBasicAuthHandler(known))
    opener = urllib.request.OpenerDirector() if args["unix_socket"] else urllib.request.build_opener(*handlers)
    if args["unix_socket"]:
        for handler in (*handlers, urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler()):
            if not isinstance(handler, urllib.request.HTTPSHandler):
                opener.add_handler(handler)
    return opener


def _request(args: dict[str, Any]) -> Answer:
    # The scheme was checked by read, and again at each redirect.
    request = urllib.request.Request(args["url"], web.body(args), web.headers(args), method=args["method"].upper())  # noqa: S310
    try:
        with _opener(args).open(request, timeout=args["timeout"]) as answer:
            return _answer(answer, answer.status, answer.reason)
    except urllib.error.HTTPError as err:
        with err:
            return _answer(err, err.code, str(err.reason))
    except (urllib.error.URLError, OSError, http.client.HTTPException) as err:
        reason = getattr(err, "reason", None) or err
        raise ModuleError(f"Request failed: {reason}: {args['url']}", fix="see that the service listens there", status=-1, url=args["url"]) from None


def _answer(stream: Any, status: int, reason: str) -> Answer:
    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ModuleError(f"the answer is longer than {MAX_BYTES} bytes", fix="fetch it with a program made for that")
    return Answer(status, reason or "", stream.geturl(), list(stream.headers.items()), content)


def _store(args: dict[str, Any], host: Host, answer: Answer, wanted: Attributes) -> dict[str, Any]:
    dest = paths.expand_home(args["dest"], host)
    at: Optional[Any] = host.stat(dest, follow=True)
    if at is not None and at.kind == "dir":
        dest = f"{paths.tidy(dest)}/{answer.url.partition('?')[0].rstrip('/').rpartition('/')[2] or 'index.html'}"
    placing.need_parent(host, dest)
    place = placing.look(host, dest, wanted, follow=True)
    payload = placing.Payload(hashlib.sha256(answer.content).hexdigest(), len(answer.content), answer.content)
    if not placing.differences(place, payload):
        return {"path": dest}
    return {**placing.put(host, place, payload, {}), "path": dest, "changed": True}
