"""`RawPage`: the records of one answer as pieces of the child's line, framed while its body was checked.

Rules: retrieval#order-of-preparation, retrieval#checkpoint-filter, retrieval#hash-range-rule and retrieval#raw-pages.
No step drops a record except for the checkpoint and the hash range of an aggregate. Base64 text stays base64 text; only
aggregates are decoded, and only while the line is framed. A plain page in `tests/support/pages.py` is the reference:
for every body both give the same values, and the same lines byte for byte. Making a page takes some milliseconds for a
large body, so that is done where the body was read, in a thread; the loop hands the pieces on as they are. What it has
to look into them for, a checkpoint inside a page for example, comes in steps of well under 2 ms.

A piece is a run of whole records, each with a comma before it, so that a line is its head, its pieces without the first
comma, and its tail. What needs another cut than the one between two pieces (a checkpoint inside a piece, an aggregate,
a frame) is rare, and walks over the framed text again: we have written it ourselves, so that one pattern reads it
whatever the body looked like.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from operator import lt
from typing import NamedTuple, TypeVar

from mld.core.positions import Position
from mld.core.steps import Steps, finish
from mld.core.streams import A_TURN, ChildShard, HashRange, Misrouted, PlainBatch
from mld.protocol.codec import (
    PIECE_BYTES,
    RECORD_END,
    RECORD_FRAME,
    RECORDS_HEAD,
    SLICE_DATA_BYTES,
    encode_large_record,
    encode_record,
    records_tail,
)
from mld.retrieval.kpl import MalformedAggregateError, MisroutedAggregateError, UserRecords, Work, user_records

T = TypeVar("T")

NO_KEY = b'""'
"""JSON text, sent for a record without a partition key: Kinesis chose its shard, and the producer gave none.

Children take the field for a text, and a real key has a character at least.
"""
MAGIC_IN_BASE64 = re.compile(rb"84maw[g-v]")
"""How the payload of a KPL aggregate begins: F3 89 9A C2 and the first two bits, or the padding, of what follows."""
FRAME_IN_BASE64 = re.compile(rb"Aw[A-DU-X]")
"""How data with the frame of the Glue Schema Registry begins: 03 and then 00 or 05."""
_DATA, _KEY, _SEQUENCE, _TIME, _END = RECORD_FRAME
_OPENING = b"," + _DATA
WRITTEN_BYTES_MAX = PIECE_BYTES + PIECE_BYTES // 2
"""What is handed to the pipe at a time: a piece, or small ones together."""
JOINED_BYTES_MAX = 2 * 1024 * 1024
"""Joined in one step, in well under 1 ms."""
EXTRAS_KEPT_MAX = 64
"""Frames with the keys of a stream; there is one for each stream."""
_PAD = b"="

PLACES_PER_STEP = 500
"""Undelivered records examined in one step, in about 1 ms."""
DECODED_PER_STEP_CHARS = 512 * 1024
"""Base64 decoded in one step, in about 1 ms. A multiple of 4, so that the decoded pieces join."""


class Columns(NamedTuple):
    """A record as the child's line has it: payload in base64, key as JSON text, decimal digits."""

    data: bytes
    key: bytes
    sequence: bytes
    arrival_ms: bytes


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


# --- pages ------------------------------------------------------------------------------------------------------------


class Sequences:
    """What the rules have to know of the sequence numbers of a page, in its order."""

    __slots__ = ("count", "first", "highest", "is_ordered", "last", "lowest")

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = self.lowest = self.highest = b""
        self.is_ordered = True
        """Whether each is greater than the one before, and all are of one length: in a shard they nearly always are."""

    def add(self, numbers: list[bytes]) -> None:
        """Add the next ones, at least one. Numbers of one length sort as texts as they do as integers, only much
        faster.
        """
        row = [self.last, *numbers] if self.count else numbers
        if not self.count:
            self.first = self.lowest = numbers[0]
        self.last = numbers[-1]
        self.count += len(numbers)
        if self.is_ordered:
            self.is_ordered = len(set(map(len, row))) == 1 and all(map(lt, row, islice(row, 1, None)))
        if self.is_ordered:
            self.highest = self.last
        else:
            self.lowest = min(self.lowest, *numbers, key=int)
            self.highest = max(self.highest or self.first, *numbers, key=int)


@dataclass(frozen=True, slots=True)
class RawPage:
    """One GetRecords answer; see `mld.streams.Page`."""

    pieces: tuple[Piece, ...]
    sequences: Sequences
    bears_magic: bool
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...] = ()
    extra: bytes = b""
    """Keys that each record has besides the usual ones (`mld.protocol.codec.record_keys`)."""
    in_order: list[RecordPlace] = field(init=False, default_factory=list)
    """Where the records are, by sequence number, if there may be aggregates among them."""

    def __post_init__(self) -> None:
        if self.bears_magic:
            object.__setattr__(self, "pieces", tuple(piece.joined() for piece in self.pieces))
            self.in_order.extend(self.places())
            if not self.sequences.is_ordered:
                self.in_order.sort(key=lambda place: int(place.sequence))

    @property
    def count(self) -> int:
        return self.sequences.count

    @property
    def data_bytes(self) -> int:
        return sum([piece.data_bytes for piece in self.pieces])

    @property
    def first_sequence(self) -> str | None:
        return self.sequences.first.decode() or None

    @property
    def last_sequence(self) -> str | None:
        return self.sequences.last.decode() or None

    def places(self) -> Iterator[RecordPlace]:
        """Yield where the records are, as they came: aggregates stay closed."""
        form = form_with(self.extra)
        for piece in self.pieces:
            yield from form.places(piece.text)

    @property
    def first_arrival_ms(self) -> int | None:
        return int(form_with(self.extra).place(self.pieces[0].text).columns.arrival_ms) if self.count else None

    def first_arrival_ms_after(self, position: Position) -> int | None:
        """See `Page.first_arrival_ms_after`."""
        if not self.count or position.is_shard_end:
            return None
        number = -1 if position.number is None else position.number
        rest = next(self._pieces_above(number - (position.sub < 0 or self.bears_magic)), None)
        return None if rest is None else int(form_with(self.extra).place(rest.text).columns.arrival_ms)

    @property
    def bears_frames(self) -> bool:
        """See `Page.bears_frames`: what is in an aggregate shows when it is opened."""
        return self.bears_magic or any(piece.bears_frame for piece in self.pieces)

    def after(self, position: Position, hash_range: HashRange | None = None) -> RawBatch | RawAggregatesBatch:
        """Return the user records strictly after `position`, in order; see `mld.streams.Page`."""
        lag_ms = self.millis_behind_latest
        if not self.count or position.is_shard_end:
            return RawBatch((), None, lag_ms)
        number = -1 if position.number is None else position.number  # every record lies after the other sentinels
        if self.bears_magic:
            return RawAggregatesBatch(list(self.in_order), (number, position.sub), hash_range, lag_ms, self.extra)
        below = number - (position.sub < 0)
        pieces = self.pieces if int(self.sequences.lowest) > below else tuple(self._pieces_above(below))
        return RawBatch(pieces, Position(self.sequences.highest.decode()) if pieces else None, lag_ms, self.extra)

    def _pieces_above(self, below: int) -> Iterator[Piece]:
        """Yield the pieces with the records above that number; at most one of them is cut if they are ordered."""
        form = form_with(self.extra)
        pieces = self.pieces
        if not self.sequences.is_ordered:
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
class RawBatch(PlainBatch):
    """Records of a page without aggregates."""

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
    """Return the result of `steps`, with a turn of the loop for each of them."""
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
