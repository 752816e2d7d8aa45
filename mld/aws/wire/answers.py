"""Reads HTTP/1.1 answers: bytes in, answers out. Pure, so that the event loop and threads read HTTP in one way.

An answer is either whole or an error: its length is checked, whether announced or chunked, and its CRC-32 where the
service sends one. A half-read answer is one object, `Incoming`, which the loop hands to a thread when it is large.

An event stream is cut into frames. A frame begins with its length, so nothing is searched, and nothing copied but the
few bytes that a read cuts off. What is inside a frame, its checksums included, is botocore's business.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from io import BytesIO

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 128 * 1024 * 1024
"""Far above 10 MB of records in base64; a server that announces more is not Kinesis."""
CHUNK_LINE_BYTES_MAX = 4096
"""Of the line before a chunk, and of a trailer."""
CHUNK_DIGITS_MAX = 8
INFORMATIONAL_MAX = 8
"""Answers before the one that counts; AWS sends none."""
LENGTH_DIGITS_MAX = 18
CRC32_HEADER = b"x-amz-crc32"


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` has lower-case names; `keep` says whether the connection can be used again."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    keep: bool = False


class BrokenAnswerError(Exception):
    """What came is no whole HTTP answer."""


class NothingSentBackError(Exception):
    """The connection ended before the first byte of an answer, as an idle one does that the server has closed."""


class Incoming:
    """One answer as its bytes come in. `feed` it until it returns the answer; `end` it if the connection ends.

    `feed_head` alone stops after the head and leaves what came after it in `ahead`. Every method raises
    BrokenAnswerError for what is no answer.
    """

    __slots__ = ("_body", "_body_bytes_max", "_chunks", "_informational", "ahead", "headers", "length", "status")

    def __init__(self, body_bytes_max: int | None = None) -> None:
        self._body_bytes_max = BODY_BYTES_MAX if body_bytes_max is None else body_bytes_max
        self.status = 0
        """0 until the head is whole."""
        self.headers: dict[bytes, bytes] = {}
        self.length: int | None = None
        """Bytes in the body, if the head announces them."""
        self.ahead = b""
        self._informational = 0
        self._chunks: Chunks | None = None
        self._body = BytesIO()  # not a list of pieces: one of a byte would take 40 times as much

    def feed_head(self, data: bytes) -> bool:
        """Return whether the head is whole. Informational answers before it are skipped."""
        self.ahead = self.ahead + data if self.ahead else data
        while not self.status:
            end = self.ahead.find(b"\n\r\n")
            bare = self.ahead.find(b"\n\n", 0, end + 1 if end >= 0 else len(self.ahead))
            start = end + 3
            if bare >= 0:
                end, start = bare, bare + 2
            if max(end, len(self.ahead) if end < 0 else 0) > HEAD_BYTES_MAX:
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
        """Return the answer, once it is whole."""
        if not self.status or self.ahead:
            if not self.feed_head(data):
                return None
            data, self.ahead = self.ahead, b""
        if self.length is not None and len(data) == self.length and not self._body.tell():
            return self._whole(data, is_exact=True)
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
        """Return what has come of a body whose length is announced. Whoever reads the rest says so with `complete`."""
        return self._body.getvalue()

    @property
    def is_unchecked(self) -> bool:
        """Whether a body can be used part by part: its length is announced, and nothing else is said of it."""
        return self.length is not None and self.status < 300 and CRC32_HEADER not in self.headers

    def passed_on(self) -> Answer:
        """Return the answer without its body, of which every part went to somebody else."""
        return self._kept(b"", is_exact=True)

    def complete(self, body: bytes) -> Answer:
        """Return the answer with this body of the announced length, which somebody else has read."""
        if len(body) != self.length:
            raise BrokenAnswerError(f"the answer is cut off: {len(body)} of {self.length} bytes")
        return self._whole(body, is_exact=True)

    def end(self) -> Answer:
        """Note that the connection has ended in order: the answer, if it was to last until then. Raises
        NothingSentBackError.
        """
        if not self.status or self.length is not None or self._chunks is not None:
            raise self.cut_off("the server has closed the connection")
        return self._whole(self._body.getvalue(), is_exact=False)

    def cut_off(self, reason: str) -> Exception:
        """Return what it means that no more will come."""
        if self.status or self.ahead:
            return BrokenAnswerError("the answer is cut off")
        return NothingSentBackError(reason)

    def _expect_body(self) -> None:
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
        """Return the whole answer. `is_exact`: nothing came after the body, and its end was known without that of
        the connection.
        """
        expected = self.headers.get(CRC32_HEADER)
        if expected is not None and b"content-encoding" not in self.headers and expected != b"%d" % zlib.crc32(body):
            raise BrokenAnswerError("the answer does not match its CRC-32")
        return self._kept(body, is_exact)

    def _kept(self, body: bytes, is_exact: bool) -> Answer:
        keep = is_exact and b"close" not in self.headers.get(b"connection", b"").lower()
        return Answer(self.status, self.headers, body, keep)


class _Expected(Enum):
    SIZE = "the size of a chunk"
    DATA = "the data of a chunk"
    DATA_END = "the end of a chunk"
    TRAILER = "a trailer"
    NOTHING = "nothing"


class Chunks:
    """A chunked body as it comes in. `excess`: whether bytes came after its end."""

    def __init__(self) -> None:
        self.excess = False
        self._expected = _Expected.SIZE
        self._line = b""
        self._left = 0
        """Bytes left in this chunk."""
        self._trailers_bytes = 0

    @property
    def is_complete(self) -> bool:
        return self._expected is _Expected.NOTHING

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the pieces of the body in `data`. Raises BrokenAnswerError."""
        view = memoryview(data)
        at = 0
        while at < len(data):
            match self._expected:
                case _Expected.DATA:
                    end = min(len(data), at + self._left)
                    yield view[at:end]
                    self._left -= end - at
                    at = end
                    if not self._left:
                        self._expected = _Expected.DATA_END
                case _Expected.NOTHING:
                    self.excess = True
                    return
                case _:
                    end = data.find(b"\n", at) + 1
                    self._line += data[at : end or len(data)]
                    at = end or len(data)
                    if len(self._line) > CHUNK_LINE_BYTES_MAX:
                        raise BrokenAnswerError(f"no {self._expected.value}")
                    if end:
                        self._take_line()

    def _take_line(self) -> None:
        line, self._line = self._line.strip(), b""
        match self._expected:
            case _Expected.SIZE:
                text = line.partition(b";")[0].strip()
                if not text or len(text) > CHUNK_DIGITS_MAX or text.strip(b"0123456789abcdefABCDEF"):
                    raise BrokenAnswerError(f"no size of a chunk: {line[:80]!r}")
                self._left = int(text, 16)
                self._expected = _Expected.DATA if self._left else _Expected.TRAILER
            case _Expected.DATA_END if not line:
                self._expected = _Expected.SIZE
            case _Expected.TRAILER:
                self._trailers_bytes += len(line) + 1
                if self._trailers_bytes > HEAD_BYTES_MAX:
                    raise BrokenAnswerError(f"more than {HEAD_BYTES_MAX} bytes of trailers")
                if not line:
                    self._expected = _Expected.NOTHING
            case _:
                raise BrokenAnswerError("a chunk is longer than announced")


