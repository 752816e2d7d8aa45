"""One keep-alive HTTP/1.1 connection to one origin, on the event loop: nothing here blocks.

A request leaves in one write, so that no delayed acknowledgement holds it up. A turn of the loop reads at most
`TURN_BYTES`, however large the answer; `AnswerParser` says what the bytes mean.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from mld.aws.wire.answers import Answer, AnswerParser, BodySink, BrokenAnswerError
from mld.aws.wire.proxies import Proxy, authority_of, open_tunnel

HEAD_READ_BYTES = 16 * 1024
"""Small answers come in one read of this size."""
STREAM_READ_BYTES = 64 * 1024
TURN_BYTES = 256 * 1024
"""Takes some 0.2 ms, with TLS 0.5 ms."""
KEEPALIVE_PROBES = 3
"""Probes without an answer that end a connection: one may be lost on a good network."""
_GONE = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Addresses = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]
"""What `socket.getaddrinfo` finds."""
Resolve = Callable[[str, int], Awaitable[Addresses]]


class Origin(NamedTuple):
    host: str
    port: int
    context: ssl.SSLContext | None
    """None for plain HTTP."""
    proxy: Proxy | None = None

    def __str__(self) -> str:
        address = authority_of(self.host, self.port)
        return address if self.proxy is None else f"{address} through the proxy {self.proxy}"


class NothingSentBackError(Exception):
    """The connection ended before the first byte of an answer, as an idle one does that the server has closed."""


class StreamSink(BodySink, Protocol):
    """Makes frames of the body of an answer, and takes more of it while it is not full."""

    @property
    def is_full(self) -> bool: ...

    @property
    def has_frames(self) -> bool: ...


class Connection:
    """Owns `plain_or_tls`, which is connected. Used on one loop only, for one call at a time."""

    def __init__(self, plain_or_tls: socket.socket, origin: Origin) -> None:
        self.origin = origin
        self.may_reuse = True
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._socket = plain_or_tls
        self._socket.setblocking(False)
        self._fd = plain_or_tls.fileno()
        self._is_tls = isinstance(plain_or_tls, ssl.SSLSocket)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._parser: AnswerParser | None = None
        self._sink: StreamSink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._unsent = b""
        self._heard_at_s = 0.0
        self._timer: asyncio.TimerHandle
        self._is_reading = False
        self.is_open = True
        self._start_reading()

    @property
    def is_good(self) -> bool:
        """Whether another request can be sent: it has not ended since it was used, and nothing came unasked."""
        return self.may_reuse and not self._poll.poll(0)

    async def exchange(self, request: bytes, *, timeout_s: float, sink: StreamSink | None = None) -> Answer:
        """Send a request and read its answer; `timeout_s` is how long the server may be silent.

        The body of a good answer goes to `sink`, if there is one, also after this has returned (`more`). Raises
        NothingSentBackError, BrokenAnswerError or OSError; after an error and a cancellation the connection is closed.
        """
        assert self._parser is None, "one call at a time"
        parser = AnswerParser(sink)
        self._parser, self._sink, self.may_reuse = parser, sink, False
        self._heard_at_s = self._loop.time()
        self._timer = self._loop.call_later(timeout_s, self._check_silence, timeout_s)
        try:
            self._send(request)
            while not parser.is_ready and self._failure is None:
                await self._woken()
            if self._failure is not None and (sink is None or not parser.is_ready):
                raise self._failure
        except BaseException:
            self.close()
            raise
        finally:
            self._timer.cancel()
        answer = parser.answer
        if sink is None or answer.status >= 300:
            self.may_reuse = parser.may_reuse
            self._parser = self._sink = None
        return answer

    async def more(self) -> bool:
        """Wait for more in the sink; False if the answer is complete. Raises as `exchange` does.

        What is in the sink already comes before an error. One caller at a time; may be cancelled without loss.
        """
        if self._failure is not None:
            raise self._failure
        if self._parser is None or self._parser.is_complete:
            return False
        await self._woken()
        return True

    def read_on(self) -> None:
        """The sink may have room again."""
        if not self._is_reading and self._failure is None and self._wants_more:
            self._start_reading()

    def close(self, reason: Exception | None = None) -> None:
        """Whoever waits for the answer gets the reason. May be called again."""
        if self.is_open:
            self.is_open = self.may_reuse = False
            self._fail(reason or ConnectionAbortedError("the connection was closed"))
            self._loop.remove_writer(self._fd)
            self._socket.close()

    async def _woken(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        """Nothing more is read; the first error is the one that is told."""
        self._stop_reading()
        if self._failure is None:
            self._failure = error
        self._wake()

    def _check_silence(self, timeout_s: float) -> None:
        left_s = self._heard_at_s + timeout_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_silence, timeout_s)
        else:
            self._fail(TimeoutError("the read operation timed out"))

    # --- sending and receiving ---------------------------------------------------------------------------------------
    # Callbacks of the loop have nobody above them: what they raise goes to whoever waits for the answer.

    def _send(self, request: bytes) -> None:
        try:
            sent = self._socket.send(request)
        except _LATER:
            sent = 0
        except _GONE as error:
            self._fail(NothingSentBackError(f"{type(error).__name__}: {error}"))
            return
        self._unsent = request[sent:]
        if self._unsent:
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            self._loop.remove_writer(self._fd)
            if self._failure is None:
                self._send(self._unsent)
        except Exception as error:
            self._fail(error)

    @property
    def _wants_more(self) -> bool:
        if self._parser is None:
            return True  # the end of an idle connection
        return not self._parser.is_complete and (self._sink is None or not self._sink.is_full)

    def _start_reading(self) -> None:
        self._is_reading = True
        self._loop.add_reader(self._fd, self._readable)
        self._look_again()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _look_again(self) -> None:
        """What TLS has decrypted already makes no socket readable."""
        if self._is_reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        if not self._is_reading:
            return
        try:
            if self._parser is None:
                self._look_while_idle()
            elif not self._parser.is_complete:  # else the caller is about to be woken
                self._receive(self._parser, self._sink)
        except Exception as error:
            self._fail(error)

    def _look_while_idle(self) -> None:
        reason: Exception | None = None
        try:
            self._socket.recv(1)
        except _LATER:
            return  # TLS talks to itself
        except Exception as error:
            reason = error
        self.close(reason)

    def _receive(self, parser: AnswerParser, sink: StreamSink | None) -> None:
        was_ready = parser.is_ready
        left = TURN_BYTES
        try:
            while left > 0 and not parser.is_complete and not (sink is not None and sink.is_full):
                wanted = HEAD_READ_BYTES if parser.head is None else TURN_BYTES if sink is None else STREAM_READ_BYTES
                data = self._socket.recv(wanted)
                if not data:
                    if not parser.has_begun:
                        raise NothingSentBackError("the server has closed the connection")
                    parser.end()
                    break
                parser.feed(data)
                left -= len(data)
                if not self._is_tls and len(data) < wanted:
                    break  # there is no more, most likely
        except _LATER:
            pass
        except _GONE as error:
            self._fail(error if parser.has_begun else NothingSentBackError(f"{type(error).__name__}: {error}"))
            return
        if left < TURN_BYTES:
            self._heard_at_s = self._loop.time()
        if parser.is_complete and sink is None:
            if self._unsent:  # what follows would be out of step
                raise BrokenAnswerError("an answer to half a request")
        elif parser.is_complete or (sink is not None and sink.is_full):
            self._stop_reading()
        else:
            self._look_again()
        if parser.is_ready != was_ready or parser.is_complete or (sink is not None and sink.has_frames):
            self._wake()


# --- connecting ------------------------------------------------------------------------------------------------------


async def connect(origin: Origin, resolve: Resolve, *, connect_timeout_s: float, read_timeout_s: float) -> Connection:
    """Through the proxy, if there is one. Raises OSError, time-outs and TLS failures included."""
    nearest = origin.proxy or origin
    plain = await _connected(await resolve(nearest.host, nearest.port), connect_timeout_s)
    used = plain
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mind_silence(plain, read_timeout_s)
        if origin.context is not None:
            if origin.proxy is not None:
                async with _time_limit(connect_timeout_s):
                    await open_tunnel(plain, origin.proxy, origin.host, origin.port)
            used = origin.context.wrap_socket(plain, server_hostname=origin.host, do_handshake_on_connect=False)
            async with _time_limit(connect_timeout_s):
                await _shake_hands(used)
        return Connection(used, origin)
    except BaseException:
        used.close()
        raise


async def _connected(addresses: Addresses, timeout_s: float) -> socket.socket:
    """The first address that answers, each tried for `timeout_s`."""
    loop = asyncio.get_running_loop()
    failure = OSError("the name has no address")
    for family, kind, protocol, _, address in addresses:
        plain = None
        try:
            plain = socket.socket(family, kind, protocol)
            plain.setblocking(False)
            async with _time_limit(timeout_s):
                await loop.sock_connect(plain, address)
            return plain
        except BaseException as error:
            if plain is not None:
                plain.close()
            if not isinstance(error, OSError):
                raise
            failure = error
    raise failure


@asynccontextmanager
async def _time_limit(limit_s: float) -> AsyncIterator[None]:
    """`asyncio.timeout` whose error says what it is."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise error if error.args else TimeoutError("timed out") from None


async def _shake_hands(tls: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            tls.do_handshake()
            return
        except ssl.SSLWantReadError:
            watch, forget = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            watch, forget = loop.add_writer, loop.remove_writer
        ready = asyncio.Event()
        watch(tls.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            forget(tls.fileno())


def mind_silence(plain: socket.socket, patience_s: float) -> None:
    """Let the kernel end a connection on which nothing is acknowledged for `patience_s`, in use or idle.

    Where a firewall or a NAT has forgotten a connection, nothing else ends it. Systems without an option do without.
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
