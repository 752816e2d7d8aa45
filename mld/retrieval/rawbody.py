"""Reads the body of a GetRecords answer in one pass: its records, framed as the child gets them. Pure.

Rules: retrieval#raw-pages; AWS JSON 1.1. A body is checked as a whole before any of it is used: anything but legal JSON
of the documented form is a ValueError, never fewer records. Payloads stay base64 text; nothing is decoded unasked.

A body may come in parts, which are read while they are in the processor's cache and then dropped: what is left of them
are pieces of the child's line (`rawpage`), and what the rules have to know of all records. Where a part ends nobody
knows: what cannot be read yet is kept and read again with what follows, and only the last part says what is wrong.

What makes it fast: a service writes all records alike, so the first record of a body is taken apart slowly, field by
field, and turned into a `RecordLayout`: one regular expression for everything between the end of a record's payload and
the start of the next one's. From then on a record costs one `find` of the quote that ends its payload, and one match;
the rest is done column by column. A record that deviates (escapes, other fields, another order, white space) is read
slowly by itself, and a layout is learned from it. Fast or slow, the pieces are the same bytes; tests/fuzz compares them
with what botocore makes of a body.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from mld.core.errors import MalformedBodyError
from mld.core.streams import ChildShard, child_shard_of
from mld.protocol.codec import PIECE_BYTES
from mld.protocol.json_fields import refuse_constant
from mld.retrieval.json_scan import ARRAY, ARRAY_END, COMMA, OBJECT, QUOTE, Scan
from mld.retrieval.layouts import LayoutSource, Member, RecordLayout, columns_of, compiled, source_of_layout
from mld.retrieval.pieces import (
    FRAME_IN_BASE64,
    MAGIC_IN_BASE64,
    NO_KEY,
    Columns,
    Piece,
    framed,
    framed_columns,
    size_of,
)
from mld.retrieval.rawpage import RawPage, Sequences

T = TypeVar("T")

LAYOUTS_MAX = 8
"""Layouts learned from one body; records of further kinds are read slowly, as learning costs some 0.1 ms."""
PART_BYTES = PIECE_BYTES
"""What is read at a time of a body that comes in parts."""
FRAME_BYTES = 200
"""Approximate size of a record besides payload and key, so that tiny ones count too."""
EMPTY_BYTES_MAX = 4 * 1024
"""Of an answer that may have no records: an iterator has 200 to 300, a child shard as many."""
CUT_OFF_BYTES = PART_BYTES // 4
"""What is left of a part that was read fast, if it is less than this, is the beginning of a record that goes on."""
VIEWED_CHARS_MIN = 4 * 1024
"""Payloads above this stay where they came in; a view of a smaller one takes more time and memory than a copy saves."""
NOT_LEGAL = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What is raised for a body that is not as documented."""
_END_OF_DATA = itemgetter(slice(-2, None))
"""Where padding is."""
_recent: list[RecordLayout | None] = [None]
"""The layout learned last, so that a short answer costs no learning. A memo: what a body says does not depend on it."""
_recent_size: list[bool] = [False]
"""Whether payloads read last were large. A memo, too."""

_strict_json = json.JSONDecoder(parse_constant=refuse_constant)


@dataclass(frozen=True, slots=True)
class PageMaker:
    """Makes pages of bodies. Raises MalformedBodyError if a body is not as documented."""

    going_on: str
    """The member that becomes `next_iterator`."""

    def __call__(self, body: bytes) -> RawPage:
        return self.in_parts().end(body)

    @property
    def wants_parts(self) -> bool:
        """Large payloads stay where they came in, and a body in one piece needs no copies between its parts."""
        return not _recent_size[0]

    def in_parts(self, part_bytes: int = PART_BYTES) -> BodyReader:
        """Make the reader of a body that comes in parts, of which so much is read at a time."""
        return BodyReader(self.going_on, part_bytes)


page_of = PageMaker("NextShardIterator")
"""Of a GetRecords answer."""
page_of_event = PageMaker("ContinuationSequenceNumber")
"""Of a SubscribeToShardEvent."""


