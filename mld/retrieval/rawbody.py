"""`PageMaker`: makes a page from the body of a GetRecords answer in one pass, its records framed for the child. Pure.

Rules: retrieval#raw-pages; AWS JSON 1.1. The whole body is checked before any of it is used. If it is not legal JSON of
the documented form, a ValueError is raised; records are never left out. Payloads stay base64 text and are not decoded.

A body may come in parts. Each part is read while it is in the processor's cache, and then dropped. What remains are
pieces of the child's line (`pieces`), and the facts about all records that the rules need. A part may end anywhere. If
its end cannot be read yet, that end is kept, and read again together with the next part. Whether it is wrong or only
cut off is decided when the last part is read.

It is fast because a service writes all records alike. The first record of a body is read slowly, field by field, and
turned into a `RecordLayout`: one regular expression for everything between the end of a record's payload and the start
of the next payload. From then on a record costs one `find` of the quote that ends its payload, and one match; the rest
is done for all records at once, field by field. If a record deviates (escapes, other fields, another order, white
space), it is read slowly, and a new layout is learned from it. The pieces are the same bytes either way; tests/fuzz
compares them with what botocore reads from a body.
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
"""Most layouts that are learned from one body, at some 0.1 ms each. Further kinds of records are read slowly."""
PART_BYTES = PIECE_BYTES
"""How many bytes of a body that comes in parts are collected before they are read."""
FRAME_BYTES = 200
"""Approximate size of a framed record besides payload and key, so that tiny records count, too."""
EMPTY_BYTES_MAX = 4 * 1024
"""Longest body that is tested for having no records (`_without_records`). An iterator in it has 200 to 300 bytes, and
so has each child shard.
"""
CUT_OFF_BYTES = PART_BYTES // 4
"""If fast reading stops at a record, and less than this is left of the part, the record is taken for one that goes on
in the next part, and not for one that deviates.
"""
VIEWED_CHARS_MIN = 4 * 1024
"""Larger payloads are not copied out of the body, but viewed. For smaller ones a view costs more time and memory than a
copy."""
NOT_LEGAL = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors that are raised inside this module for a body that is not as documented."""
_END_OF_DATA = itemgetter(slice(-2, None))
"""Takes the last two characters of a payload, in which the padding is."""
_recent: list[RecordLayout | None] = [None]
"""The layout that was learned last, so that a short answer needs no learning. It saves time only: the result for a body
does not depend on it."""
_recent_size: list[bool] = [False]
"""Whether the payloads that were read last were large. It saves time only, too."""

_strict_json = json.JSONDecoder(parse_constant=refuse_constant)


@dataclass(frozen=True, slots=True)
class PageMaker:
    """Makes pages from bodies. Raises MalformedBodyError if a body is not as documented."""

    iterator_name: str
    """Name of the member of the body that becomes `next_iterator` of the page."""

    def __call__(self, body: bytes) -> RawPage:
        return self.in_parts().end(body)

    @property
    def wants_parts(self) -> bool:
        """Whether the next large body had better come in parts: yes, unless its payloads are large. Large payloads are
        not copied out of a body in one piece.
        """
        return not _recent_size[0]

    def in_parts(self, part_bytes: int = PART_BYTES) -> BodyReader:
        """Make the reader of a body that comes in parts. It reads each time that `part_bytes` have come."""
        return BodyReader(self.iterator_name, part_bytes)


page_of = PageMaker("NextShardIterator")
"""Makes a page from a GetRecords answer."""
page_of_event = PageMaker("ContinuationSequenceNumber")
"""Makes a page from a SubscribeToShardEvent."""


