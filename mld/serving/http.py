"""A small HTTP/1.1 server on the daemon's own event loop: GET and HEAD of a few read-only paths.

It lives on the loop on purpose: if the loop hangs nobody answers, and that is what liveness means. `h11` reads and
writes the protocol; here are the bounds (connections, sizes, times) and the rule about who may call
(`mld.core.webrule`). An answer is made at once or awaited; an exception in a handler is an answer of 500 and a line in
the log, never more.

No connection is ended for another one: there are so many places, and so many for one peer. Whoever finds none waits a
moment, and is answered if by then it has asked for a probe, which is short; else it is closed. A place is kept for a
quarter of a second for each request, so a peer cannot make the daemon do more than so much.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import h11

from mld.core.webrule import FORBIDDEN, WebRule

log = logging.getLogger(__name__)

PLACES_MAX = 32  # a browser opens six
PLACES_OF_PEER_MAX = 16  # half of them, so that one peer cannot take them all
WAITING_MAX = 256  # of more, the first is judged by what it has sent
WAIT_S = 0.25  # a prober sends its request as soon as it is connected
PROBES_MAX = 64  # at once without places
PROBE_TIMEOUT_S = 1.0
REQUEST_LINE_BYTES = 64  # in which the line of a probe's request begins
ACCEPTS_PER_TURN = 32
ACCEPT_PAUSE_S = 0.5  # where the system has no file for another connection
PACE_S = 0.25  # how long a place serves one request at least, once it has served more than a page needs
UNPACED_REQUESTS = 8
HEAD_BYTES_MAX = 16 * 1024
READ_BYTES = 16 * 1024
WRITE_BYTES = 64 * 1024
REQUEST_TIMEOUT_S = 10.0  # to send a request head, and to take so many bytes of an answer
IDLE_TIMEOUT_S = 60.0  # between the requests of one connection
REQUESTS_PER_CONNECTION_MAX = 1_000
UNREAD_BYTES_MAX = 1024 * 1024  # read and dropped before a connection ends, so that the caller gets its answer
BAD_REQUEST = 400
METHODS = ("GET", "HEAD")
LOOPBACK = "127.0.0.1"
_COMMON = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a path answers. `headers` have lower-case names."""

    status: int
    content_type: str
    body: bytes | Sequence[bytes]
    """In pieces, if it is long."""
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: int, text: str, **headers: str) -> HttpAnswer:
    """Return a line of plain text."""
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


@dataclass(frozen=True, slots=True)
class Question:
    """A request that may be answered. `target` has no query; `headers` have lower-case names."""

    target: str
    headers: Mapping[str, str]


Route = Callable[[Question], Awaitable[HttpAnswer]]


