"""From a whole frame of an event stream to the message in it.

Rules: retrieval#event-frames. botocore's parser is the reference (`message_of`), and is what reads small frames
and everything unusual. It copies a frame three times, so a large event is taken apart here: its checksums are computed
over the pieces in which it came, and its payload stays in pieces. What is not in order there goes to the parser, which
says what is wrong. A payload comes out only after both checksums of its frame were right.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import error as StructError
from typing import Any, NamedTuple

from mld.errors import AwsError

OPERATION = "SubscribeToShard"
JOINED_BYTES_MAX = 16 * 1024
"""Up to this size copies cost less than looking at the pieces."""
HEADERS_BYTES_MAX = 1024
"""Those of an event take about 90."""
_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4

Frame = tuple[memoryview, ...]
"""One frame in the pieces in which it came."""


class Message(NamedTuple):
    """A frame taken apart. `kind` is event, exception or error, `name` the type of event or exception."""

    kind: str
    name: str
    payload: bytes


class LargeEvent(NamedTuple):
    """An event whose payload is left in the pieces in which it came."""

    name: str
    payload: Frame


class MessageError(ValueError):
    """A frame is damaged, or is none."""


def message_in(frame: Frame) -> Message | LargeEvent:
    """Take one whole frame apart. Raises MessageError if it is damaged; AwsError if it is an error without payload."""
    length = sum(map(len, frame))
    if length > JOINED_BYTES_MAX and (event := _event_in(frame, length)) is not None:
        return event
    return message_of(b"".join(frame))


def message_of(frame: bytes) -> Message:
    """As `message_in`, of a frame in one piece, by botocore's parser."""
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
            return Message("event", str(headers.get(":event-type")), message.payload)
        case "exception":
            return Message("exception", str(headers.get(":exception-type")), message.payload)
        case "error":
            raise AwsError(OPERATION, str(headers.get(":error-code")), str(headers.get(":error-message", "")))
        case other:
            raise MessageError(f"a message of the type {other!r}")


def _event_in(frame: Frame, length: int) -> LargeEvent | None:
    """The event in a frame of this length, if it is in order and is one."""
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
    return LargeEvent(str(headers.get(":event-type")), tuple(_cut(frame, body, end)))


def _headers_in(data: bytes) -> dict[str, Any]:
    """Empty if they cannot be read."""
    from botocore.eventstream import EventStreamHeaderParser, ParserError

    try:
        headers: dict[str, Any] = EventStreamHeaderParser().parse(data)
    except (ParserError, StructError, KeyError, UnicodeDecodeError):
        return {}
    return headers


def _cut(frame: Frame, start: int, end: int) -> Iterator[memoryview]:
    """The pieces of the bytes from `start` to `end`, exclusive."""
    at = 0
    for piece in frame:
        if at >= end:
            return
        if at + len(piece) > start:
            yield piece[max(0, start - at) : end - at]
        at += len(piece)
