"""The frames between a child and its session host, over a unix socket.

A frame is a fixed header (kind, length of the head, length of the body), a head (one JSON object) and a body (the raw
`processRecords` line of an offer; empty in all other frames). The child says HELLO and is answered READY or FAILED;
a line of at least `pageBytes` (READY; 0: none) it announces by ROOM, is told by GO where to write it, and offers that
page without a body, or if it cannot be one the line as it is. Each OFFER is answered ACCEPTED once there is room for
it, and COMMITTED once all sinks hold it. Offers are numbered by the child from 1 on; COMMITTED names the last of those
committed and the position of its last record.

Pure: values in, values out. Quick to import: the child must start in no time.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

HEADER = struct.Struct("!BIQ")
HEAD_BYTES_MAX = 1024 * 1024
"""Heads hold a shard id, a position or a sentence; anything longer is no frame."""
BODY_BYTES_MAX = 1 << 32
"""A line of 10,000 records is some 14 MB, and de-aggregation may multiply it; beyond this it is no line."""
VERSION = 1

HELLO, OFFER, FLUSH, BYE, ENDED, ROOM = 1, 2, 3, 4, 5, 6
READY, ACCEPTED, COMMITTED, FAILED, SAID, GO = 16, 17, 18, 19, 20, 21
"""FLUSH asks for a commit before the trigger's time. ENDED says that the shard has ended, that all it offered is
committed, and that the daemon has taken its last checkpoint. SAID carries lines of the host to the child's standard
error."""
SHUTDOWN = "shutdown"
"""Why a child says FLUSH, where it is asked to end."""
KINDS = frozenset({HELLO, OFFER, FLUSH, BYE, ENDED, ROOM, READY, ACCEPTED, COMMITTED, FAILED, SAID, GO})


class LinkError(Exception):
    """The other side sent something that is no frame."""


class Header(NamedTuple):
    kind: int
    head_bytes: int
    body_bytes: int


def encode(kind: int, head: dict[str, Any] | None = None, body_bytes: int = 0) -> bytes:
    """Return header and head of a frame; a body of `body_bytes` is to follow."""
    text = json.dumps(head or {}, separators=(",", ":")).encode()
    return HEADER.pack(kind, len(text), body_bytes) + text


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Decode a header. Raises LinkError if this is no header."""
    header = Header(*HEADER.unpack(data))
    if header.kind not in KINDS or header.head_bytes > HEAD_BYTES_MAX or header.body_bytes > BODY_BYTES_MAX:
        raise LinkError(f"no frame of this protocol: {bytes(data).hex()}")
    if header.body_bytes and header.kind != OFFER:
        raise LinkError(f"a frame of kind {header.kind} has no body")
    return header


def decode_head(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a head. Raises LinkError if this is no head."""
    try:
        head = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise LinkError(f"a head that is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise LinkError("a head that is no object")
    return head
