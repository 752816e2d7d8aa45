"""`Incoming`: parses an HTTP/1.1 answer while its bytes are received. Pure, so the event loop and threads can use it.

The result is a whole answer or an error. The length of the body is checked, whether it is announced or the body comes
in chunks, and so is its CRC-32 if the service sends one. If an answer is large, the loop can hand its half-read
`Incoming` to a thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

from mld.aws.wire.chunks import BrokenAnswerError, Chunks

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 128 * 1024 * 1024
"""Largest body. It is far above 10 MB of records in base64; a server that announces more is not Kinesis."""
INFORMATIONAL_MAX = 8
"""Most informational answers (1xx) before the final one; AWS sends none."""
LENGTH_DIGITS_MAX = 18
CRC32_HEADER = b"x-amz-crc32"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. `headers` has lower-case names; `keep` says whether the connection can be used again."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    keep: bool = False


class NothingSentBackError(Exception):
    """The connection ended before the first byte of an answer. The server may have closed it while it was idle."""


class Incoming:
    """An answer that is being received. Call `feed` until it returns the answer, or `end` if the connection ends first.

    `feed_head` parses only the head, and leaves the bytes after it in `ahead`. Every method raises BrokenAnswerError
    for bytes that are not an HTTP answer.
    """

    __slots__ = ("_body", "_body_bytes_max", "_chunks", "_informational", "ahead", "headers", "length", "status")

    def __init__(self, body_bytes_max: int | None = None) -> None:
        self._body_bytes_max = BODY_BYTES_MAX if body_bytes_max is None else body_bytes_max
        self.status = 0
        """The HTTP status; 0 until the whole head has come."""
        self.headers: dict[bytes, bytes] = {}
        self.length: int | None = None
        """Bytes in the body, if the head announces them."""
        self.ahead = b""
        """Bytes that have come and are not parsed yet."""
        self._informational = 0  # how many informational answers (1xx) have come
        self._chunks: Chunks | None = None
        self._body = BytesIO()  # not a list of pieces: a piece of one byte would take 40 bytes

    def feed_head(self, data: bytes) -> bool:
        """Take the next bytes, and return whether the whole head has come. Skips informational answers before it.

        A head ends with an empty line. Lines should end with CR LF, but a bare LF is accepted, too.
        """
        self.ahead = self.ahead + data if self.ahead else data
        while not self.status:
            # `end` is where the last line of the head ends (-1: not in these bytes), `start` where the body begins.
            end = self.ahead.find(b"\n\r\n")
            bare = self.ahead.find(b"\n\n", 0, end + 1 if end >= 0 else len(self.ahead))
            start = end + 3
            if bare >= 0:  # an empty line that ends with a bare LF comes first
                end, start = bare, bare + 2
            head_bytes = len(self.ahead) if end < 0 else end
            if head_bytes > HEAD_BYTES_MAX:
                raise BrokenAnswerError(f"more than {HEAD_BYTES_MAX} bytes of headers")
            if end < 0:
                return False
            first, *lines = self.ahead[:end].split(b"\n")
            status, self.headers = _status_of(first), _headers_of(lines)
            self.ahead = self.ahead[start:]
            if status >= 200:
                self.status = status
                self._expect_body()
                continue
            self._informational += 1
            if self._informational > INFORMATIONAL_MAX:
                raise BrokenAnswerError(f"more than {INFORMATIONAL_MAX} answers that answer nothing")
        return True

    def feed(self, data: bytes) -> Answer | None:
        """Take the next bytes. Return the answer if it is whole now, else None.

        A body of announced length ends after that many bytes, a chunked body after its last chunk. Any other body ends
        with the connection, so this returns None, and `end` returns the answer.
        """
        if not self.status or self.ahead:  # the head is not whole, or bytes after it are not parsed yet
            if not self.feed_head(data):
                return None
            data, self.ahead = self.ahead, b""
        if self.length is not None and len(data) == self.length and not self._body.tell():
            return self._whole(data, is_exact=True)  # the usual case: the body came at once, and need not be copied
        if self._chunks is None:
            self._body.write(data)
        else:
            for piece in self._chunks.feed(data):
                self._body.write(piece)
        have = self._body.tell()
        if have > self._body_bytes_max:
            raise BrokenAnswerError(f"more than {self._body_bytes_max} bytes")
        if self._chunks is not None:
            return self._whole(self._body.getvalue(), not self._chunks.excess) if self._chunks.is_complete else None
        if self.length is None or have < self.length:
            return None
        self._body.truncate(self.length)
        return self._whole(self._body.getvalue(), have == self.length)

    def begun(self) -> bytes:
        """Return the part of the body that has come. The caller reads the rest itself, and then calls `complete`."""
        return self._body.getvalue()

    @property
    def is_unchecked(self) -> bool:
        """Whether the body can be used part by part: its length is announced, and no checksum of all of it is sent."""
        return self.length is not None and self.status < 300 and CRC32_HEADER not in self.headers

    def passed_on(self) -> Answer:
        """Return the answer with an empty body, because the caller has read the body part by part."""
        return self._kept(b"", is_exact=True)

    def complete(self, body: bytes) -> Answer:
        """Return the answer with `body`, which the caller has read to its announced length."""
        if len(body) != self.length:
            raise BrokenAnswerError(f"the answer is cut off: {len(body)} of {self.length} bytes")
        return self._whole(body, is_exact=True)

    def end(self) -> Answer:
        """Note that the server has closed the connection. Return the answer if its body is one that ends with the
        connection: its length was not announced, and it does not come in chunks.

        Raises NothingSentBackError if no byte of an answer has come, and BrokenAnswerError if the answer is not whole.
        """
        if not self.status or self.length is not None or self._chunks is not None:
            raise self.cut_off("the server has closed the connection")
        return self._whole(self._body.getvalue(), is_exact=False)

    def cut_off(self, reason: str) -> Exception:
        """Return the error for a connection that has ended before the answer was whole."""
        if self.status or self.ahead:
            return BrokenAnswerError("the answer is cut off")
        return NothingSentBackError(reason)

    def _expect_body(self) -> None:
        """Find out from the headers how long the body is, or that it comes in chunks."""
        encoding, length = self.headers.get(b"transfer-encoding"), self.headers.get(b"content-length")
        if encoding is not None:
            if encoding.lower() != b"chunked":
                raise BrokenAnswerError(f"transfer-encoding {encoding!r}")
            self._chunks = Chunks()
        elif length is not None:
            if not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
                raise BrokenAnswerError(f"content-length {length[:80]!r}")
            self.length = int(length)
            if self.length > self._body_bytes_max:
                raise BrokenAnswerError(f"{self.length} bytes announced")
        elif self.status in (204, 304):
            self.length = 0

    def _whole(self, body: bytes, is_exact: bool) -> Answer:
        """Return the answer with its body, whose checksum is verified.

        `is_exact` says that the connection can be used again: nothing came after the body, and the end of the body was
        known before the connection ended.
        """
        expected = self.headers.get(CRC32_HEADER)
        if expected is not None and b"content-encoding" not in self.headers and expected != b"%d" % zlib.crc32(body):
            raise BrokenAnswerError("the answer does not match its CRC-32")
        return self._kept(body, is_exact)

    def _kept(self, body: bytes, is_exact: bool) -> Answer:
        """Return the answer with this body. Its connection can be used again (`keep`) if the end of the body is known
        (`is_exact`, see `_whole`), and the server does not announce that it closes the connection.
        """
        keep = is_exact and b"close" not in self.headers.get(b"connection", b"").lower()
        return Answer(self.status, self.headers, body, keep)


def _status_of(line: bytes) -> int:
    """Return the status code in the first line of an answer. Raises BrokenAnswerError."""
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BrokenAnswerError(f"no HTTP answer: {line[:80]!r}")
    return int(code)


def _headers_of(lines: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return headers by lower-case name. If a header is repeated, the last one counts."""
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
