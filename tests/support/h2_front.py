"""An HTTP/2 front for a server that speaks HTTP/1.1 only: what the Kinesis client of the Java SDK needs.

That client speaks HTTP/2 without TLS and without an upgrade ("prior knowledge") to an http endpoint. Each of its
streams becomes one request on a connection of its own to the upstream; pieces of the answer go on as they come, within
the client's flow-control windows, so that SubscribeToShard works too. The protocol itself is the library `h2`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError

from tests.support.patience import PATIENCE_S

READ_BYTES = 256 * 1024
START_TIMEOUT_S = PATIENCE_S
_NOT_FORWARDED = {"connection", "transfer-encoding", "keep-alive", "content-length", "host"}


class H2Front:
    """Listens on `endpoint` from a thread of its own while it is entered, forwards to `upstream` (an http URL).

    With a `certificate` and its key the clients speak TLS.
    """

    def __init__(self, upstream: str, certificate: tuple[Path, Path] | None = None) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname and parts.port
        self._upstream = (parts.hostname, parts.port)
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*certificate)
            self._context.set_alpn_protocols(["h2"])
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT_S), "the HTTP/2 front did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        clients: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(_Client(reader, writer, self._upstream).run())
            clients.add(task)
            task.add_done_callback(clients.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=self._context)
        scheme = "http" if self._context is None else "https"
        self.endpoint = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(clients):
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@dataclass(slots=True)
class _Request:
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    task: asyncio.Task[None] | None = None


class _Client:
    """One HTTP/2 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: tuple[str, int]) -> None:
        self._reader = reader
        self._writer = writer
        self._upstream = upstream
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._requests: dict[int, _Request] = {}
        self._window_grew = asyncio.Event()

    async def run(self) -> None:
        self._h2.initiate_connection()
        self._flush()
        try:
            while data := await self._reader.read(READ_BYTES):
                for event in self._h2.receive_data(data):
                    self._on(event)
                self._flush()
        except (OSError, ProtocolError):
            pass  # a client that was killed, or that is none
        finally:
            for request in self._requests.values():
                if request.task is not None:
                    request.task.cancel()
            self._writer.close()

    def _on(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._requests[event.stream_id] = _Request([(str(k), str(v)) for k, v in event.headers])
            case DataReceived():
                self._requests[event.stream_id].body += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                request = self._requests[event.stream_id]
                request.task = asyncio.ensure_future(self._answer(event.stream_id, request))
            case StreamReset():
                request_gone = self._requests.pop(event.stream_id, None)
                if request_gone is not None and request_gone.task is not None:
                    request_gone.task.cancel()
            case WindowUpdated():
                self._window_grew.set()
                self._window_grew = asyncio.Event()
            case _:
                pass

    async def _answer(self, stream: int, request: _Request) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._upstream, limit=2**20)
            try:
                writer.write(_http1(request))
                status, headers = await _head(reader)
                kept = [(name, value) for name, value in headers.items() if name not in _NOT_FORWARDED]
                self._h2.send_headers(stream, [(":status", status), *kept])
                self._flush()
                async for piece in _body(reader, headers):
                    await self._send(stream, piece)
                self._h2.end_stream(stream)
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError):
            with contextlib.suppress(ProtocolError):
                self._h2.reset_stream(stream)
        except ProtocolError:
            pass  # the client has closed the stream meanwhile
        finally:
            self._requests.pop(stream, None)
            self._flush()

    async def _send(self, stream: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                await self._window_grew.wait()
                continue
            self._h2.send_data(stream, bytes(view[:room]))
            view = view[room:]
            self._flush()
            await self._writer.drain()

    def _flush(self) -> None:
        if not self._writer.is_closing() and (data := self._h2.data_to_send()):
            self._writer.write(data)


def _http1(request: _Request) -> bytes:
    named = dict(request.headers)
    lines = [f"{named[':method']} {named[':path']} HTTP/1.1", f"host: {named.get(':authority', 'localhost')}"]
    lines += [f"{k}: {v}" for k, v in request.headers if not k.startswith(":") and k not in _NOT_FORWARDED]
    lines += [f"content-length: {len(request.body)}", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + request.body


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first.split(" ")[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        yield await reader.readexactly(int(headers.get("content-length", 0)))
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
