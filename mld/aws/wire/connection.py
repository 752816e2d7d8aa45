"""`Connection`: one keep-alive HTTP/1.1 connection to one origin, for one thread at a time or for the event loop.

A request is sent in one write, so that it does not wait for a delayed acknowledgement. `Incoming` parses the answer.
Only the thread that holds the `Turn` receives a large body and parses it, because the interpreter runs one thread at a
time. If several threads did so at once, they would take the interpreter from each other at every 16 KB of TLS, and each
would have half a body in memory.

This code uses sockets and not `http.client`, because it is faster: a signed call with an answer of five records costs
0.018 ms of CPU here, 0.079 ms with `http.client`, and 0.83 ms with botocore, in a tight loop on one machine.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from mld.aws.wire.answers import Answer, Incoming
from mld.aws.wire.proxies import Proxy, authority_of, open_tunnel
from mld.aws.wire.turns import Turn

READ_BYTES = 64 * 1024
PART_BYTES = 128 * 1024
"""Largest part of a body that is parsed part by part. A part of this size is still in the processor's cache."""
PLACED_BYTES = 16 * 1024
"""Size of the buffer through which the end of a body is read: a last piece shorter than this is copied once more."""
KEEPALIVE_PROBES = 3
"""A connection ends when this many probes get no answer. On a good network, one may be lost."""
GONE = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
"""Errors of a socket whose other end has left."""
LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors of a non-blocking socket that would have to wait."""
T = TypeVar("T")


class Origin(NamedTuple):
    """A server, and the way to it."""

    host: str
    port: int
    context: ssl.SSLContext | None
    """None for plain HTTP."""
    proxy: Proxy | None = None

    def __str__(self) -> str:
        address = authority_of(self.host, self.port)
        return address if self.proxy is None else f"{address} through the proxy {self.proxy}"


class _Rest(io.RawIOBase):
    """A body of `length` bytes as a file: first the bytes `begun`, then those that the socket still brings."""

    def __init__(self, receive_into: Callable[[Any, int], int], begun: bytes, length: int) -> None:
        self._receive_into = receive_into
        self._begun = memoryview(begun)
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer: first with the bytes of the body that came with the headers, then from the socket."""
        size = min(len(buffer), self._left)
        if self._begun:
            size = min(size, len(self._begun))
            buffer[:size], self._begun = self._begun[:size], self._begun[size:]
        else:
            size = self._receive_into(buffer, size) if size else 0
        self._left -= size
        return size


