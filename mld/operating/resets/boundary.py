"""Turns a place in a shard into the checkpoint from which reading begins there.

A checkpoint is the last record that was processed, so it is the record before the first one that is wanted: a number
that Kinesis has given to a record of this shard. Nothing else will do. An invented number may be refused, and LATEST
would skip what arrives before somebody reads. If no record before that place is kept, TRIM_HORIZON is the checkpoint.

Kinesis cannot read backwards, so the record before is looked for from earlier and earlier times. Whatever is doubtful
(arrival times that are not in order, records that came meanwhile) makes the checkpoint an earlier one: read again,
never skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mld.core.clock import Clock
from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    PositionRefusedError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import IteratorType, Page, Shard, StartingPoint, Streams
from mld.operating.acts.plan import ActRefusedError
from mld.protocol.framed import FramedRecord, Splitter

READ_INTERVAL_S = 0.3
"""Kinesis allows five reads a second and shard; the rest is for its consumers."""
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0)
EMPTY_PAGES_MAX = 2_000
"""In a row. Kinesis leads through a long time without records by empty pages."""
BACK_S = (1.0, 8.0, 64.0, 512.0, 4_096.0, 32_768.0, 262_144.0, 2_097_152.0)
"""How much earlier the record before a place is looked for, before all that is kept is read."""
PAGE_RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class Boundary:
    """A checkpoint, and the first record after it that was there; None: none has come yet, or none comes."""

    checkpoint: Position
    first_sequence: str | None = None


class ShardWalk:
    """The pages of a shard from a starting point on, at a pace that leaves room for its consumers."""

    def __init__(self, streams: Streams, clock: Clock, shard_id: str, start: StartingPoint) -> None:
        self._streams = streams
        self._clock = clock
        self._shard_id = shard_id
        self._start = start
        self._iterator: str | None = None
        self._last: str | None = None
        self._next_s = clock.monotonic()
        self.is_over = False
        """There is nothing more to read: the shard has ended, or this is the tip."""

    async def page(self, limit: int | None = PAGE_RECORDS) -> Page:
        """The next page. Raises StreamError after some tries; ActRefusedError if the place is not there."""
        for back_off_s in (*BACKOFF_S, None):
            await self._clock.sleep(max(0.0, self._next_s - self._clock.monotonic()))
            self._next_s = self._clock.monotonic() + READ_INTERVAL_S
            try:
                if self._iterator is None:
                    self._iterator = await self._streams.shard_iterator(self._shard_id, self._point())
                page = await self._streams.get_records(self._iterator, limit)
            except (PositionRefusedError, InvalidStreamArgumentError) as error:
                raise ActRefusedError(f"shard {self._shard_id} does not have this place: {error}") from error
            except IteratorExpiredError:
                self._iterator = None
            except (StreamThrottledError, StreamUnavailableError):
                if back_off_s is None:
                    raise
                self._next_s = self._clock.monotonic() + back_off_s
            else:
                self._note(page)
                return page
        raise StreamUnavailableError(f"shard {self._shard_id}: its iterators expire at once")

    def _note(self, page: Page) -> None:
        self._iterator = page.next_iterator
        self._last = page.last_sequence or self._last
        self.is_over = page.next_iterator is None or page.millis_behind_latest == 0

    def _point(self) -> StartingPoint:
        if self._last is None:
            return self._start
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=self._last)

    async def page_with_records(self) -> Page | None:
        """The next page that is not empty; None at the tip or the end."""
        for _ in range(EMPTY_PAGES_MAX):
            if self.is_over:
                return None
            page = await self.page()
            if page.count:
                return page
        raise StreamUnavailableError(f"shard {self._shard_id}: {EMPTY_PAGES_MAX} empty pages in a row")


def records_in(page: Page, after: Position = TRIM_HORIZON) -> list[FramedRecord]:
    """The user records of a page after a position; aggregates are opened, whatever shard they were made for."""
    splitter = Splitter()
    return [record for piece in page.after(after).line() for record in splitter.feed(piece)]


async def boundary_at_time(streams: Streams, clock: Clock, shard_id: str, time_s: float) -> Boundary:
    """Where reading begins with the first record that arrived at `time_s` (epoch seconds) or later."""
    walk = ShardWalk(streams, clock, shard_id, StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s))
    page = await walk.page_with_records()
    first = None if page is None else page.first_sequence
    return Boundary(await _last_before(streams, clock, shard_id, first, time_s), first)


async def boundary_at_sequence(streams: Streams, clock: Clock, shard: Shard, place: Position) -> Boundary:
    """Where reading begins with the record `place`. Raises ActRefusedError if the shard has no such record."""
    number = int(place.sequence)
    after_end = shard.ending_sequence is not None and number > int(shard.ending_sequence)
    if number < int(shard.starting_sequence) or after_end:
        raise ActRefusedError(f"{place.sequence} is no sequence number of shard {shard.shard_id}")
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=place.sequence)
    page = await ShardWalk(streams, clock, shard.shard_id, start).page_with_records()
    if page is None or page.first_sequence is None or int(page.first_sequence) != number:
        there = "no later one either" if page is None else f"the next one that is kept is {page.first_sequence}"
        raise ActRefusedError(f"shard {shard.shard_id} has no record {place.sequence} (any more); {there}")
    if place.sub:
        return Boundary(Position(place.sequence, place.sub - 1), place.sequence)
    arrival_s = (page.first_arrival_ms or 0) / 1000
    return Boundary(
        await _last_before(streams, clock, shard.shard_id, place.sequence, arrival_s, by_time=False), place.sequence
    )


async def _last_before(
    streams: Streams, clock: Clock, shard_id: str, first: str | None, time_s: float, *, by_time: bool = True
) -> Position:
    bound = None if first is None else int(first)
    for back_s in (*BACK_S, None):
        start = StartingPoint(IteratorType.TRIM_HORIZON)
        if back_s is not None and back_s < time_s:
            start = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s - back_s)
        walk = ShardWalk(streams, clock, shard_id, start)
        last: Position | None = None
        while (page := await walk.page_with_records()) is not None:
            found = records_in(page)
            kept = before(found, bound, int(time_s * 1000) if by_time else None)
            last = Position(kept[-1].sequence, kept[-1].sub) if kept else last
            if len(kept) < len(found) or _reaches(page, bound):
                break
        if last is not None:
            return last
        if start.type is IteratorType.TRIM_HORIZON:
            break
    return TRIM_HORIZON


def before(records: Sequence[FramedRecord], bound: int | None, time_ms: int | None) -> Sequence[FramedRecord]:
    """The records up to the first one that has the number `bound` or more, or arrived at `time_ms` or later. Pure."""
    for number, record in enumerate(records):
        if bound is not None and int(record.sequence) >= bound:
            return records[:number]
        if time_ms is not None and arrival_ms(record) >= time_ms:
            return records[:number]
    return records


def arrival_ms(record: FramedRecord) -> int:
    """When it reached Kinesis, in epoch milliseconds."""
    value = record.fields()["approximateArrivalTimestamp"]
    assert isinstance(value, int)
    return value


def _reaches(page: Page, bound: int | None) -> bool:
    return bound is not None and page.last_sequence is not None and int(page.last_sequence) >= bound
