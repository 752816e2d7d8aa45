"""`RawPage`: the records of one answer as pieces of the child's line, framed while its body was checked.

Rules: retrieval#order-of-preparation, retrieval#checkpoint-filter, retrieval#hash-range-rule and retrieval#raw-pages.
No step drops a record except for the checkpoint and the hash range of an aggregate. Base64 text stays base64 text; only
aggregates are decoded, and only while the line is framed. A plain page in `tests/support/pages.py` is the reference:
for every body both give the same values, and the same lines byte for byte. Making a page takes some milliseconds for a
large body, so that is done where the body was read, in a thread; the loop hands the pieces on as they are. What it has
to look into them for, a checkpoint inside a page for example, comes in steps of well under 2 ms.
"""

from __future__ import annotations

from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TypeVar

from mld.core.errors import MalformedBodyError
from mld.core.positions import Position
from mld.core.steps import Steps, finish
from mld.core.streams import A_TURN, ChildShard, HashRange, Misrouted, child_shard_of
from mld.protocol.codec import (
    PIECE_BYTES,
    RECORDS_HEAD,
    SLICE_DATA_BYTES,
    encode_large_record,
    encode_record,
    records_tail,
)
from mld.retrieval.kpl import MalformedAggregateError, MisroutedAggregateError, UserRecords, Work, user_records
from mld.retrieval.layouts import MAGIC_IN_BASE64, NO_KEY
from mld.retrieval.pieces import Piece, RecordForm, RecordPlace, form_with, written
from mld.retrieval.rawbody import CONTINUATION, NEXT_ITERATOR, NOT_LEGAL, PART_BYTES, BodyReader, Index, is_large_lately

