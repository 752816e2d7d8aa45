"""The frames of `application/vnd.amazon.eventstream`, as the Kinesis SubscribeToShard answer uses them.

Layout: total length, header length, CRC of both, headers (all of type string), payload, CRC of everything before.
"""

from __future__ import annotations

import struct
import zlib

from mld.local.encodings import JSON, Encoding

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING_TYPE = 7


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _STRING_TYPE, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 12 + len(head) + len(payload) + 4, len(head))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + head
    return start + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(start)))


def initial_response(encoding: Encoding = JSON) -> bytes:
    """Return the event that must come first, or boto3 refuses the stream."""
    return event("initial-response", b"{}", encoding)


def event(event_type: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    """Return an event. `payload` is JSON, and is sent in `encoding`."""
    headers = {":event-type": event_type, ":content-type": encoding.content_type, ":message-type": "event"}
    return frame(headers, encoding.write(payload))


def exception(code: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    headers = {":exception-type": code, ":content-type": encoding.content_type, ":message-type": "exception"}
    return frame(headers, encoding.write(payload))
