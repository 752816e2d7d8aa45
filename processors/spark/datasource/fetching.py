"""Reads a stream from code that is not asyncio: driver and tasks run the daemon's own readers in a loop of their own.

Pages, their parsing, aggregates, schemas, credentials and errors are those of the daemon
(`mld.operating.stream_access`, `mld.retrieval`, `mld.schemas`). Nothing is written anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

from mld.aws.client_factory import client_factory
from mld.core.clock import LoopClock
from mld.core.errors import MldError, StreamNotFoundError, TableError
from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import ChildBatch, HashRange, Shard, StartingPoint, Streams
from mld.metrics.worker import WorkerMetrics
from mld.operating.fleet_reader import fleet_reader
from mld.operating.stream_access import SpanError, SpanReader, all_shards, streams_of
from mld.properties.lines import ConfigurationError
from mld.properties.loader import load
from mld.properties.settings import Settings
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader_factory import Placement, StreamNaming
from mld.schemas.preparer import SchemaPreparer, registry_of

READ_INTERVAL_S = 0.2
"""Kinesis allows five reads a second and shard, for all who read it."""
AT_ONCE_MAX = 4
"""Shards that the driver looks at beside each other."""
T = TypeVar("T")
Fields = dict[str, Any]


class DataLossError(MldError):
    """Records of the range are not in the stream any more."""


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Records of a shard after `after` (exclusive) through `through` (inclusive), of those that arrived before
    `before_ms`; without `through` the tip of the shard ends it.

    `first`: the Kinesis record with which the answers must begin, otherwise records are gone.
    """

    shard_id: str
    hash_range: HashRange
    start: StartingPoint
    after: Position = TRIM_HORIZON
    through: Position | None = None
    before_ms: int | None = None
    first: str | None = None


