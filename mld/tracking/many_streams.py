"""`ManyStreams`: the sources of a worker whose table has several streams.

Rules: shards#several-streams, shards#list-of-streams, shards#former-streams. One loop follows the list: it reads the
settings again, lets the leader write the row, and makes true in this worker what the row says. A stream that cannot be
looked up, listed or synced concerns that stream alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from mld.consumer.ports import EndVerdict, MissingVerdict, ShardCare, ShardSource
from mld.errors import StartupError, StreamError, StreamNotFoundError, TableError
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, TableScan
from mld.metrics.java import STREAM_TRACKER
from mld.positions import InitialPosition
from mld.shards.auditor import LEADERSHIP_POLL_S
from mld.shards.cleanup import TICK_S
from mld.stream_ids import working_for
from mld.streams import ChildShard, StreamKind, Streams
from mld.surviving import survived
from mld.tracking.follower import ListFollower
from mld.tracking.ports import Loop, Standing
from mld.tracking.stream_list import ListedStream, TrackedList, due_for_deletion, labels_of
from mld.tracking.stream_rows import SharedScan, StreamRows, sorted_by_stream, within_stream
from mld.tracking.tracked_stream import TrackedStream, TrackingNeeds, require_rows, track
from mld.tracking.visible_table import ConsumedStreams, visible
from properties.values import FormerStreams

log = logging.getLogger(__name__)

SYNCS_AT_ONCE_MAX = 8
SYNC_S_MIN = 0.1  # with the number above 80 syncs a second: ListShards is allowed 100 times a second in an account
SEEN_FORMER_S = 3600.0  # before leases are deleted, however wrong the wall clock of a leader is
LIST_VALID_S = 10.0  # leases of former streams are deleted by a list that was read just now
DELETIONS_PER_PASS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """What records and shards of a stream come from. `take_down`: what the last worker of a fleet removes of it."""

    streams: Streams
    source: ShardSource
    initial: InitialPosition
    take_down: Callable[[], Awaitable[None]] | None = None
    kind: StreamKind = StreamKind.KINESIS


@dataclass(frozen=True, slots=True)
class ManyRules:
    """`sync_spacing_s` is the pause before a failed sync is tried again."""

    former: FormerStreams
    former_wait_s: float
    sync_spacing_s: float
    lease_duration_s: float


class ManyStreams:
    """Implements `tracking.ports.StreamSources`, and `consumer.ports.ShardCare` for all streams.

    `open_stream` gives the ports of a stream of the list. `on_change` is told when other streams are consumed than
    before.
    """

    def __init__(
        self,
        needs: TrackingNeeds,
        table: LeaseTable,
        follower: ListFollower,
        open_stream: Callable[[ListedStream], Awaitable[OpenedStream]],
        rules: ManyRules,
        consumed: ConsumedStreams,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._needs = needs
        self._table = table
        self._clock = needs.clock
        self._follower = follower
        self._open_stream = open_stream
        self._rules = rules
        self._on_change = on_change
        self._scans = SharedScan(table, needs.clock)
        self._tracked: dict[str, TrackedStream] = {}  # former ones, too: their consumers may still be ending
        self._consumed = consumed
        self._auditing: dict[str, asyncio.Task[None]] = {}
        self._still: dict[str, tuple[int, float]] = {}  # counters of leases to be deleted, and since when
        self._unknown: dict[str, int] = {}  # streams of held leases that the list lacked when it was read that often
        self._sync_due: set[str] = set()
        self._has_sync_due = asyncio.Event()

    # --- for the worker -----------------------------------------------------------------------------------------------

    @property
    def care(self) -> ShardCare:
        return self

    @property
    def is_in_sync(self) -> bool:
        return not self._sync_due

    def check(self, scan: TableScan) -> None:
        other = next((lease for lease in scan.leases if lease.stream is None), None)
        if other is not None:
            raise StartupError(
                f"the lease table holds one stream (lease {other.key}), but the file names several: set streamName "
                "instead of mld.streams, or turn the table into one of several streams with mld migrate-streams"
            )

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        """See `StreamSources.make_leases`. Raises StreamNotFoundError if none of the streams can be looked up."""
        may_create = await leads()
        is_leader = await self._needs.fleet.leader.is_leader()
        in_table = (await sorted_by_stream(scan)).streams
        streams = await self._follower.step(in_table, leads=is_leader, may_begin=may_create)
        await self._apply(streams)
        if not streams.version and not streams.streams and not may_create:
            return False  # the leader is about to write the first list; this worker hears of it later
        if not self._consumed.ids:
            raise StreamNotFoundError(self._follower.sentence or "the list of streams is empty; see mld.streams")
        if not may_create:
            return scan.is_empty
        return await self._fill_empty(scan)

    def loops(self) -> Sequence[Loop]:
        return (
            (self._follow, "following the list of streams"),
            (self._audit, "auditing"),
            (self._clean_up, "cleaning up"),
            (self._sync_when_due, "syncing shards"),
        )

    def visible(self, scan: TableScan) -> TableScan:
        return visible(scan, self._consumed.has)

    def standing(self, lease: Lease) -> Standing:
        stream = lease.stream
        if self._consumed.has(stream):
            return Standing.CONSUMED
        if stream is None or self._follower.streams.is_former(stream):
            return Standing.FORMER
        if self._follower.reads > self._unknown.setdefault(stream, self._follower.reads):
            log.warning(
                "the lease is given back: neither the list of streams nor mld.streams here has its stream",
                extra={"action": "stream_not_listed", "shard": lease.key},
            )
            return Standing.FORMER
        self._follower.wake()
        return Standing.UNKNOWN

    def source_of(self, lease: Lease) -> ShardSource:
        assert lease.stream in self._tracked, "only leases of consumed streams get consumers"
        return self._tracked[lease.stream].source

    async def closed_shards(self) -> frozenset[str]:
        closed: set[str] = set()
        for stream in sorted(self._consumed.ids):
            with working_for(stream):
                closed |= await self._tracked[stream].closed_shards()
        return frozenset(closed)

    async def take_down(self) -> None:
        for tracked in self._tracked.values():
            if tracked.take_down is not None:
                await tracked.take_down()

    # --- for the consumers --------------------------------------------------------------------------------------------

    async def parents_complete(self, lease: Lease) -> bool:
        with working_for(lease.stream):
            return await self._of(lease).coordinator.parents_complete(within_stream(lease))

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        with working_for(lease.stream):
            return await self._of(lease).coordinator.prepare_end(within_stream(lease), children)

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        with working_for(lease.stream):
            return await self._of(lease).coordinator.judge_missing(within_stream(lease))

    def ended(self, lease: Lease) -> None:
        with working_for(lease.stream):
            self._of(lease).coordinator.ended(within_stream(lease))

    def _of(self, lease: Lease) -> TrackedStream:
        assert lease.stream in self._tracked, "only leases of consumed streams have consumers"
        return self._tracked[lease.stream]

    # --- the list -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await self._follower.pause()
            try:
                leads = await self._needs.fleet.leader.is_leader()
                is_asked = leads or self._unknown or not self._follower.is_complete
                in_table = (await self._scans.rows()).streams if is_asked else frozenset()
                streams = await self._follower.step(in_table, leads=leads)
                await self._apply(streams)
                if leads:
                    self._count(streams)
                if leads and self._rules.former is FormerStreams.DELETE:
                    await self._delete_former()
            except Exception as error:
                failure = survived(error, "following the list of streams")
                log.warning("the list of streams is as before: %s", failure, extra={"action": "stream_list_failed"})
            self._on_change()  # leases of unknown streams wait for this

    def _count(self, streams: TrackedList) -> None:
        """As KCL's leader counts them."""
        operation = self._needs.metrics.worker.operation(STREAM_TRACKER)
        active = len(streams.current())
        operation.note("ActiveStreams.Count", active)
        operation.note("StreamsPendingDeletion.Count", len(streams.streams) - active)

    async def _apply(self, streams: TrackedList) -> None:
        """Consume what the list says."""
        self._needs.metrics.stream_labels = labels_of(streams)
        keeps = self._rules.former is FormerStreams.KEEP
        wanted = {
            one.stream: one
            for one in streams.streams
            if one.arn and (one.former_since_s is None or (keeps and not _is_remade(one, streams.streams)))
        }
        for stream, listed in tuple(wanted.items()):
            try:
                if stream not in self._tracked:
                    self._tracked[stream] = await self._track(listed)
            except (StreamError, StartupError) as error:
                log.error("stream %s: %s", listed.label, error, extra={"action": "stream_not_opened", "stream": stream})
                del wanted[stream]
        self._unknown = {stream: reads for stream, reads in self._unknown.items() if stream not in wanted}
        if self._consumed.ids == wanted.keys():
            return
        for stream in sorted(wanted.keys() - self._consumed.ids):
            log.info("stream %s is consumed", stream, extra={"action": "stream_tracked", "stream": stream})
        for stream in sorted(self._consumed.ids - wanted.keys()):
            log.info("stream %s is not consumed any more", stream, extra={"action": "stream_left", "stream": stream})
            self._needs.metrics.worker.table.holes_of.pop(stream, None)
        self._consumed.ids = frozenset(wanted)
        self._on_change()

    async def _track(self, listed: ListedStream) -> TrackedStream:
        opened = await self._open_stream(listed)
        stream = listed.stream

        def missing_child(_shard: str) -> None:
            self._note_sync_due(stream)

        return track(
            self._needs,
            StreamRows(self._table, stream, self._scans),
            opened.streams,
            opened.source,
            name=listed.label,
            stream=stream,
            kind=opened.kind,
            initial=opened.initial,
            on_missing_child=missing_child,
            take_down=opened.take_down,
        )

    async def _delete_former(self) -> None:
        """Delete the leases of former streams whose time has come, unless a worker still renews them."""
        now, wait_s = self._clock.monotonic(), self._rules.former_wait_s
        due = frozenset(
            stream
            for stream in due_for_deletion(self._follower.streams, wait_s, self._clock.wall())
            if self._follower.seen_former_s(stream) >= min(wait_s, SEEN_FORMER_S)
        )
        if not due:
            return
        scan = await self._table.scan()
        doomed = [lease for lease in scan.leases if lease.stream in due][:DELETIONS_PER_PASS_MAX]
        self._still = {
            lease.key: self._still.get(lease.key, (lease.counter, now))
            if self._still.get(lease.key, (lease.counter, now))[0] == lease.counter
            else (lease.counter, now)
            for lease in doomed
        }
        for lease in doomed:
            if self._clock.monotonic() - now > LIST_VALID_S:
                return
            is_still = now - self._still[lease.key][1] > self._rules.lease_duration_s
            if (lease.actual_owner is None or is_still) and await self._table.apply(writes.delete_unchanged(lease)):
                log.info("lease of a former stream deleted", extra={"action": "lease_deleted", "shard": lease.key})
        if gone := due - {lease.stream for lease in scan.leases}:
            await self._follower.forget(gone)
            self._needs.metrics.worker.operation(STREAM_TRACKER).note("DeletedStreams.Count", len(gone))

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def _fill_empty(self, scan: TableScan) -> bool:
        """Make the leases of streams that have none; True if there may be rows that `scan` lacks."""
        rows = await sorted_by_stream(scan)
        empty = [stream for stream in sorted(self._consumed.ids) if rows.of_stream(stream).is_empty]
        at_once = asyncio.Semaphore(SYNCS_AT_ONCE_MAX)

        async def fill(stream: str) -> bool:
            async with at_once:
                pause = asyncio.create_task(self._clock.sleep(SYNC_S_MIN))
                made = await self._fill(stream, TableScan())
                await pause
                return made

        made = await asyncio.gather(*(fill(stream) for stream in empty))
        if any(made):
            self._needs.fleet.wake_leases()
        return any(made)

    async def _fill(self, stream: str, rows: TableScan) -> bool:
        try:
            with working_for(stream):
                return require_rows(await self._tracked[stream].sync.bootstrap(rows), rows)
        except (StreamError, TableError, StartupError) as error:
            log.error("stream %s: %s", stream, error, extra={"action": "sync_failed", "stream": stream})
            self._note_sync_due(stream)
            return False

    def _note_sync_due(self, stream: str) -> None:
        self._sync_due.add(stream)
        self._has_sync_due.set()

    async def _sync_when_due(self) -> None:
        while True:
            await self._has_sync_due.wait()
            await self._clock.sleep(self._rules.sync_spacing_s)
            self._has_sync_due.clear()
            for stream in sorted(self._sync_due & self._consumed.ids):
                try:
                    rows = (await self._scans.rows()).of_stream(stream)
                except Exception as error:
                    log.warning("shard sync failed: %s", survived(error, "syncing"), extra={"action": "sync_failed"})
                    self._has_sync_due.set()
                    break
                self._sync_due.discard(stream)
                if await self._fill(stream, rows):
                    self._needs.fleet.wake_leases()
            self._sync_due &= self._consumed.ids

    async def _audit(self) -> None:
        """Each stream by itself, so that one whose shards cannot be listed holds up none of the others."""
        at_once = asyncio.Semaphore(SYNCS_AT_ONCE_MAX)

        async def audit(stream: str, leads: bool) -> None:
            try:
                with working_for(stream):
                    async with at_once:
                        await self._tracked[stream].auditor.step(leads)
            finally:
                del self._auditing[stream]

        try:
            while True:
                leads = await self._needs.fleet.leader.is_leader()
                for stream in sorted(self._consumed.ids):
                    if stream not in self._auditing and self._tracked[stream].auditor.is_due(leads):
                        self._auditing[stream] = asyncio.create_task(audit(stream, leads))
                await self._clock.sleep(LEADERSHIP_POLL_S)
        finally:
            for task in tuple(self._auditing.values()):
                task.cancel()

    async def _clean_up(self) -> None:
        while True:
            for stream in sorted(self._consumed.ids):
                if self._tracked[stream].cleanup.queued:
                    with working_for(stream):
                        await self._tracked[stream].cleanup.tick()
            await self._clock.sleep(TICK_S)


def _is_remade(former: ListedStream, streams: Iterable[ListedStream]) -> bool:
    """Whether a later incarnation of this stream is listed: then there is nothing left to read under this one."""
    return any(
        (one.id.account, one.id.name) == (former.id.account, former.id.name)
        and (one.former_since_s is None or one.id.epoch > former.id.epoch)
        and one.stream != former.stream
        for one in streams
    )
