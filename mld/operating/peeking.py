"""Shows records of a shard without a lease: the shell of `mld peek`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mld.clock import Clock
from mld.operating.record_views import RecordView, view_of
from mld.operating.stream_access import SpanReader, SpanStart
from mld.retrieval.rawpage import RawPage
from mld.streams import Streams

PAGE_RECORDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Peek:
    """What to show: `count` records of a shard; `follow`: wait for more at the tip; `is_raw`: as they are stored."""

    shard_id: str
    start: SpanStart
    count: int
    follow: bool = False
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Peeked:
    """How it ended: so many records, at the tip of the shard, or at its end."""

    count: int
    is_tip: bool
    is_over: bool


async def peek_at(streams: Streams, clock: Clock, peek: Peek, show: Callable[[RecordView], None]) -> Peeked:
    """Show the records in order. Raises StreamError."""
    reader = SpanReader(streams, clock, peek.shard_id, peek.start.start)
    shown = 0
    while shown < peek.count and not reader.is_over:
        page = await reader.page(min(peek.count - shown, PAGE_RECORDS_MAX))
        for record in _raw_views(page, peek.start) if peek.is_raw else _views(page, peek.start):
            if shown == peek.count:
                break
            show(record)
            shown += 1
        if page.millis_behind_latest == 0 and not peek.follow and shown < peek.count:
            return Peeked(shown, is_tip=True, is_over=reader.is_over)
    return Peeked(shown, is_tip=False, is_over=reader.is_over)


def _views(page: RawPage, start: SpanStart) -> Iterator[RecordView]:
    """User records, as a record processor would get them."""
    batch = page.after(start.after)
    for fields in json.loads(b"".join(batch.line()))["records"]:
        view = view_of(fields)
        why = batch.malformed.get(view.sequence)
        yield view if why is None else replace(view, payload=replace(view.payload, note=f"no KPL aggregate: {why}"))


def _raw_views(page: RawPage, start: SpanStart) -> Iterator[RecordView]:
    """Records as Kinesis keeps them: aggregates and compressed payloads stay closed."""
    number_before = -1 if start.after.number is None else start.after.number
    for place in page.places():
        columns = place.columns
        if int(columns.sequence) > number_before:
            yield view_of(
                {
                    "data": columns.data,
                    "partitionKey": json.loads(columns.key),
                    "sequenceNumber": columns.sequence.decode(),
                    "approximateArrivalTimestamp": int(columns.arrival_ms),
                },
                is_raw=True,
            )
