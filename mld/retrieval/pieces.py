"""Records as they stand in the child's line, framed once and kept in pieces. Pure.

Rules: retrieval#raw-pages, protocol#record-fields. A piece is a run of whole records, each with a comma before it, so
that a line is its head, its pieces without the first comma, and its tail. What needs another cut than the one between
two pieces (a checkpoint inside a piece, an aggregate, a frame) is rare, and walks over the framed text again: we have
written it ourselves, so that one pattern reads it whatever the body looked like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from mld.protocol.codec import PIECE_BYTES, RECORD_END, RECORD_FRAME
from mld.retrieval.layouts import FRAME_IN_BASE64, Columns

_DATA, _KEY, _SEQUENCE, _TIME, _END = RECORD_FRAME
_OPENING = b"," + _DATA
WRITTEN_BYTES_MAX = PIECE_BYTES + PIECE_BYTES // 2
"""What is handed to the pipe at a time: a piece, or small ones together."""
JOINED_BYTES_MAX = 2 * 1024 * 1024
"""Joined in one step, in well under 1 ms."""
EXTRAS_KEPT_MAX = 64
"""Frames with the keys of a stream; there is one for each stream."""
_PAD = b"="


class Piece(NamedTuple):
    """Records in a row. `bears_frame`: one of them may have the frame of a schema registry; certain only if not.

    `parts` are its text; those of large payloads are views of the body, copied only on their way to the pipe.
    """

    parts: Sequence[bytes | memoryview]
    records: int
    data_bytes: int
    bears_frame: bool

    @property
    def text(self) -> bytes:
        return b"".join(self.parts)

    def texts(self) -> Iterator[bytes]:
        """Yield its text in few parts: joining one with a payload of many megabytes takes milliseconds."""
        if self.data_bytes <= JOINED_BYTES_MAX:
            yield self.text
            return
        for part in self.parts:
            for start in range(0, len(part), WRITTEN_BYTES_MAX):
                yield bytes(part[start : start + WRITTEN_BYTES_MAX])

    def joined(self) -> Piece:
        """Return the same, apart from the body."""
        return self._replace(parts=(self.text,))


class RecordPlace(NamedTuple):
    """Where a record stands: from its comma to its end, and the columns after its payload."""

    text: bytes
    start: int
    found: re.Match[bytes]

    @property
    def end(self) -> int:
        return self.found.end()

    @property
    def sequence(self) -> bytes:
        return self.found[2]

    @property
    def data_start(self) -> int:
        """Where the base64 text of the payload begins; it ends where `found` begins."""
        return self.start + len(_OPENING)

    def piece(self, bears_frame: bool) -> Piece:
        """Return the record as a piece by itself."""
        return Piece((self.text[self.start : self.end],), 1, self.data_bytes, bears_frame)

    @property
    def columns(self) -> Columns:
        return Columns(self.text[self.data_start : self.found.start()], *self.found.groups())

    @property
    def data_bytes(self) -> int:
        start, end = self.data_start, self.found.start()
        return (end - start) // 4 * 3 - self.text.count(_PAD, max(start, end - 2), end)


@dataclass(frozen=True, slots=True)
class RecordForm:
    """The text around the columns of records that all have the same extra keys (`mld.protocol.codec.record_keys`)."""

    end: bytes
    after_data: re.Pattern[bytes]
    """From the quote that ends a payload to the end of its record: key, sequence number and arrival."""

    def framed(self, columns: Iterable[Columns]) -> bytes:
        """Return records taken apart one by one, framed."""
        parts: list[bytes] = []
        for data, key, sequence, arrival_ms in columns:
            parts += (_OPENING, data, _KEY, key, _SEQUENCE, sequence, _TIME, arrival_ms, self.end)
        return b"".join(parts)

    def framed_columns(
        self,
        datas: Sequence[bytes | memoryview],
        keys: list[bytes],
        sequences: list[bytes],
        time_head: bytes,
        times: list[bytes],
    ) -> list[bytes | memoryview]:
        """Return the text of at least one record, in parts. `time_head` begins every arrival time."""
        template = [self.end + _OPENING, b"", _KEY, b"", _SEQUENCE, b"", _TIME + time_head, b""]
        parts: list[bytes | memoryview] = template * len(datas)  # type: ignore[assignment]
        parts[0] = _OPENING
        parts[1::8], parts[3::8], parts[5::8], parts[7::8] = datas, keys, sequences, times
        parts.append(self.end)
        return parts

    def places(self, text: bytes) -> Iterator[RecordPlace]:
        """Yield the records of a piece, one after the other."""
        start, end = 0, len(text)
        while start < end:
            place = self.place(text, start)
            yield place
            start = place.end

    def around_frames(self, piece: Piece) -> Iterator[Piece]:
        """Yield the piece cut around each record that may have the frame of a schema registry."""
        text, begin, count, data_bytes = piece.text, 0, 0, 0
        for place in self.places(text):
            if not FRAME_IN_BASE64.match(text, place.data_start):
                count += 1
                data_bytes += place.data_bytes
                continue
            if count:
                yield Piece((text[begin : place.start],), count, data_bytes, False)
            yield place.piece(True)
            begin, count, data_bytes = place.end, 0, 0
        if count:
            yield Piece((text[begin:],), count, data_bytes, False)

    def place(self, text: bytes, start: int = 0) -> RecordPlace:
        """Return the record that begins there."""
        found = self.after_data.match(text, text.index(b'"', start + len(_OPENING)))
        assert found is not None, "the piece was framed by ourselves"
        return RecordPlace(text, start, found)


@lru_cache(EXTRAS_KEPT_MAX)
def form_with(extra: bytes = b"") -> RecordForm:
    """Return the form of records outside aggregates, with the keys that each record has besides the usual ones."""
    end = _END.removesuffix(RECORD_END) + extra + RECORD_END
    key = rb'("(?:[^"\\]|\\.)*")'
    pattern = re.escape(_KEY) + key + re.escape(_SEQUENCE) + rb"([0-9]+)" + re.escape(_TIME) + rb"(-?[0-9]+)"
    return RecordForm(end, re.compile(pattern + re.escape(end)))


def written(head: bytes, pieces: Iterable[Piece], tail: bytes) -> Iterator[bytes]:
    """Yield a line of these pieces, cut so that the pipe gets neither many small pieces nor one that takes long."""
    held, size = [head], len(head)
    start = 1  # without its comma
    for text in chain.from_iterable(piece.texts() for piece in pieces):
        if size + len(text) > WRITTEN_BYTES_MAX:
            if size > len(head):
                yield b"".join(held)
                held, size = [], 0
            if len(text) > WRITTEN_BYTES_MAX:
                if held:
                    yield b"".join(held)
                held, size = [], 0
                whole = len(text) - PIECE_BYTES
                while start < whole:
                    yield text[start : start + PIECE_BYTES]
                    start += PIECE_BYTES
        held.append(text[start:] if start else text)
        size += len(held[-1])
        start = 0
    held.append(tail)
    yield b"".join(held)


def size_of(data: bytes) -> int:
    """Return bytes of base64 text once decoded."""
    return len(data) // 4 * 3 - data[-2:].count(_PAD)
