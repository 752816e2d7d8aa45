"""The plain `Page` and its batches: a tuple of records in memory.

Rules: retrieval#order-of-preparation, retrieval#checkpoint-filter and retrieval#hash-range-rule. A page is the
untouched answer; `RecordsPage.after` prepares it. No step drops a record except for the checkpoint and the hash range
of an aggregate. A page without aggregates is framed as it is; the user records of aggregates are made while the line is
framed, aggregate by aggregate, so that a large page neither delays the loop nor takes memory twice.

Callers use the ports of `mld.streams` only, so that a page that keeps the raw body may take its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import AnyStr, ClassVar

from mld.positions import Position
from mld.retrieval.kpl import MalformedAggregateError, MisroutedAggregateError, Work, bears_magic, user_records
from mld.steps import Steps, finish
from mld.streams import ChildShard, HashRange, Misrouted
from protocol.codec import encode_process_records
from protocol.messages import Record

PIECE_BYTES = 131072
"""Size of the pieces of a child's line: stays in the CPU cache, and takes well under 2 ms to frame."""


@dataclass(frozen=True, slots=True)
class RecordsPage:
    """One GetRecords answer; see `mld.streams.Page`. `data_bytes` counts payloads as they came, before any step."""

    records: tuple[Record, ...]
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...] = ()
    data_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_bytes", _data_bytes(self.records))

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def first_sequence(self) -> str | None:
        return self.records[0].sequence_number if self.records else None

    @property
    def first_arrival_ms(self) -> int | None:
        return self.records[0].approximate_arrival_ms if self.records else None

    @property
    def last_sequence(self) -> str | None:
        return self.records[-1].sequence_number if self.records else None

    def after(self, position: Position, hash_range: HashRange | None = None) -> RecordsBatch | AggregatesBatch:
        """The user records strictly after `position`, in order; see `mld.streams.Page`."""
        if any(map(bears_magic, self.records)):
            return _strictly_after_in_aggregates(self.records, position, hash_range, self.millis_behind_latest)
        return _strictly_after(self.records, position, self.millis_behind_latest)


@dataclass(frozen=True, slots=True)
class RecordsBatch:
    """Records ready for a child; see `mld.streams.ChildBatch`."""

    malformed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    misrouted: ClassVar[Mapping[str, Misrouted]] = MappingProxyType({})

    records: tuple[Record, ...]
    millis_behind_latest: int | None
    largest: Position | None

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def data_bytes(self) -> int:
        return _data_bytes(self.records)

    def opening(self) -> Steps[None]:
        """Nothing has to be opened."""
        yield from ()

    def line(self) -> Iterator[bytes]:
        """The `processRecords` line in pieces; every call starts a new, equal line."""
        return encode_process_records(self.records, self.millis_behind_latest, PIECE_BYTES)


class AggregatesBatch:
    """User records of Kinesis records some of which are aggregates.

    `data_bytes`, `malformed` and `misrouted` are those of the records framed by the latest `line`, and grow with it.
    """

    def __init__(self, records: Sequence[Record], opened: Aggregates, millis_behind_latest: int | None) -> None:
        self.data_bytes = 0
        self.millis_behind_latest = millis_behind_latest
        self._head = sorted(records, key=lambda record: int(record.sequence_number))
        self._last: Sequence[Record] = ()
        self._opened = opened

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._user_records())

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def largest(self) -> Position | None:
        finish(self.opening())
        return Position(self._last[-1].sequence_number, self._last[-1].sub_sequence_number) if self._last else None

    def opening(self) -> Steps[None]:
        """Open from the end until something is left; that is as far as a checkpoint may go."""
        while self._head and not self._last:
            self._last = yield from self._opened.after(self._head.pop())

    @property
    def malformed(self) -> Mapping[str, str]:
        return self._opened.malformed

    @property
    def misrouted(self) -> Mapping[str, Misrouted]:
        return self._opened.misrouted

    def line(self) -> Iterator[bytes]:
        """The `processRecords` line in pieces; every call starts a new, equal line."""
        self.data_bytes = 0
        return encode_process_records(self._counted(), self.millis_behind_latest, PIECE_BYTES)

    def _counted(self) -> Iterator[Record]:
        for record in self._user_records():
            self.data_bytes += len(record.data)
            yield record

    def _user_records(self) -> Iterator[Record]:
        finish(self.opening())
        for record in self._head:
            yield from finish(self._opened.after(record))
        yield from self._last


class Aggregates:
    """Opens records, and remembers by sequence number those that cannot be opened, and those of another shard."""

    def __init__(self, number: int, sub: int, hash_range: HashRange | None) -> None:
        self.malformed: dict[str, str] = {}
        self.misrouted: dict[str, Misrouted] = {}
        self._number = number
        self._sub = sub
        self._hash_range = hash_range
        self._work = Work()

    def after(self, record: Record) -> Steps[Sequence[Record]]:
        """Its user records strictly after the position; itself, if it is to be delivered as it came."""
        number = int(record.sequence_number)
        if number < self._number:
            return ()
        try:
            users = yield from user_records(record, self._hash_range, self._work)
        except MalformedAggregateError as error:
            self.malformed[record.sequence_number] = str(error)
            users = None
        except MisroutedAggregateError as error:
            self.misrouted[record.sequence_number] = error.misrouted
            return ()
        if users is None:
            return (record,) if (number, record.sub_sequence_number) > (self._number, self._sub) else ()
        return users.after(self._sub) if number == self._number else users


def _strictly_after_in_aggregates(
    records: tuple[Record, ...], position: Position, hash_range: HashRange | None, millis_behind_latest: int | None
) -> RecordsBatch | AggregatesBatch:
    if position.is_shard_end:
        return RecordsBatch((), millis_behind_latest, None)
    number = -1 if position.number is None else position.number
    return AggregatesBatch(records, Aggregates(number, position.sub, hash_range), millis_behind_latest)


def _strictly_after(records: tuple[Record, ...], position: Position, millis_behind_latest: int | None) -> RecordsBatch:
    """Rules: retrieval#checkpoint-filter; sequence numbers compare as integers.

    Nearly every page lies wholly after the position, as its lowest number shows. Only a page that a checkpoint cuts is
    examined record by record, which takes some milliseconds.
    """
    if not records or position.is_shard_end:
        return RecordsBatch((), millis_behind_latest, None)
    lowest, highest = extremes([record.sequence_number for record in records])
    number = -1 if position.number is None else position.number  # every record lies after the other sentinels
    if int(lowest) <= number:
        floor = (number, position.sub)
        records = tuple(r for r in records if (int(r.sequence_number), r.sub_sequence_number) > floor)
    if not records:
        return RecordsBatch((), millis_behind_latest, None)
    sub = max(r.sub_sequence_number for r in records if r.sequence_number == highest)
    return RecordsBatch(records, millis_behind_latest, Position(highest, sub))


def extremes(numbers: Sequence[AnyStr]) -> tuple[AnyStr, AnyStr]:
    """The lowest and the highest. Numbers of equal length sort as texts as they do as integers, only much faster."""
    if len(set(map(len, numbers))) == 1:
        return min(numbers), max(numbers)
    return min(numbers, key=int), max(numbers, key=int)


def _data_bytes(records: tuple[Record, ...]) -> int:
    return sum(len(record.data) for record in records)
