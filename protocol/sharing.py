"""Shares the records of a `processRecords` line among the children of a shard, by partition key.

Rule: parallel#choice-of-the-child. The number of the child that gets a record is the CRC-32 of the record's partition
key in UTF-8, modulo the number of children. So it is the same on every worker, in every version and after every
restart. User records of KPL aggregates are shared by their own keys. Records without a key go to the children in turn.

The daemon's own codec made the line, so the form of a record is known. The fields of a record are found by searching
for the quotes around them: base64 has no quotes. A record with escapes in its partition key, or with further keys at
its end, is read by a regular expression, which costs four times as much. Payloads are not decoded, and the children get
the same bytes as one child would.
"""

from __future__ import annotations

import json
import re
from binascii import crc32
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter, le
from typing import TypeAlias

from mld.protocol.codec import PIECE_BYTES, RECORD_END, RECORDS_HEAD, records_tail

# Lengths of the text before a field: from the comma before the record, or from the quote that ends the field before.
_TO_DATA = len(b',{"data":"')
_TO_KEY, _TO_SEQUENCE = len(b'","partitionKey":"'), len(b'","sequenceNumber":"')
_SUB = b'"subSequenceNumber":'
_USUAL_END = _SUB + b"0" + RECORD_END
_BACKSLASH = b"\\"
_UNUSUAL = re.compile(
    rb'","partitionKey":("[^"\\]*(?:\\.[^"\\]*)*"),"sequenceNumber":"([0-9]+)","approximateArrivalTimestamp":-?[0-9]+,'
    rb'"subSequenceNumber":(-?[0-9]+)(?:,"[A-Za-z]+":"(?:[^"\\]|\\.)*")*' + re.escape(RECORD_END)
)
"""Matches a record from the quote that ends its payload to its end."""

SharedRecord: TypeAlias = tuple[bytes, int, int]
"""A record's sequence number in digits, its sub-sequence number, and the number of the child that gets it."""


def by_position(record: SharedRecord) -> tuple[int, int]:
    """Return the position of a record as a key to sort by."""
    return int(record[0]), record[1]


def is_ordered(records: Sequence[SharedRecord]) -> bool:
    """Return whether records are certainly in the order of their positions. User records of one aggregate always
    are.
    """
    numbers = [record[0] for record in records]
    # Texts of digits compare like numbers only if they have the same length.
    return len(set(map(len, numbers))) <= 1 and all(map(le, numbers, numbers[1:]))