PLACES_PER_STEP = 500
"""Undelivered records examined in one step, in about 1 ms."""
DECODED_PER_STEP_CHARS = 512 * 1024
"""Base64 decoded in one step, in about 1 ms. A multiple of 4, so that the decoded pieces join."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageMaker:
    """Makes pages of bodies. Raises MalformedBodyError if a body is not as documented.

    `extra` are keys that each record gets (`mld.protocol.codec.record_keys`).
    """

    going_on: str
    """The member that becomes `next_iterator`."""
    extra: bytes = b""

    def __call__(self, body: bytes) -> RawPage:
        return _made(BodyReader(self.going_on, self.extra), body, self.extra)

    @property
    def wants_parts(self) -> bool:
        """Large payloads stay where they came in, and a body in one piece needs no copies between its parts."""
        return not is_large_lately()

    def in_parts(self, part_bytes: int = PART_BYTES) -> PageReader:
        """Make one for a body that comes in parts, of which so much is read at a time."""
        return PageReader(self, part_bytes)


page_of = PageMaker(NEXT_ITERATOR)
"""Of a GetRecords answer."""
page_of_event = PageMaker(CONTINUATION)
"""Of a SubscribeToShardEvent."""


class PageReader:
    """Makes a page of one body, each part of which is read as it comes."""

    def __init__(self, maker: PageMaker, part_bytes: int = PART_BYTES) -> None:
        self._extra = maker.extra
        self._body = BodyReader(maker.going_on, maker.extra, part_bytes)
        self.feed = self._body.feed

    def end(self, last: bytes = b"") -> RawPage:
        """Return the page of the body that ends with `last`. Raises MalformedBodyError."""
        return _made(self._body, last, self._extra)


def _made(reader: BodyReader, last: bytes, extra: bytes) -> RawPage:
    try:
        return page_of_index(reader.index(last), extra)
    except NOT_LEGAL as error:
        raise MalformedBodyError(f"{type(error).__name__}: {error}") from error


def page_of_index(index: Index, extra: bytes = b"") -> RawPage:
    """Return the page of what stands in a body. Raises one of NOT_LEGAL for child shards."""
    sequences = index.sequences
    pieces = tuple(piece.joined() for piece in index.pieces) if index.bears_magic else index.pieces
    page = RawPage(
        pieces=pieces,
        count=sequences.count,
        data_bytes=sum([piece.data_bytes for piece in pieces]),
        first_sequence=sequences.first.decode() or None,
        last_sequence=sequences.last.decode() or None,
        lowest=sequences.lowest.decode() or None,
        highest=sequences.highest.decode() or None,
        is_ordered=sequences.is_ordered,
        bears_magic=index.bears_magic,
        next_iterator=index.next_iterator,
        millis_behind_latest=index.millis_behind_latest,
        child_shards=tuple([child_shard_of(item) for item in index.child_shards]),  # type: ignore[arg-type]
        extra=extra,
    )
    if page.bears_magic:
        page.in_order.extend(page.places())
        if not page.is_ordered:
            page.in_order.sort(key=lambda place: int(place.sequence))
    return page


@dataclass(frozen=True, slots=True)
class RawPage:
    """One GetRecords answer; see `mld.streams.Page`. `lowest` and `highest` are sequence numbers."""

    pieces: tuple[Piece, ...]
    count: int
    data_bytes: int
    first_sequence: str | None
    last_sequence: str | None
    lowest: str | None
    highest: str | None
    is_ordered: bool
    bears_magic: bool
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]
    extra: bytes = b""
    """Keys that each record has besides the usual ones (`mld.protocol.codec.record_keys`)."""
    in_order: list[RecordPlace] = field(default_factory=list)
    """Where the records are, by sequence number, if there may be aggregates among them."""

    def places(self) -> Iterator[RecordPlace]:
        """Yield where the records are, as they came: aggregates stay closed."""
        form = form_with(self.extra)
        for piece in self.pieces:
            yield from form.places(piece.text)

    @property
    def first_arrival_ms(self) -> int | None:
        return int(form_with(self.extra).place(self.pieces[0].text).columns.arrival_ms) if self.count else None

    @property
    def bears_frames(self) -> bool:
        """See `Page.bears_frames`: what is in an aggregate shows when it is opened."""
        return self.bears_magic or any(piece.bears_frame for piece in self.pieces)

    def after(self, position: Position, hash_range: HashRange | None = None) -> RawBatch | RawAggregatesBatch:
        """Return the user records strictly after `position`, in order; see `mld.streams.Page`."""
        lag_ms = self.millis_behind_latest
        if self.lowest is None or self.highest is None or position.is_shard_end:
            return RawBatch((), None, lag_ms)
        number = -1 if position.number is None else position.number  # every record lies after the other sentinels
        if self.bears_magic:
            return RawAggregatesBatch(list(self.in_order), (number, position.sub), hash_range, lag_ms, self.extra)
        below = number - (position.sub < 0)
        pieces = self.pieces if int(self.lowest) > below else tuple(self._pieces_above(below))
        return RawBatch(pieces, Position(self.highest) if pieces else None, lag_ms, self.extra)

    def _pieces_above(self, below: int) -> Iterator[Piece]:
        """Yield the pieces with the records above that number; at most one of them is cut if they are ordered."""
        form = form_with(self.extra)
        pieces = self.pieces
        if not self.is_ordered:
            for piece in pieces:
                for place in form.places(piece.text):
                    if int(place.sequence) > below:
                        yield place.piece(piece.bears_frame)
            return
        # The first record above it stands in the last piece that begins at or below it, or begins the next one.
        cut = bisect_right(pieces, below, key=lambda piece: int(form.place(piece.text).sequence)) - 1
        if cut >= 0 and (rest := _rest_above(pieces[cut], below, form)) is not None:
            yield rest
        yield from pieces[cut + 1 :]


def _rest_above(piece: Piece, below: int, form: RecordForm) -> Piece | None:
    """Return what is left of a piece in order."""
    count, data_bytes = piece.records, piece.data_bytes
    for place in form.places(piece.text):
        if int(place.sequence) > below:
            return Piece((place.text[place.start :],), count, data_bytes, piece.bears_frame)
        count -= 1
        data_bytes -= place.data_bytes
    return None


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Records of a page without aggregates; see `mld.streams.ChildBatch`."""

    malformed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    misrouted: ClassVar[Mapping[str, Misrouted]] = MappingProxyType({})

    pieces: Sequence[Piece]
    largest: Position | None
    millis_behind_latest: int | None
    extra: bytes = b""

    @property
    def count(self) -> int:
        return sum([piece.records for piece in self.pieces])

    @property
    def data_bytes(self) -> int:
        return sum([piece.data_bytes for piece in self.pieces])

    def opening(self) -> Steps[None]:
        """Return nothing: nothing has to be opened."""
        yield from ()

    def around_frames(self) -> list[tuple[RawBatch, bool]]:
        """Return the batch in parts, in order: of records without a frame (False), and of one that may have one
        (True).
        """
        parts: list[tuple[RawBatch, bool]] = []
        plain: list[Piece] = []
        for piece in self.pieces:
            if not piece.bears_frame:
                plain.append(piece)
                continue
            for run in form_with(self.extra).around_frames(piece):
                if not run.bears_frame:
                    plain.append(run)
                    continue
                if plain:
                    parts.append((self._of(plain), False))
                    plain = []
                parts.append((self._of([run]), True))
        return [*parts, (self._of(plain), False)] if plain else parts

    def _of(self, pieces: Sequence[Piece]) -> RawBatch:
        return RawBatch(pieces, self.largest, self.millis_behind_latest, self.extra)

    def line(self) -> Iterator[bytes]:
        """Return the `processRecords` line in pieces; every call starts a new, equal line."""
        return written(RECORDS_HEAD, self.pieces, records_tail(self.millis_behind_latest))


