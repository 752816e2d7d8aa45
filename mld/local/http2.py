"""`Http2Connection`: HTTP/2 without TLS and without an upgrade ("prior knowledge"), for the same handler as HTTP/1.1.

The Kinesis clients of the AWS SDKs for JavaScript and for Java (asynchronous) speak only this protocol to an http
endpoint. The library `h2`, from the extra ``mld[local]``, implements it. Each HTTP/2 stream is one exchange: the
request is handled when it is complete, and the answer is sent as the client's flow-control windows allow. Exchanges do
not wait for each other. The size of a request is bounded; if it is exceeded, the stream is reset.
"""

from __future__ import annotations

import asyncio

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

from mld.core.webrule import joined_headers
from mld.local.http import (
    BODY_BYTES_MAX,
    Connections,
    Handler,
    HttpRequest,
    HttpResponse,
    Peer,
    dated,
    local_address,
)


class Http2Connection(asyncio.Protocol):
    """The connection of one client. `h2` allows at most 100 exchanges at a time."""

    def __init__(self, handle: Handler, connections: Connections) -> None:
        self._handle = handle
        self._connections = connections
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._exchanges: dict[int, _Exchange] = {}  # by the number of their HTTP/2 stream
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self.arrived_at = ""
        """The IP address of this machine to which the client connected."""

    # --- called by asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the new connection, and send the settings with which HTTP/2 begins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.arrived_at = local_address(transport)
        self._connections.add(transport)
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client has gone, and cancel the work on all its requests."""
        assert self._transport is not None
        self._connections.discard(self._transport)
        self._transport = None
        self._drop_all_exchanges()

    def data_received(self, data: bytes) -> None:
        """Handle the frames in the bytes, and send what answers may go on."""
        try:
            for event in self._h2.receive_data(data):
                self._on(event)
        except ProtocolError:
            self._close()  # this sends the client the reason, as GOAWAY
            return
        # Any of these frames may have enlarged a flow-control window.
        self.pump()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.pump()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _on(self, event: Event) -> None:
        """Handle an event of HTTP/2: begin an exchange with the headers of a request, collect its body, have it
        answered when it is complete, and give it up if the client resets it.
        """
        match event:
            case RequestReceived():
                headers = joined_headers((str(name), str(value)) for name, value in event.headers)
                self._exchanges[event.stream_id] = _Exchange(self, event.stream_id, headers)
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if (exchange := self._exchanges.get(event.stream_id)) is not None:
                    exchange.body += event.data
                    if len(exchange.body) > BODY_BYTES_MAX:
                        exchange.abort()
            case StreamEnded():
                if (exchange := self._exchanges.get(event.stream_id)) is not None:
                    exchange.begin(self._handle)
            case StreamReset():
                self._drop_exchange(event.stream_id)
            case ConnectionTerminated():
                self._close()
            case _:
                pass

    def _drop_exchange(self, number: int) -> None:
        """Give up an exchange, and cancel the work on its request. Nothing happens if there is no such exchange."""
        if (exchange := self._exchanges.pop(number, None)) is not None:
            exchange.client_has_gone()

    def _drop_all_exchanges(self) -> None:
        """Give up all exchanges, and cancel the work on their requests."""
        for number in list(self._exchanges):
            self._drop_exchange(number)

    # --- answers -----------------------------------------------------------------------------------------------------

    def begin_answer(self, number: int, status: int, content_type: str, headers: list[tuple[str, str]]) -> None:
        """Send the headers of an answer."""
        typed = [("content-type", content_type)] if content_type else []
        try:
            self._h2.send_headers(number, [(":status", str(status)), *typed, *dated(headers)])
        except ProtocolError:  # the client has reset the stream, and the event for that comes next
            self._drop_exchange(number)
        self._flush()

    def pump(self) -> None:
        """Send as much of the answers as the flow-control windows and the socket allow."""
        for exchange in list(self._exchanges.values()):
            self._pump(exchange)
        self._flush()

    def _pump(self, exchange: _Exchange) -> None:
        """Send as much of one answer as is allowed, and end the HTTP/2 stream after its last byte."""
        try:
            while exchange.unsent and self._is_writable:
                room = min(self._h2.local_flow_control_window(exchange.number), self._h2.max_outbound_frame_size)
                if room <= 0:
                    return
                self._h2.send_data(exchange.number, bytes(exchange.unsent[:room]))
                del exchange.unsent[:room]
                self._flush()
            if not exchange.unsent:
                exchange.drained.set()
                if exchange.is_ended:
                    self._h2.end_stream(exchange.number)
                    del self._exchanges[exchange.number]
        except ProtocolError:
            self._drop_exchange(exchange.number)

    def reset(self, number: int) -> None:
        """End an exchange with an error, in the middle of its answer."""
        if self._transport is not None and number in self._exchanges:
            self._h2.reset_stream(number)
            self._drop_exchange(number)
            self._flush()

    def _close(self) -> None:
        """End all exchanges, and close the connection."""
        self._drop_all_exchanges()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        """Send the bytes that `h2` has ready for the client."""
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)


class _Exchange(Peer):
    """One request and its answer, on a stream of its own."""

    def __init__(self, connection: Http2Connection, number: int, headers: dict[str, str]) -> None:
        self.number = number
        self.body = bytearray()
        self.unsent = bytearray()  # bytes of the answer for which there was no room yet
        self.drained = asyncio.Event()  # set when `unsent` is empty
        self.is_ended = False  # whether the answer ends with `unsent`
        self._connection = connection
        self._headers = headers
        self._is_client_there = True

    def begin(self, handle: Handler) -> None:
        """Let `handle` answer the request, which is complete now."""
        headers = {name: value for name, value in self._headers.items() if not name.startswith(":")}
        authority = self._headers.get(":authority", "")
        if authority and headers.setdefault("host", authority) != authority:
            headers["host"] += f", {authority}"  # like two Host headers, which `mld.core.webrule` refuses
        method, path = self._headers[":method"], self._headers.get(":path", "")
        request = HttpRequest(method, path, headers, bytes(self.body), self._connection.arrived_at)
        self.body.clear()
        self.start_answer(handle, request)

    def client_has_gone(self) -> None:
        """Cancel the work on a request, because nobody waits for its answer any more."""
        self._is_client_there = False
        self.drained.set()
        if self._task is not None:
            self._task.cancel()

    # --- Peer --------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._is_client_there and not self.is_ended

    def respond(self, response: HttpResponse) -> None:
        """Send a whole answer. What the client's flow-control window has no room for follows later
        (`Http2Connection.pump`).
        """
        if self.is_open:
            headers = [*response.headers, ("content-length", str(len(response.body)))]
            self._connection.begin_answer(self.number, response.status, response.content_type, headers)
            self.unsent += response.body
            self.end_stream()

    def start_stream(self, content_type: str, headers: list[tuple[str, str]]) -> None:
        """Send the headers of an answer of unknown length."""
        if self.is_open:
            self._connection.begin_answer(self.number, 200, content_type, headers)

    async def send(self, chunk: bytes) -> None:
        """Send a piece of an answer of unknown length, and wait until the client's flow-control window has taken it."""
        if self.is_open:
            self.unsent += chunk
            self.drained.clear()
            self._connection.pump()
            await self.drained.wait()

    def end_stream(self) -> None:
        """End the answer after the last byte that was queued."""
        if self.is_open:
            self.is_ended = True
            self._connection.pump()

    def abort(self) -> None:
        """End the exchange with an error."""
        self._connection.reset(self.number)