class SharedLine:
    """Shares the records of one line, which is fed in pieces, among `children` children.

    `order` has the records in the order of the line. `texts` has, for each child, the text of its records in parts.
    When these are joined, each record follows one byte: the comma, or the bracket before the first record of the line.
    A part may begin or end inside a record.
    """

    def __init__(self, children: int, turn: int = 0) -> None:
        """Begin a line for this number of children. `turn` is the number of the child that gets the next record without
        a key; pass the `turn` of the previous line, so that such records go to all children in turn.
        """
        self.turn = turn
        self.order: list[SharedRecord] = []
        self.is_ordered = True
        """Whether the records in `order` are certainly in the order of their positions."""
        self.first_of: dict[int, SharedRecord] = {}
        """The first record of each child that has any."""
        self.last_of: dict[int, SharedRecord] = {}
        self.counts: Counter[int] = Counter()
        """How many records each child has."""
        self.texts: list[list[bytes]] = [[] for _ in range(children)]
        self._parts: list[bytes] = []  # the text so far of a large record, whose payload goes on
        self._rest = b""  # the last part of the text that was fed, which is not read yet
        self._has_begun = False  # whether the head of the line was read

    def feed(self, piece: bytes) -> None:
        """Share out the records that this piece of the line completes. The rest of the piece is kept for the next call.

        The quotes around the fields are searched for. This finds the right quotes if the key has no backslash and
        nothing follows the sub-sequence number. For any other record the pattern `_UNUSUAL` is used. The texts of the
        records are first collected by child (`runs`), and then joined into one text for each child.
        """
        text = self._rest + piece if self._rest else piece
        start = 0
        if not self._has_begun:
            if len(text) < len(RECORDS_HEAD):
                self._rest = text
                return
            self._has_begun, start = True, len(RECORDS_HEAD) - 1
        find, startswith, view = text.find, text.startswith, memoryview(text)
        completed: list[SharedRecord] = []
        note, children = completed.append, len(self.texts)
        runs: list[list[bytes | memoryview]] = [[] for _ in self.texts]
        while True:  # `start` is at the bracket or comma before a record, or in an unfinished payload
            data_end = find(b'"', start if self._parts else start + _TO_DATA)
            key_end = find(b'"', data_end + _TO_KEY)
            sequence_end = find(b'"', key_end + _TO_SEQUENCE)
            end = find(b"}", sequence_end) + 1
            if data_end < 0 or key_end < 0 or sequence_end < 0 or not end:
                break
            key = text[data_end + _TO_KEY : key_end]
            if startswith(_USUAL_END, end - len(_USUAL_END)) and _BACKSLASH not in key:
                sequence, sub = text[key_end + _TO_SEQUENCE : sequence_end], 0
            elif (  # the same with a sub-sequence number other than 0
                startswith(RECORD_END, sub_end := end - len(RECORD_END))
                and startswith(_SUB, (sub_start := text.rfind(b":", sequence_end, sub_end) + 1) - len(_SUB))
                and _BACKSLASH not in key
            ):
                sequence, sub = text[key_end + _TO_SEQUENCE : sequence_end], int(text[sub_start:sub_end])
            else:
                found = _UNUSUAL.match(text, data_end)
                if found is None:
                    break
                key, sequence, sub, end = _plain(found[1]), found[2], int(found[3]), found.end()
            if key:
                child = crc32(key) % children
            else:
                child = self.turn
                self.turn = (child + 1) % children
            note((sequence, sub, child))
            if self._parts:  # the earlier text of the first record that this piece completes
                self.texts[child] += self._parts
                self._parts = []
            runs[child].append(view[start:end])
            start = end
        for texts, run in zip(self.texts, runs, strict=True):
            if run:
                texts.append(b"".join(run))
        self._rest = text[start:]
        if len(self._rest) > PIECE_BYTES and data_end < 0:
            self._parts.append(self._rest)  # so that the payload so far is not copied and searched again
            self._rest = b""
        self._sum_up(completed)

    def _sum_up(self, records: Sequence[SharedRecord]) -> None:
        """Add the records that a piece has completed to `order`, `first_of`, `last_of` and `counts`."""
        self.is_ordered = self.is_ordered and is_ordered([*self.order[-1:], *records])
        self.order += records
        # A later entry of a dict or of `|` replaces an earlier one, so the first record of each child stays.
        self.first_of = {record[2]: record for record in reversed(records)} | self.first_of
        self.last_of |= {record[2]: record for record in records}
        self.counts.update(map(itemgetter(2), records))


def _plain(key: bytes) -> bytes:
    """Return a key from its JSON text, in UTF-8. A lone half of a surrogate pair is accepted, as in JSON."""
    text: str = json.loads(key)
    return text.encode("utf-8", "surrogatepass")


def line_of_texts(texts: Sequence[bytes], millis_behind_latest: int | None) -> Iterator[bytes]:
    """Yield the `processRecords` line of one child's `texts` in pieces of about 128 KB, newline included."""
    parts, size = [RECORDS_HEAD], 0
    first = 1  # leaves out the byte before the first record: RECORDS_HEAD has the bracket
    for text in texts:
        for start in range(first, len(text), PIECE_BYTES):
            parts.append(text[start : start + PIECE_BYTES])
            size += len(parts[-1])
            if size >= PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        first = 0
    parts.append(records_tail(millis_behind_latest))
    yield b"".join(parts)