class BodyReader:
    """Makes the page from one body that is given in parts; see `PageMaker`.

    Of the parts that it has read, it keeps only the end of the text, from the place where reading stopped.
    """

    def __init__(self, iterator_name: str, part_bytes: int) -> None:
        self._iterator_name = iterator_name
        self._part_bytes = part_bytes
        self._parts: list[bytes] = []
        self._unread_bytes = 0  # of the parts that have come and were not read
        self._read_from_bytes = part_bytes  # with this many unread bytes, reading goes on
        self._members: dict[str, object] = {}  # the members of the body except the records
        self._records: _Records | None = None

    @property
    def by_pattern(self) -> int:
        """How many records were read fast, by the pattern of a layout."""
        return 0 if self._records is None else self._records.by_pattern

    def feed(self, part: bytes) -> None:
        """Take the next part of the body. Never raises: if the part is wrong, `end` raises the error."""
        self._parts.append(part)
        self._unread_bytes += len(part)
        if self._unread_bytes < self._read_from_bytes or (self._records is not None and self._records.is_over):
            return
        scan = Scan(b"".join(self._parts))
        with contextlib.suppress(*NOT_LEGAL):  # the text is cut off, or it is wrong: `end` finds out which
            self._read(scan, more=True)
        at = 0 if self._records is None else self._records.at
        rest = scan.body[at:]
        self._parts, self._unread_bytes = [rest], len(rest)
        # If no record could be read, wait until the text is twice as long, so that it is not read too often.
        self._read_from_bytes = len(rest) + self._part_bytes if at else 2 * len(rest)

    def end(self, last: bytes = b"") -> RawPage:
        """Return the page for the body, of which `last` is the last part. Raises MalformedBodyError."""
        try:
            return self._page(last)
        except NOT_LEGAL as error:
            raise MalformedBodyError(f"{type(error).__name__}: {error}") from error

    def _page(self, last: bytes) -> RawPage:
        """Return the page for the body, of which `last` is the last part. Raises one of NOT_LEGAL."""
        if not self._parts and self._records is None and (found := _without_records(last)) is not None:
            return RawPage((), Sequences(), False, None, *self._other_members(found))
        scan = Scan(b"".join((*self._parts, last)) if self._parts else last)
        self._read(scan, more=False)
        scan.expect_end()
        records, found = self._records, self._members
        if records is None or "Records" in found:
            raise ValueError("no array of Records")
        return RawPage(
            tuple(records.pieces),
            records.sequences,
            records.bears_magic,
            records.first_arrival_ms,
            *self._other_members(found),
        )

    def _other_members(self, found: dict[str, object]) -> tuple[str | None, int | None, tuple[ChildShard, ...]]:
        """Return the other members of the answer: (the next iterator or continuation, milliseconds behind the tip,
        child shards).
        """
        children = _typed(found.get("ChildShards"), list, "ChildShards") or []
        return (
            _typed(found.get(self._iterator_name), str, self._iterator_name) or None,
            _typed(found.get("MillisBehindLatest"), int, "MillisBehindLatest"),
            tuple([child_shard_of(item) for item in children]),
        )

    def _read(self, scan: Scan, *, more: bool) -> None:
        """Read on in the text of `scan`. If `more` text will come, read only to the end of the array of records, as far
        as the text goes. Otherwise read to the end of the body.

        The records are kept in `_records`, and the other members that are used in `_members`. Raises one of NOT_LEGAL.
        """
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
            elif name in ("Records", self._iterator_name, "MillisBehindLatest", "ChildShards"):
                self._members[name] = json.loads(scan.value().decode())
            else:
                scan.skip_value()


