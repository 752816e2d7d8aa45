"""From the bytes of a SubscribeToShard answer to pages: chunks, frames, sockets, botocore's parser, errors."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.aws.event_messages import JOINED_BYTES_MAX, Frame, Message, message_in, message_of
from mld.aws.fanout import INLINE_BYTES_MAX, KinesisFanOut
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.frame_stream import FRAME_BYTES_MAX, FrameStream
from mld.aws.wire.wire_frames import AHEAD_BYTES, WireFrames
from mld.core import errors
from mld.core.streams import IteratorType, StartingPoint, StreamConsumer
from mld.local import event_frames
from mld.retrieval.rawbody import page_of_event
from mld.retrieval.rawpage import RawPage
from tests.support.patience import PATIENCE_S
from tests.twins.streams import MemoryStreams

T = TypeVar("T")
EMPTY = b'{"Records":[],"ContinuationSequenceNumber":"17","MillisBehindLatest":5}'
RECORD = (
    b'{"SequenceNumber":"18","ApproximateArrivalTimestamp":1.763661600123E9,"Data":"aGk=","PartitionKey":"k",'
    b'"EncryptionType":"NONE"}'
)
END = (
    b'{"Records":[' + RECORD + b'],"MillisBehindLatest":0,"ChildShards":[{"ShardId":"c","ParentShards":["p"],'
    b'"HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"9"}}]}'
)
HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)


def event(payload: bytes) -> bytes:
    return event_frames.event("SubscribeToShardEvent", payload)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%X;x=y\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: 1\r\n\r\n"


def taken(stream: FrameStream) -> list[bytes]:
    return [b"".join(frame) for frame in iter(stream.take, None)]


# --- frames -----------------------------------------------------------------------------------------------------------


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=6),
    chunk=st.integers(1, 500),
    cuts=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    is_chunked=st.booleans(),
)
def test_frames_are_whole_however_they_are_cut(
    payloads: list[bytes], chunk: int, cuts: list[int], is_chunked: bool
) -> None:
    frames = [event(payload) for payload in payloads]
    data = chunked(b"".join(frames), chunk) if is_chunked else b"".join(frames)
    stream = FrameStream(chunked=is_chunked)
    got: list[bytes] = []
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        stream.feed(data[at : at + size])
        got += taken(stream)
        at, turn = at + size, turn + 1
    assert got == frames
    assert stream.is_complete == is_chunked
    assert stream.is_between_frames
    assert stream.waiting_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"0\r\n\r\nmore",
        b"4\r\n\x00\x00\x00\x0f\r\n",
        b"4\r\n%s\r\n" % (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
    ],
)
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        FrameStream(chunked=True).feed(data)


# --- messages ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, len(event(EMPTY)) - 1), st.integers(1, 255))
def test_a_damaged_frame_is_never_an_event(place: int, change: int) -> None:
    frame = bytearray(event(EMPTY))
    frame[place] ^= change
    with pytest.raises(ValueError, match=r"Checksum|Length|StopIteration|Header"):
        message_of(bytes(frame))


def pieces_of(data: bytes, cuts: list[int]) -> Frame:
    edges = [0, *sorted({cut % len(data) for cut in cuts} - {0}), len(data)]
    return tuple(memoryview(data)[start:end] for start, end in pairwise(edges))


def joined(message: Message) -> tuple[str, str, bytes]:
    return message.kind, message.name, b"".join(message.payload)


def outcome(take: Callable[[], Message]) -> object:
    try:
        return joined(take())
    except (ValueError, errors.AwsError) as error:
        return type(error), str(error)


LARGE = b"x" * (JOINED_BYTES_MAX + 100)
CUTS = st.lists(st.one_of(st.integers(0, 130), st.integers(0, 2**20)), max_size=8)
ODD_HEADERS = (
    {":message-type": "event"},
    {":message-type": "event", ":event-type": "a" * 2000},
    {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "no"},
    {":message-type": "letter"},
    {},
)


@pytest.mark.parametrize(
    "frame",
    [
        event(LARGE),
        event_frames.event("initial-response", LARGE),
        event_frames.exception("KMSThrottlingException", LARGE),
        *(event_frames.frame(headers, LARGE) for headers in ODD_HEADERS),
    ],
)
@given(cuts=CUTS)
def test_a_large_frame_in_pieces_is_what_the_parser_makes_of_it(frame: bytes, cuts: list[int]) -> None:
    assert outcome(lambda: message_in(pieces_of(frame, cuts))) == outcome(lambda: message_of(frame))


@given(
    place=st.one_of(st.integers(0, 130), st.integers(0, len(event(LARGE)) - 1), st.integers(-8, -1)),
    change=st.integers(1, 255),
    cuts=CUTS,
    is_resealed=st.booleans(),
)
def test_a_large_frame_with_any_byte_changed_is_what_the_parser_makes_of_it(
    place: int, change: int, cuts: list[int], is_resealed: bool
) -> None:
    damaged = bytearray(event(LARGE))
    damaged[place] ^= change
    if is_resealed:  # both checksums are right again: what is left to see are lengths and headers
        damaged[8:12] = zlib.crc32(damaged[:8]).to_bytes(4, "big")
        damaged[-4:] = zlib.crc32(damaged[:-4]).to_bytes(4, "big")
    frame = bytes(damaged)
    expected = outcome(lambda: message_of(frame))
    assert outcome(lambda: message_in(pieces_of(frame, cuts))) == expected
    assert is_resealed or isinstance(expected, tuple)


def test_a_large_event_is_not_read_by_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = event(LARGE)
    monkeypatch.setattr("mld.aws.event_messages.message_of", pytest.fail)
    assert joined(message_in(pieces_of(frame, [7, 60, 5000]))) == ("event", "SubscribeToShardEvent", LARGE)


def test_the_page_of_an_event_goes_on_at_its_continuation() -> None:
    page = page_of_event(EMPTY)
    assert (page.count, page.next_iterator, page.millis_behind_latest) == (0, "17", 5)
    end = page_of_event(END)
    assert (end.count, end.next_iterator, end.last_sequence, len(end.child_shards)) == (1, None, "18", 1)
    assert page_of_event(b'{"Records":[],"NextShardIterator":"x"}').next_iterator is None


# --- sources ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def source_of(first: bytes = b"", *, chunked: bool = True) -> AsyncIterator[tuple[WireFrames, socket.socket]]:
    """A source, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    source = WireFrames(ours, first, chunked=chunked)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield source, theirs
    finally:
        source.close()
        theirs.close()


