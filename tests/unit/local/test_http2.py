"""HTTP/2 by prior knowledge: flow control, exchanges beside one another, and who is cut off when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset

from mld.local.http import Connections, HttpConnection, HttpRequest, HttpResponse, Peer
from mld.local.http2 import Http2Connection
from tests.support.patience import PATIENCE_S

LARGE = b"x" * 1_000_000  # the windows are 65,535 bytes at first
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS_ON_NO_STREAM = b"\0\0\1\1\0\0\0\0\0x"


class Answering:
    """Answers by the path, and says which connections and slow answers it has."""

    def __init__(self) -> None:
        self.connections: Connections = set()
        self.slow_begun, self.slow_cancelled = asyncio.Event(), asyncio.Event()

    def handle(self, request: HttpRequest, peer: Peer) -> HttpResponse | Coroutine[None, None, None]:
        match request.target:
            case "/pieces":
                return self._pieces(peer)
            case "/slow":
                return self._slow()
            case "/cut":
                return self._cut(peer)
            case "/large":
                return HttpResponse(LARGE)
        return HttpResponse(f"{request.method} {request.headers['host']} ".encode() + request.body)

    async def _pieces(self, peer: Peer) -> None:
        peer.start_stream("text/plain", [("X-Kind", "pieces")])
        for piece in (b"abc", b"", b"y" * 100_000, b"de"):
            await peer.send(piece)
        peer.end_stream()

    async def _slow(self) -> None:
        self.slow_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.slow_cancelled.set()

    async def _cut(self, peer: Peer) -> None:
        peer.abort()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2 = H2Connection()
        self.h2.initiate_connection()
        self._reader = reader
        self.writer = writer

    def ask(self, path: str, body: bytes = b"question") -> int:
        number = self.h2.get_next_available_stream_id()
        pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "here"), (":path", path)]
        self.h2.send_headers(number, pseudo)
        self.h2.send_data(number, body, end_stream=True)
        self.flush()
        return number

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    async def events(self) -> AsyncIterator[Event]:
        """Until the server closes."""
        while data := await self._reader.read(65536):
            for event in self.h2.receive_data(data):
                if isinstance(event, DataReceived):
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                yield event
            self.flush()

    async def answers(self, *numbers: int) -> list[bytes | None]:
        """Of these streams; None for one that was reset."""
        found: dict[int, bytes | None] = {}
        open_streams = set(numbers)
        async for event in self.events():
            match event:
                case ResponseReceived():
                    headers = dict(event.headers)
                    assert (headers[b":status"], b"date" in headers) == (b"200", True)
                    found[event.stream_id] = b""
                case DataReceived():
                    found[event.stream_id] = (found[event.stream_id] or b"") + event.data
                case StreamEnded():
                    open_streams.discard(event.stream_id)
                case StreamReset():
                    found[event.stream_id] = None
                    open_streams.discard(event.stream_id)
            if not open_streams:
                break
        return [found[number] for number in numbers]


@asynccontextmanager
async def bed() -> AsyncIterator[tuple[Answering, Client]]:
    app = Answering()
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(app.handle, app.connections, Http2Connection), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield app, Client(reader, writer)
            writer.close()
            while app.connections:
                await asyncio.sleep(0)
    finally:
        server.close()


async def test_an_answer_beyond_the_windows_does_not_hold_up_the_others() -> None:
    async with bed() as (_, client):
        asked = [client.ask(path) for path in ("/large", "/", "/large", "/pieces")]
        answers = await client.answers(*asked)
        assert answers == [LARGE, b"POST here question", LARGE, b"abc" + b"y" * 100_000 + b"de"]


async def test_an_exchange_cut_off_is_reset_and_the_others_go_on() -> None:
    async with bed() as (_, client):
        assert await client.answers(client.ask("/cut"), client.ask("/")) == [None, b"POST here question"]


async def test_a_request_beyond_the_bound_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mld.local.http2.BODY_BYTES_MAX", 8)
    async with bed() as (_, client):
        assert await client.answers(client.ask("/", b"123456789"), client.ask("/")) == [None, b"POST here question"]


async def test_a_stream_that_the_client_resets_ends_its_answer_only() -> None:
    async with bed() as (app, client):
        slow = client.ask("/slow")
        await app.slow_begun.wait()
        client.h2.reset_stream(slow)
        assert await client.answers(client.ask("/")) == [b"POST here question"]
        await app.slow_cancelled.wait()


async def test_a_request_that_is_reset_before_it_is_answered_harms_nobody() -> None:
    async with bed() as (_, client):
        for path in ("/", "/pieces", "/large"):
            number = client.h2.get_next_available_stream_id()
            client.h2.send_headers(
                number, [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", path)]
            )
            client.h2.end_stream(number)
            client.h2.reset_stream(number)  # leaves in the same packet
        assert await client.answers(client.ask("/")) == [b"POST here question"]


async def test_a_client_that_leaves_ends_its_answers() -> None:
    async with bed() as (app, client):
        client.ask("/slow")
        await app.slow_begun.wait()
        client.h2.close_connection()
        client.flush()
        await app.slow_cancelled.wait()


async def test_who_breaks_the_protocol_is_told_so_and_cut_off() -> None:
    async with bed() as (_, client):
        client.writer.write(PREFACE + HEADERS_ON_NO_STREAM)
        assert any([isinstance(event, ConnectionTerminated) async for event in client.events()])
