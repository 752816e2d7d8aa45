"""`Piece`: consecutive records in the form that they have in the line for the child. Pure.

Rule: retrieval#raw-pages. "Framed" means: written as a JSON object of the `processRecords` line, with a comma before
it. A line consists of its head, its pieces without the first comma, and its tail. A piece has to be cut between two
records if a checkpoint is between them, or if one of them is an aggregate or has a schema frame. Such cuts are rare, so
no list of the records is kept; one pattern (`_AFTER_DATA`) finds them in the text. We framed the text ourselves, so the
pattern always matches, whatever the answer of Kinesis looked like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from mld.protocol.codec import PIECE_BYTES, RECORD_FRAME

NO_KEY = b'""'
"""JSON text that is sent for a record without a partition key: the producer gave none, and Kinesis chose the shard.

Children expect a string, and a real key has at least one character, so it cannot be mistaken for one."""
MAGIC_IN_BASE64 = re.compile(rb"84maw[g-v]")
"""Matches the beginning of a KPL aggregate in base64: the bytes F3 89 9A C2. The last character also has two bits of
the next byte or of the padding.
"""
FRAME_IN_BASE64 = re.compile(rb"Aw[A-DU-X]")
"""Matches the beginning of a frame of the Glue Schema Registry in base64: the byte 03, then 00 or 05."""
_DATA, _KEY, _SEQUENCE, _TIME, _END = RECORD_FRAME
_OPENING = b"," + _DATA
_KEY_TEXT = rb'("(?:[^"\\]|\\.)*")'
_AFTER_DATA = re.compile(
    re.escape(_KEY)
    + _KEY_TEXT
    + re.escape(_SEQUENCE)
    + rb"([0-9]+)"
    + re.escape(_TIME)
    + rb"(-?[0-9]+)"
    + re.escape(_END)
)
"""Matches the rest of a framed record from the quote that ends its payload. The groups are key, sequence number and
arrival time."""
WRITTEN_BYTES_MAX = PIECE_BYTES + PIECE_BYTES // 2
"""Longest text that is handed to the pipe at once: one piece, or several small ones joined."""
JOINED_BYTES_MAX = 2 * 1024 * 1024
"""Most bytes that are joined in one step; it takes well under 1 ms."""
_PAD = b"="


class Columns(NamedTuple):
    """The four fields of a record as the child's line has them: base64, JSON text, and decimal digits."""

    data: bytes
    key: bytes
    sequence: bytes
    arrival_ms: bytes


class Piece(NamedTuple):
    """Consecutive records, framed. `bears_frame` says whether any of them may have a frame of a schema registry.

    `parts`, joined, are the text. A part may be a view of a large payload in the body; it is copied only when it is
    written to the pipe.
    """

    parts: Sequence[bytes | memoryview]
    records: int
    data_bytes: int
    bears_frame: bool

    @property
    def text(self) -> bytes:
        return b"".join(self.parts)

    def texts(self) -> Iterator[bytes]:
        """Yield the text in a few parts: in one, unless it has many megabytes, because joining those would take
        milliseconds.
        """
        if self.data_bytes <= JOINED_BYTES_MAX:
            yield self.text
            return
        for part in self.parts:
            for start in range(0, len(part), WRITTEN_BYTES_MAX):
                yield bytes(part[start : start + WRITTEN_BYTES_MAX])

    def joined(self) -> Piece:
        """Return the same piece with its text in one part of its own, so that it does not keep the body in memory."""
        return self._replace(parts=(self.text,))


