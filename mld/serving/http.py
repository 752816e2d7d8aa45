"""A small HTTP/1.1 server on the daemon's own event loop: GET and HEAD of a few read-only paths.

It lives on the loop on purpose: if the loop hangs nobody answers, and that is what liveness means. `h11` reads and
writes the protocol; here are the bounds (connections, sizes, times) and the rule about who may call (`mld.webrule`).
An answer is made at once or awaited; an exception in a handler is an answer of 500 and a line in the log, never more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import h11

from mld.webrule import FORBIDDEN, WebRule

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32  # a browser opens six, a prober one; of more, the one that was silent for longest ends
HEAD_BYTES_MAX = 16 * 1024
READ_BYTES = 16 * 1024
WRITE_BYTES = 64 * 1024
REQUEST_TIMEOUT_S = 10.0  # to send a request head, and to take so many bytes of an answer
IDLE_TIMEOUT_S = 60.0  # between the requests of one connection
REQUESTS_PER_CONNECTION_MAX = 1_000
UNREAD_BYTES_MAX = 1024 * 1024  # read and dropped before a connection ends, so that the caller gets its answer
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
    """A line of plain text."""
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


@dataclass(frozen=True, slots=True)
class Question:
    """A request that may be answered. `target` has no query; `headers` have lower-case names."""

    target: str
    headers: Mapping[str, str]


Route = Callable[[Question], Awaitable[HttpAnswer]]


class HttpServer:
    """Serves `routes`, by path, until it is closed."""

    def __init__(self, routes: Mapping[str, Route], rule: WebRule) -> None:
        self._routes = routes
        self._rule = rule
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], float] = {}
        """The connections, with the time of the last thing that happened on each."""

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0. Raises OSError if the address cannot be had."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=READ_BYTES)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start_at(self, socket: Path) -> None:
        """Listen at a socket of this machine, in a directory that others cannot enter."""
        self._server = await asyncio.start_unix_server(self._accept, socket, limit=READ_BYTES)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        if self._server is not None:
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        # Whoever holds connections open without a word must not keep a probe out.
        while len(self._open) >= CONNECTIONS_MAX:
            silent = min(self._open, key=self._open.__getitem__)
            del self._open[silent]
            silent.cancel()
        self._note(task)
        try:
            await self._serve(reader, writer, task)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await _part(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the caller is gone or too slow, or we stop: there is nobody to tell
        finally:
            self._open.pop(task, None)
            writer.transport.abort()

    def _note(self, task: asyncio.Task[None]) -> None:
        self._open[task] = asyncio.get_running_loop().time()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        timeout_s = REQUEST_TIMEOUT_S
        for _ in range(REQUESTS_PER_CONNECTION_MAX):
            try:
                async with asyncio.timeout(timeout_s):
                    request = await _next_request(connection, reader)
            except h11.RemoteProtocolError as error:
                if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                    await _send(connection, writer, text_answer(error.error_status_hint, "bad request"), close=True)
                return
            if request is None:
                return
            self._note(task)
            method, answer = request.method.decode(), await self._answer(request, writer)
            # What the request carried besides its head is not read: the connection ends with the answer.
            close = connection.their_state is not h11.DONE
            await _send(connection, writer, answer, head_only=method == "HEAD", close=close)
            self._note(task)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
            timeout_s = IDLE_TIMEOUT_S

    async def _answer(self, request: h11.Request, writer: asyncio.StreamWriter) -> HttpAnswer:
        target = request.target.decode("ascii", "replace")
        headers = _joined(request)
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


def _arrived_at(writer: asyncio.StreamWriter) -> str:
    """The local address of a connection; of one that has none, the only one that can reach it."""
    name = writer.get_extra_info("sockname")
    return str(name[0]) if isinstance(name, tuple) else LOOPBACK


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The next request head, read to its end if it has no body; None if the caller has nothing more to ask."""
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
    """Headers by lower-case name, several of one name joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode(), raw_value.decode("ascii", "replace")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