class BodyReader:
    """Makes the page of one body, given in parts; see `PageMaker`.

    What is kept of the parts that were read is what cannot be told yet from a text that is cut off.
    """

    def __init__(self, going_on: str, part_bytes: int) -> None:
        self._going_on = going_on
        self._part_bytes = part_bytes
        self._parts: list[bytes] = []
        self._waiting = 0
        self._enough = part_bytes
        self._found: dict[str, object] = {}
        self._records: _Records | None = None

    @property
    def by_pattern(self) -> int:
        """How many of the records were read fast."""
        return 0 if self._records is None else self._records.by_pattern

    def feed(self, part: bytes) -> None:
        """Take the next part of the body. Raises nothing: whatever is wrong with it, `end` says."""
        self._parts.append(part)
        self._waiting += len(part)
        if self._waiting < self._enough or (self._records is not None and self._records.is_over):
            return
        scan = Scan(b"".join(self._parts))
        with contextlib.suppress(*NOT_LEGAL):  # as far as it has come
            self._read(scan, more=True)
        at = 0 if self._records is None else self._records.at
        rest = scan.body[at:]
        self._parts, self._waiting = [rest], len(rest)
        self._enough = len(rest) + self._part_bytes if at else 2 * len(rest)

    def end(self, last: bytes = b"") -> RawPage:
        """Return the page of the body that ends with `last`. Raises MalformedBodyError."""
        try:
            return self._page(last)
        except NOT_LEGAL as error:
            raise MalformedBodyError(f"{type(error).__name__}: {error}") from error

    def _page(self, last: bytes) -> RawPage:
        if not self._parts and self._records is None and (found := _without_records(last)) is not None:
            return RawPage((), Sequences(), False, *self._besides(found))
        scan = Scan(b"".join((*self._parts, last)) if self._parts else last)
        self._read(scan, more=False)
        scan.expect_end()
        records, found = self._records, self._found
        if records is None or "Records" in found:
            raise ValueError("no array of Records")
        return RawPage(tuple(records.pieces), records.sequences, records.bears_magic, *self._besides(found))

    def _besides(self, found: dict[str, object]) -> tuple[str | None, int | None, tuple[ChildShard, ...]]:
        """Return the other members of the answer: (the next iterator or continuation, milliseconds behind the tip,
        child shards).
        """
        children = _typed(found.get("ChildShards"), list, "ChildShards") or []
        return (
            _typed(found.get(self._going_on), str, self._going_on) or None,
            _typed(found.get("MillisBehindLatest"), int, "MillisBehindLatest"),
            tuple([child_shard_of(item) for item in children]),
        )

    def _read(self, scan: Scan, *, more: bool) -> None:
        """Read on to the end of the records, and unless there is `more` to come, to that of the body's object."""
        is_resumed = self._records is not None
        if self._records is None:
            scan.expect(OBJECT)
        elif not self._records.is_over:
            self._records.read(scan, more=more)
            if more:
                return
        for name in scan.names(after_value=is_resumed):
            if name == "Records" and scan.sees(ARRAY):
                self._records = _Records(scan)
                self._records.read(scan, more=more)
                if more:
                    return
            elif name in ("Records", self._going_on, "MillisBehindLatest", "ChildShards"):
                self._found[name] = json.loads(scan.value().decode())
            else:
                scan.skip_value()