class RecordPlace(NamedTuple):
    """Where a framed record is in a text. `start` is the place of its comma; `found` matches everything after its
    payload.
    """

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
    def arrival_ms(self) -> int:
        return int(self.found[3])

    @property
    def data_start(self) -> int:
        """Where the base64 text of the payload begins; the payload ends where `found` begins."""
        return self.start + len(_OPENING)

    def piece(self, bears_frame: bool) -> Piece:
        """Return a piece that holds only this record."""
        return Piece((self.text[self.start : self.end],), 1, self.data_bytes, bears_frame)

    @property
    def columns(self) -> Columns:
        return Columns(self.text[self.data_start : self.found.start()], *self.found.groups())

    @property
    def data_bytes(self) -> int:
        """Length of the decoded payload: three bytes for four characters, less one for each `=` at the end."""
        start, end = self.data_start, self.found.start()
        return (end - start) // 4 * 3 - self.text.count(_PAD, max(start, end - 2), end)


def framed(columns: Iterable[Columns]) -> bytes:
    """Return the framed text of records, each given by its columns."""
    parts: list[bytes] = []
    for data, key, sequence, arrival_ms in columns:
        parts += (_OPENING, data, _KEY, key, _SEQUENCE, sequence, _TIME, arrival_ms, _END)
    return b"".join(parts)


def framed_columns(
    datas: Sequence[bytes | memoryview],
    keys: list[bytes],
    sequences: list[bytes],
    time_head: bytes,
    times: list[bytes],
) -> list[bytes | memoryview]:
    """Return the framed text of one or more records, in parts. Each list has one field of all records; `time_head` is
    the beginning of all arrival times.
    """
    # Eight parts per record: the end of the record before it and its own beginning, then its fields, whose places are
    # still empty, and the constant texts between them.
    template = [_END + _OPENING, b"", _KEY, b"", _SEQUENCE, b"", _TIME + time_head, b""]
    parts: list[bytes | memoryview] = template * len(datas)  # type: ignore[assignment]
    parts[0] = _OPENING
    parts[1::8], parts[3::8], parts[5::8], parts[7::8] = datas, keys, sequences, times
    parts.append(_END)
    return parts


def places(text: bytes) -> Iterator[RecordPlace]:
    """Yield the places of the records in the text of a piece, in their order."""
    start, end = 0, len(text)
    while start < end:
        place = place_at(text, start)
        yield place
        start = place.end


def around_frames(piece: Piece) -> Iterator[Piece]:
    """Split a piece so that each record that may have a schema frame is a piece by itself."""
    text, begin, count, data_bytes = piece.text, 0, 0, 0
    for place in places(text):
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


def place_at(text: bytes, start: int = 0) -> RecordPlace:
    """Return the place of the record that begins at `start`."""
    found = _AFTER_DATA.match(text, text.index(b'"', start + len(_OPENING)))
    assert found is not None, "the piece was framed by ourselves"
    return RecordPlace(text, start, found)


def written(head: bytes, pieces: Iterable[Piece], tail: bytes) -> Iterator[bytes]:
    """Yield the line of these pieces in chunks for the pipe. Small texts are joined up to `WRITTEN_BYTES_MAX`. A longer
    text is cut into chunks of `PIECE_BYTES`, and its end is joined with what follows.

    A chunk may exceed the limit by the head or the tail, which are short.
    """
    held, size = [head], len(head)
    start = 1  # leaves out the comma of the first record
    for text in chain.from_iterable(piece.texts() for piece in pieces):
        if size + len(text) > WRITTEN_BYTES_MAX:
            if size > len(head):
                yield b"".join(held)
                held, size = [], 0
            if len(text) > WRITTEN_BYTES_MAX:
                if held:
                    yield b"".join(held)
                held, size = [], 0
                last_cut = len(text) - PIECE_BYTES  # less than a chunk is left after it
                while start < last_cut:
                    yield text[start : start + PIECE_BYTES]
                    start += PIECE_BYTES
        held.append(text[start:] if start else text)
        size += len(held[-1])
        start = 0
    held.append(tail)
    yield b"".join(held)


def size_of(data: bytes) -> int:
    """Return the length in bytes that this base64 text has once decoded."""
    return len(data) // 4 * 3 - data[-2:].count(_PAD)
