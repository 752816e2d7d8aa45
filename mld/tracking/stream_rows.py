"""Shows parts of a lease table that has several streams: the rows of one stream, or the rows of all streams that this
worker consumes.

Rules: shards#several-streams. Through `StreamRows`, the code that works on one stream sees only the rows of that
stream, each with the plain shard id as the lease's `key`. All streams that ask at about the same time share one view of
the whole table. `VisibleTable` and `VisibleViews` hide the leases of streams that this worker does not consume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mld.core.clock import Clock
from mld.core.stream_ids import StreamId, key_of, parse_stream_id, stream_of_key
from mld.leases import writes
from mld.leases.lease import Lease, within_stream
from mld.leases.table import AnswerT, LeaseTable, LeaseWrite, TableScan
from mld.leases.table_view import SeenTable, Views

VIEW_VALID_S = 5.0
"""How old a view may be. An old view does no harm: rows must be read before the shards are listed with which they are
compared, and new rows are created conditionally.
"""
ROWS_PER_TURN = 500


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The leases of a table, sorted by stream. The key None is for rows that name no stream."""

    of: Mapping[str | None, TableScan] = field(default_factory=dict)

    @property
    def streams(self) -> frozenset[StreamId]:
        """The identifiers of the streams that rows name."""
        found = (parse_stream_id(stream) for stream in self.of if stream is not None)
        return frozenset(stream for stream in found if stream is not None)

    def of_stream(self, stream: str | None) -> TableScan:
        """Return the rows of one stream, with plain shard ids as keys."""
        return self.of.get(stream, TableScan())


async def sorted_by_stream(scan: TableScan) -> SortedRows:
    """Return the leases of `scan`, sorted by stream, with plain shard ids as keys. Other tasks run in between, every
    few hundred rows.
    """
    leases: dict[str | None, list[Lease]] = {}
    corrupt: dict[str | None, list[tuple[str, str]]] = {}
    for number, lease in enumerate(scan.leases, 1):
        leases.setdefault(lease.stream, []).append(within_stream(lease))
        if number % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    for key, reason in scan.corrupt:
        stream = stream_of_key(key)
        name = key if stream is None else key.removeprefix(f"{stream}:")
        corrupt.setdefault(stream, []).append((name, reason))
    return SortedRows(
        {
            stream: TableScan(tuple(leases.get(stream, ())), tuple(corrupt.get(stream, ())))
            for stream in leases.keys() | corrupt.keys()
        }
    )


class RecentRows:
    """Returns the rows of the table, at most a few seconds old. They are sorted by stream once for all callers."""

    def __init__(self, views: Views, clock: Clock) -> None:
        self.views = views
        self._clock = clock
        self._lock = asyncio.Lock()
        self._sorted: tuple[SeenTable, SortedRows] | None = None  # the last view that was sorted, and the result

    async def view(self) -> SeenTable:
        """Return a view that is at most `VIEW_VALID_S` old. Raises `errors.TableError`."""
        return await self.views.newer_than(self._clock.monotonic() - VIEW_VALID_S)

    async def by_stream(self) -> SortedRows:
        """Return the rows of a recent view of the table, sorted by stream; a view is sorted only once. Raises
        `errors.TableError`.
        """
        async with self._lock:
            view = await self.view()
            if self._sorted is None or self._sorted[0] is not view:
                self._sorted = view, await sorted_by_stream(view.scan)
            return self._sorted[1]


@dataclass(eq=False)
class AllRows:
    """Implements `shards.shard_rows.ShardRows` for the only stream of a table. Each scan returns the rows of a view
    whose read began after the call.
    """

    table: LeaseTable
    views: Views
    clock: Clock

    def __post_init__(self) -> None:
        self.get, self.apply = self.table.get, self.table.apply

    async def scan(self) -> TableScan:
        return (await self.views.newer_than(self.clock.monotonic())).scan


@dataclass(eq=False)
class StreamRows:
    """Implements `shards.shard_rows.ShardRows` for the stream with this identifier."""

    table: LeaseTable
    stream: str
    recent: RecentRows

    async def scan(self) -> TableScan:
        return (await self.recent.by_stream()).of_stream(self.stream)

    async def get(self, key: str) -> Lease | None:
        """Return one lease of the stream by its shard id; None if there is none."""
        lease = await self.table.get(key_of(self.stream, key))
        return None if lease is None else within_stream(lease)

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        return await self.table.apply(writes.of_stream(write, self.stream))


class VisibleTable:
    """A `LeaseTable` whose scans return only leases of the streams that this worker consumes now (`streams`).

    `streams` has the identifiers of these streams; None stands for the only stream of a table. Single rows can still be
    read and written by their keys, whatever their stream.
    """

    def __init__(self, table: LeaseTable, *streams: str | None) -> None:
        self.stored = table
        self.streams: frozenset[str | None] = frozenset(streams)
        self.ensure, self.get, self.get_many, self.apply = table.ensure, table.get, table.get_many, table.apply

    async def scan(self, part: tuple[int, int] | None = None, *, consistent: bool = False) -> TableScan:
        return self.visible(await self.stored.scan(part, consistent=consistent))

    def visible(self, scan: TableScan) -> TableScan:
        """Return the scan without the leases of streams that are not consumed."""
        return replace(scan, leases=tuple(lease for lease in scan.leases if lease.stream in self.streams))


class VisibleViews:
    """Views of the leases that a `VisibleTable` shows. Implements `leases.table_view.Views`."""

    def __init__(self, views: Views, table: VisibleTable) -> None:
        self._views = views
        self._table = table
        self._filtered: tuple[SeenTable, frozenset[str | None], SeenTable] | None = None
        """The last view that was filtered, the consumed streams at that time, and the result."""
        self.wake = views.wake

    @property
    def newest(self) -> SeenTable | None:
        newest = self._views.newest
        return None if newest is None else self._visible(newest)

    async def newer_than(self, at: float) -> SeenTable:
        return self._visible(await self._views.newer_than(at))

    def _visible(self, view: SeenTable) -> SeenTable:
        """Return the view without the leases of streams that are not consumed. It is filtered once for all callers."""
        if self._filtered is None or self._filtered[:2] != (view, self._table.streams):
            self._filtered = view, self._table.streams, replace(view, scan=self._table.visible(view.scan))
        return self._filtered[2]
