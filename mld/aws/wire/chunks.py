"""`Chunks`: takes the chunked body of an HTTP answer out of its chunks, while its bytes are received. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

TRAILERS_BYTES_MAX = 64 * 1024

CHUNK_LINE_BYTES_MAX = 4096
"""Longest line with the size of a chunk, and longest trailer."""
CHUNK_DIGITS_MAX = 8
"""Most hexadecimal digits in the size of a chunk."""


class BrokenAnswerError(Exception):
    """The bytes that were received are not a whole HTTP answer."""


class _Expected(Enum):
    """The part of a chunked body that comes next; the value is its name in errors."""

    SIZE = "the size of a chunk"
    DATA = "the data of a chunk"
    DATA_END = "the end of a chunk"
    TRAILER = "a trailer"
    NOTHING = "nothing"


class Chunks:
    """A chunked body that is being received. `excess` says whether bytes came after its end."""

    def __init__(self) -> None:
        self.excess = False
        self._expected = _Expected.SIZE
        self._line = b""
        """The beginning of a line outside the data, whose end has not come yet."""
        self._left = 0
        """Bytes of this chunk that have not come yet."""
        self._trailers_bytes = 0  # of the trailers so far

    @property
    def is_complete(self) -> bool:
        return self._expected is _Expected.NOTHING

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Take the next bytes, and yield the pieces of the body in them: the data of the chunks. The lines around the
        data (sizes, line ends, trailers) are collected until they are whole. Raises BrokenAnswerError.
        """
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
                    end = data.find(b"\n", at) + 1  # 0 if the line does not end in these bytes
                    self._line += data[at : end or len(data)]
                    at = end or len(data)
                    if len(self._line) > CHUNK_LINE_BYTES_MAX:
                        raise BrokenAnswerError(f"no {self._expected.value}")
                    if end:
                        self._take_line()

    def _take_line(self) -> None:
        """Parse a whole line outside the data: the size of a chunk, the end of its data, or a trailer."""
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
                if self._trailers_bytes > TRAILERS_BYTES_MAX:
                    raise BrokenAnswerError(f"more than {TRAILERS_BYTES_MAX} bytes of trailers")
                if not line:
                    self._expected = _Expected.NOTHING
            case _:
                raise BrokenAnswerError("a chunk is longer than announced")