class Connection:
    """A connection to `origin`, through its proxy if it has one. Creating an instance connects, and raises OSError,
    also for timeouts and failures of TLS.

    `on_abortable` is called with this connection as soon as `abort` can end it. Timeouts alone are not enough: OpenSSL
    skips any number of messages of a handshake in one call, so a server that sends them without end causes no timeout.

    Of the connections that share a `turn`, only one at a time receives and parses a large body. While it waits for more
    bytes, another one may.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        turn: Turn | None = None,
        on_abortable: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """Connect to `origin`: to its proxy if it has one, through that by a tunnel, and by TLS if the origin speaks
        it. Raises OSError, also for timeouts and failures of TLS.

        `on_abortable` is called with this connection as soon as there is a socket, which another thread may then shut
        down to end the attempt. `turn` is held while a large body is received and parsed; by default nobody shares it.
        """
        nearest = origin.proxy or origin
        plain = socket.create_connection((nearest.host, nearest.port), timeout=connect_timeout_s)
        self.socket = plain
        try:
            on_abortable(self)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_when_silent(plain, read_timeout_s)
            context = origin.context
            if origin.proxy is not None and context is not None:
                open_tunnel(plain, origin.proxy, origin.host, origin.port, timeout_s=connect_timeout_s)
            if context is not None:
                secured = context.wrap_socket(plain, server_hostname=origin.host, do_handshake_on_connect=False)
                self.socket = secured
                on_abortable(self)  # called again, because the plain socket cannot be shut down any more
                secured.do_handshake()
            self.socket.settimeout(read_timeout_s)
            self._poll = select.poll()
            self._poll.register(self.socket, select.POLLIN)
        except BaseException:
            plain.close()
            self.socket.close()
            raise
        self.origin = origin
        self._read_timeout_s = read_timeout_s
        self._turn = Turn() if turn is None else turn

    def is_stale(self) -> bool:
        """Return whether bytes or an end have arrived although no request was sent. The connection is of no use
        then.
        """
        return bool(self._poll.poll(0))

    def receive(self, incoming: Incoming) -> Answer:
        """Read the rest of an answer whose beginning the loop has read.

        Raises NothingSentBackError, BrokenAnswerError or OSError; the connection cannot be used after that.
        """
        answer = incoming.feed(b"")  # parses the bytes that have come already
        while answer is None:
            if incoming.length is not None:
                return incoming.complete(self._exactly(incoming, incoming.length))
            data = self._read(incoming)
            answer = incoming.feed(data) if data else incoming.end()
        return answer

    def receive_parts(self, incoming: Incoming, feed: Callable[[bytes], None]) -> Answer:
        """Read the rest of an answer of announced length, and give the parts of its body to `feed` one by one.

        Return the answer without its body. Raises NothingSentBackError, BrokenAnswerError or OSError; the connection
        cannot be used after that.
        """
        assert incoming.length is not None, "else nobody knows how much is left"
        begun = incoming.begun()
        left = incoming.length - len(begun)
        with self._in_turn(incoming):
            feed(begun)
            while left:
                data = self._received(self.socket.recv, min(left, PART_BYTES))
                if not data:
                    incoming.end()  # raises, because the answer is not whole
                left -= len(data)
                feed(data)
        return incoming.passed_on()

    def let_go(self) -> None:
        """Make the socket non-blocking, for the event loop. Raises OSError if the connection is broken."""
        self.socket.settimeout(0.0)

    def take_back(self) -> None:
        """Make the socket blocking again, for a thread."""
        self.socket.settimeout(self._read_timeout_s)

    def abort(self) -> None:
        """Make a thread that reads or writes here fail at once. Called from another thread."""
        try:
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # SSLSocket's own shutdown is not safe for threads
        except OSError:
            return

    def close(self) -> None:
        """Close the socket. Never raises."""
        try:
            self.socket.close()
        except OSError:
            return  # the descriptor is closed all the same

    def _exactly(self, incoming: Incoming, length: int) -> bytes:
        """Return a body of `length` bytes. It is received into one buffer, because joining pieces would cost 20 to 50 %
        more CPU per GB of records.
        """
        rest = _Rest(partial(self._received, self.socket.recv_into), incoming.begun(), length)
        with self._in_turn(incoming):
            return io.BufferedReader(rest, PLACED_BYTES).read(length)

    def _read(self, incoming: Incoming) -> bytes:
        """Read some bytes of an answer. Raises BrokenAnswerError if the connection is lost."""
        try:
            return self.socket.recv(READ_BYTES)
        except GONE as error:
            raise incoming.cut_off(f"{type(error).__name__}: {error}") from error

    # --- in turn -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_turn(self, incoming: Incoming) -> Iterator[None]:
        """Hold the turn while the rest of `incoming` is received. `_received` releases it while it waits for bytes."""
        self.socket.settimeout(0.0)  # so that `_received` sees when it has to wait
        try:
            with self._turn:
                yield
        except GONE as error:
            raise incoming.cut_off(f"{type(error).__name__}: {error}") from error
        finally:
            self.socket.settimeout(self._read_timeout_s)

    def _received(self, receive: Callable[..., T], *given: Any) -> T:
        """Return what `receive`, a method of the non-blocking socket, returns for the arguments `given`. Wait until
        there is something to receive, and let another thread have the turn meanwhile.
        """
        while True:
            try:
                return receive(*given)
            except LATER as why:
                event = select.POLLOUT if isinstance(why, ssl.SSLWantWriteError) else select.POLLIN
            self._turn.release()
            try:
                self._wait_for(event)
            finally:
                self._turn.acquire()

    def _wait_for(self, event: int) -> None:
        """Wait until the socket can be read or written (`event`). Raises TimeoutError after the read timeout."""
        poll = select.poll()
        poll.register(self.socket, event)
        if not poll.poll(self._read_timeout_s * 1000):
            raise TimeoutError(f"no more of the answer within {self._read_timeout_s:g} s")


def end_when_silent(plain: socket.socket, patience_s: float) -> None:
    """Make the kernel end a connection, in use or idle, if the other end acknowledges nothing for `patience_s`.

    Nothing else ends a connection that a firewall or a NAT has forgotten. Options that the system does not have are
    left out.
    """
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s = max(1, round(patience_s / 2))
    probe_s = max(1, round(patience_s / 2 / KEEPALIVE_PROBES))
    options = {
        "TCP_KEEPIDLE": idle_s,
        "TCP_KEEPINTVL": probe_s,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": round(patience_s * 1000),
    }
    for name, value in options.items():
        if hasattr(socket, name):
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
