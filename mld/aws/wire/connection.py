"""One keep-alive HTTP/1.1 connection to one origin, for one thread at a time or for the event loop (`places`).

A request leaves in one write, so that no delayed acknowledgement holds it up. What comes back is read by `answers`.
Large bodies are received and taken apart by one thread at a time, its `Turn`, because the interpreter runs only one:
while several threads did so they took the interpreter from each other at every 16 KB of TLS, and all had half a body in
memory.

Own code over a socket and not `http.client`: a signed call with an answer of five records costs 0.018 ms CPU here and
0.079 ms there, in a tight loop on one machine; with botocore it costs 0.83 ms.

A proxy leads to a TLS origin by a tunnel (CONNECT), to a plain one if it is asked for the whole address. Which proxy,
if any, is botocore's rule (`requests.proxies_of`). What a proxy is told of credentials is in no message.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from mld.aws.wire.answers import Answer, Incoming

# --- proxies ---------------------------------------------------------------------------------------------------------

HEAD_BYTES_MAX = 64 * 1024
"""Of the answer to CONNECT; some proxies send a page with a refusal, which is not read."""
REASON_CHARACTERS_MAX = 100


class ProxyRefusedError(OSError):
    """The proxy does not connect us; the text says what it answered."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """One that is spoken to in plain HTTP. `authorization` is the value of Proxy-Authorization, empty for none."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        return authority_of(self.host, self.port)

    @property
    def header(self) -> str:
        """The header with its line end, if there is one."""
        return f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""


def authority_of(host: str, port: int) -> str:
    """Return ``host:port`` as requests have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_tunnel(to_proxy: socket.socket, proxy: Proxy, host: str, port: int, *, timeout_s: float) -> None:
    """Make `to_proxy` a connection to `host`. Raises OSError; the socket is of no use then.

    The origin of a tunnel speaks TLS, so it waits for our hello: nothing of its own comes behind the proxy's answer.
    """
    authority = authority_of(host, port)
    deadline_s = time.monotonic() + timeout_s
    to_proxy.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{proxy.header}\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the proxy {proxy} did not answer within {timeout_s:g} s")
        to_proxy.settimeout(left_s)
        piece = to_proxy.recv(4096)
        head += piece
        if not piece or len(head) > HEAD_BYTES_MAX:
            break
    line = head.partition(b"\r\n")[0].decode("latin-1")
    version, _, status = line.partition(" ")
    if not version.startswith("HTTP/1.") or not status.startswith("2"):
        said = f"HTTP status {status}" if version.startswith("HTTP/") else repr(line)
        raise ProxyRefusedError(f"the proxy {proxy} refuses to connect: {said[:REASON_CHARACTERS_MAX]}")
    if not head.endswith(b"\r\n\r\n"):
        raise ProxyRefusedError(f"the proxy {proxy} answers a request to connect with a document")
    to_proxy.settimeout(timeout_s)


# --- turns -----------------------------------------------------------------------------------------------------------


class Turn:
    """A lock that knows for how long it was taken."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._before_s = 0.0
        self._since_s: float | None = None

    def acquire(self) -> None:
        self._lock.acquire()
        self._since_s = self.now()

    def release(self) -> None:
        since_s, self._since_s = self._since_s, None
        assert since_s is not None, "it was taken"
        self._before_s += self.now() - since_s
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def taken_s(self, at_s: float) -> float:
        """Return seconds until `at_s` in which somebody had it. From any thread; approximate while it is passed on."""
        since_s = self._since_s
        return self._before_s + (0.0 if since_s is None else max(0.0, at_s - since_s))


class TurnWatch:
    """How much a turn is in demand, from `begin` on."""

    def __init__(self, turn: Turn | None = None) -> None:
        self._turn = Turn() if turn is None else turn
        self.begin()

    def begin(self) -> None:
        self._begun_s = self._turn.now()
        self._taken_s = self._turn.taken_s(self._begun_s)

    def share(self) -> float:
        """Return the share of the time since the last call in which somebody had it: 0 to 1, approximate."""
        begun_s, taken_s = self._begun_s, self._taken_s
        self.begin()
        return (self._taken_s - taken_s) / max(self._begun_s - begun_s, 1e-6)


# --- connections -----------------------------------------------------------------------------------------------------

