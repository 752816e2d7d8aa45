"""`AnswerParser`: HTTP/1.1 answers without sockets; bytes in, a head and a body out. Pure.

Everything that AWS sends is read here, the answers of calls and the event streams. An answer is either whole or an
error: its length is checked, whether announced or chunked, and so is its CRC-32 where the service sends one.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 200
LINE_BYTES_MAX = 4096
"""The longest line between chunks, and the longest trailer."""
BODY_BYTES_MAX = 128 * 1024 * 1024
"""Far above 10 MB of records in base64; a server that announces more is not Kinesis."""
LENGTH_DIGITS_MAX = 18
CHUNK_SIZE_DIGITS_MAX = 8
SMALL_BYTES = 512
"""Smaller pieces are joined: kept apart, each takes some 200 bytes and what was read with it."""
CRC32_HEADER = b"x-amz-crc32"
_HEAD_END = re.compile(rb"\n\r?\n")
_HEX_DIGITS = b"0123456789abcdefABCDEF"


class BrokenAnswerError(Exception):
    """What came is no whole HTTP answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` has lower-case names."""

    status: int
    headers: dict[bytes, bytes]
    pieces: tuple[bytes | bytearray | memoryview, ...]
    """The body as it came: joining a large one takes too long for the loop."""

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


class Head(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    """With lower-case names; a header that is repeated has its last value."""


class BodySink(Protocol):
    """Takes the body of an answer piece by piece."""

    def append(self, piece: memoryview, /) -> None: ...


class _Part(Enum):
    HEAD = "the head"
    BODY = "a body of known length"
    BODY_TO_THE_END = "a body that ends with its connection"
    CHUNK_SIZE = "the size of a chunk"
    CHUNK = "a chunk"
    CHUNK_END = "the end of a chunk"
    TRAILER = "a trailer"
    NOTHING = "nothing"


class AnswerParser:
    """Reads one answer. The body of a good one goes to `sink`, if there is one; every other body is kept.

    The methods raise BrokenAnswerError, after which the parser is of no use.
    """

    __slots__ = (
        "_at", "_crc32", "_excess", "_expected", "_left", "_line", "_pieces", "_sink", "has_begun", "head",
    )  # fmt: skip

    def __init__(self, sink: BodySink | None = None) -> None:
        self.has_begun = False
        self.head: Head | None = None
        self._sink = sink
        self._expected = _Part.HEAD
        self._line = bytearray()  # the beginning of a head, or of a line between chunks
        self._left = 0  # bytes to come of this body or chunk
        self._at = 0  # bytes of the body that have come
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._crc32: int | None = None  # of the body so far; None if the service has sent none to compare
        self._excess = False

    @property
    def is_complete(self) -> bool:
        return self._expected is _Part.NOTHING

    @property
    def is_ready(self) -> bool:
        """Whether `answer` is there; the body of a good one may still be on its way to the sink."""
        return self._expected is _Part.NOTHING or (self._sink is not None and self.head is not None)

    @property
    def answer(self) -> Answer:
        assert self.head is not None
        return Answer(*self.head, tuple(self._pieces))

    @property
    def may_reuse(self) -> bool:
        """Whether the connection can carry another request after this answer."""
        return (
            self.is_complete
            and not self._excess
            and self.head is not None
            and b"close" not in self.head.headers.get(b"connection", b"").lower()
        )

    def feed(self, data: bytes) -> None:
        self.has_begun = True
        if self.head is None:
            data = self._feed_head(data)
        if data:
            self._feed_body(data)

    def end(self) -> None:
        """The connection has ended."""
        if self._expected is _Part.BODY_TO_THE_END:
            self._excess = True  # whatever may follow, it does not on this connection
            self._complete()
        elif not self.is_complete:
            raise BrokenAnswerError("the answer is cut off")

    # --- head --------------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes) -> bytes:
        """What has yet to be read of `data`; heads of status 1xx are passed over."""
        begun: bytes | bytearray = data
        searched = 0
        if self._line:
            searched = max(0, len(self._line) - 2)
            self._line += data
            begun = self._line
        while (end := _HEAD_END.search(begun, searched)) is not None:
            head = head_in(bytes(begun[: end.start()]))
            begun, searched = begun[end.end() :], 0
            if head.status >= 200:
                self._line = bytearray()
                return self._begin_body(head, bytes(begun))
        if len(begun) > HEAD_BYTES_MAX:
            raise BrokenAnswerError(f"a head of more than {HEAD_BYTES_MAX} bytes")
        if begun is not self._line:
            self._line = bytearray(begun)
        return b""

    def _begin_body(self, head: Head, rest: bytes) -> bytes:
        self.head = head
        status, headers = head
        if status >= 300:
            self._sink = None
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if coding is not None:
            if coding.lower() != b"chunked":
                raise BrokenAnswerError(f"transfer-encoding {coding[:80]!r}")
            self._expected = _Part.CHUNK_SIZE
        elif length is not None:
            self._expected, self._left = _Part.BODY, length_in(length)
            if self._left > BODY_BYTES_MAX and self._sink is None:
                raise BrokenAnswerError(f"{self._left} bytes announced")
        elif status in (204, 304):
            self._expected = _Part.BODY
        else:
            self._expected = _Part.BODY_TO_THE_END
        if self._sink is not None:
            if self._expected is _Part.BODY and not self._left:
                self._complete()
            return rest
        if CRC32_HEADER in headers and b"content-encoding" not in headers:
            self._crc32 = 0
        if self._expected is _Part.BODY and len(rest) == self._left:  # the answer came at once, as most do
            self._pieces.append(rest)
            if self._crc32 is not None:
                self._crc32 = zlib.crc32(rest)
            self._complete()
            return b""
        return rest

    # --- body --------------------------------------------------------------------------------------------------------

    def _feed_body(self, data: bytes) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            match self._expected:
                case _Part.BODY | _Part.CHUNK:
                    piece = view[at : at + self._left]
                    at += len(piece)
                    self._left -= len(piece)
                    self._take(piece)
                    if not self._left:
                        if self._expected is _Part.BODY:
                            self._complete()
                        else:
                            self._expected = _Part.CHUNK_END
                case _Part.BODY_TO_THE_END:
                    self._take(view[at:])
                    return
                case _Part.NOTHING:
                    if self._sink is not None:
                        raise BrokenAnswerError("bytes after the end of the answer")
                    self._excess = True
                    return
                case _:
                    end = data.find(b"\n", at) + 1
                    self._line += view[at : end or len(data)]
                    at = end or len(data)
                    if len(self._line) > LINE_BYTES_MAX:
                        raise BrokenAnswerError(f"no {self._expected.value}")
                    if end:
                        self._take_line()

    def _take_line(self) -> None:
        line = bytes(self._line).strip()
        self._line.clear()
        match self._expected:
            case _Part.CHUNK_SIZE:
                digits = line.partition(b";")[0].strip()
                if not digits or len(digits) > CHUNK_SIZE_DIGITS_MAX or digits.strip(_HEX_DIGITS):
                    raise BrokenAnswerError(f"no size of a chunk: {line[:80]!r}")
                self._left = int(digits, 16)
                self._expected = _Part.CHUNK if self._left else _Part.TRAILER
            case _Part.CHUNK_END if not line:
                self._expected = _Part.CHUNK_SIZE
            case _Part.TRAILER:
                if not line:
                    self._complete()
            case _:
                raise BrokenAnswerError("a chunk is longer than announced")

    def _take(self, piece: memoryview) -> None:
        if self._sink is not None:
            self._sink.append(piece)
            return
        if self._at + len(piece) > BODY_BYTES_MAX:
            raise BrokenAnswerError(f"more than {BODY_BYTES_MAX} bytes")
        if self._crc32 is not None:
            self._crc32 = zlib.crc32(piece, self._crc32)
        if len(piece) >= SMALL_BYTES:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self._at += len(piece)

    def _complete(self) -> None:
        self._expected = _Part.NOTHING
        if self._crc32 is not None:
            assert self.head is not None
            if self.head.headers[CRC32_HEADER] != b"%d" % self._crc32:
                raise BrokenAnswerError("the answer does not match its CRC-32")


def head_in(data: bytes) -> Head:
    """The head that `data` is, without the empty line at its end. Raises BrokenAnswerError."""
    first, *lines = data.split(b"\n")
    if len(data) > HEAD_BYTES_MAX or len(lines) > HEADERS_MAX:
        raise BrokenAnswerError(f"a head of {len(data)} bytes with {len(lines)} headers")
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BrokenAnswerError(f"no HTTP answer: {first[:80]!r}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BrokenAnswerError(f"no header: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        if name == b"content-length" and headers.get(name, value) != value:
            raise BrokenAnswerError("two lengths of one answer")
        headers[name] = value
    return Head(int(code), headers)


def length_in(text: bytes) -> int:
    """A length in digits. Raises BrokenAnswerError."""
    if not text.isdigit() or len(text) > LENGTH_DIGITS_MAX:
        raise BrokenAnswerError(f"content-length {text[:80]!r}")
    return int(text)