class _Records:
    """Reads the array of records that begins at the place of `scan`."""

    def __init__(self, scan: Scan) -> None:
        scan.expect(ARRAY)
        self.at = scan.at
        """The text before this place has been read, and is not needed any more."""
        self.is_over = False  # whether the end of the array has been read
        self.pieces: list[Piece] = []
        self.sequences = Sequences()
        self.first_arrival_ms: int | None = None
        self.bears_magic = False  # whether a payload may be a KPL aggregate
        self.by_pattern = 0  # how many records were read fast, by a pattern
        self._bears_frame = False  # whether a payload of this answer may have a schema frame
        self._is_after_record = False  # whether the last thing read is a record, so that a comma or the end must follow
        self._layout = _recent[0]
        self._sources: set[LayoutSource] = set()  # the layouts that were learned from this body
        self._odd: list[Columns] = []
        """Records that were read slowly and are not in a piece yet."""
        self._odd_bytes = 0
        self._backslash = 0  # the place of the next backslash, or the end of the text if there is none

    def read(self, scan: Scan, *, more: bool) -> None:
        """Go on reading up to the end of the array. `more` says that a further part of the body will come.

        Records that have the present layout are read fast (`_read_regular`), others field by field
        (`_read_irregular`). Raises one of NOT_LEGAL if the text is wrong, or ends before the array does. Then `at` is
        the start of the first record that was not read, from where the caller can try again with more text.
        """
        self._backslash = _found(scan.body.find(b"\\", scan.at), len(scan.body))
        while True:
            self.at = scan.at
            if self._is_after_record and not scan.takes(COMMA):
                scan.expect(ARRAY_END)
                break
            if not self.sequences.count and scan.takes(ARRAY_END):  # an empty array
                break
            self._is_after_record = False
            scan.sees(OBJECT)
            self.at = scan.at
            if self._layout is not None:
                if self._read_regular(scan, self._layout):
                    break
                # If records were read, and the text ends soon after them, its last record is probably incomplete.
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
        """Read records of one layout, and add a piece for each PIECE_BYTES of them. Return True at the end of the
        array, and False if the next record deviates from the layout; the scan is before this record then.

        The text of a record up to its payload is its head. `head` matches the head of the first record. Each pass of
        the inner loop reads one payload, from `start` to `end`. Then `found` matches the rest of that record and the
        head of the next one, or the rest and the end of the array. A payload with a backslash, or whose length is no
        multiple of 4, deviates, because it is not plain base64. The outer loop makes the pieces. If the first payload
        of a piece is large, the payloads of that piece are views of the body instead of copies.
        """
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
                if found is None:  # also if no quote was found, because `end` is -1 then
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
        elif match is not head:  # records were read: go to the start of the next one, which deviates
            following = layout.to_next.match(body, match.start())
            assert following is not None, "its longer form matches there"
            scan.at = following.end()
        return ended

    def _look_at_payload(self, body: bytes, start: int) -> None:
        """Note whether the payload at `start` may be an aggregate, or may have a schema frame."""
        self.bears_magic = self.bears_magic or MAGIC_IN_BASE64.match(body, start) is not None
        self._bears_frame = self._bears_frame or FRAME_IN_BASE64.match(body, start) is not None

    def _to_plain(self, layout: RecordLayout) -> Callable[[bytes, int], re.Match[bytes] | None]:
        """Return the pattern that matches up to the next payload if `_look_at_payload` has nothing to note about it."""
        return (layout.to_single if self._bears_frame else layout.to_plain).match

    def _add_regular(
        self, layout: RecordLayout, columns: list[bytes], datas: list[bytes | memoryview], stays_in_parts: bool
    ) -> None:
        """Add a piece with records of one layout.

        `columns` are the groups of the match of the first record's head, then those of the match after each payload.
        With `stays_in_parts` the payloads are views of the body, and are not joined.
        """
        self._flush_odd()
        step = layout.groups
        length = step * len(datas)
        keys = [NO_KEY] * len(datas) if layout.key is None else columns[layout.key : layout.key + length : step]
        sequences = columns[layout.sequence : layout.sequence + length : step]
        times = columns[layout.time : layout.time + length : step]
        chars, fill = layout.time_chars, layout.time_fill
        # A time with the usual number of digits needs no change; `fill` brings the others into the same form.
        times = [time if len(time) == chars else fill(time) for time in times]
        parts: Sequence[bytes | memoryview] = framed_columns(datas, keys, sequences, layout.time_head, times)
        if not stays_in_parts:
            parts = (b"".join(parts),)
        # Four characters of base64 stand for three bytes, less one for each `=` at the end of a payload.
        data_bytes = sum(map(len, datas)) // 4 * 3 - b"".join(map(_END_OF_DATA, datas)).count(b"=")
        self.pieces.append(Piece(parts, len(datas), data_bytes, self._bears_frame))
        if self.first_arrival_ms is None:
            self.first_arrival_ms = int(layout.time_head + times[0])
        self.sequences.add(sequences)
        self.by_pattern += len(datas)

    def _read_irregular(self, scan: Scan) -> None:
        """Read one record field by field, and learn its layout, because the next records may have it, too. Nothing is
        learned from a record that has a field twice.

        The record is kept in `_odd`; a piece is made of these records when there are enough of them.
        """
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
        if self.first_arrival_ms is None:
            self.first_arrival_ms = int(columns.arrival_ms)
        self.sequences.add([columns.sequence])
        if scan.at > self._backslash:  # this record had the backslash: find the one after the record
            self._backslash = _found(body.find(b"\\", scan.at), len(body))
        if not twice and (source := source_of_layout(body, start, members, scan.at)) is not None:
            self._learn(source)

    def _flush_odd(self) -> None:
        """Add a piece with the records that were read slowly."""
        if self._odd:
            data_bytes = sum([size_of(columns.data) for columns in self._odd])
            self.pieces.append(Piece((framed(self._odd),), len(self._odd), data_bytes, self._bears_frame))
            self._odd, self._odd_bytes = [], 0

    def _learn(self, source: LayoutSource) -> None:
        """Read the next records by this layout, unless too many layouts were learned from this body."""
        if source not in self._sources and len(self._sources) < LAYOUTS_MAX:
            self._sources.add(source)
        if source in self._sources:
            self._layout = _recent[0] = compiled(source)


def _without_records(body: bytes) -> dict[str, object] | None:
    """Return the members of a body that certainly has no records; None if it may have some.

    This takes a fifth of the time that the general way takes.
    """
    if len(body) > EMPTY_BYTES_MAX or body.count(b"Records") != 1 or b"\\" in body or b'"Records":[]' not in body:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        found = _strict_json.decode(body.decode())
        if isinstance(found, dict) and found.get("Records") == []:
            return found
    return None


def _typed(value: object, kind: type[T], name: str) -> T | None:
    """Return `value` if it is None or of this type; raise ValueError if it is not."""
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is a {type(value).__name__}")


def _found(place: int, otherwise: int) -> int:
    """Return the result of `find`, or `otherwise` if nothing was found."""
    return otherwise if place < 0 else place
