"""One keep-alive HTTP/1.1 connection to one origin, for one thread at a time or for the event loop (`wired`).

A request leaves in one write, so that no delayed acknowledgement holds it up. An answer is either whole or an error:
its length is checked, whether announced or chunked, and its CRC-32 where the service sends one.

Own code over a socket and not `http.client`: a signed call with an answer of five records costs 0.018 ms CPU here and
0.079 ms there, in a tight loop on one machine; with botocore it costs 0.83 ms.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mld.aws.wire.proxies import Proxy, authority_of, open_tunnel

HEAD_LINE_BYTES_MAX = 64 * 1024
HEADERS_MAX = 200
BODY_BYTES_MAX = 128 * 1024 * 1024
"""Far above 10 MB of records in base64; a server that announces more is not Kinesis."""
READ_BUFFER_BYTES = 64 * 1024
"""Small answers arrive in one read; large bodies go past the buffer."""
KEEPALIVE_PROBES = 3
"""Without an answer: one may be lost on a good network."""
LENGTH_DIGITS_MAX = 18
CRC32_HEADER = b"x-amz-crc32"


class Origin(NamedTuple):
    host: str
    port: int
    context: ssl.SSLContext | None
    """None for plain HTTP."""
    proxy: Proxy | None = None

    def __str__(self) -> str:
        address = authority_of(self.host, self.port)
        return address if self.proxy is None else f"{address} through the proxy {self.proxy}"


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` has lower-case names."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class BrokenAnswerError(Exception):
    """What came is no whole HTTP answer."""


class NothingSentBackError(Exception):
    """The connection ended before the first byte of an answer, as an idle one does that the server has closed."""


class _Inlet(io.RawIOBase):
    """What was read from a socket already, then what comes from it."""

    def __init__(self, plain_or_tls: socket.socket) -> None:
        self._socket = plain_or_tls
        self.ahead = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.ahead:
            return self._socket.recv_into(buffer)
        size = min(len(buffer), len(self.ahead))
        buffer[:size] = self.ahead[:size]
        self.ahead = self.ahead[size:]
        return size


class Connection:
    """Connects at once, through the proxy if there is one. Raises OSError, time-outs and TLS failures included."""

    def __init__(self, origin: Origin, *, connect_timeout_s: float, read_timeout_s: float) -> None:
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
            self._inlet = _Inlet(self.socket)
            self._reader = io.BufferedReader(self._inlet, READ_BUFFER_BYTES)
            self._poll = select.poll()
            self._poll.register(self.socket, select.POLLIN)
        except BaseException:
            plain.close()
            if hasattr(self, "socket"):
                self.socket.close()
            raise
        self.origin = origin
        self._read_timeout_s = read_timeout_s

    def is_stale(self) -> bool:
        """Whether something has arrived although nothing was asked: the end of the connection."""
        return bool(self._poll.poll(0))

    def exchange(self, request: bytes) -> tuple[Answer, bool]:
        """Send a request and read its answer; the flag says whether the connection can be used again.

        Raises NothingSentBackError, BrokenAnswerError or OSError; the connection is of no use then.
        """
        return self._whole(*self.begin(request))

    def resume(self, ahead: bytes) -> tuple[Answer, bool]:
        """As `exchange`, after the loop has sent the request and read the first bytes of the answer."""
        self._inlet.ahead = memoryview(ahead)
        return self._whole(*self._head())

    def begin(self, request: bytes) -> tuple[int, dict[bytes, bytes]]:
        """Send a request and read the head of its answer. Raises as `exchange` does."""
        try:
            self.socket.sendall(request)
            return self._head()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError) as error:
            raise NothingSentBackError(f"{type(error).__name__}: {error}") from error

    def let_go(self) -> bool:
        """To be read by the loop again, which must not wait; False if it is broken, or more came than was asked for."""
        try:
            return not self._read_ahead()
        except OSError:
            return False

    def take_back(self) -> None:
        """To be used by a thread, which waits."""
        self.socket.settimeout(self._read_timeout_s)

    def rest(self, status: int, headers: dict[bytes, bytes]) -> Answer:
        """The answer whose head `begin` has read."""
        return Answer(status, headers, self._body(status, headers)[0])

    def detach(self) -> tuple[socket.socket, bytes]:
        """The socket, non-blocking, and what was read ahead from it; the connection is of no use any more."""
        self._poll.unregister(self.socket)
        return self.socket, self._read_ahead()

    def abort(self) -> None:
        """From another thread: make whoever reads or writes here fail at once."""
        try:
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # SSLSocket's own is not for other threads
        except OSError:
            return

    def close(self) -> None:
        try:
            self._reader.close()
            self.socket.close()
        except OSError:
            return  # the descriptor is gone all the same

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_ahead(self) -> bytes:
        self.socket.settimeout(0.0)
        try:
            return self._reader.peek()
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""

    def _whole(self, status: int, headers: dict[bytes, bytes]) -> tuple[Answer, bool]:
        body, delimited = self._body(status, headers)
        check_crc32(headers, body)
        return Answer(status, headers, body), delimited and may_be_kept(headers)

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        status = 100
        headers: dict[bytes, bytes] = {}
        first = True
        while status < 200:
            line = self._reader.readline(HEAD_LINE_BYTES_MAX)
            if not line and first:
                raise NothingSentBackError("the server has closed the connection")
            first = False
            status = status_of(line)
            headers = self._headers()
        return status, headers

    def _headers(self) -> dict[bytes, bytes]:
        lines: list[bytes] = []
        for _ in range(HEADERS_MAX):
            line = self._reader.readline(HEAD_LINE_BYTES_MAX)
            if line in (b"\r\n", b"\n"):
                return headers_of(lines)
            if not line.endswith(b"\n"):
                raise BrokenAnswerError("the head of the answer is cut off")
            lines.append(line)
        raise BrokenAnswerError(f"more than {HEADERS_MAX} headers")

    def _body(self, status: int, headers: dict[bytes, bytes]) -> tuple[bytes, bool]:
        if b"transfer-encoding" in headers:
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise BrokenAnswerError(f"transfer-encoding {headers[b'transfer-encoding']!r}")
            return self._chunks(), True
        length = headers.get(b"content-length")
        if length is not None:
            return self._exactly(length_of(length)), True
        if status in (204, 304):
            return b"", True
        body = self._reader.read(BODY_BYTES_MAX)  # to the end of the connection; the JSON in it must be whole
        return body, False

    def _chunks(self) -> bytes:
        body = bytearray()  # not a list of chunks: one of a byte would take 40 times as much
        while True:
            line = self._reader.readline(HEAD_LINE_BYTES_MAX)
            text = line.partition(b";")[0].strip()
            if not line.endswith(b"\n") or not text or text.strip(b"0123456789abcdefABCDEF"):
                raise BrokenAnswerError("a chunk is cut off")
            size = int(text, 16)
            if size == 0:
                self._headers()  # trailers
                return bytes(body)
            if len(body) + size > BODY_BYTES_MAX:
                raise BrokenAnswerError(f"more than {BODY_BYTES_MAX} bytes")
            body += self._exactly(size)
            if self._reader.readline(HEAD_LINE_BYTES_MAX) not in (b"\r\n", b"\n"):
                raise BrokenAnswerError("a chunk is cut off")

    def _exactly(self, length: int) -> bytes:
        if length > BODY_BYTES_MAX:
            raise BrokenAnswerError(f"{length} bytes announced")
        body = self._reader.read(length)
        if len(body) != length:
            raise BrokenAnswerError(f"the answer is cut off: {len(body)} of {length} bytes")
        return body


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


def status_of(line: bytes) -> int:
    """The status in the first line of an answer. Raises BrokenAnswerError, as the functions below do."""
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BrokenAnswerError(f"no HTTP answer: {line[:80]!r}")
    return int(code)


def headers_of(lines: Iterable[bytes]) -> dict[bytes, bytes]:
    """With lower-case names; of headers that are repeated the last one."""
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BrokenAnswerError(f"no header: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        if name == b"content-length" and headers.get(name, value) != value:
            raise BrokenAnswerError("two lengths of one answer")
        headers[name] = value
    return headers


def length_of(text: bytes) -> int:
    if not text.isdigit() or len(text) > LENGTH_DIGITS_MAX:
        raise BrokenAnswerError(f"content-length {text[:80]!r}")
    return int(text)


def may_be_kept(headers: dict[bytes, bytes]) -> bool:
    return b"close" not in headers.get(b"connection", b"").lower()


def check_crc32(headers: dict[bytes, bytes], body: bytes) -> None:
    expected = headers.get(CRC32_HEADER)
    if expected is not None and b"content-encoding" not in headers and expected != b"%d" % zlib.crc32(body):
        raise BrokenAnswerError("the answer does not match its CRC-32")
