"""`message_in`: takes a frame of an event stream apart into a message: an event, or an exception.

Rule: retrieval#event-frames. botocore's parser (`message_of`) takes apart small frames and all that are not events. It
copies a frame three times, so a large event is taken apart here: its checksums are computed over the pieces in which it
was received, and its payload stays in pieces. A large frame that has any fault goes to botocore's parser, too, whose
error says what is wrong. A payload is returned only if both checksums of its frame are right.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import error as StructError
from typing import Any, NamedTuple

from mld.core.errors import AwsError

SUBSCRIBE = "SubscribeToShard"
JOINED_BYTES_MAX = 16 * 1024
"""Frames up to this size are joined and given to botocore: copying them costs less than handling the pieces."""
HEADERS_BYTES_MAX = 1024
"""Frames with larger headers are left to botocore. The headers of an event take about 90 bytes."""
_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4

Frame = tuple[memoryview, ...]
"""One frame, in the pieces in which it was received."""


class Message(NamedTuple):
    """The content of a frame. `kind` is "event" or "exception", `name` the type of the event or exception. The payload
    of a large event stays in the pieces in which it was received.
    """

    kind: str
    name: str
    payload: tuple[bytes | memoryview, ...]


class MessageError(ValueError):
    """A frame is damaged, or the bytes are not a frame."""


def message_in(frame: Frame) -> Message:
    """Take one whole frame apart. Raises MessageError if it is damaged, and AwsError if it is of the type "error"."""
    length = sum(map(len, frame))
    if length > JOINED_BYTES_MAX and (event := _event_in(frame, length)) is not None:
        return event
    return message_of(b"".join(frame))


def message_of(frame: bytes) -> Message:
    """Take a frame apart with botocore's parser. Raises MessageError if it is damaged, and AwsError if it is of the
    type "error".
    """
    from botocore.eventstream import EventStreamBuffer, ParserError

    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    try:
        message = next(buffer)
    except (ParserError, StopIteration, StructError, KeyError, UnicodeDecodeError) as error:
        raise MessageError(f"{type(error).__name__}: {error}") from error
    headers: Any = message.headers
    match headers.get(":message-type"):
        case "event":
            return Message("event", str(headers.get(":event-type")), (message.payload,))
        case "exception":
            return Message("exception", str(headers.get(":exception-type")), (message.payload,))
        case "error":
            raise AwsError(SUBSCRIBE, str(headers.get(":error-code")), str(headers.get(":error-message", "")))
        case other:
            raise MessageError(f"a message of the type {other!r}")


def _event_in(frame: Frame, length: int) -> Message | None:
    """Return the event in a frame of `length` bytes; None if the frame is not an event, or has any fault.

    A frame consists of a prelude (its length, the length of its headers, and a checksum of both), the headers, the
    payload, and a checksum of everything before it.
    """
    prelude = b"".join(_cut(frame, 0, _PRELUDE_BYTES))
    total, headers_bytes, checksum = (int.from_bytes(prelude[at : at + 4], "big") for at in (0, 4, 8))
    body = _PRELUDE_BYTES + headers_bytes
    end = length - _CHECKSUM_BYTES
    if total != length or zlib.crc32(prelude[:8]) != checksum or headers_bytes > HEADERS_BYTES_MAX or body > end:
        return None
    computed = 0
    for piece in _cut(frame, 0, end):
        computed = zlib.crc32(piece, computed)
    if computed.to_bytes(_CHECKSUM_BYTES, "big") != b"".join(_cut(frame, end, length)):
        return None
    headers = _headers_in(b"".join(_cut(frame, _PRELUDE_BYTES, body)))
    if headers.get(":message-type") != "event":
        return None
    return Message("event", str(headers.get(":event-type")), tuple(_cut(frame, body, end)))


def _headers_in(data: bytes) -> dict[str, Any]:
    """Return the headers of a frame; an empty dict if they cannot be read."""
    from botocore.eventstream import EventStreamHeaderParser, ParserError

    try:
        headers: dict[str, Any] = EventStreamHeaderParser().parse(data)
    except (ParserError, StructError, KeyError, UnicodeDecodeError):
        return {}
    return headers


def _cut(frame: Frame, start: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes of a frame from `start` up to `end`, exclusive, in pieces."""
    at = 0
    for piece in frame:
        if at >= end:
            return
        if at + len(piece) > start:
            yield piece[max(0, start - at) : end - at]
        at += len(piece)
