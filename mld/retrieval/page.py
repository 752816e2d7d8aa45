"""The plain `Page` and `Batch`: a tuple of records in memory.

Rules: retrieval spec, 6.2 (order of the preparation steps) and 6.3 (checkpoint filter). A page is the untouched answer;
preparation is a chain of pure steps in `RecordsPage.after`. Nothing here reads a payload, and no step drops a record
for any reason but the checkpoint.

Users know the ports of `mld.streams` only, so that pages which keep the raw body may replace these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mld.positions import Position
from mld.streams import ChildShard
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
    def last_sequence(self) -> str | None:
        return self.records[-1].sequence_number if self.records else None

    def after(self, position: Position) -> RecordsBatch:
        """The records strictly after `position`, in order."""
        return _strictly_after(_user_records(self.records), position, self.millis_behind_latest)


@dataclass(frozen=True, slots=True)
class RecordsBatch:
    """Records ready for a child; see `mld.streams.Batch`."""

    records: tuple[Record, ...]
    millis_behind_latest: int | None
    largest: Position | None

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def data_bytes(self) -> int:
        return _data_bytes(self.records)

    def line(self) -> Iterator[bytes]:
        """The `processRecords` line in pieces; every call starts a new, equal line."""
        return encode_process_records(self.records, self.millis_behind_latest, PIECE_BYTES)


def _user_records(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The records a producer wrote. The place of KPL de-aggregation (retrieval spec, 7): after the page, before 6.3."""
    return records


def _strictly_after(records: tuple[Record, ...], position: Position, millis_behind_latest: int | None) -> RecordsBatch:
    """Retrieval spec, 6.3; sequence numbers compare as integers.

    Nearly every page lies after the position as a whole, which its lowest number shows. Only the page that a checkpoint
    cuts is looked at record by record, as that takes some milliseconds.
    """
    if not records or position.is_shard_end:
        return RecordsBatch((), millis_behind_latest, None)
    lowest, highest = _extremes([record.sequence_number for record in records])
    number = -1 if position.number is None else position.number  # every record lies after the other sentinels
    if int(lowest) <= number:
        floor = (number, position.sub)
        records = tuple(r for r in records if (int(r.sequence_number), r.sub_sequence_number) > floor)
    if not records:
        return RecordsBatch((), millis_behind_latest, None)
    sub = max(r.sub_sequence_number for r in records if r.sequence_number == highest)
    return RecordsBatch(records, millis_behind_latest, Position(highest, sub))


def _extremes(numbers: Sequence[str]) -> tuple[str, str]:
    """The lowest and the highest. Numbers of equal length sort as texts as they do as integers, only much faster."""
    if len(set(map(len, numbers))) == 1:
        return min(numbers), max(numbers)
    return min(numbers, key=int), max(numbers, key=int)


def _data_bytes(records: tuple[Record, ...]) -> int:
    return sum(len(record.data) for record in records)
