"""The frames of `application/vnd.amazon.eventstream`, as the Kinesis SubscribeToShard answer uses them.

Layout: total length, header length, CRC of both, headers (all of type string), payload, CRC of everything before.
"""

from __future__ import annotations

import struct
import zlib

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_JSON = "application/x-amz-json-1.1"
_STRING_TYPE = 7


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _STRING_TYPE, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 12 + len(head) + len(payload) + 4, len(head))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + head
    return start + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(start)))


def initial_response() -> bytes:
    """Must come first, or boto3 refuses the stream."""
    return event("initial-response", b"{}")


def event(event_type: str, payload: bytes) -> bytes:
    return frame({":event-type": event_type, ":content-type": _JSON, ":message-type": "event"}, payload)


def exception(code: str, payload: bytes) -> bytes:
    return frame({":exception-type": code, ":content-type": _JSON, ":message-type": "exception"}, payload)
