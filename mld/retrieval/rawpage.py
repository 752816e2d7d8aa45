"""`RawPage`: the records of one answer as pieces of the child's line. Pure.

Rules: retrieval#order-of-preparation, retrieval#checkpoint-filter, retrieval#hash-range-rule and retrieval#raw-pages.
Records are dropped only by the checkpoint filter, and aggregates only by the hash-range rule. Payloads stay base64
text; only aggregates are decoded, and only while their line is framed (`rawbatch`).

A large page takes some milliseconds to make (`rawbody`), so it is made in the thread that reads the body. The event
loop passes the pieces on unchanged. If it must look inside a piece, for example for a checkpoint, it works in steps of
well under 2 ms. The plain page in `tests/support/pages.py` is the reference: for every body both have the same values,
and make the same lines byte for byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import lt

from mld.core.positions import Position
from mld.core.streams import ChildShard, HashRange
from mld.retrieval.pieces import Piece, RecordPlace, place_at, places
from mld.retrieval.rawbatch import RawAggregatesBatch, RawBatch


class Sequences:
    """The facts that the rules need about the sequence numbers of a page: the first, last, lowest and highest, and
    whether they are in order.
    """

    __slots__ = ("count", "first", "highest", "is_ordered", "last", "lowest")

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = self.lowest = self.highest = b""
        self.is_ordered = True
        """Whether each number is greater than the one before, and all have the same length. Nearly always true."""

    def add(self, numbers: list[bytes]) -> None:
        """Add the next numbers of the page, at least one.

        As long as all are in order and have the same length, they are compared as texts: the result is the same as with
        integers, and much faster. After that they are compared as integers.
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
    """One answer of GetRecords, or one event of a subscription; see `mld.core.streams.Page`."""

    pieces: tuple[Piece, ...]
    sequences: Sequences
    bears_magic: bool
    """Whether a payload may begin with the magic bytes of a KPL aggregate."""
    first_arrival_ms: int | None
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...] = ()
    in_order: list[RecordPlace] = field(init=False, default_factory=list)
    """Places of all records, sorted by sequence number; empty if the page cannot have aggregates."""

    def __post_init__(self) -> None:
        """Fill `in_order` if the page may have aggregates."""
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
        """Yield the place of each record in the order of the answer. Aggregates are not opened."""
        for piece in self.pieces:
            yield from places(piece.text)

    def first_arrival_ms_after(self, position: Position) -> int | None:
        """Return the arrival of the first record after `position`, in epoch milliseconds; None if no record comes after
        it. If a record may be an aggregate, the record at `position` counts, too.
        """
        if not self.count or position.is_shard_end:
            return None
        number = -1 if position.number is None else position.number
        # The record at `number` counts, too, if the position is before that record, or may be inside its aggregate.
        is_number_wanted = position.sub < 0 or self.bears_magic
        below = number - 1 if is_number_wanted else number
        if int(self.sequences.lowest) > below:  # nearly always: the page begins after what was delivered
            return self.first_arrival_ms
        rest = next(self._pieces_above(below), None)
        return None if rest is None else place_at(rest.text).arrival_ms

    @property
    def bears_frames(self) -> bool:
        """False if certainly no record has the frame of a schema registry; True if one may have it. An aggregate
        counts, because its content is unknown until it is opened.
        """
        return self.bears_magic or any(piece.bears_frame for piece in self.pieces)

    def after(self, position: Position, hash_range: HashRange | None = None) -> RawBatch | RawAggregatesBatch:
        """Return the user records strictly after `position`, in order; see `mld.core.streams.Page.after`."""
        lag_ms = self.millis_behind_latest
        if not self.count or position.is_shard_end:
            return RawBatch((), None, lag_ms)
        number = -1 if position.number is None else position.number  # all records are after TRIM_HORIZON and the like
        if self.bears_magic:
            return RawAggregatesBatch(list(self.in_order), (number, position.sub), hash_range, lag_ms)
        # A position with a negative sub is before the record at `number`, so this record is delivered, too.
        below = number - 1 if position.sub < 0 else number
        pieces = self.pieces if int(self.sequences.lowest) > below else tuple(self._pieces_above(below))
        return RawBatch(pieces, Position(self.sequences.highest.decode()) if pieces else None, lag_ms)

    def _pieces_above(self, below: int) -> Iterator[Piece]:
        """Yield pieces with the records whose sequence number is above `below`. If the page is in order, at most one
        piece has to be cut.
        """
        pieces = self.pieces
        if not self.sequences.is_ordered:
            for piece in pieces:
                for place in places(piece.text):
                    if int(place.sequence) > below:
                        yield place.piece(piece.bears_frame)
            return
        # The first record above `below` is in the last piece that begins at or below it, or it begins the next piece.
        cut = bisect_right(pieces, below, key=lambda piece: int(place_at(piece.text).sequence)) - 1
        if cut >= 0 and (rest := _rest_above(pieces[cut], below)) is not None:
            yield rest
        yield from pieces[cut + 1 :]


def _rest_above(piece: Piece, below: int) -> Piece | None:
    """Return the part of an ordered piece whose sequence numbers are above `below`; None if no record has such a
    number.
    """
    count, data_bytes = piece.records, piece.data_bytes
    for place in places(piece.text):
        if int(place.sequence) > below:
            return Piece((place.text[place.start :],), count, data_bytes, piece.bears_frame)
        count -= 1
        data_bytes -= place.data_bytes
    return None
