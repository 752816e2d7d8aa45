"""`OneStream`: the sources of a worker whose table has one stream. Rules: shards#bootstrap-decision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mld.clock import Clock
from mld.consumer.ports import ShardCare, ShardSource
from mld.errors import StartupError, StreamError, StreamThrottledError, StreamUnavailableError
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, TableScan
from mld.surviving import survived
from mld.tracking.ports import Loop, Standing
from mld.tracking.tracked_stream import TrackedStream, require_rows

log = logging.getLogger(__name__)


class OneStream:
    """Implements `tracking.ports.StreamSources`.

    `sync_due` is set when rows are missing in the table: it is made true to the stream again, `sync_spacing_s` later.
    `skip_sync`: a worker that finds leases does not compare them with the stream. `on_synced` is told of new rows.
    """

    def __init__(
        self,
        tracked: TrackedStream,
        table: LeaseTable,
        clock: Clock,
        *,
        sync_due: asyncio.Event,
        sync_spacing_s: float,
        skip_sync: bool,
        on_synced: Callable[[], None],
    ) -> None:
        self._tracked = tracked
        self._table = table
        self._clock = clock
        self._sync_due = sync_due
        self._sync_spacing_s = sync_spacing_s
        self._skip_sync = skip_sync
        self._on_synced = on_synced

    @property
    def care(self) -> ShardCare:
        return self._tracked.coordinator

    @property
    def is_in_sync(self) -> bool:
        return not self._sync_due.is_set()

    def check(self, scan: TableScan) -> None:
        other = next((lease for lease in scan.leases if lease.stream is not None), None)
        if other is not None:
            raise StartupError(
                f"the lease table holds several streams (lease {other.key}), but the file names one: set mld.streams, "
                "or turn the table into one of a single stream with mld migrate-streams"
            )

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        if not await self._may_sync(scan, leads):
            return False
        try:
            return require_rows(await self._tracked.sync.bootstrap(scan), scan)
        except (StreamThrottledError, StreamUnavailableError) as error:
            return self._do_without_sync(scan, error)

    async def _may_sync(self, scan: TableScan, leads: Callable[[], Awaitable[bool]]) -> bool:
        """Whether to sync now (shards#bootstrap-decision). Nobody waits for rows: others find them once there are some.

        An empty table is the leader's business in 3.x, and its auditor's if that one dies; in 2.x nobody can prove to
        lead before leases have owners. Where leases exist every worker compares them with the stream, so that none
        works on a foreign table.
        """
        if not scan.is_empty:
            return not self._skip_sync
        return await leads()

    def _do_without_sync(self, scan: TableScan, error: StreamError) -> bool:
        """The leases there are enough to work with; what is missing can come later. Without any there is no start."""
        if not scan.leases:
            raise error
        log.warning("shard sync failed, it is tried again: %s", error, extra={"action": "sync_failed"})
        self._sync_due.set()
        return False

    def loops(self) -> Sequence[Loop]:
        return (
            (self._tracked.auditor.run, "auditing"),
            (self._tracked.cleanup.run, "cleaning up"),
            (self._sync_when_due, "syncing shards"),
        )

    def visible(self, scan: TableScan) -> TableScan:
        return scan

    def standing(self, lease: Lease) -> Standing:
        return Standing.CONSUMED

    def source_of(self, lease: Lease) -> ShardSource:
        return self._tracked.source

    async def closed_shards(self) -> frozenset[str]:
        return await self._tracked.closed_shards()

    async def take_down(self) -> None:
        if self._tracked.take_down is not None:
            await self._tracked.take_down()

    async def _sync_when_due(self) -> None:
        while True:
            await self._sync_due.wait()
            await self._clock.sleep(self._sync_spacing_s)
            try:
                result = await self._tracked.sync.bootstrap(await self._table.scan())
            except Exception as error:
                log.warning("shard sync failed: %s", survived(error, "syncing shards"), extra={"action": "sync_failed"})
                continue
            if result.is_done:
                self._sync_due.clear()
                self._on_synced()
            else:
                log.warning("shard sync failed: %s", result.sentence, extra={"action": "sync_failed"})