class RawAggregatesBatch:
    """User records of a page with aggregates, which are opened one by one while the line is framed.

    `count`, `data_bytes`, `malformed` and `misrouted` are those of the latest `line`, and grow with it.
    """

    def __init__(
        self,
        places: list[RecordPlace],
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
            place = places[-1]
            users = yield from self._user_records(place)
            if users:
                self._is_largest_known = True
                sub = users.last if isinstance(users, UserRecords) else 0
                self._largest = Position(place.sequence.decode(), sub)
            else:
                places.pop()
                if len(places) % PLACES_PER_STEP == 0:
                    yield

    def line(self) -> Iterator[bytes]:
        """Yield the `processRecords` line in pieces; every call starts a new, equal line."""
        self.count = self.data_bytes = 0
        parts = [RECORDS_HEAD]
        separator = b""
        size = 0
        for number, place in enumerate(self._places):
            users = yield from _with_turns(self._user_records(place))
            if isinstance(users, UserRecords):
                sequence, arrival_ms = place.found.group(2, 3)
                self.count += len(users)
                for payload, key, sub in users.columns():
                    self.data_bytes += len(payload)
                    parts.append(separator)
                    separator = b","
                    if len(payload) > SLICE_DATA_BYTES:
                        yield b"".join(parts)
                        parts.clear()
                        size = 0
                        yield from encode_large_record(payload, key, sequence, arrival_ms, sub, self._extra)
                        continue
                    parts.append(encode_record(payload, key, sequence, arrival_ms, sub, self._extra))
                    size += len(parts[-1])
                    if size > PIECE_BYTES:
                        yield b"".join(parts)
                        parts.clear()
                        size = 0
            elif users:
                self.count += 1
                self.data_bytes += place.data_bytes
                start = place.start + (not separator)  # the first one has no comma
                separator = b","
                while place.end - start > PIECE_BYTES:
                    parts.append(place.text[start : start + PIECE_BYTES])
                    yield b"".join(parts)
                    parts.clear()
                    start += PIECE_BYTES
                    size = 0
                parts.append(place.text[start : place.end])
                size += len(parts[-1])
            elif number % PLACES_PER_STEP == 0:
                yield A_TURN
            if size > PIECE_BYTES:
                yield b"".join(parts)
                parts.clear()
                size = 0
        parts.append(records_tail(self.millis_behind_latest))
        yield b"".join(parts)

    def _user_records(self, place: RecordPlace) -> Steps[UserRecords | RecordPlace | None]:
        """Return what lies after the position: user records of an aggregate, the record as it is, or nothing."""
        number = int(place.sequence)
        as_it_is = place if (number, 0) > self._floor else None
        start = place.data_start
        if number < self._floor[0] or not MAGIC_IN_BASE64.match(place.text, start):
            return as_it_is
        payload = yield from _decoded(place.text, start, place.found.start())
        hash_range = None if place.found[1] == NO_KEY else self._hash_range
        try:
            users = yield from user_records(payload, hash_range, self._work)
        except MalformedAggregateError as error:
            self.malformed[place.sequence.decode()] = str(error)
            return as_it_is
        except MisroutedAggregateError as error:
            self.misrouted[place.sequence.decode()] = error.misrouted
            return None
        if users is None:
            return as_it_is
        return users.after(self._floor[1]) if number == self._floor[0] else users


def _with_turns(steps: Steps[T]) -> Generator[bytes, None, T]:
    """Return the result of `steps`, with a turn for each, with a turn for each."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield A_TURN


def _decoded(text: bytes, start: int, end: int) -> Steps[bytes | bytearray]:
    if end - start <= DECODED_PER_STEP_CHARS:
        return a2b_base64(text[start:end])
    data = bytearray()  # grows where it is: pieces that are joined at the end are a step of milliseconds
    for at in range(start, end, DECODED_PER_STEP_CHARS):
        data += a2b_base64(text[at : min(end, at + DECODED_PER_STEP_CHARS)])
        yield
    return data
