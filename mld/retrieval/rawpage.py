"""`RawPage`: a page that keeps the body of its GetRecords answer, and frames the child's line straight from it.

Rules: retrieval#order-of-preparation, retrieval#checkpoint-filter, retrieval#hash-range-rule and retrieval#raw-pages.
No step drops a record except for the checkpoint and the hash range of an aggregate. Base64 text stays base64 text; only
aggregates are decoded, and only while the line is framed. A plain page in `tests/support/pages.py` is the reference:
for every body both give the same values, and the same lines byte for byte. Making a page takes some milliseconds for a
large body, so that is done where the body was read, in a thread; what is left for the loop comes in pieces of well
under 2 ms.
"""

from __future__ import annotations

from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import lt
from types import MappingProxyType
from typing import ClassVar, TypeVar

from mld.positions import Position
from mld.retrieval.kpl import MalformedAggregateError, MisroutedAggregateError, UserRecords, Work, user_records
from mld.retrieval.layouts import MAGIC_IN_BASE64, Columns
from mld.retrieval.rawbody import CONTINUATION, NEXT_ITERATOR, Index, IrregularRun, RegularRun, index_of, size_of
from mld.steps import Steps, finish
from mld.streams import A_TURN, ChildShard, HashRange, Misrouted, child_shard_of
from protocol.codec import (
    PIECE_BYTES,
    RECORD_END,
    RECORD_FRAME,
    RECORDS_HEAD,
    SLICE_DATA_BYTES,
    encode_large_record,
    encode_record,
    records_tail,
)

Span = tuple[RegularRun | IrregularRun, int, int]
"""Records first (inclusive) to last (exclusive) of a run."""

_DATA, _KEY, _SEQUENCE, _TIME, _END = RECORD_FRAME
FRAME_BYTES = 200
"""Approximate size of a record besides payload and key, so that tiny ones count too."""
PLACES_PER_STEP = 500
"""Undelivered records examined in one step, in about 1 ms."""
DECODED_PER_STEP_CHARS = 1024 * 1024
"""Base64 decoded in one step, in about 1 ms. A multiple of 4, so that the decoded pieces join."""

T = TypeVar("T")


def page_of(body: bytes, extra: bytes = b"") -> RawPage:
    """The page of an answer. Raises ValueError, with what is wrong, if the body is not a GetRecords answer."""
    return _page_of(body, NEXT_ITERATOR, extra)


def page_of_event(payload: bytes, extra: bytes = b"") -> RawPage:
    """The page of a SubscribeToShardEvent, whose ContinuationSequenceNumber becomes `next_iterator`."""
    return _page_of(payload, CONTINUATION, extra)


def _page_of(body: bytes, going_on: str, extra: bytes) -> RawPage:
    try:
        return page_of_index(index_of(body, going_on), extra)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def page_of_index(index: Index, extra: bytes = b"") -> RawPage:
    """The page of what stands in a body. Raises KeyError, TypeError, AttributeError or ValueError for child shards."""
    sequences = list(chain.from_iterable(run.sequences() for run in index.runs))
    is_ordered = _is_ordered(sequences)
    ends = (sequences[0], sequences[-1]) if sequences else (b"", b"")
    lowest, highest = ends if is_ordered else _extremes(sequences)
    return RawPage(
        runs=index.runs,
        count=len(sequences),
        data_bytes=index.data_bytes,
        first_sequence=ends[0].decode() or None,
        last_sequence=ends[1].decode() or None,
        lowest=lowest.decode() or None,
        highest=highest.decode() or None,
        is_ordered=is_ordered,
        next_iterator=index.next_iterator,
        millis_behind_latest=index.millis_behind_latest,
        child_shards=tuple(child_shard_of(item) for item in index.child_shards),  # type: ignore[arg-type]
        extra=extra,
    )


def _is_ordered(sequences: Sequence[bytes]) -> bool:
    """Whether each is greater than the one before, and all are of one length, as those of a shard nearly always are."""
    return len(set(map(len, sequences))) <= 1 and all(map(lt, sequences, sequences[1:]))


