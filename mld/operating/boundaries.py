"""Finds the checkpoint that makes a shard start at a given time or record.

A checkpoint is the last record that was processed. So the wanted checkpoint is the record before the first one that is
to be read. It must be a number that Kinesis has given to a record of this shard, because Kinesis may refuse an invented
number. LATEST is no substitute: it would skip records that arrive before a worker reads. If no earlier record is kept,
the checkpoint is TRIM_HORIZON.

Kinesis cannot read backwards, so the earlier record is looked for by reading from earlier and earlier times. If it is
uncertain which record is the right one (arrival times are out of order, or records came meanwhile), an earlier record
becomes the checkpoint. Then some records are read again, but none is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from mld.core.clock import Clock
from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import (
    IteratorType,
    Page,
    Shard,
    StartingPoint,
    Streams,
)
from mld.operating.plan import (
    ActRefusedError,
)
from mld.operating.stream_access import SpanReader, arrival_ms, framed_records
from mld.protocol.framed_records import FramedRecord

BACK_S = (1.0, 8.0, 64.0, 512.0, 4_096.0, 32_768.0, 262_144.0, 2_097_152.0)
"""The earlier record is looked for by reading from this many seconds before the place, from the first number to the
last, until it is found. If it is not found, the shard is read from its oldest record.
"""


async def boundary_at_time(streams: Streams, clock: Clock, shard_id: str, time_s: float) -> Position:
    """Return the checkpoint before the first record that arrived at `time_s` (epoch seconds) or later.

    If no record has arrived since `time_s`, the last record of the shard is the checkpoint. If no earlier record is
    kept, the checkpoint is TRIM_HORIZON.
    """
    reader = SpanReader(streams, clock, shard_id, StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s))
    page = await reader.page_with_records()
    first = None if page is None else page.first_sequence
    return await _last_before(streams, clock, shard_id, first, time_s)


async def boundary_at_sequence(streams: Streams, clock: Clock, shard: Shard, place: Position) -> Position:
    """Return the checkpoint that makes `place` the next record. Raises ActRefusedError if the shard has no such
    record.
    """
    number = int(place.sequence)
    after_end = shard.ending_sequence is not None and number > int(shard.ending_sequence)
    if number < int(shard.starting_sequence) or after_end:
        raise ActRefusedError(f"{place.sequence} is no sequence number of shard {shard.shard_id}")
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=place.sequence)
    page = await SpanReader(streams, clock, shard.shard_id, start).page_with_records()
    if page is None or page.first_sequence is None or int(page.first_sequence) != number:
        found_instead = "no later one either" if page is None else f"the next one that is kept is {page.first_sequence}"
        raise ActRefusedError(f"shard {shard.shard_id} has no record {place.sequence} (any more); {found_instead}")
    if place.sub:
        return Position(place.sequence, place.sub - 1)  # the user record before it, in the same aggregate
    arrival_s = (page.first_arrival_ms or 0) / 1000  # only says where to begin to read: arrivals may be out of order
    return await _last_before(streams, clock, shard.shard_id, place.sequence, arrival_s, by_time=False)


async def _last_before(
    streams: Streams, clock: Clock, shard_id: str, first: str | None, time_s: float, *, by_time: bool = True
) -> Position:
    """Return the position of the last record before sequence number `first` (None: no such bound) and, unless `by_time`
    is False, before `time_s`; TRIM_HORIZON if there is none.

    A shard can only be read forwards. So an attempt begins some time before `time_s`, the next one earlier (BACK_S),
    and the last one at the oldest record.
    """
    bound = None if first is None else int(first)
    for back_s in (*BACK_S, None):
        start = StartingPoint(IteratorType.TRIM_HORIZON)
        if back_s is not None and back_s < time_s:
            start = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s - back_s)
        reader = SpanReader(streams, clock, shard_id, start)
        last: Position | None = None
        while (page := await reader.page_with_records()) is not None:
            found = framed_records(page, TRIM_HORIZON)
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
    """Return the records before the first one whose number is `bound` or more, or whose arrival is `time_ms` or
    later.
    """
    for number, record in enumerate(records):
        if bound is not None and int(record.sequence) >= bound:
            return records[:number]
        if time_ms is not None and arrival_ms(record) >= time_ms:
            return records[:number]
    return records


def _reaches(page: Page, bound: int | None) -> bool:
    """Return whether the page reads up to the record with number `bound`, or past it."""
    return bound is not None and page.last_sequence is not None and int(page.last_sequence) >= bound
