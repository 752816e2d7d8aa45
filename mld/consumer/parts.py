"""Makes the batches for a child: those records of a page that are new to the child, or a part of them.

`batch_of` makes the batch of a page. During the search for a record that kills its processor (`Bisecting`), or if
records have to be left out, `records_of` divides a batch into its records, and a `Part` is made of some of them. To
divide a batch, its line is made once more, in pieces, and other tasks run after each piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mld.consumer.consumer_parts import ShardSource
from mld.consumer.record_budgets import RecordBudgets
from mld.consumer.stopping import Stopping
from mld.core.positions import Position
from mld.core.streams import ChildBatch, HashRange, Page, PlainBatch
from mld.core.turns import in_turns
from mld.protocol.codec import RECORDS_HEAD, records_tail
from mld.protocol.framed_records import FramedRecord, Splitter, line_of


async def batch_of(
    page: Page,
    delivered: Position,
    hash_range: HashRange | None,
    source: ShardSource,
    stopping: Stopping,
    budgets: RecordBudgets,
) -> ChildBatch | None:
    """Return the batch of a page's records after `delivered`, the position of the last record that the child has got.
    Its KPL aggregates are opened, and the frames of a schema registry removed. Return None if a stop is requested while
    schemas are fetched.

    `hash_range` is the range of the lease. An aggregate with a record outside of it is left out, unless the stream
    chooses the shards of records without regard to their keys (`Placement`). `budgets` limit what the registry's frames
    may cost: lookups of schemas, work of decoding, warnings.
    """
    # `bears_frames` is true also for a page with an aggregate, because frames may be inside. So a page for which it is
    # false has no aggregate, and the range does not matter.
    if source.placement is not None and page.bears_frames:
        hash_range = await source.placement.range_of(hash_range)
    batch = page.after(delivered, hash_range)
    await in_turns(batch.opening())
    if source.prepare is None or not page.bears_frames:
        return batch
    return await stopping.unless(source.prepare(batch, budgets))


class PlacedRecord(NamedTuple):
    """A framed record and its position."""

    position: Position
    framed: FramedRecord


class Part(PlainBatch):
    """A batch of one or more records of another batch.

    Aggregates are reported for the whole batch, once all its parts were delivered.
    """

    def __init__(self, records: Sequence[PlacedRecord], millis_behind_latest: int | None) -> None:
        self.records = records
        self.millis_behind_latest = millis_behind_latest

    @property
    def data_bytes(self) -> int:
        return sum(record.framed.data_bytes for record in self.records)

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def largest(self) -> Position:
        return self.records[-1].position

    def line(self) -> Iterator[bytes]:
        return line_of([record.framed for record in self.records], self.millis_behind_latest)


class JoinedBatch(PlainBatch):
    """Several batches of one page, joined into one. None of them has aggregates. The last position and the lag of the
    result are those of `ends_as`.
    """

    def __init__(self, parts: Sequence[ChildBatch], ends_as: ChildBatch) -> None:
        self.parts = parts
        self.largest = ends_as.largest
        self.millis_behind_latest = ends_as.millis_behind_latest

    @property
    def data_bytes(self) -> int:
        return sum(part.data_bytes for part in self.parts)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def line(self) -> Iterator[bytes]:
        """Yield the lines of all parts as one line: one head, the records of each part, one tail."""
        tail = records_tail(self.millis_behind_latest)
        yield RECORDS_HEAD
        for number, part in enumerate(self.parts):
            before = b"," if number else b""
            pieces = iter(part.line())
            piece = before + next(pieces).removeprefix(RECORDS_HEAD)
            for following in pieces:  # `piece` is held back, because the last one loses its tail
                yield piece
                piece = following
            yield piece.removesuffix(tail)
        yield tail


async def records_of(batch: ChildBatch) -> list[PlacedRecord]:
    """Return all records of a batch, each with its position, in order. Unless the batch was divided before, its line is
    made once more and cut into records.
    """
    if isinstance(batch, Part):
        return list(batch.records)
    if isinstance(batch, JoinedBatch):
        found = [record for part in batch.parts for record in await records_of(part)]
        return sorted(found, key=lambda record: record.position)
    splitter = Splitter()
    records: list[PlacedRecord] = []
    is_ordered = True
    for piece in batch.line():
        for framed in splitter.feed(piece):
            position = Position(framed.sequence, framed.sub)
            is_ordered = is_ordered and not (records and position < records[-1].position)
            records.append(PlacedRecord(position, framed))
        await asyncio.sleep(0)
    return records if is_ordered else sorted(records, key=lambda record: record.position)


def holding_of(page: Page, batch: ChildBatch) -> dict[str, object]:
    """Return fields for a warning that describe the page that a child works on. They count Kinesis records; the child
    may have been given the first of these before.
    """
    return {"records": page.count, "first": page.first_sequence, "last": str(batch.largest)}


def holding_part(part: Part) -> dict[str, object]:
    """Return the same fields as `holding_of` for a part of a batch; they count user records."""
    return {"records": len(part.records), "first": str(part.records[0].position), "last": str(part.largest)}
