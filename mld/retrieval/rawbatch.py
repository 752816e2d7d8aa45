"""`RawBatch`, `RawAggregatesBatch`: make one `processRecords` line of the records of a page that the child has not had
yet. Pure.

Rules: retrieval#order-of-preparation and retrieval#hash-range-rule. A `RawBatch` has no aggregates; its line consists
of its pieces, unchanged. A `RawAggregatesBatch` opens its KPL aggregates while its line is made. It does so in steps,
because the producer decides how much work an aggregate is.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mld.core.positions import Position
from mld.core.steps import Steps, finish
from mld.core.streams import A_TURN, HashRange, Misrouted, PlainBatch
from mld.protocol.codec import (
    PIECE_BYTES,
    RECORDS_HEAD,
    SLICE_DATA_BYTES,
    encode_large_record,
    encode_record,
    records_tail,
)
from mld.retrieval.kpl import MalformedAggregateError, MisroutedAggregateError, UserRecords, Work, user_records
from mld.retrieval.pieces import MAGIC_IN_BASE64, NO_KEY, Piece, RecordPlace, around_frames, written

T = TypeVar("T")

PLACES_PER_STEP = 500
"""Records examined in one step if none of them is delivered; such a step takes about 1 ms."""
DECODED_PER_STEP_CHARS = 512 * 1024
"""Base64 characters decoded in one step, in about 1 ms. A multiple of 4, so each part can be decoded alone."""


@dataclass(frozen=True, slots=True)
class RawBatch(PlainBatch):
    """Records of a page without aggregates. `largest` is the position of the last one; None if there are none."""

    pieces: Sequence[Piece]
    largest: Position | None
    millis_behind_latest: int | None

    @property
    def count(self) -> int:
        return sum([piece.records for piece in self.pieces])

    @property
    def data_bytes(self) -> int:
        return sum([piece.data_bytes for piece in self.pieces])

    def around_frames(self) -> list[tuple[RawBatch, bool]]:
        """Split the batch, keeping the order, into batches without schema frames (returned with False) and batches of
        one record that may have a schema frame (True).
        """
        parts: list[tuple[RawBatch, bool]] = []
        plain: list[Piece] = []
        for piece in self.pieces:
            if not piece.bears_frame:
                plain.append(piece)
                continue
            for run in around_frames(piece):
                if not run.bears_frame:
                    plain.append(run)
                    continue
                if plain:
                    parts.append((self._of(plain), False))
                    plain = []
                parts.append((self._of([run]), True))
        return [*parts, (self._of(plain), False)] if plain else parts

    def _of(self, pieces: Sequence[Piece]) -> RawBatch:
        """Return a batch of some of the pieces."""
        return RawBatch(pieces, self.largest, self.millis_behind_latest)

    def line(self) -> Iterator[bytes]:
        """Yield the `processRecords` line in pieces; every call starts a new, equal line."""
        return written(RECORDS_HEAD, self.pieces, records_tail(self.millis_behind_latest))


class RawAggregatesBatch:
    """The user records of a page that has aggregates. The aggregates are opened one by one while the line is made.

    `count`, `data_bytes`, `malformed` and `misrouted` describe the line that was last begun, and grow while it is made.
    Records after the position `floor` (sequence and sub-sequence number) are delivered.
    """

    def __init__(
        self,
        places: list[RecordPlace],
        floor: tuple[int, int],
        hash_range: HashRange | None,
        millis_behind_latest: int | None,
    ) -> None:
        """Make the batch of the records at `places`, in order. Only user records after `floor` are delivered.

        `hash_range` is the range of the shard, to which each user record must belong; None: that is not checked.
        """
        self.count = self.data_bytes = 0
        self.millis_behind_latest = millis_behind_latest
        self.malformed: dict[str, str] = {}
        """By sequence number: why an aggregate cannot be opened. Such a record is delivered unchanged."""
        self.misrouted: dict[str, Misrouted] = {}
        """By sequence number: the aggregates that belong to another shard. They are not delivered."""
        self._places = places
        self._floor = floor
        self._hash_range = hash_range
        self._work = Work()
        self._largest: Position | None = None
        self._is_largest_known = False

    @property
    def largest(self) -> Position | None:
        """The highest position that is delivered; None if no record is delivered."""
        finish(self.opening())
        return self._largest

    def opening(self) -> Steps[None]:
        """Find the last record that is delivered, by opening aggregates from the end of the page. Its position is the
        highest that a checkpoint may name (`largest`).

        Records after it are not delivered, so their places are removed.
        """
        places = self._places
        while places and not self._is_largest_known:
            place = places[-1]
            users = yield from self._user_records(place)
            if users:  # neither None nor an aggregate of which all user records are at or before the floor
                self._is_largest_known = True
                sub = users.last if isinstance(users, UserRecords) else 0
                self._largest = Position(place.sequence.decode(), sub)
            else:
                places.pop()
                if len(places) % PLACES_PER_STEP == 0:
                    yield

    def line(self) -> Iterator[bytes]:
        """Yield the `processRecords` line in pieces; every call starts a new, equal line.

        An aggregate becomes its user records, each encoded here. Any other record already has the form of the line, and
        is copied, unless it is not to be delivered (`users` is None). `parts` are the texts since the last piece,
        `size` is their length: when it exceeds PIECE_BYTES, they are yielded as one piece. A_TURN is yielded after each
        step of opening an aggregate, and now and then while records are left out.
        """
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
                        yield from encode_large_record(payload, key, sequence, arrival_ms, sub)
                        continue
                    parts.append(encode_record(payload, key, sequence, arrival_ms, sub))
                    size += len(parts[-1])
                    if size > PIECE_BYTES:
                        yield b"".join(parts)
                        parts.clear()
                        size = 0
            elif users:
                self.count += 1
                self.data_bytes += place.data_bytes
                start = place.start + (not separator)  # the first record of the line has no comma
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
        """Return what is delivered of a record: the user records of its aggregate, its place if it is delivered
        unchanged, or None if it is not delivered.
        """
        number = int(place.sequence)
        as_it_is = place if (number, 0) > self._floor else None
        start = place.data_start
        if number < self._floor[0] or not MAGIC_IN_BASE64.match(place.text, start):
            return as_it_is
        payload = yield from _decoded(place.text, start, place.found.start())
        # `found[1]` is the partition key. Without one, Kinesis has chosen the shard, and the hash range does not apply.
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
    """Return the result of `steps`. After each step yield A_TURN, so that the loop can run other tasks."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield A_TURN


def _decoded(text: bytes, start: int, end: int) -> Steps[bytes | bytearray]:
    """Return the bytes of the base64 in `text` from `start` to `end`, decoded in steps."""
    if end - start <= DECODED_PER_STEP_CHARS:
        return a2b_base64(text[start:end])
    data = bytearray()  # it grows in place; to join the parts at the end would be a single step of milliseconds
    for at in range(start, end, DECODED_PER_STEP_CHARS):
        data += a2b_base64(text[at : min(end, at + DECODED_PER_STEP_CHARS)])
        yield
    return data
