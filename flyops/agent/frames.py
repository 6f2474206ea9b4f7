# SPDX-License-Identifier: Apache-2.0
"""Frames on a byte pipe: header length, payload length (both big-endian 32 bit), a JSON header, raw payload."""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Dict, Optional, Tuple

LENGTHS = struct.Struct(">II")
HEADER_MAX = 256 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024  # files travel in pieces of this size

Frame = Tuple[Dict[str, Any], bytes]


class FrameError(ValueError):
    """Bytes that are no frame: someone else wrote into the pipe."""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), len(payload)) + text + payload


def decode(read_exactly: Callable[[int], Optional[bytes]]) -> Frame | None:
    """The next frame, or None when the other side ended between two frames.

    `read_exactly(n)` gives n bytes, or None at the end of the stream.
    """
    lengths = read_exactly(LENGTHS.size)
    if lengths is None:
        return None
    header_bytes, payload_bytes = LENGTHS.unpack(lengths)
    if header_bytes > HEADER_MAX:
        raise FrameError(f"expected a frame, found {lengths!r}")
    text = read_exactly(header_bytes)
    payload = read_exactly(payload_bytes) if payload_bytes else b""
    if text is None or payload is None:
        return None
    try:
        header = json.loads(text.decode())
    except ValueError as err:
        raise FrameError(f"expected a JSON header, found {text[:80]!r}") from err
    return header, payload