class Fetcher:
    """An open stream. A context manager; use it from one thread."""

    streams: Streams

    def __init__(self, settings: Settings, read_interval_s: float = READ_INTERVAL_S) -> None:
        self._settings = settings
        self._read_interval_s = read_interval_s
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._preparer: SchemaPreparer | None = None

    @cached_property
    def _placement(self) -> Placement:
        return Placement(self.streams, LoopClock())

    def __enter__(self) -> Self:
        self.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _open(self) -> None:
        self.streams = await self._stack.enter_async_context(streams_of(self._settings))
        registry = registry_of(self._settings, client_factory(self._settings), LoopClock(), WorkerMetrics())
        if registry is not None:
            await registry.open()
            self._stack.push_async_callback(registry.close)
            self._preparer = registry

    def shards(self) -> list[Shard]:
        """Return every shard that ListShards shows."""
        return list(self.run(all_shards(self.streams)).values())

    def _reader(self, shard_id: str, start: StartingPoint) -> SpanReader:
        return SpanReader(self.streams, LoopClock(), shard_id, start, self._read_interval_s)

    def checkpoints(self) -> dict[str, Position]:
        """Return where the leases of the application `applicationName` stand now. Raises TableError, also if the table
        has no leases, or rows that cannot be read: a shard without a checkpoint would be passed over.
        """
        return self.run(self._checkpoints())

    async def _checkpoints(self) -> dict[str, Position]:
        async with fleet_reader(self._settings) as reader:
            scan = await reader.scan()
        name = self._settings.lease_table.name
        if scan.corrupt:
            key, reason = scan.corrupt[0]
            raise TableError(f"lease table {name}: the row {key} cannot be read: {reason}; give the positions as JSON")
        if not scan.leases:
            raise TableError(f"lease table {name} has no leases: check applicationName, or give the positions as JSON")
        return {lease.shard_id: lease.checkpoint for lease in scan.leases}

    async def first_record(self, shard_id: str, start: StartingPoint) -> tuple[str, int] | None:
        """Return sequence number and time of arrival (ms) of the first record from there on; None if there is none
        yet.
        """
        reader = self._reader(shard_id, start)
        while not reader.is_over:
            page = await reader.page(1)
            if page.first_sequence is not None:
                return page.first_sequence, page.first_arrival_ms or 0
            if page.millis_behind_latest == 0:
                break
        return None

    def beside_each_other(self, works: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
        """Return the results by name, a few at a time."""

        async def all_of_them() -> dict[str, T]:
            room = asyncio.Semaphore(AT_ONCE_MAX)

            async def one(work: Coroutine[Any, Any, T]) -> T:
                async with room:
                    return await work

            tasks = [asyncio.ensure_future(one(work)) for work in works.values()]
            try:
                return dict(zip(works, await asyncio.gather(*tasks), strict=True))
            finally:
                for task in tasks:
                    task.cancel()

        return self.run(all_of_them())

    def records(self, span: ReadSpan, *, goes_on: bool) -> Iterator[list[Fields]]:
        """Yield the user records of a span, page by page, as the fields of the child protocol.

        Raises DataLossError if records are gone, unless `goes_on`, and StreamError.
        """
        pages = self._records(span, goes_on)
        while (found := self.run(_next(pages))) is not None:
            yield found

    async def _records(self, span: ReadSpan, goes_on: bool) -> AsyncIterator[list[Fields]]:
        reader = self._reader(span.shard_id, span.start)
        first, is_done = span.first, False
        while not (is_done or reader.is_over):
            try:
                page = await reader.page(None)
            except SpanError as error:
                if not isinstance(error.__cause__, StreamNotFoundError):
                    raise
                if not goes_on:
                    raise _lost(span, "the shard is not in the stream any more") from error
                return
            if page.first_sequence is not None and first is not None:
                if page.first_sequence != first and not goes_on:
                    raise _lost(span, f"it now begins at {page.first_sequence}")
                first = None
            is_done = is_at_end(span, page)
            hash_range = await self._placement.range_of(span.hash_range) if page.bears_frames else span.hash_range
            batch: ChildBatch = page.after(span.after, hash_range)
            if self._preparer is not None and page.bears_frames:
                batch = await self._preparer.prepare(batch)
            fields = json.loads(b"".join(batch.line()))["records"]
            wanted = [record for record in fields if is_wanted(span, record)]
            if wanted:
                yield wanted


async def _next(pages: AsyncIterator[T]) -> T | None:
    return await anext(pages, None)


def is_at_end(span: ReadSpan, page: RawPage) -> bool:
    """Return whether nothing of the span can follow the page."""
    if page.millis_behind_latest == 0:
        return True
    if span.before_ms is not None and page.first_arrival_ms is not None and page.first_arrival_ms >= span.before_ms:
        return True
    if span.through is not None and page.count:
        return int(page.sequences.highest) >= (span.through.number or 0)
    return False


def is_wanted(span: ReadSpan, record: Mapping[str, Any]) -> bool:
    """Return whether a user record of a page lies in the span."""
    if span.before_ms is not None and record["approximateArrivalTimestamp"] >= span.before_ms:
        return False
    position = Position(record["sequenceNumber"], record["subSequenceNumber"])
    return span.through is None or position <= span.through


def _lost(span: ReadSpan, why: str) -> DataLossError:
    begin = span.first or "its oldest record"
    return DataLossError(
        f"records of {span.shard_id} are gone: the range begins at {begin}, and {why}; they have left the stream's "
        "retention. Set the option onDataLoss to continue to go on without them"
    )


class NamingError(Exception):
    """The stream cannot be named; one sentence."""


def stream_variables(file: str, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return what `MLD_STREAM_…` variables say (`spark.writer_identity`); empty if Kinesis does not answer. Raises
    NamingError."""
    try:
        settings = load(file, (), env).settings
    except ConfigurationError as error:
        raise NamingError("\n".join(str(problem) for problem in error.problems)) from error
    if settings.is_multi_stream:
        return {"MLD_STREAM_ID": "(several)"}
    try:
        return {"MLD_STREAM_NAME": settings.stream_name, **asyncio.run(_described(settings))}
    except MldError as error:
        raise NamingError(str(error)) from error


async def _described(settings: Settings) -> Mapping[str, str]:
    async with streams_of(settings) as streams:
        return await StreamNaming(streams, LoopClock()).variables()