def _status_of(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BrokenAnswerError(f"no HTTP answer: {line[:80]!r}")
    return int(code)


def _headers_of(lines: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the last one of headers that are repeated."""
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


# --- frames of an event stream ----------------------------------------------------------------------------------------

FRAME_BYTES_MAX = 24 * 1024 * 1024 + 128 * 1024 + 16
"""The largest payload and the largest headers that botocore takes."""
FRAME_BYTES_MIN = 16
"""Lengths and checksums."""
SMALL_BYTES = 512
"""Smaller pieces are joined: kept apart, each takes some 200 bytes and what was read with it."""
_LENGTH_BYTES = 4

Frame = tuple[memoryview, ...]
"""One frame in the pieces in which it came."""


class FrameStream:
    """Give it bytes as they come, take whole frames. `chunked` is the answer's transfer encoding."""

    def __init__(self, *, chunked: bool) -> None:
        self.frames: deque[Frame] = deque()
        self.waiting_bytes = 0
        """Of whole frames that nobody has taken."""
        self._chunks = Chunks() if chunked else None
        self._parts: list[memoryview | bytearray] = []
        self._have = 0
        self._wanted = 0
        """Length of the frame under way; 0 before it is known."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer has said that it ends here."""
        return self._chunks is not None and self._chunks.is_complete

    @property
    def is_between_frames(self) -> bool:
        return self._have == 0

    def take(self) -> Frame | None:
        """Return the oldest whole frame."""
        if not self.frames:
            return None
        frame = self.frames.popleft()
        self.waiting_bytes -= sum(map(len, frame))
        return frame

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises BrokenAnswerError for what is no event stream."""
        if self._chunks is None:
            self._append(memoryview(data))
            return
        for piece in self._chunks.feed(data):
            self._append(piece)
        if self._chunks.excess:
            raise BrokenAnswerError("bytes after the end of the answer")

    def _append(self, piece: memoryview) -> None:
        """Cut a piece of the body into frames."""
        while piece:
            if len(piece) >= SMALL_BYTES:
                self._parts.append(piece)
            elif self._parts and isinstance(last := self._parts[-1], bytearray):
                last += piece
            else:
                self._parts.append(bytearray(piece))
            self._have += len(piece)
            if not self._wanted:
                if self._have < _LENGTH_BYTES:
                    return
                self._wanted = self._length()
            excess = self._have - self._wanted
            if excess < 0:
                return
            if excess:
                whole = self._parts[-1]
                self._parts[-1] = whole[: len(whole) - excess]
            self.frames.append(tuple(map(memoryview, self._parts)))
            self.waiting_bytes += self._wanted
            piece = piece[len(piece) - excess :]
            self._parts, self._have, self._wanted = [], 0, 0

    def _length(self) -> int:
        length = int.from_bytes(b"".join(part[:_LENGTH_BYTES] for part in self._parts)[:_LENGTH_BYTES], "big")
        if not FRAME_BYTES_MIN <= length <= FRAME_BYTES_MAX:
            raise BrokenAnswerError(f"a frame of {length} bytes")
        return length
