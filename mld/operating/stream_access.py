"""Reading a shard from outside the fleet: without a lease, at a pace that leaves the shard to its consumers.

A `SpanReader` asks for one page at a time, in order, and lets half of Kinesis's five reads a second be; when Kinesis
throttles it waits longer and longer. It never skips: after an error it goes on behind the last record of the last page.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mld.aws.client_factory import client_factory
from mld.aws.wire_or_boto import service_of
from mld.core.clock import Clock, LoopClock
from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import AT_TIMESTAMP, LATEST, SUB_MAX, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import IteratorType, StartingPoint, Streams
from mld.leases.lease import Lease
from mld.operating.points import Point, PointKind
from mld.properties.settings import Settings
from mld.properties.values import InitialPositionKind
from mld.retrieval.rawpage import RawPage
from mld.retrieval.starting_points import starting_point
from mld.retrieval.stream_adapters import LABELS, kind_of, service_name, streams_port

READ_INTERVAL_S = 0.4
"""Kinesis allows five reads a second and shard, for all consumers together."""
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 10.0
FAILURES_MAX = 5
"""Errors in a row, apart from throttling, after which reading is given up."""
THREADS = 4
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
_SHARD_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)


class SpanError(StreamError):
    """A place or a shard that cannot be read; the text says what to do."""


@dataclass(frozen=True, slots=True)
class SpanStart:
    """Where to begin: what to ask Kinesis for, and after which position records are wanted."""

    start: StartingPoint
    after: Position
    name: Position
    """What a record processor is told at `initialize`."""


def shard_id_of(text: str) -> str:
    """``3`` stands for ``shardId-000000000003``."""
    return f"shardId-{int(text):012d}" if _SHARD_NUMBER.fullmatch(text) else text


def initial_of(settings: Settings) -> InitialPosition:
    """Where rows without a checkpoint begin."""
    configured = settings.initial_position
    match configured.kind:
        case InitialPositionKind.LATEST:
            return InitialPosition(LATEST)
        case InitialPositionKind.TRIM_HORIZON:
            return InitialPosition(TRIM_HORIZON)
        case InitialPositionKind.AT_TIMESTAMP:
            return InitialPosition(AT_TIMESTAMP, configured.timestamp_s)


def span_start(point: Point, shard_id: str, lease: Lease | None, initial: InitialPosition) -> SpanStart:
    """The place that `point` names in a shard; its `lease` is needed for the checkpoint only. Raises SpanError."""
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
    """The last position before this one."""
    if position.sub:
        return Position(position.sequence, position.sub - 1)
    number = int(position.sequence)
    return Position(str(number - 1), SUB_MAX) if number else TRIM_HORIZON


@asynccontextmanager
async def streams_of(settings: Settings) -> AsyncIterator[Streams]:
    """The stream of a properties file, with its credentials and endpoint. Raises StartupError."""
    kind = kind_of(settings.stream_arn)
    service = service_of(
        client_factory(settings),
        service_name(kind),
        label=LABELS[kind],
        lean=False,
        threads_max=THREADS,
        calls_max=THREADS,
        read_timeout_s=REQUEST_TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
    )
    await service.open()
    try:
        yield streams_port(service, LoopClock(), settings.stream_name, settings.stream_arn)
    finally:
        await service.close()


class SpanReader:
    """Reads one shard from a starting point on."""

    def __init__(
        self,
        streams: Streams,
        clock: Clock,
        shard_id: str,
        start: StartingPoint,
        read_interval_s: float = READ_INTERVAL_S,
    ) -> None:
        self._read_interval_s = read_interval_s
        self._streams = streams
        self._clock = clock
        self._shard_id = shard_id
        self._start = start
        self._iterator: str | None = None
        self._last_sequence: str | None = None
        self._next_at = clock.monotonic()
        self.is_over = False
        """The shard has ended, and all its records were read."""
        self.throttled = 0

    async def page(self, limit: int | None) -> RawPage:
        """The next page, in due time; it may be empty. Raises StreamError."""
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
            except StreamNotFoundError as error:
                raise SpanError(f"{error}; `mld leases` shows the shards") from error
            except InvalidStreamArgumentError as error:
                raise SpanError(f"shard {self._shard_id} has no such place: {error}") from error
            except StreamUnavailableError:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                self._next_at = self._clock.monotonic() + BACKOFF_FIRST_S * failures

    async def _page(self, limit: int | None) -> RawPage:
        if self._iterator is None:
            self._iterator = await self._streams.shard_iterator(self._shard_id, self._point())
        page = await self._streams.get_records(self._iterator, limit)
        assert isinstance(page, RawPage)
        self.throttled = 0
        self._next_at = self._clock.monotonic() + self._read_interval_s
        self._iterator = page.next_iterator
        self._last_sequence = page.last_sequence or self._last_sequence
        self.is_over = page.next_iterator is None
        return page

    def _point(self) -> StartingPoint:
        if self._last_sequence is None:
            return self._start
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=self._last_sequence)