class _Records:
    """Reads the array that begins at the place of `scan`."""

    def __init__(self, scan: Scan) -> None:
        scan.expect(ARRAY)
        self.at = scan.at
        """What is before this place of the text is done with."""
        self.is_over = False
        self.pieces: list[Piece] = []
        self.sequences = Sequences()
        self.bears_magic = False
        self.by_pattern = 0
        self._bears_frame = False
        self._is_after_record = False
        self._layout = _recent[0]
        self._sources: set[LayoutSource] = set()
        self._odd: list[Columns] = []
        """Records read by themselves that are in no piece yet."""
        self._odd_bytes = 0
        self._backslash = 0

    def read(self, scan: Scan, *, more: bool) -> None:
        """Read on to the end of the array. Raises one of NOT_LEGAL where the text is wrong, or ends: `more` comes."""
        self._backslash = _found(scan.body.find(b"\\", scan.at), len(scan.body))
        while True:
            self.at = scan.at
            if self._is_after_record and not scan.takes(COMMA):
                scan.expect(ARRAY_END)
                break
            if not self.sequences.count and scan.takes(ARRAY_END):
                break
            self._is_after_record = False
            scan.sees(OBJECT)
            self.at = scan.at
            if self._layout is not None:
                if self._read_regular(scan, self._layout):
                    break
                is_cut_off = more and len(scan.body) - scan.at < CUT_OFF_BYTES and scan.at > self.at
                self.at = scan.at
                if is_cut_off:
                    scan.fail("most likely cut off")
            self._read_irregular(scan)
            self._is_after_record = True
        self._flush_odd()
        self.at = scan.at
        self.is_over = True

    def _read_regular(self, scan: Scan, layout: RecordLayout) -> bool:
        """Read records of one layout; True at the end of the array, else the scan stands before one that deviates."""
        body, plain_end, find = scan.body, self._backslash, scan.body.find
        head = match = layout.head.match(body, scan.at)
        if match is None:
            return False
        start = match.end()
        self._look_at_payload(body, start)
        to_plain = self._to_plain(layout)
        ended = deviates = False
        while not ended and not deviates:
            datas: list[bytes | memoryview] = []
            is_large = _recent_size[0] = find(b'"', start, plain_end) - start > VIEWED_CHARS_MIN
            text = memoryview(body) if is_large else body
            columns = list(match.groups())
            keep, extend = datas.append, columns.extend
            limit = start + PIECE_BYTES
            while start < limit:
                end = find(b'"', start, plain_end)
                found = to_plain(body, end)
                if found is None:  # nor is it if `end` is none
                    found = layout.to_any.match(body, end)
                    if found is not None:
                        self._look_at_payload(body, found.end())
                        to_plain = self._to_plain(layout)
                    else:
                        found = layout.to_end.match(body, end)
                        ended = found is not None
                if found is None or (end - start) & 3:
                    ended, deviates = False, True
                    break
                match = found
                keep(text[start:end])
                extend(match.groups())
                start = match.end()
                if ended:
                    break
            if datas:
                self._add_regular(layout, columns, datas, is_large)
        if ended:
            scan.at = start
        elif match is not head:
            following = layout.to_next.match(body, match.start())
            assert following is not None, "its longer form matches there"
            scan.at = following.end()
        return ended

    def _look_at_payload(self, body: bytes, start: int) -> None:
        self.bears_magic = self.bears_magic or MAGIC_IN_BASE64.match(body, start) is not None
        self._bears_frame = self._bears_frame or FRAME_IN_BASE64.match(body, start) is not None

    def _to_plain(self, layout: RecordLayout) -> Callable[[bytes, int], re.Match[bytes] | None]:
        """Return what matches up to a payload of which there is nothing to learn."""
        return (layout.to_single if self._bears_frame else layout.to_plain).match

    def _add_regular(
        self, layout: RecordLayout, columns: list[bytes], datas: list[bytes | memoryview], stays_in_parts: bool
    ) -> None:
        """Add regular records; `columns` are the groups of the head of the first record, then those of each match
        after a payload.
        """
        self._flush_odd()
        step = layout.groups
        length = step * len(datas)
        keys = [NO_KEY] * len(datas) if layout.key is None else columns[layout.key : layout.key + length : step]
        sequences = columns[layout.sequence : layout.sequence + length : step]
        times = columns[layout.time : layout.time + length : step]
        chars, fill = layout.time_chars, layout.time_fill
        times = [time if len(time) == chars else fill(time) for time in times]
        parts: Sequence[bytes | memoryview] = framed_columns(datas, keys, sequences, layout.time_head, times)
        if not stays_in_parts:
            parts = (b"".join(parts),)
        data_bytes = sum(map(len, datas)) // 4 * 3 - b"".join(map(_END_OF_DATA, datas)).count(b"=")
        self.pieces.append(Piece(parts, len(datas), data_bytes, self._bears_frame))
        self.sequences.add(sequences)
        self.by_pattern += len(datas)

    def _read_irregular(self, scan: Scan) -> None:
        """Read one record by its fields, and learn how the next ones may be written."""
        body = scan.body
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
        self._look_at_payload(columns.data, 0)
        self._odd.append(columns)
        self._odd_bytes += len(columns.data) + len(columns.key) + FRAME_BYTES
        if self._odd_bytes > PIECE_BYTES:
            self._flush_odd()
        self.sequences.add([columns.sequence])
        if scan.at > self._backslash:
            self._backslash = _found(body.find(b"\\", scan.at), len(body))
        if not twice and (source := source_of_layout(body, start, members, scan.at)) is not None:
            self._learn(source)

    def _flush_odd(self) -> None:
        """Add the records that were read by themselves."""
        if self._odd:
            data_bytes = sum([size_of(columns.data) for columns in self._odd])
            self.pieces.append(Piece((framed(self._odd),), len(self._odd), data_bytes, self._bears_frame))
            self._odd, self._odd_bytes = [], 0

    def _learn(self, source: LayoutSource) -> None:
        if source not in self._sources and len(self._sources) < LAYOUTS_MAX:
            self._sources.add(source)
        if source in self._sources:
            self._layout = _recent[0] = compiled(source)


def _without_records(body: bytes) -> dict[str, object] | None:
    """Return the members of a body that surely has no records, in a fifth of the time; None if that is not sure."""
    if len(body) > EMPTY_BYTES_MAX or body.count(b"Records") != 1 or b"\\" in body or b'"Records":[]' not in body:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        found = _strict_json.decode(body.decode())
        if isinstance(found, dict) and found.get("Records") == []:
            return found
    return None


def _typed(value: object, kind: type[T], name: str) -> T | None:
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is a {type(value).__name__}")


def _found(place: int, otherwise: int) -> int:
    return otherwise if place < 0 else place
