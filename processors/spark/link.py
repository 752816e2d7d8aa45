"""The frames that a child and the session host exchange.

A frame is a fixed header (kind, length) and one JSON object. The child sends HELLO and gets READY or FAILED. It writes
records into a page: a file whose path begins with a text that READY contains. Before the first line of the daemon that
goes into a page, and before each further line that is not small, it sends ROOM and waits for GO. Small lines in between
need no GO; the next ROOM or PAGE reports how many bytes they had (`unasked`). It sends PAGE when it completes a page,
because the page is large, or because a micro-batch begins and the host has sent CUT. COMMITTED names the last line
whose records all sinks hold, and the position of its last record. The child counts lines and pages from 1 on.

This module is quick to import, because a child has to start quickly.
"""

from __future__ import annotations

import json
import struct
from typing import Any

HEADER = struct.Struct("!BI")
BODY_BYTES_MAX = 1024 * 1024
"""Longest body. A frame has a shard id, a position or a sentence; anything longer is not a frame."""
TEXT_CHARS_MAX = 64 * 1024
"""Longest text in a frame. JSON needs at most twelve bytes for a character."""
VERSION = 6
HELLO, ROOM, PAGE, FLUSH, BYE, ENDED = 1, 2, 3, 4, 5, 6
READY, GO, CUT, COMMITTED, FAILED, SAID = 16, 17, 18, 19, 20, 21
"""FLUSH asks for a commit before the next regular trigger. ENDED reports that the shard has ended and that all its
records are committed. Once all sinks have recorded the end, the host sends GO, and the child checkpoints the end. SAID
carries lines of the host's log, which the child writes to its standard error. BYE ends the connection.
"""
KINDS = frozenset({HELLO, ROOM, PAGE, FLUSH, BYE, ENDED, READY, GO, CUT, COMMITTED, FAILED, SAID})


class LinkError(Exception):
    """The other side sent something that is not a frame."""


def encode(kind: int, body: dict[str, Any] | None = None) -> bytes:
    """Encode a frame. No text in `body` may be longer than TEXT_CHARS_MAX."""
    text = json.dumps(body or {}, separators=(",", ":")).encode()
    return HEADER.pack(kind, len(text)) + text


def decode_header(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the kind of a frame and the length of its body. Raises LinkError if `data` is not a header."""
    kind, length = HEADER.unpack(data)
    if kind not in KINDS or length > BODY_BYTES_MAX:
        raise LinkError(f"no frame of this protocol: {bytes(data).hex()}")
    return kind, length


def decode_body(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a body. Raises LinkError if `data` is not a JSON object."""
    try:
        body = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise LinkError(f"a frame that is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise LinkError("a frame that is no object")
    return body
