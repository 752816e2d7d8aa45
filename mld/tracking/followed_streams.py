"""`FollowedStreams`: the streams of a worker whose table has several streams. Which ones these are is in a list in the
table, which may change (`stream_list`).

Rules: shards#several-streams, shards#list-of-streams, shards#former-streams. One loop follows the list: it reads the
list (and, if this worker leads, the settings, and writes the list), and then begins and ends the consumption of streams
by it. A stream that cannot be looked up, listed or synced does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from mld.core.error_boundary import survived
from mld.core.errors import StartupError, StreamError, StreamNotFoundError
from mld.core.log_fields import about
from mld.core.stillness import Stillness
from mld.core.stream_ids import working_for
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.properties.values import FormerStreams
from mld.shards.auditor import LEADERSHIP_POLL_S
from mld.shards.cleanup import TICK_S
from mld.tracking.list_follower import ListFollower
from mld.tracking.stream_list import (
    ListedStream,
    TrackedList,
    due_for_deletion,
    labels_of,
)
from mld.tracking.stream_rows import sorted_by_stream
from mld.tracking.stream_set import Loop, TrackedStreams
from mld.tracking.tracked_stream import Standing

log = logging.getLogger(__name__)

SYNCS_AT_ONCE_MAX = 8
SYNC_S_MIN = 0.1
"""How long each sync takes at least, by a pause. So there are at most 80 syncs a second; an account may call ListShards
100 times a second.
"""
LIST_VALID_S = 10.0  # leases of former streams are deleted only for this long after the list was read
DELETIONS_PER_PASS_MAX = 1_000


@dataclass(eq=False)
class FollowedStreams(TrackedStreams):
    """The `TrackedStreams` of an application with several streams: those of the list that all workers follow.
    `on_change` is called whenever the list was read, and when this worker begins or ends to consume streams.
    """

    follower: ListFollower
    on_change: Callable[[], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._auditing: dict[str | None, asyncio.Task[None]] = {}  # the audits under way, by stream
        self._doomed: Stillness[str, int] = Stillness()
        """The counters of the leases that are to be deleted. If one changes, a worker still renews that lease."""
        self.needs.fleet.on_lost_table.append(self._doomed.forget_all)
        self._unlisted: dict[str, int] = {}
        """Streams of held leases that are not in the list of streams. The value is how often the list had been read
        when that was first noticed (`follower.reads`)."""

    # --- for the worker -----------------------------------------------------------------------------------------------

    def check(self, scan: TableScan) -> None:
        """Raise StartupError if the table is for one stream."""
        other = next((lease for lease in scan.leases if lease.stream is None), None)
        if other is not None:
            raise StartupError(
                f"the lease table holds one stream (lease {other.key}), but the file names several: set streamName "
                "instead of mld.streams, or another tableName, into which mld restore brings its leases"
            )

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        """Create the missing lease rows of all listed streams at the start, as `TrackedStreams.make_leases` does for
        one stream. Return True if there may now be rows that `scan` lacks. Raises StreamNotFoundError if no stream of
        the list can be consumed.
        """
        may_create = await leads()
        is_leader = await self.needs.fleet.leader.is_leader()
        in_table = (await sorted_by_stream(scan)).streams
        streams = await self.follower.step(in_table, leads=is_leader, may_begin=may_create)
        await self._apply(streams)
        if not streams.version and not streams.streams and not may_create:
            return False  # the leader will soon write the first list; this worker reads it later
        if not self.consumed.streams:
            raise StreamNotFoundError(self.follower.sentence or "the list of streams is empty; see mld.streams")
        if not may_create:
            return scan.is_empty  # another worker fills an empty table
        return await self._fill_empty(scan)

    def loops(self) -> Sequence[Loop]:
        """Return the loops to run while the worker runs."""
        return (self._follow, "following the list of streams"), *super().loops()

    def standing(self, lease: Lease) -> Standing:
        """Return what to do with a lease that this worker holds: that depends on whether its stream is in the list.

        If the list lacks the stream, the lease is kept until the list has been read once more. If the list still lacks
        it then, the lease is given back.
        """
        stream = lease.stream
        if stream in self.consumed.streams:
            return Standing.CONSUMED
        if stream is None or self.follower.streams.is_former(stream):
            return Standing.FORMER
        if self.follower.reads > self._unlisted.setdefault(stream, self.follower.reads):
            log.warning(
                "the lease is given back: neither the list of streams nor mld.streams here has its stream",
                extra=about("stream_not_listed", lease.key),
            )
            return Standing.FORMER
        self.follower.wake()
        return Standing.UNKNOWN

    # --- the list -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read the list again and again, and act on it, until cancelled. If that fails, the list stays as it was."""
        while True:
            await self.follower.pause()
            try:
                leads = await self.needs.fleet.leader.is_leader()
                # The rows are read only if the list may lack streams that have leases, or is to be written here.
                needs_table = leads or self._unlisted or not self.follower.is_complete
                in_table = (await self.recent.by_stream()).streams if needs_table else frozenset()
                streams = await self.follower.step(in_table, leads=leads)
                await self._apply(streams)
                if leads:
                    self._count(streams)
                if leads and self.needs.settings.shards.former_streams is FormerStreams.DELETE:
                    await self._delete_former()
            except Exception as error:
                failure = survived(error, "following the list of streams")
                log.warning("the list of streams is as before: %s", failure, extra={"action": "stream_list_failed"})
            self.on_change()  # leases of unknown streams wait for this

    def _count(self, streams: TrackedList) -> None:
        """Count the present and the former streams of the list for the metrics, as KCL's leader does."""
        counts = self.needs.metrics.worker.operations.stream_tracking
        active = len(streams.current())
        counts.active.note(active)
        counts.pending_deletion.note(len(streams.streams) - active)

    async def _apply(self, streams: TrackedList) -> None:
        """Begin and end the consumption of streams, so that it agrees with the list. A former stream is consumed only
        if former streams are kept, and no stream of the same name was created since.
        """
        self.needs.metrics.stream_labels = labels_of(streams)
        keeps = self.needs.settings.shards.former_streams is FormerStreams.KEEP
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
        # A stream that is wanted again is no longer missing from the list.
        self._unlisted = {stream: reads for stream, reads in self._unlisted.items() if stream not in wanted}
        if self.consumed.streams == wanted.keys():
            return
        for stream in sorted(wanted.keys() - self.consumed.streams):
            log.info("stream %s is consumed", stream, extra={"action": "stream_tracked", "stream": stream})
        for left in self._in_order():
            if left not in wanted:
                log.info("stream %s is not consumed any more", left, extra={"action": "stream_left", "stream": left})
                self.needs.metrics.worker.table.holes_of.pop(left, None)
        self.consumed.streams = frozenset(wanted)
        self.on_change()

    async def _delete_former(self) -> None:
        """Delete the leases of streams that have been former ones for the configured time, unless a worker still renews
        them.

        This worker must itself have seen the stream as a former one for all that time, because its wall clock may be
        wrong.
        """
        now, wait_s = self.needs.clock.monotonic(), self.needs.settings.shards.former_streams_wait_s
        due = frozenset(
            stream
            for stream in due_for_deletion(self.follower.streams, wait_s, self.needs.clock.wall())
            if self.follower.seen_former_s(stream) >= wait_s
        )
        if not due:
            return
        view = await self.recent.view()
        leases = view.scan.leases
        doomed = [lease for lease in leases if lease.stream in due][:DELETIONS_PER_PASS_MAX]
        self._doomed.saw_all({lease.key: lease.counter for lease in doomed}, view.ended_at)
        for lease in doomed:
            if self.needs.clock.monotonic() - now > LIST_VALID_S:
                return  # by now the list may name the stream again
            # A counter that has not changed for a lease duration shows that nobody renews the lease.
            is_still = self._doomed.is_still(lease.key, view.began_at, self.needs.settings.leases.duration_s)
            if (lease.actual_owner is None or is_still) and await self.table.apply(writes.delete_unchanged(lease)):
                log.info("lease of a former stream deleted", extra=about("lease_deleted", lease.key))
        if gone := due - {lease.stream for lease in leases}:
            await self.follower.forget(gone)
            self.needs.metrics.worker.operations.stream_tracking.deleted.note(len(gone))

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def _fill_empty(self, scan: TableScan) -> bool:
        """Create the leases of streams that have none; return True if there may now be rows that `scan` lacks.

        Several streams are synced at the same time. Each sync takes at least `SYNC_S_MIN`, because an account may call
        ListShards only so many times a second.
        """
        rows = await sorted_by_stream(scan)
        empty = [stream for stream in self._in_order() if rows.of_stream(stream).is_empty]
        at_once = asyncio.Semaphore(SYNCS_AT_ONCE_MAX)

        async def fill(stream: str | None) -> bool:
            """Create the leases of one stream; return True if there may be some now."""
            async with at_once:
                pause = asyncio.create_task(self.needs.clock.sleep(SYNC_S_MIN))
                made = await self._fill(stream, TableScan())  # an empty scan, because the stream has no rows
                await pause
                return made

        made = await asyncio.gather(*(fill(stream) for stream in empty))
        if any(made):
            self.needs.fleet.wake_leases()
        return any(made)

    async def _audit(self) -> None:
        """Audit all streams until cancelled, each in a task of its own, so that a stream that cannot be listed does not
        delay the others.
        """
        at_once = asyncio.Semaphore(SYNCS_AT_ONCE_MAX)

        async def audit(stream: str | None, leads: bool) -> None:
            """Audit one stream once."""
            try:
                with working_for(stream):
                    async with at_once:
                        await self._tracked[stream].auditor.step(leads)
            finally:
                del self._auditing[stream]

        try:
            while True:
                leads = await self.needs.fleet.leader.is_leader()
                for stream in self._in_order():
                    if stream not in self._auditing and self._tracked[stream].auditor.is_due(leads):
                        self._auditing[stream] = asyncio.create_task(audit(stream, leads))
                await self.needs.clock.sleep(LEADERSHIP_POLL_S)
        finally:
            for task in tuple(self._auditing.values()):
                task.cancel()

    async def _clean_up(self) -> None:
        """Run the cleanup of each stream that has leases to delete, one stream after the other, until cancelled."""
        while True:
            for stream in self._in_order():
                if self._tracked[stream].cleanup.queued:
                    with working_for(stream):
                        await self._tracked[stream].cleanup.tick()
            await self.needs.clock.sleep(TICK_S)


def _is_remade(former: ListedStream, streams: Iterable[ListedStream]) -> bool:
    """Return whether the list has a later incarnation of the former stream `former`, under the same name. Then the
    former one cannot be read any more.
    """
    return any(
        (one.id.account, one.id.name) == (former.id.account, former.id.name)
        and (one.former_since_s is None or one.id.epoch > former.id.epoch)
        and one.stream != former.stream
        for one in streams
    )