def _extremes(numbers: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The lowest and the highest. Numbers of equal length sort as texts as they do as integers, only much faster."""
    if len(set(map(len, numbers))) == 1:
        return min(numbers), max(numbers)
    return min(numbers, key=int), max(numbers, key=int)


@dataclass(frozen=True, slots=True)
class RawPage:
    """One GetRecords answer; see `mld.streams.Page`. `lowest` and `highest` are sequence numbers."""

    runs: tuple[RegularRun | IrregularRun, ...]
    count: int
    data_bytes: int
    first_sequence: str | None
    last_sequence: str | None
    lowest: str | None
    highest: str | None
    is_ordered: bool
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]
    extra: bytes = b""
    """Keys that each record has besides the usual ones (`protocol.codec.record_keys`)."""

    @property
    def first_arrival_ms(self) -> int | None:
        return int(self.runs[0].columns(0).arrival_ms) if self.count else None

    @property
    def bears_frames(self) -> bool:
        """See `Page.bears_frames`: what is in an aggregate shows when it is opened."""
        return any(run.bears_frame or run.bears_magic for run in self.runs)

    def after(self, position: Position, hash_range: HashRange | None = None) -> RawBatch | RawAggregatesBatch:
        """The user records strictly after `position`, in order; see `mld.streams.Page`."""
        lag_ms = self.millis_behind_latest
        if self.lowest is None or self.highest is None or position.is_shard_end:
            return RawBatch((), None, 0, lag_ms)
        number = -1 if position.number is None else position.number  # every record lies after the other sentinels
        if any(run.bears_magic for run in self.runs):
            return RawAggregatesBatch(self._in_order(), (number, position.sub), hash_range, lag_ms, self.extra)
        below = number - (position.sub < 0)
        if int(self.lowest) > below:
            spans = tuple((run, 0, len(run)) for run in self.runs)
            return RawBatch(spans, Position(self.highest), self.data_bytes, lag_ms, self.extra)
        spans = tuple(self._spans_above(below))
        largest = Position(self.highest) if spans else None
        return RawBatch(spans, largest, self._data_bytes(spans), lag_ms, self.extra)

    def _data_bytes(self, spans: tuple[Span, ...]) -> int:
        """Payload bytes of the rest of the page; counted on the shorter side of a cut, as each record takes 0.2 us."""
        kept = sum(end - start for _, start, end in spans)
        if not self.is_ordered or 2 * kept < self.count:
            return sum(run.data_bytes(start, end) for run, start, end in spans)
        dropped = self.count - kept
        left = self.data_bytes
        for run in self.runs:
            number = min(dropped, len(run))
            left -= run.data_bytes(0, number)
            dropped -= number
        return left

    def _spans_above(self, below: int) -> Iterator[Span]:
        for run in self.runs:
            if self.is_ordered:
                start = bisect_right(range(len(run)), below, key=lambda n, run=run: int(run.sequence(n)))  # type: ignore[misc]
                if start < len(run):
                    yield run, start, len(run)
            else:
                yield from ((run, n, n + 1) for n, text in enumerate(run.sequences()) if int(text) > below)

    def _in_order(self) -> list[tuple[RegularRun | IrregularRun, int]]:
        places = [(run, number) for run in self.runs for number in range(len(run))]
        if not self.is_ordered:
            places.sort(key=lambda place: int(place[0].sequence(place[1])))
        return places


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Records of a page without aggregates; see `mld.streams.ChildBatch`."""

    malformed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    misrouted: ClassVar[Mapping[str, Misrouted]] = MappingProxyType({})

    spans: tuple[Span, ...]
    largest: Position | None
    data_bytes: int
    millis_behind_latest: int | None
    extra: bytes = b""

    @property
    def count(self) -> int:
        return sum(end - start for _, start, end in self.spans)

    def opening(self) -> Steps[None]:
        """Nothing has to be opened."""
        yield from ()

    def around_frames(self) -> list[tuple[RawBatch, bool]]:
        """The batch in parts, in order: of records without a frame (False), and of one that may have one (True)."""
        parts: list[tuple[RawBatch, bool]] = []
        plain: list[Span] = []
        for run, start, end in self.spans:
            begin = start
            for number in run.framed(start, end) if run.bears_frame else ():
                if number > begin:
                    plain.append((run, begin, number))
                if plain:
                    parts.append((self._of(plain), False))
                    plain = []
                parts.append((self._of([(run, number, number + 1)]), True))
                begin = number + 1
            if end > begin:
                plain.append((run, begin, end))
        return [*parts, (self._of(plain), False)] if plain else parts

    def _of(self, spans: Sequence[Span]) -> RawBatch:
        data_bytes = sum(run.data_bytes(start, end) for run, start, end in spans)
        return RawBatch(tuple(spans), self.largest, data_bytes, self.millis_behind_latest, self.extra)

    def line(self) -> Iterator[bytes]:
        """The `processRecords` line in pieces; every call starts a new, equal line."""
        parts = [RECORDS_HEAD]
        opening = _DATA
        end_of_record = _end_with(self.extra)
        between = end_of_record + b"," + _DATA
        for run, start, end in self.spans:
            frame = _frame_regular if isinstance(run, RegularRun) else _frame_irregular
            yield from frame(parts, opening, between, run, start, end)  # type: ignore[arg-type]
            opening = between
        if self.spans:
            parts.append(end_of_record)
        parts.append(records_tail(self.millis_behind_latest))
        yield b"".join(parts)


def _end_with(extra: bytes) -> bytes:
    """The end of a record outside aggregates, with the keys that each record has."""
    return _END.removesuffix(RECORD_END) + extra + RECORD_END


def _frame_regular(
    parts: list[bytes], opening: bytes, between: bytes, run: RegularRun, start: int, end: int
) -> Iterator[bytes]:
    """Append records to `parts`, each without its end, and yield full pieces. Most records cost this and no more."""
    body, layout, matches = run.body, run.layout, run.matches
    key, key_first = layout.key - 1, layout.key_in_head
    sequence, sequence_first = layout.sequence - 1, layout.sequence_in_head
    time, time_first = layout.time - 1, layout.time_in_head
    chars, fill = layout.time_chars, layout.time_fill
    time_opening = _TIME + layout.time_head
    extend = parts.extend
    before, data_start = matches[start].groups(), matches[start].end()
    limit = data_start + PIECE_BYTES
    for match in matches[start + 1 : end + 1]:
        after = match.groups()
        data_end, next_start = match.span()
        digits = (before if time_first else after)[time]
        if data_end > limit:
            parts.append(opening)
            yield b"".join(parts)
            parts.clear()
            opening = b""
            limit = data_end - PIECE_BYTES
            while data_start < limit:
                yield body[data_start : data_start + PIECE_BYTES]
                data_start += PIECE_BYTES
            limit = data_end + PIECE_BYTES
        extend(
            (
                opening,
                body[data_start:data_end],
                _KEY,
                (before if key_first else after)[key],
                _SEQUENCE,
                (before if sequence_first else after)[sequence],
                time_opening,
                digits if len(digits) == chars else fill(digits),
            )
        )
        opening, before, data_start = between, after, next_start


def _frame_irregular(
    parts: list[bytes], opening: bytes, between: bytes, run: IrregularRun, start: int, end: int
) -> Iterator[bytes]:
    """The same for records that were read one by one."""
    size = 0
    for columns in run.records[start:end]:
        size += len(columns.data) + len(columns.key) + FRAME_BYTES
        parts.append(opening)
        if size > PIECE_BYTES:
            yield b"".join(parts)
            parts.clear()
            size = 0
        yield from _frame(parts, columns)
        opening = between


def _frame(parts: list[bytes], columns: Columns) -> Iterator[bytes]:
    """Append one record without its beginning and end; a long payload is yielded by itself."""
    data, key, sequence, arrival_ms = columns
    if len(data) > PIECE_BYTES:
        yield b"".join(parts)
        parts.clear()
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
        data = b""
    parts += (data, _KEY, key, _SEQUENCE, sequence, _TIME, arrival_ms)


class RawAggregatesBatch:
    """User records of a page with aggregates, which are opened one by one while the line is framed.

    `count`, `data_bytes`, `malformed` and `misrouted` are those of the latest `line`, and grow with it.
    """

    def __init__(
        self,
        places: list[tuple[RegularRun | IrregularRun, int]],
        floor: tuple[int, int],
        hash_range: HashRange | None,
        millis_behind_latest: int | None,
        extra: bytes = b"",
    ) -> None:
        self._extra = extra
        self.count = self.data_bytes = 0
        self.millis_behind_latest = millis_behind_latest
        self.malformed: dict[str, str] = {}
        self.misrouted: dict[str, Misrouted] = {}
        self._places = places
        self._floor = floor
        self._hash_range = hash_range
        self._work = Work()
        self._largest: Position | None = None
        self._is_largest_known = False

    @property
    def largest(self) -> Position | None:
        finish(self.opening())
        return self._largest

    def opening(self) -> Steps[None]:
        """Open from the end until something is left; that is as far as a checkpoint may go."""
        places = self._places
        while places and not self._is_largest_known:
            run, number = places[-1]
            columns = run.columns(number)
            users = yield from self._user_records(columns)
            if users:
                self._is_largest_known = True
                sub = users.last if isinstance(users, UserRecords) else 0
                self._largest = Position(columns.sequence.decode(), sub)
            else:
                places.pop()
                if len(places) % PLACES_PER_STEP == 0:
                    yield

    def line(self) -> Iterator[bytes]:
        """The `processRecords` line in pieces; every call starts a new, equal line."""
        self.count = self.data_bytes = 0
        parts = [RECORDS_HEAD]
        separator = b""
        size = 0
        for place, (run, number) in enumerate(self._places):
            columns = run.columns(number)
            users = yield from _with_turns(self._user_records(columns))
            if isinstance(users, UserRecords):
                self.count += len(users)
                for payload, key, sub in users.columns():
                    self.data_bytes += len(payload)
                    parts.append(separator)
                    separator = b","
                    if len(payload) > SLICE_DATA_BYTES:
                        yield b"".join(parts)
                        parts.clear()
                        size = 0
                        yield from encode_large_record(
                            payload, key, columns.sequence, columns.arrival_ms, sub, self._extra
                        )
                        continue
                    parts.append(encode_record(payload, key, columns.sequence, columns.arrival_ms, sub, self._extra))
                    size += len(parts[-1])
                    if size > PIECE_BYTES:
                        yield b"".join(parts)
                        parts.clear()
                        size = 0
            elif users:
                self.count += 1
                self.data_bytes += size_of(columns.data)
                parts += (separator, _DATA)
                yield from _frame(parts, columns)
                parts.append(_end_with(self._extra))
                separator = b","
                size += len(columns.data) + FRAME_BYTES
            elif place % PLACES_PER_STEP == 0:
                yield A_TURN
            if size > PIECE_BYTES:
                yield b"".join(parts)
                parts.clear()
                size = 0
        parts.append(records_tail(self.millis_behind_latest))
        yield b"".join(parts)

    def _user_records(self, columns: Columns) -> Steps[UserRecords | Columns | None]:
        """What lies after the position: user records of an aggregate, the record itself as it is, or nothing."""
        number = int(columns.sequence)
        as_it_is = columns if (number, 0) > self._floor else None
        if number < self._floor[0] or not MAGIC_IN_BASE64.match(columns.data):
            return as_it_is
        payload = yield from _decoded(columns.data)
        try:
            users = yield from user_records(payload, self._hash_range, self._work)
        except MalformedAggregateError as error:
            self.malformed[columns.sequence.decode()] = str(error)
            return as_it_is
        except MisroutedAggregateError as error:
            self.misrouted[columns.sequence.decode()] = error.misrouted
            return None
        if users is None:
            return as_it_is
        return users.after(self._floor[1]) if number == self._floor[0] else users


def _with_turns(steps: Steps[T]) -> Generator[bytes, None, T]:
    """The result of `steps`, with a turn for each."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield A_TURN


def _decoded(text: bytes) -> Steps[bytes]:
    if len(text) <= DECODED_PER_STEP_CHARS:
        return a2b_base64(text)
    pieces = []
    for start in range(0, len(text), DECODED_PER_STEP_CHARS):
        pieces.append(a2b_base64(text[start : start + DECODED_PER_STEP_CHARS]))
        yield
    return b"".join(pieces)