READ_BYTES = 64 * 1024
PART_BYTES = 128 * 1024
"""Of a body that is read while it comes: what is received and then read is still in the processor's cache."""
PLACED_BYTES = 16 * 1024
"""The end of a body that is shorter than this is copied once more."""
KEEPALIVE_PROBES = 3
"""Without an answer: one may be lost on a good network."""
GONE = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
"""What a socket raises that the other end has left."""
LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket raises that does not wait."""

T = TypeVar("T")


class Origin(NamedTuple):
    host: str
    port: int
    context: ssl.SSLContext | None
    """None for plain HTTP."""
    proxy: Proxy | None = None

    def __str__(self) -> str:
        address = authority_of(self.host, self.port)
        return address if self.proxy is None else f"{address} through the proxy {self.proxy}"


class _Rest(io.RawIOBase):
    """A body of `length` bytes: what has come of it, then what comes from the socket, and nothing after its end."""

    def __init__(self, receive_into: Callable[[Any, int], int], begun: bytes, length: int) -> None:
        self._receive_into = receive_into
        self._begun = memoryview(begun)
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._left)
        if self._begun:
            size = min(size, len(self._begun))
            buffer[:size], self._begun = self._begun[:size], self._begun[size:]
        else:
            size = self._receive_into(buffer, size) if size else 0
        self._left -= size
        return size


class Connection:
    """Connects at once, through the proxy if there is one. Raises OSError, time-outs and TLS failures included.

    Connections that share a `turn` receive large bodies one after the other, each as far as it has come.
    """

    def __init__(
        self, origin: Origin, *, connect_timeout_s: float, read_timeout_s: float, turn: Turn | None = None
    ) -> None:
        nearest = origin.proxy or origin
        plain = socket.create_connection((nearest.host, nearest.port), timeout=connect_timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            mind_silence(plain, read_timeout_s)
            context = origin.context
            if origin.proxy is not None and context is not None:
                open_tunnel(plain, origin.proxy, origin.host, origin.port, timeout_s=connect_timeout_s)
            self.socket = plain if context is None else context.wrap_socket(plain, server_hostname=origin.host)
            self.socket.settimeout(read_timeout_s)
            self._poll = select.poll()
            self._poll.register(self.socket, select.POLLIN)
        except BaseException:
            plain.close()
            if hasattr(self, "socket"):
                self.socket.close()
            raise
        self.origin = origin
        self._read_timeout_s = read_timeout_s
        self._turn = Turn() if turn is None else turn

    def is_stale(self) -> bool:
        """Return whether something has arrived although nothing was asked: the end of the connection."""
        return bool(self._poll.poll(0))

    def receive(self, incoming: Incoming) -> Answer:
        """Read an answer to its end, of which the loop has read some.

        Raises NothingSentBackError, BrokenAnswerError or OSError; the connection is of no use then.
        """
        answer = incoming.feed(b"")
        while answer is None:
            if incoming.length is not None:
                return incoming.complete(self._exactly(incoming, incoming.length))
            data = self._read(incoming)
            answer = incoming.feed(data) if data else incoming.end()
        return answer

    def receive_parts(self, incoming: Incoming, feed: Callable[[bytes], None]) -> Answer:
        """Read an answer of announced length to its end, and give its body to `feed` as it comes; raises as `receive`.

        The answer has no body then.
        """
        assert incoming.length is not None, "else nobody knows how much is left"
        begun = incoming.begun()
        left = incoming.length - len(begun)
        with self._in_turn(incoming):
            feed(begun)
            while left:
                data = self._received(self.socket.recv, min(left, PART_BYTES))
                if not data:
                    incoming.end()
                left -= len(data)
                feed(data)
        return incoming.passed_on()

    def let_go(self) -> None:
        """Hand the connection back to the event loop, non-blocking. Raises OSError if it is broken."""
        self.socket.settimeout(0.0)

    def take_back(self) -> None:
        """Take the socket back for a thread, which waits."""
        self.socket.settimeout(self._read_timeout_s)

    def abort(self) -> None:
        """Make, from another thread, whoever reads or writes here fail at once."""
        try:
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # SSLSocket's own is not for other threads
        except OSError:
            return

    def close(self) -> None:
        try:
            self.socket.close()
        except OSError:
            return  # the descriptor is gone all the same

    def _exactly(self, incoming: Incoming, length: int) -> bytes:
        """Return a body, received into its place: pieces that are joined cost 20 to 50 % more CPU per GB of records."""
        rest = _Rest(partial(self._received, self.socket.recv_into), incoming.begun(), length)
        with self._in_turn(incoming):
            return io.BufferedReader(rest, PLACED_BYTES).read(length)

    def _read(self, incoming: Incoming) -> bytes:
        try:
            return self.socket.recv(READ_BYTES)
        except GONE as error:
            raise incoming.cut_off(f"{type(error).__name__}: {error}") from error

    # --- in turn -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_turn(self, incoming: Incoming) -> Iterator[None]:
        """Hold the turn in which the rest of `incoming` is received. Only `_received` waits there, and lets others
        go on meanwhile.
        """
        self.socket.settimeout(0.0)
        try:
            with self._turn:
                yield
        except GONE as error:
            raise incoming.cut_off(f"{type(error).__name__}: {error}") from error
        finally:
            self.socket.settimeout(self._read_timeout_s)

    def _received(self, receive: Callable[..., T], *given: Any) -> T:
        """Return what `receive` returns as soon as there is something."""
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
        poll = select.poll()
        poll.register(self.socket, event)
        if not poll.poll(self._read_timeout_s * 1000):
            raise TimeoutError(f"no more of the answer within {self._read_timeout_s:g} s")


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
