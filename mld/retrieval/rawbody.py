"""An index of the body of a GetRecords answer: where the columns of its records stand. Pure.

Rules: retrieval#raw-pages; AWS JSON 1.1. A body is checked as a whole before any of it is used: anything but legal JSON
of the documented form is a ValueError, never fewer records. Payloads stay base64 text; nothing is decoded unasked.

What makes it fast: a service writes all records alike, so the first record of a body is taken apart slowly, field by
field, and turned into a `RecordLayout`: one regular expression for everything between the end of a record's payload and
the start of the next one's. From then on a record costs one `find` of the quote that ends its payload, and one match. A
record that deviates (escapes, other fields, another order, white space) is read slowly by itself, and a layout is
learned from it. Fast or slow, the columns are the same bytes; tests/fuzz compares them with what botocore makes of a
body.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TypeVar

from mld.retrieval.jsonscan import ARRAY, ARRAY_END, COMMA, OBJECT, QUOTE, Scan
from mld.retrieval.layouts import (
    FRAME_IN_BASE64,
    MAGIC_IN_BASE64,
    Columns,
    LayoutSource,
    Member,
    RecordLayout,
    columns_of,
    compiled,
    source_of_layout,
)

LAYOUTS_MAX = 8
"""Layouts learned from one body; records of further kinds are read slowly, as learning costs some 0.1 ms."""
NEXT_ITERATOR = "NextShardIterator"
CONTINUATION = "ContinuationSequenceNumber"
_PAD = ord("=")
_recent: list[RecordLayout | None] = [None]
"""The layout learned last, so that a short answer costs no learning. A memo: what a body says does not depend on it."""

T = TypeVar("T")


@dataclass(slots=True)
class RegularRun:
    """Records of one layout. Payload n stands between `matches[n]` and `matches[n + 1]`."""

    body: bytes
    layout: RecordLayout
    matches: list[re.Match[bytes]]
    bears_magic: bool
    bears_frame: bool = False

    def __len__(self) -> int:
        return len(self.matches) - 1

    def sequences(self) -> list[bytes]:
        group = self.layout.sequence
        found = self.matches[:-1] if self.layout.sequence_in_head else self.matches[1:]
        return [match[group] for match in found]

    def sequence(self, number: int) -> bytes:
        return self.matches[number + (not self.layout.sequence_in_head)][self.layout.sequence]

    def columns(self, number: int) -> Columns:
        before, after = self.matches[number], self.matches[number + 1]
        layout = self.layout
        time = (before if layout.time_in_head else after)[layout.time]
        return Columns(
            self.body[before.end() : after.start()],
            (before if layout.key_in_head else after)[layout.key],
            (before if layout.sequence_in_head else after)[layout.sequence],
            layout.time_head + (time if len(time) == layout.time_chars else layout.time_fill(time)),
        )

    def framed(self, start: int, end: int) -> list[int]:
        """Which of the records `start` to `end`, exclusive, may have the frame of a schema registry."""
        bears, body = FRAME_IN_BASE64.match, self.body
        return [start + n for n, match in enumerate(self.matches[start:end]) if bears(body, match.end())]

    def data_bytes(self, start: int, end: int) -> int:
        """Size of the payloads of records `start` to `end`, exclusive."""
        begins = [match.end() for match in self.matches[start:end]]
        ends = [match.start() for match in self.matches[start + 1 : end + 1]]
        count = self.body.count
        padding = sum([count(b"=", place - 2, place) for place in ends])
        return (sum(ends) - sum(begins)) // 4 * 3 - padding


@dataclass(slots=True)
class IrregularRun:
    """Records that were read one by one."""

    records: list[Columns] = field(default_factory=list)
    bears_magic: bool = False
    bears_frame: bool = False

    def __len__(self) -> int:
        return len(self.records)

    def sequences(self) -> list[bytes]:
        return [record.sequence for record in self.records]

    def sequence(self, number: int) -> bytes:
        return self.records[number].sequence

    def columns(self, number: int) -> Columns:
        return self.records[number]

    def framed(self, start: int, end: int) -> list[int]:
        return [start + n for n, one in enumerate(self.records[start:end]) if FRAME_IN_BASE64.match(one.data)]

    def data_bytes(self, start: int, end: int) -> int:
        return sum(size_of(record.data) for record in self.records[start:end])


@dataclass(frozen=True, slots=True)
class Index:
    """What is in a body. `data_bytes` is the size of all payloads; `child_shards` is as JSON has it."""

    runs: tuple[RegularRun | IrregularRun, ...]
    data_bytes: int
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: list[object]


def index_of(body: bytes, going_on: str = NEXT_ITERATOR) -> Index:
    """Raises ValueError if the body is not a GetRecords answer, or an event if `going_on` is its CONTINUATION."""
    scan = Scan(body)
    records: _Records | None = None
    found: dict[str, object] = {}
    scan.expect(OBJECT)
    for name in scan.names():
        if name == "Records" and scan.sees(ARRAY):
            records = _Records(scan)
            records.read()
        elif name in ("Records", going_on, "MillisBehindLatest", "ChildShards"):
            found[name] = json.loads(scan.value().decode())
        else:
            scan.skip_value()
    scan.expect_end()
    if records is None or "Records" in found:
        raise ValueError("no array of Records")
    return Index(
        tuple(records.runs),
        records.chars // 4 * 3 - records.padding,
        _typed(found.get(going_on), str, going_on) or None,
        _typed(found.get("MillisBehindLatest"), int, "MillisBehindLatest"),
        _typed(found.get("ChildShards"), list, "ChildShards") or [],
    )


class _Records:
    """Reads the array that begins at the place of `scan`."""

    def __init__(self, scan: Scan) -> None:
        self.runs: list[RegularRun | IrregularRun] = []
        self.chars = 0
        """Characters of all payloads, as base64 text."""
        self.padding = 0
        """How many of them are `=`."""
        self._scan = scan
        self._body = scan.body
        self._backslash = _found(scan.body.find(b"\\", scan.at), len(scan.body))
        self._layout = _recent[0]
        self._sources: set[LayoutSource] = set()

    def read(self) -> None:
        scan = self._scan
        scan.expect(ARRAY)
        if scan.takes(ARRAY_END):
            return
        while True:
            scan.sees(OBJECT)
            if self._layout is not None and self._read_regular(self._layout):
                return
            self._read_irregular()
            if not scan.takes(COMMA):
                scan.expect(ARRAY_END)
                return

    def _read_regular(self, layout: RecordLayout) -> bool:
        """Read records of one layout; True at the end of the array, else the scan stands before one that deviates."""
        body, backslash, find = self._body, self._backslash, self._body.find
        to_plain, to_any = layout.to_plain.match, layout.between.match
        match = layout.head.match(body, self._scan.at)
        if match is None:
            return False
        matches = [match]
        append = matches.append
        bears_magic = MAGIC_IN_BASE64.match(body, match.end()) is not None
        bears_frame = FRAME_IN_BASE64.match(body, match.end()) is not None
        if bears_frame:
            to_plain = layout.to_single.match
        start, chars, padding = match.end(), 0, 0
        ended = False
        while not ended:
            end = find(b'"', start)
            match = to_plain(body, end)
            if match is None:
                match = to_any(body, end)
                if match is None:
                    break
                if FRAME_IN_BASE64.match(body, match.end()) is None:
                    bears_magic = True
                else:
                    bears_frame = True
                    to_plain = layout.to_single.match  # nothing more to learn of frames
            size = end - start
            if end > backslash or size & 3:
                break
            if body[end - 1] == _PAD:
                padding += 1 + (body[end - 2] == _PAD)
            append(match)
            chars += size
            start = match.end()
            ended = body[start - 1] == ARRAY_END
        if len(matches) > 1:
            self.runs.append(RegularRun(body, layout, matches, bears_magic, bears_frame))
            self.chars += chars
            self.padding += padding
            self._scan.at = start if ended else matches[-1].start(layout.next)
        return ended

    def _read_irregular(self) -> None:
        """Read one record by its fields, and learn how the next ones may be written."""
        scan, body = self._scan, self._body
        members: dict[str, Member] = {}
        twice = False
        scan.expect(OBJECT)
        start = scan.at - 1
        for name in scan.names():
            scan.sees(QUOTE)
            value_start = scan.at
            scan.skip_value()
            twice |= name in members
            members[name] = Member(value_start, scan.at)
        columns = columns_of(body, members)
        if not self.runs or not isinstance(self.runs[-1], IrregularRun):
            self.runs.append(IrregularRun())
        run = self.runs[-1]
        assert isinstance(run, IrregularRun)
        run.records.append(columns)
        run.bears_magic |= MAGIC_IN_BASE64.match(columns.data) is not None
        run.bears_frame |= FRAME_IN_BASE64.match(columns.data) is not None
        self.chars += len(columns.data)
        self.padding += columns.data[-2:].count(_PAD)
        if scan.at > self._backslash:
            self._backslash = _found(body.find(b"\\", scan.at), len(body))
        if not twice and (source := source_of_layout(body, start, members, scan.at)) is not None:
            self._learn(source)

    def _learn(self, source: LayoutSource) -> None:
        if source not in self._sources and len(self._sources) < LAYOUTS_MAX:
            self._sources.add(source)
        if source in self._sources:
            self._layout = _recent[0] = compiled(source)


def size_of(data: bytes) -> int:
    """Bytes of base64 text once decoded."""
    return len(data) // 4 * 3 - data[-2:].count(_PAD)


def _typed(value: object, kind: type[T], name: str) -> T | None:
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is a {type(value).__name__}")


def _found(place: int, otherwise: int) -> int:
    return otherwise if place < 0 else place
