"""`KinesisFanOut`: the `FanOut` port over the Kinesis API, for one stream.

Rules: retrieval#consumer-registration (calls), retrieval#subscription-starting-point, retrieval#event-frames
(exceptions inside the stream). A function that is passed in makes a page from the payload of an event. Small events are
read on the loop, large ones in a thread.
"""

from __future__ import annotations

import json
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.event_messages import SUBSCRIBE, message_in
from mld.aws.kinesis import StreamAdapter, stream_errors, time_param
from mld.aws.service import FrameSource, PartwiseRead, StreamService
from mld.core.errors import AwsError, InvalidStreamResponseError, StreamUnavailableError
from mld.core.streams import Page, StartingPoint, StreamConsumer, Streams, StreamSummary

EVENT = "SubscribeToShardEvent"
CALL_TIMEOUT_S = 30.0
INLINE_BYTES_MAX = 32 * 1024
"""Frames up to this size are read on the loop, within 0.3 ms. Waking a thread would take as long."""


@raises_only(StreamUnavailableError)
class KinesisFanOut(StreamAdapter[StreamService]):
    """Fan-out from the stream `stream_name`, which `streams` describes. `page_of` makes a page from the payload of an
    event, and raises ValueError if the payload is not a page.
    """

    def __init__(
        self, service: StreamService, streams: Streams, *, stream_name: str, page_of: PartwiseRead[Page]
    ) -> None:
        super().__init__(service, stream_name)
        self._streams = streams
        self._page_of = page_of

    async def describe(self) -> StreamSummary:
        return await self._streams.describe()

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer:
        """Return the registered consumer of the stream that has this name. Raises StreamError."""
        params = {"StreamARN": stream_arn, "ConsumerName": name}
        return await self._consumer("DescribeStreamConsumer", params, "ConsumerDescription")

    async def consumer(self, arn: str) -> StreamConsumer:
        """Return the registered consumer with this ARN. Raises StreamError."""
        return await self._consumer("DescribeStreamConsumer", {"ConsumerARN": arn}, "ConsumerDescription")

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        """Register a new consumer of the stream under this name, and return it; it is not ACTIVE yet. Raises
        StreamError, which is a StreamInUseError if the name is taken.
        """
        params = {"StreamARN": stream_arn, "ConsumerName": name}
        return await self._consumer("RegisterStreamConsumer", params, "Consumer")

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> EventSubscription:
        """Call SubscribeToShard, and return the open subscription; its events come from `next`. Raises StreamError. A
        starting time may be sent rounded down, never up.
        """
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
        """Call `operation`, and return the consumer that the answer describes in `member`."""
        answer = await self._call(operation, params, CALL_TIMEOUT_S)
        try:
            return StreamConsumer(answer[member]["ConsumerARN"], answer[member]["ConsumerStatus"])
        except (KeyError, TypeError) as error:
            raise self._malformed(operation, error) from error


@raises_only(StreamUnavailableError)
class EventSubscription:
    """An open SubscribeToShard call (a `mld.core.streams.Subscription`): makes a page from each event that has
    records.
    """

    def __init__(
        self, service: StreamService, source: FrameSource, stream_name: str, page_of: PartwiseRead[Page]
    ) -> None:
        self._service = service
        self._source = source
        self._stream_name = stream_name
        self._page_of = page_of

    async def next(self) -> Page | None:
        """Return the next event as a page; None when the subscription has ended normally. Frames without a page are
        skipped. Raises StreamError.
        """
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
        """Return the page of records in a frame; None for an event of another type. A large frame is read in a thread.
        Raises StreamError.
        """
        with stream_errors(self._stream_name):
            if sum(map(len, frame)) <= INLINE_BYTES_MAX:
                return self._page_in(frame)
            return await self._service.in_thread(SUBSCRIBE, lambda: self._page_in(frame))

    def _page_in(self, frame: tuple[memoryview, ...]) -> Page | None:
        """Return the page of records in a frame; None for an event of another type. May run in a thread.

        Raises AwsError for an exception in the frame, and InvalidStreamResponseError for a frame that cannot be read.
        """
        try:
            message = message_in(frame)
            if message.kind == "event":
                return self._page_made_of(message.payload) if message.name == EVENT else None
        except ValueError as error:
            reason = f"stream {self._stream_name}: {SUBSCRIBE}: the event is not as documented: {error}"
            raise InvalidStreamResponseError(reason) from error
        raise AwsError(SUBSCRIBE, message.name, _text_of(b"".join(message.payload)))

    def _page_made_of(self, payload: tuple[bytes | memoryview, ...]) -> Page:
        """Return the page in the payload of an event. The payload comes in the pieces in which it was received; only a
        payload of several pieces is read in parts.
        """
        if len(payload) == 1:
            return self._page_of(bytes(payload[0]))
        reader = self._page_of.in_parts()
        for piece in payload:
            reader.feed(bytes(piece))
        return reader.end()


def _text_of(payload: bytes) -> str:
    """Return the message in the payload of an exception; empty if there is none."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    found = document.get("message") or document.get("Message") if isinstance(document, dict) else None
    return found if isinstance(found, str) else ""
