"""`FollowedStreams`: the sources of a worker whose table has several streams, those of a list.

Rules: shards#several-streams, shards#list-of-streams, shards#former-streams. One loop follows the list: it reads the
settings again, lets the leader write the row, and makes true in this worker what the row says. A stream that cannot be
looked up, listed or synced concerns that stream alone.

`ListFollower`: keeps this worker's copy of the list of streams, and writes the row when it leads. What fails leaves the
list as it was. `ListTable` reads the row of `stream_list` in the lease table, and writes it under a condition, without
retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mld.aws.service import Service, TableCalls, raises_only
from mld.core.clock import Clock, wait_for_event
from mld.core.error_boundary import contained, survived
from mld.core.errors import StartupError, StreamError, StreamNotFoundError, TableUnavailableError
from mld.core.log_fields import about
from mld.core.positions import StreamId, working_for
from mld.core.streams import StreamSummary
from mld.leases import rows, writes
from mld.leases.lease import Lease
from mld.leases.rows import Row
from mld.leases.table import TableScan
from mld.properties.values import FormerStreams
from mld.shards.auditor import LEADERSHIP_POLL_S
from mld.shards.cleanup import TICK_S
from mld.tracking import stream_list
from mld.tracking.stream_list import (
    KEY,
    ListedStream,
    TrackedList,
    account_and_name,
    due_for_deletion,
    identify,
    labels_of,
    next_list,
    without,
)
from mld.tracking.stream_set import Loop, Standing, TrackedStreams, sorted_by_stream

log = logging.getLogger(__name__)

PERIOD_S = 20.0  # a new stream is to be read a minute after its line was written: this twice, an assignment, a start
FIRST_PERIOD_S = 2.0  # while there is no list: a leader of a fleet that has just started is about to write it
ASKED_IN_TURN = 20  # streams a pass, to notice those that were deleted and made again
ASKED_PER_SECOND = 15  # DescribeStreamSummary is allowed 20 times a second in an account

_ByName = Mapping[tuple[str, str], ListedStream]

SYNCS_AT_ONCE_MAX = 8
SYNC_S_MIN = 0.1  # with the number above 80 syncs a second: ListShards is allowed 100 times a second in an account
SEEN_FORMER_S = 3600.0  # before leases are deleted, however wrong the wall clock of a leader is
LIST_VALID_S = 10.0  # leases of former streams are deleted by a list that was read just now
DELETIONS_PER_PASS_MAX = 1_000


@raises_only(TableUnavailableError)
class ListTable:
    """The list of streams in the lease table `table_name`."""

    def __init__(self, service: Service, table_name: str) -> None:
        self._calls = TableCalls(service, table_name)

    async def read(self) -> TrackedList:
        """Return the list as it is now; version 0 if there is none yet, or a damaged one. Raises TableError."""
        return stream_list.parse(await self._calls.get({rows.KEY: {"S": stream_list.KEY}}) or {})

    async def write(self, streams: TrackedList) -> TrackedList | None:
        """Put the list, if the row still is as it was read; None if it is not.

        Raises TableError, also for a list that is too long for a row.
        """
        try:
            values = stream_list.values_of(streams)
        except ValueError as error:
            raise TableUnavailableError(str(error)) from error
        params = {"Item": {rows.KEY: {"S": stream_list.KEY}, **values}, **stream_list.unchanged(streams.seen)}
        return replace(streams, seen=values) if await self._calls.accepts("PutItem", params) else None


@dataclass(frozen=True, slots=True)
class WantedStream:
    """A stream of the settings, by its label. `arn` None: in the region and account of the application."""

    label: str
    arn: str | None = None
    epoch: int | None = None


@dataclass(eq=False)
class ListFollower:
    """`read_wanted` reads the settings, again each time, and keeps what it had if they are damaged. `describe` asks
    the service about a stream, and raises `errors.StreamError`."""

    table: ListTable
    clock: Clock
    read_wanted: Callable[[], Awaitable[Sequence[WantedStream]]]
    describe: Callable[[WantedStream], Awaitable[StreamSummary]]

    def __post_init__(self) -> None:
        self._woken = asyncio.Event()
        self._turn = 0
        self._complaints: dict[str, str] = {}
        self._former_seen: dict[str, float] = {}
        self._damaged: Row = {}
        self._published: tuple[ListedStream, ...] = ()
        """What the row had when it was there last."""
        self._own: tuple[ListedStream, ...] = ()
        """Streams of our own settings that have leases and that nobody publishes."""
        self._own_for: tuple[frozenset[str], Sequence[WantedStream]] = (frozenset(), ())
        """The unpublished streams and the settings that `_own` was made of."""
        self.streams = TrackedList()
        """What holds: the row, and what it lacks of ours."""
        self.reads = 0
        """How often the list was read."""

    @property
    def sentence(self) -> str:
        """Why streams of the settings are not in the list; empty if all are."""
        return "; ".join(f"stream {label}: {why}" for label, why in sorted(self._complaints.items()))

    @property
    def is_complete(self) -> bool:
        """Whether a list was published that has all that holds here."""
        return bool(self.streams.version) and not self._own

    def wake(self) -> None:
        """Read the list now."""
        self._woken.set()

    async def pause(self) -> None:
        """Wait until it is time to read it again."""
        await wait_for_event(self._woken, PERIOD_S if self.streams.version or self.streams.streams else FIRST_PERIOD_S)
        self._woken.clear()

    async def step(self, in_table: Collection[StreamId], *, leads: bool, may_begin: bool = False) -> TrackedList:
        """Read the list, and write it first if this worker `leads`, or `may_begin` one where there is none.

        Raises `errors.TableError`.
        """
        found = await self.table.read()
        if not found.version:  # deleted or damaged, unless there never was one: a leader puts back what it remembers
            self._note_damage(found)
            found = replace(found, streams=self._published)
        self.streams = found
        if leads or (may_begin and not found.version):
            await self._write(await self.read_wanted(), in_table)
        self._published = self.streams.streams
        if not leads:
            self._own = await self._unpublished(in_table)
            self.streams = replace(self.streams, streams=(*self._published, *self._own))
        self._note_former()
        self.reads += 1
        return self.streams

    def seen_former_s(self, stream: str) -> float:
        """Return for how long this worker has seen a stream as a former one, whatever wall clocks say."""
        now = self.clock.monotonic()
        return now - self._former_seen.get(stream, now)

    def _note_damage(self, found: TrackedList) -> None:
        """Say once of each damaged row that it counts as none."""
        if found.seen and found.seen != self._damaged:
            log.warning(
                "row %s is no list of streams and counts as none; a leader of mld writes it anew",
                KEY,
                extra={"action": "stream_list_damaged"},
            )
        self._damaged = found.seen

    def _note_former(self) -> None:
        now = self.clock.monotonic()
        former = (one.stream for one in self.streams.streams if one.former_since_s is not None)
        self._former_seen = {stream: self._former_seen.get(stream, now) for stream in former}

    async def forget(self, gone: Collection[str]) -> None:
        """Take former streams off the list. Raises `errors.TableError`."""
        self.streams = await self.table.write(without(self.streams, gone)) or self.streams

    async def _unpublished(self, in_table: Collection[StreamId]) -> tuple[ListedStream, ...]:
        """Return streams with leases that the list does not have at all, as our own settings name them.

        A leader of ours lists every stream before it makes its leases, and lists as former what only the table has. So
        nobody publishes these: a Java leader made their leases, and will assign some to us.
        """
        unlisted = frozenset(map(str, in_table)) - {one.stream for one in self._published}
        if not unlisted:
            return ()
        wanted = await self.read_wanted()
        if (unlisted, wanted) == self._own_for:
            return self._own
        self._own_for = unlisted, wanted
        answers = await self._ask(wanted)
        by_name = _by_name(in_table)
        own = []
        for one in wanted:
            found = _identified(one, answers[one.label], None, {}, by_name)
            if isinstance(found, str):
                self._complain(one.label, found)
                self._own_for = frozenset(), ()  # it is asked about again
            elif found.stream in unlisted:
                own.append(found)
        return tuple(own)

    async def _write(self, wanted: Sequence[WantedStream], in_table: Collection[StreamId]) -> None:
        listed = await self._listed(wanted, in_table)
        after = next_list(self.streams, listed, in_table, self.clock.wall())
        if after is None and not self.streams.version:
            after = self.streams.followed_by(self.streams.streams)
        if after is None or not after.streams:
            return
        if (written := await self.table.write(after)) is not None:
            self.streams = written
            log.info("list of streams written", extra={"action": "stream_list_written", "streams": len(listed)})
        else:
            self.streams = await self.table.read()

    async def _listed(self, wanted: Sequence[WantedStream], in_table: Collection[StreamId]) -> list[ListedStream]:
        """Return the streams of the settings as the list is to have them; one that cannot be told stays as it was
        listed.
        """
        before = self.streams.current()
        answers = await self._ask(self._to_ask(wanted, before))
        newest, there = self.streams.newest(), _by_name(in_table)  # thousands: nothing is looked through for each
        listed: dict[str, ListedStream] = {}
        for one in wanted:
            known = before.get(one.label)
            found: ListedStream | str | None = known
            if one.label in answers:
                found = _identified(one, answers[one.label], known, newest, there)
            if isinstance(found, ListedStream) and (twin := listed.get(found.stream)) is not None:
                found = f"it is the same stream as {twin.label}; remove one of the two"
            if isinstance(found, str):
                self._complain(one.label, found)
                found = known
            elif one.label in answers:
                self._complaints.pop(one.label, None)
            if found is not None and found.stream not in listed:
                listed[found.stream] = found
        labels = {one.label for one in wanted}
        self._complaints = {label: why for label, why in self._complaints.items() if label in labels}
        return list(listed.values())

    def _to_ask(self, wanted: Sequence[WantedStream], before: Mapping[str, ListedStream]) -> list[WantedStream]:
        """Return those to ask the service about now: what is new or changed, and of the others some in turn."""
        begin = self._turn if self._turn < len(wanted) else 0
        self._turn = begin + ASKED_IN_TURN
        return [
            one
            for number, one in enumerate(wanted)
            if begin <= number < self._turn
            or (known := before.get(one.label)) is None
            or (one.arn is not None and one.arn != known.arn)
        ]

    async def _ask(self, asked: Sequence[WantedStream]) -> dict[str, StreamSummary | StreamError]:
        """Return what the service says, by label."""
        answers: dict[str, StreamSummary | StreamError] = {}
        for number, one in enumerate(asked, 1):
            if number % ASKED_PER_SECOND == 0:
                await self.clock.sleep(1.0)
            try:
                answers[one.label] = await contained(self.describe(one), "describing a stream", one.label)
            except StreamError as error:
                answers[one.label] = error
        return answers

    def _complain(self, label: str, why: str) -> None:
        """Say it once, and again when it has changed."""
        if self._complaints.get(label) != why:
            log.error("stream %s: %s", label, why, extra={"action": "stream_not_listed"})
        self._complaints[label] = why


def _by_name(in_table: Iterable[StreamId]) -> Mapping[tuple[str, str], Sequence[StreamId]]:
    found: dict[tuple[str, str], list[StreamId]] = {}
    for one in in_table:
        found.setdefault((one.account, one.name), []).append(one)
    return found


def _identified(
    one: WantedStream,
    answer: StreamSummary | StreamError,
    known: ListedStream | None,
    newest: _ByName,
    there: Mapping[tuple[str, str], Sequence[StreamId]],
) -> ListedStream | str:
    """Return the stream as it is to be listed, or why it is not, or not yet."""
    if isinstance(answer, StreamError):
        return str(answer)
    name = account_and_name(answer.arn)
    if known is None or (known.id.account, known.id.name) != name:
        known = newest.get(name)
    found = identify(
        one.label, answer.arn, answer.created_ms, epoch=one.epoch, listed=known, in_table=there.get(name, ())
    )
    if isinstance(found, str):
        return found
    return ListedStream(str(found), one.label, answer.arn, answer.created_ms)


@dataclass(eq=False)
class FollowedStreams(TrackedStreams):
    """See `TrackedStreams`. `on_change` is told when other streams are consumed than before."""

    follower: ListFollower
    on_change: Callable[[], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._auditing: dict[str | None, asyncio.Task[None]] = {}
        self._still: dict[str, tuple[int, float]] = {}  # counters of leases to be deleted, and since when
        self._unknown: dict[str, int] = {}  # streams of held leases that the list lacked when it was read that often

    # --- for the worker -----------------------------------------------------------------------------------------------

    def check(self, scan: TableScan) -> None:
        other = next((lease for lease in scan.leases if lease.stream is None), None)
        if other is not None:
            raise StartupError(
                f"the lease table holds one stream (lease {other.key}), but the file names several: set streamName "
                "instead of mld.streams, or another tableName, into which mld restore brings its leases"
            )

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        """See `TrackedStreams.make_leases`. Raises StreamNotFoundError if none of the streams can be looked up."""
        may_create = await leads()
        is_leader = await self.needs.fleet.leader.is_leader()
        in_table = (await sorted_by_stream(scan)).streams
        streams = await self.follower.step(in_table, leads=is_leader, may_begin=may_create)
        await self._apply(streams)
        if not streams.version and not streams.streams and not may_create:
            return False  # the leader is about to write the first list; this worker hears of it later
        if not self.consumed.streams:
            raise StreamNotFoundError(self.follower.sentence or "the list of streams is empty; see mld.streams")
        if not may_create:
            return scan.is_empty
        return await self._fill_empty(scan)

    def loops(self) -> Sequence[Loop]:
        return (self._follow, "following the list of streams"), *super().loops()

    def standing(self, lease: Lease) -> Standing:
        stream = lease.stream
        if stream in self.consumed.streams:
            return Standing.CONSUMED
        if stream is None or self.follower.streams.is_former(stream):
            return Standing.FORMER
        if self.follower.reads > self._unknown.setdefault(stream, self.follower.reads):
            log.warning(
                "the lease is given back: neither the list of streams nor mld.streams here has its stream",
                extra=about("stream_not_listed", lease.key),
            )
            return Standing.FORMER
        self.follower.wake()
        return Standing.UNKNOWN

    # --- the list -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await self.follower.pause()
            try:
                leads = await self.needs.fleet.leader.is_leader()
                is_asked = leads or self._unknown or not self.follower.is_complete
                in_table = (await self._scans.rows()).streams if is_asked else frozenset()
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
        """Count as KCL's leader does."""
        counts = self.needs.metrics.worker.operations.stream_tracking
        active = len(streams.current())
        counts.active.note(active)
        counts.pending_deletion.note(len(streams.streams) - active)

    async def _apply(self, streams: TrackedList) -> None:
        """Consume what the list says."""
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
        self._unknown = {stream: reads for stream, reads in self._unknown.items() if stream not in wanted}
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
        """Delete the leases of former streams whose time has come, unless a worker still renews them."""
        now, wait_s = self.needs.clock.monotonic(), self.needs.settings.shards.former_streams_wait_s
        due = frozenset(
            stream
            for stream in due_for_deletion(self.follower.streams, wait_s, self.needs.clock.wall())
            if self.follower.seen_former_s(stream) >= min(wait_s, SEEN_FORMER_S)
        )
        if not due:
            return
        scan = await self.table.scan()
        doomed = [lease for lease in scan.leases if lease.stream in due][:DELETIONS_PER_PASS_MAX]
        before, self._still = self._still, {}
        for lease in doomed:
            counter, since = before.get(lease.key, (lease.counter, now))
            self._still[lease.key] = (lease.counter, since if counter == lease.counter else now)
        for lease in doomed:
            if self.needs.clock.monotonic() - now > LIST_VALID_S:
                return
            is_still = now - self._still[lease.key][1] > self.needs.settings.leases.duration_s
            if (lease.actual_owner is None or is_still) and await self.table.apply(writes.delete_unchanged(lease)):
                log.info("lease of a former stream deleted", extra=about("lease_deleted", lease.key))
        if gone := due - {lease.stream for lease in scan.leases}:
            await self.follower.forget(gone)
            self.needs.metrics.worker.operations.stream_tracking.deleted.note(len(gone))

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def _fill_empty(self, scan: TableScan) -> bool:
        """Make the leases of streams that have none; True if there may be rows that `scan` lacks."""
        rows = await sorted_by_stream(scan)
        empty = [stream for stream in self._in_order() if rows.of_stream(stream).is_empty]
        at_once = asyncio.Semaphore(SYNCS_AT_ONCE_MAX)

        async def fill(stream: str | None) -> bool:
            async with at_once:
                pause = asyncio.create_task(self.needs.clock.sleep(SYNC_S_MIN))
                made = await self._fill(stream, TableScan())
                await pause
                return made

        made = await asyncio.gather(*(fill(stream) for stream in empty))
        if any(made):
            self.needs.fleet.wake_leases()
        return any(made)

    async def _audit(self) -> None:
        """Audit each stream by itself, so that one whose shards cannot be listed holds up none of the others."""
        at_once = asyncio.Semaphore(SYNCS_AT_ONCE_MAX)

        async def audit(stream: str | None, leads: bool) -> None:
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
        while True:
            for stream in self._in_order():
                if self._tracked[stream].cleanup.queued:
                    with working_for(stream):
                        await self._tracked[stream].cleanup.tick()
            await self.needs.clock.sleep(TICK_S)


def _is_remade(former: ListedStream, streams: Iterable[ListedStream]) -> bool:
    """Return whether a later incarnation of this stream is listed: then there is nothing left to read under this
    one.
    """
    return any(
        (one.id.account, one.id.name) == (former.id.account, former.id.name)
        and (one.former_since_s is None or one.id.epoch > former.id.epoch)
        and one.stream != former.stream
        for one in streams
    )
