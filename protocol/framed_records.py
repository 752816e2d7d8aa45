"""Splits a `processRecords` line into its framed records, and joins some of them into new lines.

The search for a record that kills its processor needs this. A record keeps exactly the bytes that it had in the first
line; only the batches differ. The text that ends a record cannot occur inside a JSON string, because quotes are escaped
there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mld.protocol.codec import PIECE_BYTES, RECORD_END, RECORDS_HEAD, records_tail

_POSITION = re.compile(
    rb'"sequenceNumber":"([0-9]+)","approximateArrivalTimestamp":-?[0-9]+,"subSequenceNumber":(-?[0-9]+)'
    rb'(?:,"[A-Za-z]+":"(?:[^"\\]|\\.)*")*\Z'
)


@dataclass(frozen=True, slots=True)
class FramedRecord:
    """One element of `records`: its position, and its JSON text."""

    sequence: str
    sub: int
    text: bytes

    def as_it_came(self) -> FramedRecord:
        """Return the record as Kinesis delivered it. Subclasses whose `text` is a changed record return the
        original.
        """
        return self

    def fields(self) -> dict[str, object]:
        """Return the record's fields as the child gets them: data (base64), partitionKey, sequenceNumber,
        approximateArrivalTimestamp, …
        """
        fields: dict[str, object] = json.loads(self.text)
        return fields

    @property
    def data_bytes(self) -> int:
        """Size of the payload in bytes, computed from its base64."""
        start = len(b'{"data":"')
        end = self.text.index(b'"', start)
        return (end - start) // 4 * 3 - self.text.count(b"=", max(start, end - 2), end)


class Splitter:
    """Splits one line, whose pieces are passed to `feed` in order. Besides the piece, only one unfinished record is
    kept.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True

    def feed(self, piece: bytes) -> Iterator[FramedRecord]:
        """Yield the records that this piece completes."""
        *whole, self._rest = (self._rest + piece).split(RECORD_END)
        for text in whole:
            start = len(RECORDS_HEAD) if self._is_first else len(b",")
            self._is_first = False
            match = _POSITION.search(text)
            assert match is not None, "the line was framed by ourselves"
            yield FramedRecord(match[1].decode(), int(match[2]), text[start:] + RECORD_END)


def line_of(records: Sequence[FramedRecord], millis_behind_latest: int | None) -> Iterator[bytes]:
    """Yield a `processRecords` line with these records, in pieces of about 128 KB, newline included."""
    parts, size = [RECORDS_HEAD], 0
    for number, record in enumerate(records):
        parts += (b",", record.text) if number else (record.text,)
        size += len(record.text)
        if size > PIECE_BYTES:
            yield from _pieces(b"".join(parts))
            parts, size = [], 0
    parts.append(records_tail(millis_behind_latest))
    yield b"".join(parts)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield the data in pieces of at most PIECE_BYTES; one large record may need several."""
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