async def test_a_source_gives_frames_then_the_end() -> None:
    async with source_of(chunked(event(EMPTY) + event(END), 50)[:20]) as (source, peer):
        peer.sendall(chunked(event(EMPTY) + event(END), 50)[20:])
        assert [b"".join(await source.next() or ()) for _ in range(2)] == [event(EMPTY), event(END)]
        assert await source.next() is None
        assert await source.next() is None


@pytest.mark.parametrize(("is_chunked", "cut", "ends"), [(True, 0, False), (False, 0, True), (False, 5, False)])
async def test_a_connection_that_ends_early_is_an_error(is_chunked: bool, cut: int, ends: bool) -> None:
    async with source_of(chunked=is_chunked) as (source, peer):
        data = event(EMPTY) + event(EMPTY)
        data = data[: len(data) - cut]
        peer.sendall(b"%x\r\n%s\r\n" % (len(data), data) if is_chunked else data)
        peer.close()
        for _ in range(1 if cut else 2):
            assert b"".join(await source.next() or ()) == event(EMPTY)
        if ends:
            assert await source.next() is None
        else:
            with pytest.raises(BrokenAnswerError):
                await source.next()


async def test_a_source_that_nobody_takes_from_stops_reading() -> None:
    async with source_of() as (source, peer):
        peer.setblocking(False)
        frame = event(bytes(10_000))
        loop = asyncio.get_running_loop()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(1000):
                await loop.sock_sendall(peer, b"%x\r\n%s\r\n" % (len(frame), frame))
                sent += 1

        sending = asyncio.create_task(send())
        before = -1
        while sent != before:  # until the buffers of the kernel are full too
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 300
        assert source._stream.waiting_bytes < AHEAD_BYTES + 300 * 1024
        for _ in range(1000):
            assert await source.next() is not None
        await sending


async def test_a_waiting_caller_hears_of_a_close_and_may_be_cancelled() -> None:
    async with source_of() as (source, _):
        waiting = asyncio.create_task(source.next())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        waiting = asyncio.create_task(source.next())
        await asyncio.sleep(0)
        source.close()
        with pytest.raises(BrokenAnswerError, match="closed"):
            await waiting


# --- the adapter ------------------------------------------------------------------------------------------------------


