"""`HttpConnection`: an HTTP/1.1 server on `asyncio.Protocol`, for AWS SDK clients on the loopback interface.

The library `h11` implements the protocol. Requests are answered one after the other. The size of a request is bounded;
the connection of a client that exceeds the bound is closed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

import h11

from mld.core.webrule import joined_headers

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest body. PutRecords accepts 10 MiB of data, which are 13.4 MiB of base64, plus the keys."""
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
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
        """Call `handle` for a request. If it returns an answer, send that; if it returns a coroutine, which will send
        the answer, run that as a task.
        """
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
    """The connection of one client. Requests are answered in order, one at a time. `h11` reads and writes the protocol.

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
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._first: bytes | None = b""
        """The first bytes, until they show whether the client speaks HTTP/2; None afterwards."""
        self._received = bytearray()
        """What has come since, and `h11` has not taken yet, because a request is being answered."""
        self._request: HttpRequest | None = None
        """The request whose body is still coming."""
        self._body = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
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
        """Keep the bytes, and handle the requests that are complete. Abort if the client sends too much while it is
        being answered.
        """
        if self._first is not None:
            self._first += data
            if _HTTP2_PREFACE.startswith(self._first[: len(_HTTP2_PREFACE)]):
                if len(self._first) >= len(_HTTP2_PREFACE):
                    self._hand_over(self._first)
                return
            data, self._first = self._first, None
        self._received += data
        self._advance()
        if len(self._received) > HEAD_BYTES_MAX + BODY_BYTES_MAX:
            self.abort()

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
            try:
                request = self._next_request()
            except h11.RemoteProtocolError:
                self._refuse()
                return
            if request is None:
                return
            self.start_answer(self._handle, request)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Handle the next request when an answer is complete."""
        self._task = None
        super()._task_done(task)
        self._advance()

    def _next_request(self) -> HttpRequest | None:
        """Return the next request; None if it is not complete yet. Raises h11.RemoteProtocolError."""
        while True:
            match self._h11.next_event():
                case h11.Request() as head:
                    self._begin(head)
                case h11.Data(data=data):
                    self._body += data
                    if len(self._body) > BODY_BYTES_MAX:
                        raise h11.RemoteProtocolError("a body that is too long")
                case h11.EndOfMessage():
                    request, self._request = self._request, None
                    assert request is not None
                    request.body, self._body = bytes(self._body), bytearray()
                    return request
                case h11.NEED_DATA if self._received:
                    self._h11.receive_data(bytes(self._received))
                    self._received = bytearray()
                case _:
                    return None

    def _begin(self, head: h11.Request) -> None:
        """Note a request whose head has come, and let the client send the body if it waits for that."""
        headers = joined_headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
        self._is_head = head.method == b"HEAD"
        self._request = HttpRequest(head.method.decode(), head.target.decode(), headers, b"", self._arrived_at)
        if self._h11.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))

    def _refuse(self) -> None:
        """Answer an unreadable request, and close the connection."""
        if self._h11.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self.respond(HttpResponse(b'{"__type":"SerializationException","message":"unreadable request"}', 400))
        if self._transport is not None:
            self._transport.close()

    def _hand_over(self, received: bytes) -> None:
        """Pass the connection to the HTTP/2 protocol, together with all bytes received so far."""
        assert self._transport is not None
        transport, self._transport = self._transport, None
        successor = self._http2(self._handle, self._connections)
        transport.set_protocol(successor)
        successor.connection_made(transport)
        successor.data_received(received)

    # --- answers -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def respond(self, response: HttpResponse) -> None:
        """Send an answer with its body, or only its head if the request was HEAD."""
        length = [("Content-Length", str(len(response.body)))]
        self._start(response.status, response.content_type, response.headers + length)
        if not self._is_head:
            self._write(h11.Data(data=response.body))
        self.end_stream()

    def start_stream(self, content_type: str, headers: list[tuple[str, str]]) -> None:
        """Send the head of an answer of unknown length."""
        self._start(200, content_type, headers)

    async def send(self, chunk: bytes) -> None:
        """Send a piece of an answer of unknown length. Then wait, if the client does not take what was sent."""
        if chunk:
            self._write(h11.Data(data=chunk))
        await self._writable.wait()

    def end_stream(self) -> None:
        """End an answer, and close the connection if the client wants that or has sent what is no request."""
        if self._transport is None:
            return
        self._write(h11.EndOfMessage())
        if self._h11.our_state is self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection without an answer."""
        if self._transport is not None:
            self._transport.abort()

    def _start(self, status: int, content_type: str, headers: list[tuple[str, str]]) -> None:
        """Send the status line and the headers of an answer."""
        typed = [("Content-Type", content_type)] if content_type else []
        self._write(h11.Response(status_code=status, reason=_PHRASES.get(status, ""), headers=typed + dated(headers)))

    def _write(self, event: h11.Event) -> None:
        """Send a part of an answer. Nothing is sent if the client has gone."""
        if self._transport is not None:
            self._transport.write(self._h11.send(event) or b"")


def dated(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Add the Date header, which every answer of AWS has. It shows the time of this machine, even if a test has shifted
    the clock of the streams.
    """
    has_date = any(name.lower() == "date" for name, _ in headers)
    return headers if has_date else [*headers, ("date", formatdate(usegmt=True))]
