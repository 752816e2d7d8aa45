"""Reads shards for commands, without leases: opens the stream (`streams_of`), finds where to start (`span_start`),
reads pages (`SpanReader`), and shows their records (`peek_at`).

`SpanReader` does not slow the shard's consumers much. It reads one page at a time, and leaves half of Kinesis's five
reads a second to the consumers. If Kinesis throttles, it waits longer and longer. It never skips records: after an
error it goes on after the last record of the last page.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice

from mld.core.clock import Clock, LoopClock
from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    PositionRefusedError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import AT_TIMESTAMP, LATEST, SUB_MAX, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import HashRange, IteratorType, Page, Shard, StartingPoint, Streams
from mld.leases.lease import Lease
from mld.operating.open_services import opened
from mld.operating.points import Point, PointKind
from mld.operating.record_view import RecordView, view_of
from mld.properties.settings import Settings
from mld.protocol.framed_records import FramedRecord, Splitter
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader_factory import LABELS, kind_of, service_name, streams_port
from mld.retrieval.starting_points import starting_point

READ_INTERVAL_S = 0.4
"""Pause between two reads. Kinesis allows all readers of a shard together five reads a second."""
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 10.0
FAILURES_MAX = 5
"""After this many errors in a row, not counting throttled requests, reading is given up."""
EMPTY_PAGES_MAX = 2_000
"""At most this many empty pages are read in a row. Kinesis returns many of them for a long time without records."""
PAGE_RECORDS = 1_000
REQUEST_TIMEOUT_S = 30.0


class SpanError(StreamError):
    """A place or a shard cannot be read. The text tells what to do."""


@dataclass(frozen=True, slots=True)
class SpanStart:
    """Where the reading of a shard starts."""

    start: StartingPoint
    """The starting point for which Kinesis is asked."""
    after: Position
    """Records up to this position are dropped."""
    name: Position
    """The position that a record processor gets in `initialize`."""


def span_start(point: Point, shard_id: str, lease: Lease | None, initial: InitialPosition) -> SpanStart:
    """Return where the reading of a shard starts if an operator names the place `point`. Only the place ``checkpoint``
    needs `lease`. Raises SpanError.
    """
    match point.kind:
        case PointKind.TRIM_HORIZON:
            return SpanStart(StartingPoint(IteratorType.TRIM_HORIZON), TRIM_HORIZON, TRIM_HORIZON)
        case PointKind.LATEST:
            return SpanStart(StartingPoint(IteratorType.LATEST), TRIM_HORIZON, LATEST)
        case PointKind.TIME:
            start = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=point.time_s)
            return SpanStart(start, TRIM_HORIZON, AT_TIMESTAMP)
        case PointKind.SEQUENCE:
            assert point.position is not None
            start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=point.position.sequence)
            return SpanStart(start, _before(point.position), point.position)
    if lease is None:
        raise SpanError(f"shard {shard_id} has no row in the lease table: name another place, such as trim-horizon")
    if lease.is_complete:
        raise SpanError(f"the checkpoint of shard {shard_id} is SHARD_END: name another place, such as trim-horizon")
    checkpoint = lease.checkpoint
    return SpanStart(starting_point(checkpoint, initial), checkpoint, checkpoint)


def _before(position: Position) -> Position:
    """Return the last possible position before this one."""
    if position.sub:
        return Position(position.sequence, position.sub - 1)
    number = int(position.sequence)
    return Position(str(number - 1), SUB_MAX) if number else TRIM_HORIZON


@asynccontextmanager
async def streams_of(settings: Settings) -> AsyncIterator[Streams]:
    """Open the stream of a properties file, with its credentials and endpoint. Raises StartupError."""
    kind = kind_of(settings.stream_arn)
    async with opened(settings, service_name(kind), LABELS[kind], REQUEST_TIMEOUT_S) as service:
        yield streams_port(service, LoopClock(), settings, settings.stream_name, settings.stream_arn)


class SpanReader:
    """Reads one shard from a starting point on, page by page."""

    def __init__(self, streams: Streams, clock: Clock, shard_id: str, start: StartingPoint) -> None:
        self._streams = streams
        self._clock = clock
        self._shard_id = shard_id
        self._start = start
        self._iterator: str | None = None
        self._last_sequence: str | None = None
        self._next_at = clock.monotonic()
        """When the next page may be read."""
        self.is_over = False
        """Whether the shard has ended and all its records were read."""
        self.is_at_tip = False
        """Whether the last page was read at the tip of the shard."""
        self.throttled = 0
        """How many requests were throttled since the last answer."""

    async def page(self, limit: int) -> RawPage:
        """Read the next page, which may be empty, after the pause between reads.

        An expired iterator is replaced. After a throttled request it waits longer and longer; after other errors it
        tries again, up to FAILURES_MAX times in a row. Raises StreamError.
        """
        assert not self.is_over, "nothing follows the end of a shard"
        failures = 0
        while True:
            await self._clock.sleep(max(0.0, self._next_at - self._clock.monotonic()))
            try:
                return await self._page(limit)
            except IteratorExpiredError:
                self._iterator = None
            except StreamThrottledError:
                self.throttled += 1
                wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self.throttled - 1, 10))
                self._next_at = self._clock.monotonic() + wait_s
            except (PositionRefusedError, InvalidStreamArgumentError) as error:
                raise SpanError(f"shard {self._shard_id} has no such place: {error}") from error
            except StreamNotFoundError as error:
                raise SpanError(f"{error}; `mld leases` shows the shards") from error
            except StreamUnavailableError:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                self._next_at = self._clock.monotonic() + BACKOFF_FIRST_S * failures

    async def _page(self, limit: int) -> RawPage:
        """Read one page, with a new iterator if there is none, and note where to go on."""
        if self._iterator is None:
            self._iterator = await self._streams.shard_iterator(self._shard_id, self._point())
        page = await self._streams.get_records(self._iterator, limit)
        assert isinstance(page, RawPage)
        self.throttled = 0
        self._next_at = self._clock.monotonic() + READ_INTERVAL_S
        self._iterator = page.next_iterator
        self._last_sequence = page.last_sequence or self._last_sequence
        self.is_over = page.next_iterator is None
        self.is_at_tip = page.millis_behind_latest == 0
        return page

    async def page_with_records(self) -> RawPage | None:
        """Read the next page that is not empty; return None at the tip or the end of the shard. Raises StreamError."""
        for _ in range(EMPTY_PAGES_MAX):
            if self.is_over or self.is_at_tip:
                return None
            page = await self.page(PAGE_RECORDS)
            if page.count:
                return page
        raise StreamUnavailableError(f"shard {self._shard_id}: {EMPTY_PAGES_MAX} empty pages in a row")

    def _point(self) -> StartingPoint:
        """Return where a new iterator starts: after the last record that was read, else where the reader starts."""
        if self._last_sequence is None:
            return self._start
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=self._last_sequence)


async def all_shards(streams: Streams) -> dict[str, Shard]:
    """Return the shards of a stream, by their ids. Raises StreamError."""
    found: dict[str, Shard] = {}
    token = None
    while True:
        page = await streams.list_shards(None, token)
        found |= {shard.shard_id: shard for shard in page.shards}
        if (token := page.next_token) is None:
            return found


def arrival_ms(record: FramedRecord) -> int:
    """Return when the record arrived in Kinesis, in epoch milliseconds."""
    value = record.fields()["approximateArrivalTimestamp"]
    assert isinstance(value, int)
    return value


def framed_records(page: Page, after: Position, hash_range: HashRange | None = None) -> list[FramedRecord]:
    """Return the user records of a page that come after a position, with aggregates opened. `hash_range` limits the
    user records of aggregates to those of the shard.
    """
    splitter = Splitter()
    return [record for piece in page.after(after, hash_range).line() for record in splitter.feed(piece)]


# --- showing records --------------------------------------------------------------------------------------------------


async def peek_at(
    reader: SpanReader,
    start: SpanStart,
    count: int,
    show: Callable[[RecordView], None],
    *,
    follow: bool = False,
) -> int:
    """Show up to `count` records in order, and return their number. Without `follow` it ends at the tip.

    Raises StreamError.
    """
    shown = 0
    while shown < count and not reader.is_over and (follow or not reader.is_at_tip):
        page = await reader.page(min(count - shown, PAGE_RECORDS))
        for record in islice(_views(page, start), count - shown):
            show(record)
            shown += 1
    return shown


def _views(page: RawPage, start: SpanStart) -> Iterator[RecordView]:
    """Yield the user records of a page that come after the start, as a record processor would get them."""
    batch = page.after(start.after)
    for fields in json.loads(b"".join(batch.line()))["records"]:
        view = view_of(fields)
        why = batch.malformed.get(view.sequence)
        yield view if why is None else replace(view, payload=replace(view.payload, note=f"no KPL aggregate: {why}"))