class SharedAnswers:
    """Makes an answer at most once in `valid_s` for all who ask, and less often if it takes long; what they ask for
    has few variants."""

    VARIANTS_MAX = 4
    VALID_S_MAX = 5.0
    COST_SHARE = 0.05
    """Of the loop's time, the most that goes into making it, however many ask for it."""

    def __init__(self, valid_s: float = 1.0) -> None:
        self._valid_s = valid_s
        self._kept: dict[str, tuple[float, HttpAnswer]] = {}
        self._making = asyncio.Lock()

    async def answer(self, variant: str, make: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
        """Return the answer that was made last, if it is new enough."""
        async with self._making:
            time = asyncio.get_running_loop().time
            began, (until, kept) = time(), self._kept.get(variant, (-math.inf, None))
            if kept is None or began >= until:
                kept = await make()
                if len(self._kept) >= self.VARIANTS_MAX:
                    self._kept.clear()
                now = time()
                valid_s = max(self._valid_s, min(self.VALID_S_MAX, (now - began) / self.COST_SHARE))
                self._kept[variant] = now + valid_s, kept
            return kept


class HttpServer:
    """Serves `routes`, by path, until it is closed. `probes` are paths whose answers are short, and never wait."""

    def __init__(self, routes: Mapping[str, Route], rule: WebRule, probes: Collection[str] = ()) -> None:
        self._routes = routes
        self._rule = rule
        self._probes = tuple(f"{method} {path} ".encode() for method in METHODS for path in probes)
        self._listening: list[socket.socket] = []
        self._places: dict[asyncio.Task[None], str] = {}
        """Who serves a connection, and its peer."""
        self._answering: set[asyncio.Task[None]] = set()
        """Who answers a probe that has no place."""
        self._waiting: deque[tuple[socket.socket, str, asyncio.TimerHandle]] = deque()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0. Raises OSError if the address cannot be had."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                self._listening.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
                self._listen(listener)
        except OSError:
            self._stop_listening()
            raise
        bound: int = self._listening[0].getsockname()[1]
        return bound

    async def start_at(self, path: Path) -> None:
        """Listen at a socket of this machine that only its owner may use. Raises OSError if it cannot be made."""
        listener = _owners_socket(path)
        self._listening.append(listener)
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        listener.listen(WAITING_MAX)
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _stop_listening(self) -> None:
        for listener in self._listening:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listening.clear()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        self._stop_listening()
        while self._waiting:
            connection, _, timer = self._waiting.popleft()
            timer.cancel()
            connection.close()
        tasks = {*self._places, *self._answering}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- who is served ------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listener)
                log.warning("cannot accept connections: %s", error, extra={"action": "http_no_accept"})
                return
            connection.setblocking(False)
            self._admit(connection, str(address[0]) if isinstance(address, tuple) else "")

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listening:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _admit(self, connection: socket.socket, peer: str) -> None:
        """Give it a place, or let it wait for what it says first."""
        if self._is_placed(connection, peer):
            return
        if len(self._waiting) == WAITING_MAX:
            self._judge_first()
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._judge_first)
        self._waiting.append((connection, peer, timer))

    def _is_placed(self, connection: socket.socket, peer: str) -> bool:
        taken = sum(other == peer for other in self._places.values()) if peer else 0
        if len(self._places) >= PLACES_MAX or taken >= PLACES_OF_PEER_MAX:
            return False
        task = asyncio.create_task(self._serve_at_place(connection, is_paced=bool(peer)))
        self._places[task] = peer
        task.add_done_callback(self._places.pop)
        return True

    def _judge_first(self) -> None:
        """Serve whoever waits longest if there is a place now, or it has asked for a probe; close it otherwise."""
        connection, peer, timer = self._waiting.popleft()
        timer.cancel()
        if self._is_placed(connection, peer):
            return
        try:
            asked = connection.recv(REQUEST_LINE_BYTES, socket.MSG_PEEK)
        except OSError:
            asked = b""
        if not asked.startswith(self._probes) or len(self._answering) == PROBES_MAX:
            connection.close()
            return
        task = asyncio.create_task(self._answer_probe(connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_probe(self, connection: socket.socket) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._serve_connection(connection, requests_max=1)

    async def _serve_at_place(self, connection: socket.socket, *, is_paced: bool) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        served = await self._serve_connection(connection, requests_max=REQUESTS_PER_CONNECTION_MAX)
        if is_paced:
            await asyncio.sleep(max(0.0, began + served * PACE_S - time()))

    async def _serve_connection(self, connection: socket.socket, *, requests_max: int) -> int:
        """Answer its requests, and end it. Return how many there were."""
        served = 0
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
        except OSError:
            connection.close()
            return served
        try:
            async for _ in self._serve(reader, writer, requests_max):
                served += 1
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await _part(reader, writer)
        except (ConnectionError, TimeoutError):
            pass  # the caller is gone or too slow: there is nobody to tell
        finally:
            writer.transport.abort()
        return served

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests_max: int
    ) -> AsyncIterator[None]:
        """Answer one request after the other; yields after each."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        timeout_s = REQUEST_TIMEOUT_S
        for number in range(requests_max):
            try:
                async with asyncio.timeout(timeout_s):
                    request = await _next_request(connection, reader)
            except h11.RemoteProtocolError as error:
                if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                    await _send(connection, writer, text_answer(error.error_status_hint, "bad request"), close=True)
                return
            if request is None:
                return
            method, answer = request.method.decode(), await self._answer(request, writer)
            # What the request carried besides its head is not read: the connection ends with the answer.
            close = connection.their_state is not h11.DONE or answer.status == BAD_REQUEST
            await _send(connection, writer, answer, head_only=method == "HEAD", close=close)
            yield
            if close or connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
            timeout_s = IDLE_TIMEOUT_S
            if number >= UNPACED_REQUESTS:
                await asyncio.sleep(PACE_S)

    async def _answer(self, request: h11.Request, writer: asyncio.StreamWriter) -> HttpAnswer:
        target = request.target.decode("ascii", "replace")
        headers = _joined(request)
        if "content-length" in headers and "transfer-encoding" in headers:
            return text_answer(BAD_REQUEST, "a request has one length: Content-Length or Transfer-Encoding")
        refusal = self._rule.refusal(target, headers, _arrived_at(writer))
        if refusal is not None:
            return text_answer(FORBIDDEN, refusal)
        if request.method.decode("ascii", "replace") not in METHODS:
            return text_answer(405, "only GET and HEAD are answered here", allow=", ".join(METHODS))
        path = target.partition("?")[0]
        route = self._routes.get(path)
        if route is None:
            return text_answer(404, f"there are {', '.join(sorted(self._routes))}")
        try:
            return await route(Question(path, headers))
        except Exception:
            log.exception("cannot answer %s", path, extra={"action": "http_failed", "path": path})
            return text_answer(500, "this answer failed; the daemon's log says why")


def _owners_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener


def _arrived_at(writer: asyncio.StreamWriter) -> str:
    """Return the local address of a connection; of one that has none, the only one that can reach it."""
    name = writer.get_extra_info("sockname")
    return str(name[0]) if isinstance(name, tuple) else LOOPBACK


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the next request head, read to its end if it has no body; None if the caller has nothing more to ask."""
    found: h11.Request | None = None
    while True:
        match connection.next_event():
            case h11.Request() as request:
                found = request
            case h11.EndOfMessage() | h11.Data():
                return found
            case h11.ConnectionClosed() | h11.PAUSED:
                return found
            case h11.NEED_DATA:
                if found is not None:
                    return found
                connection.receive_data(await reader.read(READ_BYTES))


async def _send(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    answer: HttpAnswer,
    *,
    head_only: bool = False,
    close: bool = False,
) -> None:
    body = (answer.body,) if isinstance(answer.body, bytes) else answer.body
    headers = _COMMON | {
        "content-type": answer.content_type,
        "content-length": str(sum(map(len, body))),
        **answer.headers,
        **({"connection": "close"} if close else {}),
    }
    await _write(writer, connection.send(h11.Response(status_code=answer.status, headers=list(headers.items()))))
    if not head_only:
        for piece in body:
            await _write(writer, connection.send(h11.Data(data=piece)))
    await _write(writer, connection.send(h11.EndOfMessage()))


async def _write(writer: asyncio.StreamWriter, data: bytes | None) -> None:
    left = memoryview(data or b"")
    for start in range(0, len(left), WRITE_BYTES):
        writer.write(left[start : start + WRITE_BYTES])
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await writer.drain()


async def _part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the caller have the whole answer: to close with something unread would destroy what it has not yet read."""
    writer.write_eof()
    for _ in range(0, UNREAD_BYTES_MAX, READ_BYTES):
        if not await reader.read(READ_BYTES):
            return


def _joined(request: h11.Request) -> dict[str, str]:
    """Return headers by lower-case name, several of one name joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode(), raw_value.decode("ascii", "replace")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
