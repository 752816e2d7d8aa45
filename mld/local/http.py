"""`HttpConnection`: a small HTTP/1.1 server on `asyncio.Protocol`, with keep-alive, pipelining and chunked answers
only.

It serves AWS SDK clients on the loopback interface: bodies have a Content-Length, and requests are answered one after
the other. The size of a request is bounded; the connection of a client that exceeds the bound is closed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

from mld.core.webrule import joined_headers

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest body. PutRecords accepts 10 MiB of data, which are 13.4 MiB of base64, plus the keys."""
_JOINED_BYTES_MAX = 64 * 1024
"""Up to this size, a body is joined to the head and sent in one write. For larger bodies the copy would cost more."""
_PHRASES = {one.value: one.phrase for one in HTTPStatus}
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
Connections = set[asyncio.Transport]
"""The open connections. Protocols add and remove their own connection; the server may abort all."""


@dataclass(slots=True)
class HttpRequest:
    """A request. Names in `headers` are in lower case; headers with the same name are joined by commas. `arrived_at` is
    the IP address of this machine to which the client connected.
    """

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    arrived_at: str = ""


@dataclass(slots=True)
class HttpResponse:
    """An answer. `headers` are those besides Content-Type, Content-Length and Date."""

    body: bytes
    status: int = 200
    content_type: str = "application/x-amz-json-1.1"
    headers: list[tuple[str, str]] = field(default_factory=list)


class Peer(ABC):
    """The client of one request. If the client has closed the connection, all methods do nothing."""

    _task: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def is_open(self) -> bool: ...

    @abstractmethod
    def respond(self, response: HttpResponse) -> None: ...

    @abstractmethod
    def start_stream(self, content_type: str, headers: list[tuple[str, str]]) -> None:
        """Begin an answer of unknown length. Then call `send` for each piece, and `end_stream`."""

    @abstractmethod
    async def send(self, chunk: bytes) -> None:
        """Send a piece of the answer, and wait until the client has taken enough of the earlier pieces."""

    @abstractmethod
    def end_stream(self) -> None: ...

    @abstractmethod
    def abort(self) -> None:
        """Cut the connection without an answer."""

    def start_answer(self, handle: Handler, request: HttpRequest) -> None:
        """Call `handle` for a request. Send the answer that it returns, or run the answer that it returns as a task."""
        outcome = handle(request, self)
        if isinstance(outcome, HttpResponse):
            self.respond(outcome)
        else:
            self._task = asyncio.get_running_loop().create_task(outcome)
            self._task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Cut the connection if the task that answers has failed, and raise its error, so that asyncio logs it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.abort()
            raise error


def local_address(transport: asyncio.Transport) -> str:
    """Return the IP address of this machine to which a client has connected; empty if the socket has no address."""
    address = transport.get_extra_info("sockname")
    return str(address[0]) if isinstance(address, tuple) else ""


Handler = Callable[[HttpRequest, Peer], HttpResponse | Coroutine[None, None, None]]
"""Answers a request at once, or returns a coroutine that answers through the peer."""


