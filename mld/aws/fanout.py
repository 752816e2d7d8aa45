"""`KinesisFanOut`: the `FanOut` port over the Kinesis API, for one stream.

Rules: retrieval#consumer-registration (calls), retrieval#subscription-starting-point, retrieval#event-frames
(exceptions inside the stream). The payload of an event goes the way of a GetRecords body, to an injected page maker.
Small events are read on the loop, large ones in a thread.

botocore's parser is the reference for what is in a frame (`message_of`), and reads small ones and everything unusual.
It copies a frame three times, so a large event is taken apart here: its checksums are computed over the pieces in which
it came, and its payload stays in pieces. What is not in order there goes to the parser, which says what is wrong. A
payload comes out only after both checksums of its frame were right.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from struct import error as StructError
from typing import Any, NamedTuple

from mld.aws.boundary import raises_only
from mld.aws.kinesis import StreamAdapter, stream_errors, time_param
from mld.aws.service import FrameSource, PartwiseRead, StreamService
from mld.core.errors import AwsError, InvalidStreamResponseError, StreamUnavailableError
from mld.core.streams import Page, StartingPoint, StreamConsumer, Streams, StreamSummary

JOINED_BYTES_MAX = 16 * 1024
"""Up to this size copies cost less than looking at the pieces."""
HEADERS_BYTES_MAX = 1024
"""Those of an event take about 90."""
_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4

Frame = tuple[memoryview, ...]
"""One frame in the pieces in which it came."""


class Message(NamedTuple):
    """A frame taken apart. `kind` is event or exception, `name` the type of it. The payload of a large event is left in
    the pieces in which it came.
    """

    kind: str
    name: str
    payload: tuple[bytes | memoryview, ...]


class MessageError(ValueError):
    """A frame is damaged, or is none."""


def message_in(frame: Frame) -> Message:
    """Take one whole frame apart. Raises MessageError if it is damaged; AwsError if it is an error without payload."""
    length = sum(map(len, frame))
    if length > JOINED_BYTES_MAX and (event := _event_in(frame, length)) is not None:
        return event
    return message_of(b"".join(frame))


def message_of(frame: bytes) -> Message:
    """Return, as `message_in` does, the message of a frame in one piece, by botocore's parser."""
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
    """Return the event in a frame of this length, if it is in order and is one."""
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
    """Return the headers, empty if they cannot be read."""
    from botocore.eventstream import EventStreamHeaderParser, ParserError

    try:
        headers: dict[str, Any] = EventStreamHeaderParser().parse(data)
    except (ParserError, StructError, KeyError, UnicodeDecodeError):
        return {}
    return headers


def _cut(frame: Frame, start: int, end: int) -> Iterator[memoryview]:
    """Yield the pieces of the bytes from `start` to `end`, exclusive."""
    at = 0
    for piece in frame:
        if at >= end:
            return
        if at + len(piece) > start:
            yield piece[max(0, start - at) : end - at]
        at += len(piece)


SUBSCRIBE = "SubscribeToShard"
EVENT = "SubscribeToShardEvent"
CALL_TIMEOUT_S = 30.0
INLINE_BYTES_MAX = 32 * 1024
"""A frame up to this size is read within 0.3 ms; a thread takes as long to wake."""


@raises_only(StreamUnavailableError)
class KinesisFanOut(StreamAdapter[StreamService]):
    """The stream behind `streams`; `page_of` makes a page of a payload, raising ValueError for what is none."""

    def __init__(
        self, service: StreamService, streams: Streams, *, stream_name: str, page_of: PartwiseRead[Page]
    ) -> None:
        super().__init__(service, stream_name)
        self._streams = streams
        self._page_of = page_of

    async def describe(self) -> StreamSummary:
        return await self._streams.describe()

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer:
        params = {"StreamARN": stream_arn, "ConsumerName": name}
        return await self._consumer("DescribeStreamConsumer", params, "ConsumerDescription")

    async def consumer(self, arn: str) -> StreamConsumer:
        return await self._consumer("DescribeStreamConsumer", {"ConsumerARN": arn}, "ConsumerDescription")

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        params = {"StreamARN": stream_arn, "ConsumerName": name}
        return await self._consumer("RegisterStreamConsumer", params, "Consumer")

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> EventSubscription:
        """See `mld.streams.FanOut`. A time may reach the service rounded down, never up."""
        position: dict[str, Any] = {"Type": start.type.value}
        if start.sequence is not None:
            position["SequenceNumber"] = start.sequence
        if start.timestamp_s is not None:
            position["Timestamp"] = time_param(start.timestamp_s)
        params = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": position}
        with stream_errors(self._label):
            source = await self._service.open_stream(SUBSCRIBE, params, timeout_s=CALL_TIMEOUT_S)
        return EventSubscription(self._service, source, self._label, self._page_of)

    async def _consumer(self, operation: str, params: dict[str, Any], member: str) -> StreamConsumer:
        answer = await self._call(operation, params, CALL_TIMEOUT_S)
        try:
            return StreamConsumer(answer[member]["ConsumerARN"], answer[member]["ConsumerStatus"])
        except (KeyError, TypeError) as error:
            raise self._malformed(operation, error) from error


@raises_only(StreamUnavailableError)
class EventSubscription:
    """See `mld.streams.Subscription`."""

    def __init__(
        self, service: StreamService, source: FrameSource, stream_name: str, page_of: PartwiseRead[Page]
    ) -> None:
        self._service = service
        self._source = source
        self._stream_name = stream_name
        self._page_of = page_of

    async def next(self) -> Page | None:
        while True:
            try:
                frame = await self._source.next()
            except Exception as error:
                reason = f"stream {self._stream_name}: {SUBSCRIBE}: {type(error).__name__}: {error}"
                raise StreamUnavailableError(reason) from error
            if frame is None:
                return None
            page = await self._read(frame)
            if page is not None:
                return page

    def close(self) -> None:
        self._source.close()

    async def _read(self, frame: tuple[memoryview, ...]) -> Page | None:
        """Return the page of an event; None for a frame that holds none."""
        with stream_errors(self._stream_name):
            if sum(map(len, frame)) <= INLINE_BYTES_MAX:
                return self._page_in(frame)
            return await self._service.in_thread(SUBSCRIBE, lambda: self._page_in(frame))

    def _page_in(self, frame: tuple[memoryview, ...]) -> Page | None:
        """Return the page in an event. May run in a thread. Raises AwsError or InvalidStreamResponseError."""
        try:
            message = message_in(frame)
            if message.kind == "event":
                return self._page_made_of(message.payload) if message.name == EVENT else None
        except ValueError as error:
            reason = f"stream {self._stream_name}: {SUBSCRIBE}: the event is not as documented: {error}"
            raise InvalidStreamResponseError(reason) from error
        raise AwsError(SUBSCRIBE, message.name, _text_of(b"".join(message.payload)))

    def _page_made_of(self, payload: tuple[bytes | memoryview, ...]) -> Page:
        if len(payload) == 1:
            return self._page_of(bytes(payload[0]))
        reader = self._page_of.in_parts()
        for piece in payload:
            reader.feed(bytes(piece))
        return reader.end()


def _text_of(payload: bytes) -> str:
    """Return what an exception says."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    return str(document.get("message") or document.get("Message") or "") if isinstance(document, dict) else ""
