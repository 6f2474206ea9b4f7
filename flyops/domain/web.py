# SPDX-License-Identifier: Apache-2.0
"""Requests as uri's arguments describe them: body and headers as they go out, and the result's keys. Pure."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any, Mapping, Optional
from urllib.parse import urlencode, urlsplit

from flyops.errors import ModuleError

SCHEMES = ("http", "https")


def check_url(url: str) -> None:
    """Only http and https, and nothing that would end a line of the request."""
    if any(ord(c) <= 32 for c in url):
        raise ModuleError(f"url holds a blank or control character: {url!r}", fix="quote it: {{ value | urlencode }}")
    if urlsplit(url).scheme not in SCHEMES:
        raise ModuleError(f"url {url!r}: expected http:// or https://", fix="for a file on the host use slurp")


def body(args: Mapping[str, Any]) -> Optional[bytes]:
    """The bytes to send."""
    value = args["body"]
    if value is None:
        return None
    if args["body_format"] == "json":
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    if args["body_format"] == "form-urlencoded":
        return (value if isinstance(value, str) else urlencode(value, doseq=True)).encode()
    if isinstance(value, (dict, list)):
        raise ModuleError("body is a mapping or list, expected a text", fix="set body_format: json")
    return str(value).encode()


def headers(args: Mapping[str, Any]) -> dict[str, str]:
    """Given headers over those that body_format and a user's name bring."""
    out = {"User-Agent": args["http_agent"]}
    kind = {"json": "application/json", "form-urlencoded": "application/x-www-form-urlencoded"}.get(args["body_format"])
    if kind and args["body"] is not None:
        out["Content-Type"] = kind
    if args["url_username"] is not None and args["force_basic_auth"]:
        pair = f"{args['url_username']}:{args['url_password'] or ''}".encode()
        out["Authorization"] = "Basic " + base64.b64encode(pair).decode("ascii")
    for name, value in (args["headers"] or {}).items():
        if any(c in f"{name}{value}" for c in "\r\n"):
            raise ModuleError(f"header {name!r} holds a line end", fix="take it out of the value")
        out = {n: v for n, v in out.items() if n.lower() != str(name).lower()}
        out[str(name)] = str(value)
    return out


def result_headers(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Names as variables: `Content-Type` becomes `content_type`; several of one name are joined."""
    out: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower().replace("-", "_")
        out[key] = f"{out[key]}, {value}" if key in out else value
    return out


def content_values(content: bytes, kind: str, *, wanted: bool) -> dict[str, Any]:
    """`content` when asked for, and `json` when it says that it is."""
    out: dict[str, Any] = {}
    if wanted:
        out["content"] = content.decode("utf-8", "replace")
    if "json" in kind:
        with contextlib.suppress(ValueError):
            out["json"] = json.loads(content)
    return out
