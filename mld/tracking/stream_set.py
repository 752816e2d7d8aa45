"""`TrackedStreams`: the streams of a worker whose settings name only one stream, which never changes. Its subclass in
`followed_streams` follows a list of several streams.

Rules: shards#bootstrap-decision, shards#several-streams. In this code a stream is given by its identifier. None stands
for the stream of a table with only one, whose rows do not name it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mld.consumer.consumer_parts import ShardSource
from mld.consumer.shard_care import EndVerdict, MissingVerdict
from mld.core.error_boundary import survived
from mld.core.errors import StartupError, StreamError, StreamNotFoundError, StreamThrottledError, StreamUnavailableError
from mld.core.stream_ids import working_for
from mld.core.streams import ChildShard
from mld.leases.lease import Lease, within_stream
from mld.leases.table import TableScan
from mld.shards.detector import ShardDetector
from mld.shards.shard_rows import ShardRows
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import SyncResult, SyncStatus
from mld.tracking.stream_list import ListedStream
from mld.tracking.stream_rows import AllRows, RecentRows, StreamRows, VisibleTable
from mld.tracking.tracked_stream import OpenedStream, Standing, TrackedStream, TrackingNeeds

log = logging.getLogger(__name__)

Loop = tuple[Callable[[], Awaitable[None]], str]
"""A coroutine function that runs until it is cancelled, and a few words about it for the log."""

OpenStream = Callable[[ListedStream | None], Awaitable[OpenedStream]]
"""Opens a stream of the list; None: the only stream that the settings name."""


def require_rows(result: SyncResult, scan: TableScan) -> bool:
    """Return whether a sync at the start may have created rows that `scan` lacks.

    Raises StartupError if the table belongs to another stream; StreamNotFoundError if the stream does not exist or has
    no shards; StreamUnavailableError if it is not ready, or its listing shows an unfinished reshard.
    """
    match result.status:
        case SyncStatus.DONE:
            # If the table was empty and this sync has created nothing, another worker has created the rows.
            return bool(result.created) or not scan.leases
        case SyncStatus.FOREIGN_TABLE:
            raise StartupError(result.sentence)
        case SyncStatus.STREAM_MISSING | SyncStatus.NO_SHARDS:
            raise StreamNotFoundError(result.sentence)
        case SyncStatus.STREAM_NOT_READY | SyncStatus.INCONSISTENT_LISTING:
            raise StreamUnavailableError(result.sentence)


@dataclass(eq=False)
class TrackedStreams:
    """Implements `ShardCare` for all streams of a worker, by the `TrackedStream` of each. Methods that ask AWS raise
    `errors.TableError` and `errors.StreamError`.
    """

    needs: TrackingNeeds
    consumed: VisibleTable
    recent: RecentRows
    open_stream: OpenStream

    def __post_init__(self) -> None:
        self.table = self.consumed.stored
        self._tracked: dict[str | None, TrackedStream] = {}
        """All streams that this worker has consumed, even if it does not any more: consumers may still be ending."""
        self._sync_due: set[str | None] = set()
        """The streams for which a sync is due, because a shard of them may lack its row."""
        self._has_sync_due = asyncio.Event()
        self._is_syncing = False  # whether such a sync is under way

    # --- for the worker -----------------------------------------------------------------------------------------------

    @property
    def is_in_sync(self) -> bool:
        """Whether no shard is known to lack its row."""
        return not (self._sync_due or self._is_syncing)

    def check(self, scan: TableScan) -> None:
        """Raise StartupError if the table is for several streams, because the settings name only one."""
        other = next((lease for lease in scan.leases if lease.stream is not None), None)
        if other is not None:
            raise StartupError(
                f"the lease table holds several streams (lease {other.key}), but the file names one: set mld.streams, "
                "or another tableName, into which mld restore brings the leases of this one stream"
            )

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        """Create missing lease rows at the start; return True if there may now be rows that `scan` lacks.

        `leads` returns whether this worker may fill an empty table. Raises StartupError if the table belongs to another
        stream.
        """
        if None not in self._tracked:
            self._tracked[None] = await self._track(None)
        if not await self._may_sync(scan, leads):
            return False
        try:
            return require_rows(await self._tracked[None].sync.bootstrap(scan), scan)
        except (StreamThrottledError, StreamUnavailableError) as error:
            return self._do_without_sync(scan, error)

    async def _may_sync(self, scan: TableScan, leads: Callable[[], Awaitable[bool]]) -> bool:
        """Return whether to sync now (shards#bootstrap-decision). A worker that does not sync does not wait for the
        rows either: it finds them when another worker has created them.

        An empty table is filled in 3.x by the leader, or if that dies, by the auditor of the next leader. In 2.x every
        worker may fill it, because nobody can know the leader before leases have owners. If leases exist, every worker
        syncs, unless the settings skip that: a sync compares the leases with the stream, so that no worker works on a
        table of another stream.
        """
        if not scan.is_empty:
            return not self.needs.settings.shards.skips_sync_if_leases_exist
        return await leads()

    def _do_without_sync(self, scan: TableScan, error: StreamError) -> bool:
        """Go on after a failed sync, if the table has any leases: missing ones can be created later. Return False,
        because no rows were created. If the table has no leases, raise `error`, because the worker cannot start.
        """
        if not scan.leases:
            raise error
        log.warning("shard sync failed, it is tried again: %s", error, extra={"action": "sync_failed"})
        self._note_sync_due(None)
        return False

    def loops(self) -> Sequence[Loop]:
        """Return the loops to run while the worker runs, once there are leases."""
        return (self._audit, "auditing"), (self._clean_up, "cleaning up"), (self._sync_when_due, "syncing shards")

    async def _audit(self) -> None:
        await self._tracked[None].auditor.run()

    async def _clean_up(self) -> None:
        await self._tracked[None].cleanup.run()

    def standing(self, lease: Lease) -> Standing:
        """Return what to do with a lease that this worker holds."""
        return Standing.CONSUMED if lease.stream in self.consumed.streams else Standing.FORMER

    def source_of(self, lease: Lease) -> ShardSource:
        """Return the source of the records of a consumed lease."""
        return self._of(lease).opened.source

    async def closed_shards(self) -> frozenset[str]:
        """Return the lease keys of the shards that get no more records, by a new listing of the streams."""
        closed: set[str] = set()
        for stream in self._in_order():
            with working_for(stream):
                closed |= await self._tracked[stream].closed_shards()
        return frozenset(closed)

    # --- for the consumers --------------------------------------------------------------------------------------------

    async def parents_complete(self, lease: Lease) -> bool:
        with working_for(lease.stream):
            return await self._of(lease).parents_complete(within_stream(lease))

    def ancestors(self, lease: Lease) -> tuple[str, ...]:
        return self._of(lease).ancestors(within_stream(lease))

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        with working_for(lease.stream):
            return await self._of(lease).prepare_end(within_stream(lease), children)

    async def oddity(self, lease: Lease) -> str | None:
        with working_for(lease.stream):
            return await self._of(lease).oddity(within_stream(lease))

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        with working_for(lease.stream):
            return await self._of(lease).judge_missing(within_stream(lease))

    def ended(self, lease: Lease) -> None:
        with working_for(lease.stream):
            self._of(lease).ended(within_stream(lease))

    def _of(self, lease: Lease) -> TrackedStream:
        assert lease.stream in self._tracked, "only leases of consumed streams have consumers"
        return self._tracked[lease.stream]

    # --- streams ------------------------------------------------------------------------------------------------------

    def _in_order(self) -> list[str | None]:
        """Return the consumed streams, in a fixed order."""
        return sorted(self.consumed.streams, key=lambda stream: stream or "")

    async def _track(self, listed: ListedStream | None) -> TrackedStream:
        """Open a stream, and make the parts that work on it."""
        opened = await self.open_stream(listed)
        stream = None if listed is None else listed.stream
        detector = ShardDetector(
            opened.streams,
            self.needs.clock,
            self.needs.rng,
            backoff_s=self.needs.settings.shards.list_backoff_s,
            attempts_max=self.needs.settings.shards.list_attempts_max,
            kind=opened.kind,
        )
        leases = StreamLeases(self._rows_of(stream), detector, self.needs.clock, self.needs.metrics, stream)
        return TrackedStream(self.needs, opened, leases, self._note_sync_due)

    def _rows_of(self, stream: str | None) -> ShardRows:
        """Return the access to the lease rows of a stream."""
        if stream is None:
            return AllRows(self.table, self.recent.views, self.needs.clock)
        return StreamRows(self.table, stream, self.recent)

    # --- rows that are missing ----------------------------------------------------------------------------------------

    def _note_sync_due(self, stream: str | None) -> None:
        """Note that a shard of the stream may lack its row, so that a sync creates it soon."""
        self._sync_due.add(stream)
        self._has_sync_due.set()

    async def _sync_when_due(self) -> None:
        """Make the syncs that `_note_sync_due` asks for, until cancelled. The first request begins a pause, and the
        requests that come during the pause are met together.
        """
        while True:
            await self._has_sync_due.wait()
            await self.needs.clock.sleep(self.needs.settings.shards.sync_interval_s)
            self._has_sync_due.clear()
            self._is_syncing = True
            for stream in [one for one in self._in_order() if one in self._sync_due]:
                try:
                    rows = await self._rows_of(stream).scan()
                except Exception as error:
                    log.warning("shard sync failed: %s", survived(error, "syncing"), extra={"action": "sync_failed"})
                    self._has_sync_due.set()
                    break  # the table cannot be read: the streams that are left are tried again, too
                self._sync_due.discard(stream)
                if await self._fill(stream, rows):
                    self.needs.fleet.wake_leases()
            self._sync_due &= self.consumed.streams
            self._is_syncing = False

    async def _fill(self, stream: str | None, rows: TableScan) -> bool:
        """Create the rows that a stream lacks, by a sync. `rows` are the stream's rows as just read. Return True if
        there may now be rows that `rows` lacks. If the sync fails, log that, and note that another one is due.
        """
        try:
            with working_for(stream):
                return require_rows(await self._tracked[stream].sync.bootstrap(rows), rows)
        except Exception as error:
            failure = survived(error, "syncing shards")
            level = logging.ERROR if isinstance(failure, StartupError) else logging.WARNING
            fields = {"action": "sync_failed"} | ({} if stream is None else {"stream": stream})
            log.log(level, "shard sync of %s failed: %s", self._tracked[stream].opened.name, failure, extra=fields)
            self._note_sync_due(stream)
            return False
