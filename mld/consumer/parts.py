"""What a consumer is asked for, and what it gives to its child.

`Stopping`: the stop that it was asked for, and waits that end with it.

`batch_of` makes of a page what a child gets: the records that are new to it, without what others put around them.

In the search for a record that kills (`Bisecting`), batches are taken apart into records, and batches made of some of
them. Nothing else looks into a batch. It is framed once more for this, in pieces, with a turn of the loop after each.

`Wishes`: what operators want of the holder of a shard, as the row of its lease says: a pause, records left out, a new
child. Rules: leases#pauses, leases#records-left-out, leases#new-children. The words for a new child differ with each
asking; those of before this holding were meant for another child. A wish is never a failure of the record processor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from mld.consumer.lifecycle import StopReason
from mld.consumer.ports import ShardSource
from mld.core.clock import Clock, Interruption, in_turns
from mld.core.log_fields import about
from mld.core.positions import SUB_MAX, Position
from mld.core.streams import ChildBatch, HashRange, Page, PlainBatch
from mld.leases.lease import Lease
from mld.protocol.codec import RECORDS_HEAD, FramedRecord, Splitter, line_of, records_tail

log = logging.getLogger(__name__)

T = TypeVar("T")


class Stopping:
    """`stop` is None until one is asked for; a stronger one replaces a weaker one, and none is ever taken back."""

    def __init__(self, clock: Clock) -> None:
        self.stop: StopReason | None = None
        self._clock = clock
        self._interruption: Interruption | None = None

    def ask(self, stop: StopReason) -> None:
        if self.stop is None or stop > self.stop:
            self.stop = stop
            if self._interruption is not None:
                asyncio.get_running_loop().call_soon(self._interruption.end)

    async def unless(self, awaitable: Awaitable[T], over: asyncio.Future[Any] | None = None) -> T | None:
        """Return the awaitable's value, or None as soon as a stop is asked for or `over` is done."""
        assert self._interruption is None, "one wait at a time"
        with Interruption() as interruption:
            self._interruption = interruption
            if over is not None:
                over.add_done_callback(interruption.end)
            if self.stop is not None:
                asyncio.get_running_loop().call_soon(interruption.end)
            try:
                value = await awaitable
                return value if self.stop is None else None
            finally:
                self._interruption = None
                if over is not None:
                    over.remove_done_callback(interruption.end)
        return None

    async def pause(self, seconds: float, also: asyncio.Event | None = None) -> None:
        """Sleep, but wake at once when a stop is asked for or `also` is set."""
        over = None if also is None else asyncio.ensure_future(also.wait())
        try:
            await self.unless(self._clock.sleep(seconds), over)
        finally:
            if over is not None:
                over.cancel()


async def batch_of(
    page: Page, delivered: Position, hash_range: HashRange | None, source: ShardSource, stopping: Stopping
) -> ChildBatch | None:
    """Return the batch after `delivered`; None if a stop is asked for while it waits for schemas."""
    if source.placement is not None and page.bears_frames:  # the only pages that may have aggregates
        hash_range = await source.placement.range_of(hash_range)
    batch = page.after(delivered, hash_range)
    await in_turns(batch.opening())
    if source.prepare is None or not page.bears_frames:
        return batch
    return await stopping.unless(source.prepare(batch))


class PlacedRecord(NamedTuple):
    """A record as it was framed, and its position."""

    position: Position
    framed: FramedRecord


class Part(PlainBatch):
    """A batch of some records of another, at least one.

    Aggregates are reported for the whole batch, when all parts were delivered.
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
    """Batches of one page one after the other, as one. None of them has aggregates."""

    def __init__(self, parts: Sequence[ChildBatch], of: ChildBatch) -> None:
        self.parts = parts
        self.largest = of.largest
        self.millis_behind_latest = of.millis_behind_latest

    @property
    def data_bytes(self) -> int:
        return sum(part.data_bytes for part in self.parts)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def line(self) -> Iterator[bytes]:
        tail = records_tail(self.millis_behind_latest)
        yield RECORDS_HEAD
        for number, part in enumerate(self.parts):
            before = b"," if number else b""
            pieces = iter(part.line())
            piece = before + next(pieces).removeprefix(RECORDS_HEAD)
            for following in pieces:
                yield piece
                piece = following
            yield piece.removesuffix(tail)
        yield tail


async def records_of(batch: ChildBatch) -> list[PlacedRecord]:
    """Return all records of a batch, in order."""
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
    """Return what a child is working on: Kinesis records of the page, of which it may have had the first ones
    before.
    """
    return {"records": page.count, "first": page.first_sequence, "last": str(batch.largest)}


def holding_part(part: Part) -> dict[str, object]:
    """Return the same for a part, in user records."""
    return {"records": len(part.records), "first": str(part.records[0].position), "last": str(part.largest)}


class Wishes:
    """Those of one holding. `on_pause` hears when a pause begins or ends."""

    def __init__(self, lease: Lease, on_pause: Callable[[bool], None]) -> None:
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._on_pause = on_pause
        self.restart_asked = asyncio.Event()
        """A new child is due, without a pause; cleared when it starts."""
        self._key = lease.key
        self._left_out: frozenset[str] = frozenset()
        self._restart = lease.restart
        self.heed(lease, is_waiting=False)

    def heed(self, lease: Lease, *, is_waiting: bool) -> bool:
        """Take in what the row says now; whether the child is to be killed. `is_waiting`: for its next start."""
        if (lease.paused is None) is not self._unpaused.is_set():
            self._on_pause(lease.paused is not None)
            if lease.paused is None:
                self._unpaused.set()
                log.info("resumed", extra=about("shard_resumed", self._key))
            else:
                self._unpaused.clear()
                log.info("paused: %s", lease.paused, extra=about("shard_paused", self._key))
        is_unblocked = is_waiting and not lease.left_out <= self._left_out
        is_asked = lease.restart is not None and lease.restart != self._restart
        self._left_out, self._restart = lease.left_out, lease.restart
        if is_asked:
            log.info("a new child is wanted: %s", lease.restart, extra=about("child_restart_asked", self._key))
        if is_asked or is_unblocked:
            self.restart_asked.set()
        return is_asked

    async def unpaused(self, awaitable: Awaitable[T]) -> T:
        """Return the awaitable's value, held back while the shard is paused. What is cancelled here is read again from
        the checkpoint.
        """
        value = await awaitable
        await self._unpaused.wait()
        return value

    def concern(self, batch: ChildBatch, after: Position) -> bool:
        """Return whether a record that is to be left out may be in a batch of what comes after a position."""
        if batch.largest is None:
            return False
        parts = (mark.partition("/") for mark in self._left_out)
        firsts = (Position(sequence, int(sub or 0)) for sequence, _, sub in parts)
        return any(first <= batch.largest and Position(first.sequence, SUB_MAX) > after for first in firsts)

    def kept(self, records: Iterable[PlacedRecord]) -> list[PlacedRecord]:
        """Return the records but for those that are to be left out, which are logged."""
        kept = []
        for record in records:
            sequence, sub = record.framed.sequence, record.framed.sub
            if sequence in self._left_out or f"{sequence}/{sub}" in self._left_out:
                log.warning(
                    "record %s is left out, as asked", record.position, extra=about("record_left_out", self._key)
                )
            else:
                kept.append(record)
        return kept
