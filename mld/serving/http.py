"""`HttpServer`: a small HTTP/1.1 server on the daemon's event loop, for GET and HEAD of a few read-only paths.

It runs on the event loop on purpose: if the loop hangs, no probe is answered, so the liveness probe fails as it should.
Connections, sizes and times are bounded. `mld.core.webrule` decides which callers are served. An exception in a handler
only leads to an answer of 500 and a line in the log.

The number of connections that are served at the same time is limited: each takes one of PLACES_MAX places, and a peer
has at most PLACES_OF_PEER_MAX. An open connection is never closed to free its place. If no place is free, a new
connection waits for WAIT_S. If there is still no place, but the connection has asked for a probe, it is answered,
because that answer is short; otherwise it is closed. Each request counts for at least PACE_S of its connection's place,
which bounds the work that a peer can cause.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import h11

from mld.core.webrule import FORBIDDEN, WebRule, joined_headers
from mld.serving.http_answers import HttpAnswer, Question, Route, text_answer
from mld.serving.http_exchange import (
    HEAD_BYTES_MAX,
    READ_BYTES,
    REQUEST_TIMEOUT_S,
    lingering_close,
    next_request,
    send_answer,
)

log = logging.getLogger(__name__)

PLACES_MAX = 32  # a browser opens six connections
PLACES_OF_PEER_MAX = 16  # half of them, so that one peer cannot take them all
WAITING_MAX = 256  # connections that wait for a place; if one more comes, the first one waits no longer
WAIT_S = 0.25  # how long a connection waits for a place; a prober has sent its request by then
PROBES_MAX = 64  # how many probes are answered at the same time without a place
PROBE_TIMEOUT_S = 1.0
REQUEST_LINE_BYTES = 64  # how many first bytes of a request are read to see whether it asks for a probe
ACCEPTS_PER_TURN = 32
ACCEPT_PAUSE_S = 0.5  # pause when the system has no file handle for another connection
PACE_S = 0.25  # least time for which a request keeps its place: by a pause after it, or when its connection ends
UNPACED_REQUESTS = 8  # how many first requests of a connection have no pause after them; a page needs fewer
IDLE_TIMEOUT_S = 60.0  # between the requests of one connection
REQUESTS_PER_CONNECTION_MAX = 1_000
BAD_REQUEST = 400
METHODS = ("GET", "HEAD")
LOOPBACK = "127.0.0.1"


class HttpServer:
    """Serves `routes`, by path, until it is closed. `probes` are the paths of probes: their answers are short and
    quick.
    """

    def __init__(self, routes: Mapping[str, Route], rule: WebRule, probes: Collection[str] = ()) -> None:
        self._routes = routes
        self._rule = rule
        self._probes = tuple(f"{method} {path} ".encode() for method in METHODS for path in probes)
        self._listening: list[socket.socket] = []
        self._places: dict[asyncio.Task[None], str] = {}
        """The task of each connection with a place, and the address of its peer."""
        self._answering: set[asyncio.Task[None]] = set()
        """The tasks that answer probes without a place."""
        self._waiting: deque[tuple[socket.socket, str, asyncio.TimerHandle]] = deque()
        """The connections that wait for a place, each with its peer's address and the timer that ends its wait."""

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; for port 0 the system chooses one. Raises OSError if the address is taken."""
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
        """Listen at a Unix socket that only its owner may use. Raises OSError if it cannot be made."""
        listener = _owners_socket(path)
        self._listening.append(listener)
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        """Begin to listen at a bound socket. The loop calls `_accept` when a connection comes."""
        listener.listen(WAITING_MAX)
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _stop_listening(self) -> None:
        """Accept no more connections."""
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
        """Accept the connections that wait at a listening socket, a limited number in one turn of the loop."""
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
        """Accept connections again after a pause, unless the server was closed meanwhile."""
        if listener in self._listening:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _admit(self, connection: socket.socket, peer: str) -> None:
        """Give the connection a place, or let it wait until its request can be seen."""
        if self._is_placed(connection, peer):
            return
        if len(self._waiting) == WAITING_MAX:
            self._judge_first()
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._judge_first)
        self._waiting.append((connection, peer, timer))

    def _is_placed(self, connection: socket.socket, peer: str) -> bool:
        """Serve the connection at a free place. Return False if no place is free, in all or for this peer.

        Connections of a Unix socket have no address (`peer` is empty), and come from our own supervisor. They are
        neither counted for a peer nor paced.
        """
        taken = sum(other == peer for other in self._places.values()) if peer else 0
        if len(self._places) >= PLACES_MAX or taken >= PLACES_OF_PEER_MAX:
            return False
        task = asyncio.create_task(self._serve_at_place(connection, is_paced=bool(peer)))
        self._places[task] = peer
        task.add_done_callback(self._places.pop)
        return True

    def _judge_first(self) -> None:
        """Serve the connection that has waited longest if a place is free, or if it asks for a probe; else close it."""
        connection, peer, timer = self._waiting.popleft()
        timer.cancel()
        if self._is_placed(connection, peer):
            return
        try:
            request_start = connection.recv(REQUEST_LINE_BYTES, socket.MSG_PEEK)
        except OSError:
            request_start = b""
        if not request_start.startswith(self._probes) or len(self._answering) == PROBES_MAX:
            connection.close()
            return
        task = asyncio.create_task(self._answer_probe(connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_probe(self, connection: socket.socket) -> None:
        """Answer the one request of a connection that has no place, within PROBE_TIMEOUT_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._serve_connection(connection, requests_max=1, lingers=False)

    async def _serve_at_place(self, connection: socket.socket, *, is_paced: bool) -> None:
        """Serve a connection that has a place. If it is paced, keep the place so long that its requests come no faster
        than one per `PACE_S`.
        """
        time = asyncio.get_running_loop().time
        began = time()
        served = await self._serve_connection(connection, requests_max=REQUESTS_PER_CONNECTION_MAX)
        if is_paced:
            await asyncio.sleep(max(0.0, began + served * PACE_S - time()))

    async def _serve_connection(self, connection: socket.socket, *, requests_max: int, lingers: bool = True) -> int:
        """Answer the requests of a connection, close it, and return how many were answered.

        Without `lingers` the connection is closed without waiting for the caller to close its side. That is enough for
        a short answer, and a slow caller then takes no room.
        """
        served = 0
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
        except OSError:
            connection.close()
            return served
        try:
            async for _ in self._serve(reader, writer, requests_max):
                served += 1
            if lingers:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await lingering_close(reader, writer)
        except OSError:  # ENOTCONN, too, if the caller resets the connection just after the answer
            pass  # the caller is gone or too slow: nothing can be sent
        finally:
            writer.transport.abort()
        return served

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests_max: int
    ) -> AsyncIterator[None]:
        """Answer one request after the other. Yield after each answer, so that the caller can count them."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        timeout_s = REQUEST_TIMEOUT_S
        for number in range(requests_max):
            try:
                async with asyncio.timeout(timeout_s):
                    request = await next_request(connection, reader)
            except h11.RemoteProtocolError as error:
                if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # else h11 lets us send no answer any more
                    await send_answer(
                        connection, writer, text_answer(error.error_status_hint, "bad request"), close=True
                    )
                return
            if request is None:
                return
            method, answer = request.method.decode(), await self._answer(request, writer)
            # The body of a request is not read, so the connection ends after the answer to a request with one.
            close = connection.their_state is not h11.DONE or answer.status == BAD_REQUEST
            await send_answer(connection, writer, answer, head_only=method == "HEAD", close=close)
            yield
            if close or connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
            timeout_s = IDLE_TIMEOUT_S
            if number >= UNPACED_REQUESTS:
                await asyncio.sleep(PACE_S)

    async def _answer(self, request: h11.Request, writer: asyncio.StreamWriter) -> HttpAnswer:
        """Return the answer that the route of a request makes, or a refusal."""
        target = request.target.decode("ascii", "replace")
        headers = joined_headers((name.decode(), value.decode("ascii", "replace")) for name, value in request.headers)
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
            return text_answer(404, f"ask for one of {', '.join(sorted(self._routes))}")
        try:
            return await route(Question(path, headers))
        except Exception:
            log.exception("cannot answer %s", path, extra={"action": "http_failed", "path": path})
            return text_answer(500, "this answer failed; the daemon's log says why")


def _owners_socket(path: Path) -> socket.socket:
    """Return a Unix socket at this path that only this user may connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener


def _arrived_at(writer: asyncio.StreamWriter) -> str:
    """Return the local address of a connection; for a Unix socket, which has none, that of this machine."""
    name = writer.get_extra_info("sockname")
    return str(name[0]) if isinstance(name, tuple) else LOOPBACK
