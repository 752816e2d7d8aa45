"""A connection on the event loop: whole answers in whatever pieces they come, streams, and every kind of end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mld.aws.wire.answers import Answer, AnswerParser, BrokenAnswerError
from mld.aws.wire.connection import (
    HEAD_READ_BYTES,
    TURN_BYTES,
    Addresses,
    Connection,
    NothingSentBackError,
    Origin,
    StreamSink,
    connect,
)
from mld.aws.wire.frames import AHEAD_BYTES, BrokenStreamError, FrameStream
from mld.aws.wire.source import WireFrameSource
from tests.support.certificates import write_certificate
from tests.support.patience import PATIENCE_S
from tests.unit.aws.test_answers import answer, chunks

SOON_S = 0.001
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(size: int) -> bytes:
    return (16 + size).to_bytes(4, "big") + bytes(12) + bytes(size)


async def resolve(host: str, port: int) -> Addresses:
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


Arrived = asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class Peer:
    """The other end, on the same loop. `connection` is ours."""

    def __init__(
        self, connection: Connection, arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connection = connection
        self.arrived = arrived
        self.writer = writer
        self._reader = reader

    def ask(
        self, request: bytes = REQUEST, *, timeout_s: float = PATIENCE_S, sink: FrameStream | None = None
    ) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.connection.exchange(request, timeout_s=timeout_s, sink=sink))

    async def hears(self, request: bytes = REQUEST) -> None:
        assert await self._reader.readexactly(len(request)) == request

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.close()


@asynccontextmanager
async def peer(context: ssl.SSLContext | None = None, trusted: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    arrived: Arrived = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await arrived.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1], trusted)
    async with asyncio.timeout(PATIENCE_S):
        connection = await connect(origin, resolve, connect_timeout_s=PATIENCE_S, read_timeout_s=6)
        made = Peer(connection, arrived, *await arrived.get())
        try:
            yield made
        finally:
            connection.close()
            await made.end()
            server.close()


@pytest.fixture(params=["plain", "tls"])
async def other(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peer]:
    context = trusted = None
    if request.param == "tls":
        public, secret = write_certificate(tmp_path, "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(public, secret)
        trusted = ssl.create_default_context(cafile=str(public))
    async with peer(context, trusted) as made:
        yield made


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


async def test_answers_come_one_after_the_other_in_pieces_of_any_size(other: Peer) -> None:
    for size in (0, 1, 5_000, 3 * TURN_BYTES):
        sent = answer(b"x" * size)
        for cuts in ([], [1], [20, 60], [len(sent) - 1]):
            asked = other.ask()
            await other.hears()
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                await other.say(sent[start:end])
                await asyncio.sleep(0)
            assert (await asked).body == b"x" * size
            assert other.connection.is_good


async def test_a_turn_of_the_loop_reads_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    real = Connection._receive

    def receive(connection: Connection, parser: AnswerParser, sink: StreamSink | None) -> None:
        before = parser._at
        real(connection, parser, sink)
        turns.append(parser._at - before)

    monkeypatch.setattr(Connection, "_receive", receive)
    async with peer() as other:
        asked = other.ask()
        await other.hears()
        other.writer.write(answer(b"x" * 20 * TURN_BYTES))
        assert (await asked).size == 20 * TURN_BYTES
    assert TURN_BYTES / 4 < max(turns) <= TURN_BYTES + HEAD_READ_BYTES


async def test_a_large_request_leaves_as_the_other_end_reads_it(other: Peer) -> None:
    request = b"POST / HTTP/1.1\r\n" + b"z" * 8_000_000
    asked = other.ask(request)
    await other.hears(request)
    await other.say(answer(b"{}"))
    assert (await asked).body == b"{}"


async def test_an_answer_to_half_a_request_is_none(other: Peer) -> None:
    asked = other.ask(b"POST / HTTP/1.1\r\n" + b"z" * 30_000_000)
    await other.say(answer(b"{}"))
    with pytest.raises(BrokenAnswerError, match="half a request"):
        await asked


async def test_a_connection_closed_while_idle_is_closed_here_too(other: Peer) -> None:
    await other.end()
    await until(lambda: not other.connection.is_open)
    assert not other.connection.is_good


async def test_an_end_that_the_loop_has_not_heard_of_is_seen_before_the_next_request() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, Origin("h", 1, None))
    assert connection.is_good
    theirs.close()
    assert connection.is_open and not connection.is_good
    connection.close()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_an_end_before_an_answer_is_told_apart(other: Peer, is_reset: bool) -> None:
    asked = other.ask()
    await other.hears()
    if is_reset:
        other.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01" + bytes(7))
        other.writer.transport.abort()
    else:
        await other.end()
    with pytest.raises(NothingSentBackError):
        await asked
    assert not other.connection.is_open


async def test_an_answer_cut_off_is_an_error(other: Peer) -> None:
    asked = other.ask()
    await other.hears()
    await other.say(answer(b"abc")[:-1])
    await other.end()
    with pytest.raises(BrokenAnswerError, match="cut off"):
        await asked


async def test_a_silent_server_is_an_error_and_a_slow_one_is_none(other: Peer) -> None:
    loop = asyncio.get_running_loop()
    asked = other.ask(timeout_s=0.2)
    await other.hears()
    began = loop.time()
    for byte in answer(b"x" * 40):
        await other.say(bytes([byte]))
        if loop.time() < began + 0.4:
            await asyncio.sleep(0.005)
    assert len((await asked).body) == 40
    with pytest.raises(TimeoutError, match="timed out"):
        await other.ask(timeout_s=SOON_S)
    assert not other.connection.is_open


async def test_who_waits_hears_of_a_close_and_who_is_cancelled_closes(other: Peer) -> None:
    asked = other.ask()
    await other.hears()
    other.connection.close()
    with pytest.raises(ConnectionAbortedError):
        await asked


async def test_a_cancelled_exchange_closes_its_connection(other: Peer) -> None:
    asked = other.ask()
    await other.hears()
    asked.cancel()
    await asyncio.wait({asked})
    assert not other.connection.is_open


async def test_the_kernel_ends_a_connection_on_which_nothing_is_acknowledged() -> None:
    async with peer() as other:
        plain = other.connection._socket
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        values = [plain.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
        assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert values == [3, 1, 3, 6000]


async def test_addresses_are_tried_one_after_the_other() -> None:
    async with peer() as other:
        port = other.connection.origin.port

        async def two(host: str, _: int) -> Addresses:
            return await resolve(host, 1) + await resolve(host, port)

        connection = await connect(other.connection.origin, two, connect_timeout_s=2, read_timeout_s=2)
        assert connection.is_good
        connection.close()
        (await other.arrived.get())[1].close()


async def test_a_server_that_never_shakes_hands_is_given_up() -> None:
    async with peer() as other:
        origin = other.connection.origin._replace(context=ssl.create_default_context())
        with pytest.raises(TimeoutError, match="timed out"):
            await connect(origin, resolve, connect_timeout_s=0.01, read_timeout_s=2)
        (await other.arrived.get())[1].close()


# --- streams ---------------------------------------------------------------------------------------------------------


async def streaming(other: Peer, first: bytes) -> WireFrameSource:
    frames = FrameStream()
    asked = other.ask(sink=frames)
    await other.hears()
    await other.say(first)
    assert (await asked).status == 200
    return WireFrameSource(other.connection, frames)


async def test_a_source_gives_frames_then_the_end(other: Peer) -> None:
    body = frame(10) + frame(70_000) + frame(0)
    sent = STREAM + chunks(body, 50)
    source = await streaming(other, sent[:200])
    await other.say(sent[200:])
    got = [b"".join(await source.next() or ()) for _ in range(3)]
    assert b"".join(got) == body
    await other.end()
    assert await source.next() is None
    assert await source.next() is None


@pytest.mark.parametrize(("is_chunked", "cut", "ends"), [(True, 0, False), (False, 0, True), (False, 5, False)])
async def test_a_stream_whose_connection_ends_early_is_an_error(
    other: Peer, is_chunked: bool, cut: int, ends: bool
) -> None:
    data = frame(10) + frame(10)
    data = data[: len(data) - cut]
    sent = STREAM + b"%x\r\n%s\r\n" % (len(data), data) if is_chunked else b"HTTP/1.1 200 OK\r\n\r\n" + data
    source = await streaming(other, sent)
    await other.end()
    for _ in range(1 if cut else 2):
        assert b"".join(await source.next() or ()) == frame(10)
    if ends:
        assert await source.next() is None
    else:
        with pytest.raises((BrokenStreamError, BrokenAnswerError)):
            await source.next()


async def test_a_whole_frame_comes_before_the_error_behind_it(other: Peer) -> None:
    source = await streaming(other, STREAM)
    waiting = asyncio.create_task(source.next())
    await asyncio.sleep(0)
    await other.say(b"1a\r\n%b\r\nnonsense\r\n" % frame(10))
    assert b"".join(await waiting or ()) == frame(10)
    with pytest.raises(BrokenAnswerError):
        await source.next()


async def test_a_source_that_nobody_takes_from_stops_reading() -> None:
    async with peer() as other:
        source = await streaming(other, STREAM)
        piece = frame(10_000)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(1000):
                await other.say(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += 1

        sending = asyncio.create_task(send())
        before = -1
        while sent != before:  # until the buffers of the kernel are full too
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 900
        assert AHEAD_BYTES <= source._frames.waiting_bytes < AHEAD_BYTES + TURN_BYTES
        for _ in range(1000):
            assert await source.next() is not None
        await sending


async def test_a_waiting_caller_hears_of_a_close_and_may_be_cancelled(other: Peer) -> None:
    source = await streaming(other, STREAM)
    for is_last in (False, True):
        waiting = asyncio.create_task(source.next())
        await asyncio.sleep(0)
        if not is_last:
            waiting.cancel()
            await asyncio.wait({waiting})
    source.close()
    with pytest.raises(BrokenStreamError, match="closed"):
        await waiting