class ScriptedService:
    """The `StreamService` port: answers, and frames of one stream."""

    def __init__(self, *frames: bytes | Exception, answers: dict[str, Any] | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.in_threads = 0
        self._frames = list(frames)
        self._answers = answers or {}

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        self.calls.append((operation, params))
        answer = self._answers[operation]
        if isinstance(answer, Exception):
            raise answer
        result: dict[str, Any] = answer
        return result

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        raise NotImplementedError

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> ScriptedService:
        await self.call(operation, params)
        return self

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        self.in_threads += 1
        return work()

    async def next(self) -> tuple[memoryview, ...] | None:
        if not self._frames:
            return None
        frame = self._frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return memoryview(frame)[:30], memoryview(frame)[30:]

    def close(self) -> None:
        self.calls.append(("close", {}))


def subscribed(*frames: bytes | Exception, start: StartingPoint = HORIZON, answer: Any = None) -> tuple[Any, Any]:
    """What a subscription gives: pages, then None or an error; and the service."""
    service = ScriptedService(*frames, answers={"SubscribeToShard": answer})
    fan_out = KinesisFanOut(service, MemoryStreams(), stream_name="s", page_of=page_of_event)

    async def main() -> list[RawPage | None]:
        subscription = await fan_out.subscribe("arn", "shard-0", start)
        got: list[RawPage | None] = []
        while not got or got[-1] is not None:
            got.append(await subscription.next())  # type: ignore[arg-type]
        return got

    return asyncio.run(main()), service


def test_events_become_pages_and_other_frames_nothing() -> None:
    pages, service = subscribed(
        event_frames.initial_response(), event(EMPTY), event_frames.event("New", b"?"), event(END)
    )
    assert [page and page.last_sequence for page in pages] == [None, "18", None]
    assert service.in_threads == 0


def test_large_events_are_read_in_a_thread() -> None:
    large = END.replace(b"aGk=", b"aGkx" * INLINE_BYTES_MAX)
    pages, service = subscribed(event(large))
    assert pages[0].data_bytes == 3 * INLINE_BYTES_MAX
    assert service.in_threads == 1


@pytest.mark.parametrize(
    ("start", "position"),
    [
        (HORIZON, {"Type": "TRIM_HORIZON"}),
        (
            StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, "7"),
            {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "7"},
        ),
    ],
)
def test_what_is_asked_for(start: StartingPoint, position: dict[str, str]) -> None:
    _, service = subscribed(start=start)
    params = {"ConsumerARN": "arn", "ShardId": "shard-0", "StartingPosition": position}
    assert service.calls == [("SubscribeToShard", params)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ResourceInUseException", errors.StreamInUseError),
        ("InternalFailureException", errors.StreamUnavailableError),
    ],
)
@pytest.mark.parametrize("where", ["call", "stream"])
def test_errors_of_the_call_and_inside_the_stream_are_the_same(
    code: str, kind: type[errors.StreamError], where: str
) -> None:
    with pytest.raises(errors.StreamError, match=f"stream s: SubscribeToShard: {code}: told") as caught:
        if where == "call":
            subscribed(answer=errors.AwsError("SubscribeToShard", code, "told"))
        else:
            subscribed(event(EMPTY), event_frames.exception(code, b'{"message":"told"}'))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("frame", "kind", "text"),
    [
        (OSError("reset"), errors.StreamUnavailableError, "reset"),
        (event(EMPTY)[:-1] + b"?", errors.InvalidStreamResponseError, "ChecksumMismatch"),
        (event(b"[]"), errors.InvalidStreamResponseError, "not as documented"),
        (event(b'{"Records":1}'), errors.InvalidStreamResponseError, "no array of Records"),
        (event_frames.exception("X", b"\xff"), errors.StreamUnavailableError, "SubscribeToShard: X"),
        (event_frames.exception("X", b'{"message":[1]}'), errors.StreamUnavailableError, "SubscribeToShard: X$"),
        (event_frames.frame({":message-type": "odd"}, b""), errors.InvalidStreamResponseError, "odd"),
        (
            event_frames.frame({":message-type": "error", ":error-code": "InternalFailure"}, b""),
            errors.StreamUnavailableError,
            "InternalFailure",
        ),
    ],
)
def test_damage_is_an_error_and_never_fewer_records(
    frame: bytes | Exception, kind: type[errors.StreamError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        subscribed(frame)


def test_consumers_are_described_and_registered() -> None:
    described = {"ConsumerDescription": {"ConsumerARN": "arn", "ConsumerStatus": "ACTIVE"}}
    registered = {"Consumer": {"ConsumerARN": "arn", "ConsumerStatus": "CREATING"}}
    service = ScriptedService(answers={"DescribeStreamConsumer": described, "RegisterStreamConsumer": registered})
    fan_out = KinesisFanOut(service, MemoryStreams(), stream_name="s", page_of=page_of_event)

    async def main() -> None:
        assert await fan_out.consumer("arn") == StreamConsumer("arn", "ACTIVE")
        assert await fan_out.consumer_named("stream", "app") == StreamConsumer("arn", "ACTIVE")
        assert await fan_out.register_consumer("stream", "app") == StreamConsumer("arn", "CREATING")
        described.clear()
        with pytest.raises(errors.InvalidStreamResponseError):
            await fan_out.consumer("arn")

    asyncio.run(main())
    assert [params for _, params in service.calls[:3]] == [
        {"ConsumerARN": "arn"},
        {"StreamARN": "stream", "ConsumerName": "app"},
        {"StreamARN": "stream", "ConsumerName": "app"},
    ]
