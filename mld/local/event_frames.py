"""`frame`: makes the frames of the event stream with which SubscribeToShard answers. Pure.

A frame of `application/vnd.amazon.eventstream` consists of the total length, the length of the headers, a CRC of both,
the headers (all of type string), the payload, and a CRC of everything before.
"""

from __future__ import annotations

import struct
import zlib

from mld.local.encodings import JSON, Encoding

_STRING_TYPE = 7


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Return a frame with these headers and this payload."""
    head = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _STRING_TYPE, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    # The total length includes the two lengths and their CRC (12 bytes), and the CRC at the end (4 bytes).
    prelude = struct.pack(">II", 12 + len(head) + len(payload) + 4, len(head))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + head
    return start + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(start)))


def initial_response(encoding: Encoding = JSON) -> bytes:
    """Return the first frame of a stream. Without it boto3 refuses the stream."""
    return event("initial-response", b"{}", encoding)


def event(event_type: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    """Return the frame of an event. `payload` is JSON, and is sent in `encoding`."""
    headers = {":event-type": event_type, ":content-type": encoding.content_type, ":message-type": "event"}
    return frame(headers, encoding.write(payload))


def exception(code: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    """Return the frame of an exception. `payload` is JSON, and is sent in `encoding`."""
    headers = {":exception-type": code, ":content-type": encoding.content_type, ":message-type": "exception"}
    return frame(headers, encoding.write(payload))