class HttpConnection(asyncio.Protocol, Peer):
    """The connection of one client. Requests are answered in order, one at a time.

    If the client begins with the preface of HTTP/2, the connection is passed to the protocol that `http2` makes.
    """

    def __init__(
        self,
        handle: Handler,
        connections: Connections,
        http2: Callable[[Handler, Connections], asyncio.Protocol],
    ) -> None:
        self._handle = handle
        self._connections = connections
        self._http2 = http2
        self._buffer = bytearray()
        self._head: tuple[HttpRequest, int, int] | None = None
        """The next request if its head has come: without its body, with the place and the length of the body."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._close_after = False  # whether to close the connection after the present answer
        self._is_head = False  # whether the present request is HEAD, whose answer has no body
        self._transport: asyncio.Transport | None = None
        self._arrived_at = ""
        """The IP address of this machine to which the client connected."""

    # --- called by asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the new connection, and the address to which it came."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._arrived_at = local_address(transport)
        self._connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client has gone, and cancel the answer that is under way."""
        assert self._transport is not None
        self._connections.discard(self._transport)
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Keep the bytes, and handle the requests that are complete. Abort if the client sends too much."""
        self._buffer += data
        if len(self._buffer) > HEAD_BYTES_MAX + BODY_BYTES_MAX:
            self.abort()
            return
        self._advance()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue, because the client takes answers again."""
        self._writable.set()
        self._advance()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Handle the requests that are complete, unless one is being answered or the client does not take answers."""
        while self._transport is not None and self._task is None and self._writable.is_set():
            request = self._next_request()
            if request is None:
                return
            self._close_after = request.headers.get("connection", "").lower() == "close"
            self._is_head = request.method == "HEAD"
            self.start_answer(self._handle, request)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Handle the next request when an answer is complete."""
        self._task = None
        super()._task_done(task)
        self._advance()

    def _next_request(self) -> HttpRequest | None:
        """Take the next request from the buffer; None if it is not complete yet."""
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        request, start, length = self._head
        if len(self._buffer) < start + length:
            return None
        request.body = bytes(memoryview(self._buffer)[start : start + length])
        del self._buffer[: start + length]
        self._head = None
        return request

    def _hand_over(self) -> None:
        """Pass the connection to the HTTP/2 protocol, together with all bytes received so far."""
        assert self._transport is not None
        transport, self._transport = self._transport, None
        successor = self._http2(self._handle, self._connections)
        transport.set_protocol(successor)
        successor.connection_made(transport)
        successor.data_received(bytes(self._buffer))

    def _read_head(self) -> bool:
        """Parse the head of the next request, and return whether it was complete. Answers an unreadable one with
        400.
        """
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                self.abort()
            return False
        if self._buffer.startswith(_HTTP2_PREFACE):
            self._hand_over()
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        fields = [line.partition(":") for line in lines[1:]]
        headers = joined_headers((name, value.strip()) for name, _, value in fields)
        length = headers.get("content-length", "0")
        if (
            len(parts) != 3
            or not all(name and name.strip() == name and colon and "\n" not in value for name, colon, value in fields)
            or not length.isdigit()
            or int(length) > BODY_BYTES_MAX
            or "transfer-encoding" in headers
        ):
            self._close_after = True
            self.respond(HttpResponse(b'{"__type":"SerializationException","message":"unreadable request"}', 400))
            return False
        if headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._head = (HttpRequest(parts[0], parts[1], headers, b"", self._arrived_at), end + 4, int(length))
        return True

    # --- answers -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def respond(self, response: HttpResponse) -> None:
        """Send an answer with its body, or only its head if the request was HEAD."""
        if self._transport is None:
            return
        head = _head(response.status, response.content_type, response.headers)
        head += b"Content-Length: %d\r\n\r\n" % len(response.body)
        body = b"" if self._is_head else response.body
        if len(body) > _JOINED_BYTES_MAX:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)
        if self._close_after:
            self._transport.close()

    def start_stream(self, content_type: str, headers: list[tuple[str, str]]) -> None:
        """Send the head of an answer of unknown length."""
        if self._transport is not None:
            self._transport.write(_head(200, content_type, headers) + b"Transfer-Encoding: chunked\r\n\r\n")

    async def send(self, chunk: bytes) -> None:
        """Send a piece of an answer of unknown length, as a chunk. Then wait, if the client does not take what was
        sent.
        """
        if self._transport is not None:
            self._transport.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        await self._writable.wait()

    def end_stream(self) -> None:
        """End an answer that was sent in chunks."""
        if self._transport is not None:
            self._transport.write(b"0\r\n\r\n")
            if self._close_after:
                self._transport.close()

    def abort(self) -> None:
        """Cut the connection without an answer."""
        if self._transport is not None:
            self._transport.abort()


def dated(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Add the Date header, which every answer of AWS has. It shows the time of this machine, even if a test has shifted
    the clock of the streams.
    """
    has_date = any(name.lower() == "date" for name, _ in headers)
    return headers if has_date else [*headers, ("date", formatdate(usegmt=True))]


def _head(status: int, content_type: str, headers: list[tuple[str, str]]) -> bytes:
    """Return the status line and the headers of an answer."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Status')}"]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    lines.extend(f"{name}: {value}" for name, value in dated(headers))
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")
