"""`TrackedStreams`: the sources of a worker, and what it does for their shards. One stream is a set of one.

Rules: shards#bootstrap-decision, shards#several-streams. Streams go by their identifiers; None is the stream of a table
that has one, whose rows name none. As it stands here the set never changes; `followed_streams` follows a list.

`TrackedStream`: everything a worker does for one stream besides holding leases. It joins the rooms that may not know
each other: it answers the consumers' `ShardCare` questions with the decisions of `mld.shards`, and tells the fleet and
waiting consumers what changed. Rules: shards#preparing-the-end, shards#parents-before-children,
shards#missing-shards, shards#cleanup-schedule.

A shard may not start before every parent that still has a row is at SHARD_END. A parent without a row never blocks: it
was cleaned up, or nobody wants it. Reads are strongly consistent, so that a child cannot slip past a parent row that
was created a moment ago.

The rows of one stream, in a table that has several, as the room `shards` sees them (`StreamRows`); and the table as
the fleet sees it, without the leases of streams that nobody is to consume (`VisibleTable`).

In `StreamRows` a lease's `key` is the shard's own name, and no row of another stream
exists. A scan of the whole table serves all streams that ask at about the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from mld.consumer.ports import EndVerdict, MissingVerdict, ShardSource, Signal
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import StartupError, StreamError, StreamNotFoundError, StreamThrottledError, StreamUnavailableError
from mld.core.log_fields import about
from mld.core.positions import SHARD_END, StreamId, key_of, parse_stream_id, stream_of_key, working_for
from mld.core.streams import ChildShard, Shard, StreamKind, Streams
from mld.fleet.fleet import Fleet
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import AnswerT, LeaseTable, LeaseWrite, TableScan
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.shards.auditor import Auditor
from mld.shards.cleanup import LeaseCleanup
from mld.shards.ending import Blocked, Invalid, Prepared, ShardEnding
from mld.shards.identity import Park, ShardIsListed, ShardIsOver, Survey, oddity
from mld.shards.sync import ShardDetector, ShardRows, ShardsListed, ShardSync, StreamLeases, SyncResult, SyncStatus
from mld.tracking.stream_list import ListedStream

log = logging.getLogger(__name__)

SCAN_VALID_S = 5.0
"""How old a scan may be. Older than a listing of shards is what the decisions need; rows are created conditionally."""
ROWS_PER_TURN = 500
ANCESTORS_MAX = 1_000
"""So many shards that it follows a child is told, the nearest first: an environment has no room for any number."""

SURVEY_VALID_S = 5.0  # a stream that vanishes parks all its shards at once; one scan and one listing do for all of them

Loop = tuple[Callable[[], Awaitable[None]], str]
"""What runs until it is cancelled, and what it does, for the log."""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The leases of a table by stream; None is the stream of rows that name none."""

    of: Mapping[str | None, TableScan] = field(default_factory=dict)

    @property
    def streams(self) -> frozenset[StreamId]:
        """The identifiers that rows have."""
        found = (parse_stream_id(stream) for stream in self.of if stream is not None)
        return frozenset(stream for stream in found if stream is not None)

    def of_stream(self, stream: str | None) -> TableScan:
        """Return the rows of one stream, with the shards' own names as keys."""
        return self.of.get(stream, TableScan())


async def sorted_by_stream(scan: TableScan) -> SortedRows:
    """Return the leases of `scan` by stream, in the form of `StreamRows`; with a turn of the loop every few hundred."""
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


def within_stream(lease: Lease) -> Lease:
    """Return the lease as its stream's rooms know it."""
    return lease if lease.stream is None else replace(lease, key=lease.shard_id, stream=None)


class SharedScan:
    """One scan of the table for all who need one within a few seconds."""

    def __init__(self, table: LeaseTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rows: SortedRows | None = None
        self._scanned_at = 0.0

    async def rows(self) -> SortedRows:
        """Return rows that are at most `SCAN_VALID_S` old. Raises `errors.TableError`."""
        async with self._lock:
            if self._rows is None or self._clock.monotonic() - self._scanned_at > SCAN_VALID_S:
                scanned_at = self._clock.monotonic()
                self._rows = await sorted_by_stream(await self._table.scan())
                self._scanned_at = scanned_at
            return self._rows


@dataclass(eq=False)
class StreamRows:
    """Implements `shards.sync.ShardRows` for the stream with this identifier."""

    table: LeaseTable
    stream: str
    scans: SharedScan

    async def scan(self) -> TableScan:
        return (await self.scans.rows()).of_stream(self.stream)

    async def get(self, key: str) -> Lease | None:
        lease = await self.table.get(key_of(self.stream, key))
        return None if lease is None else within_stream(lease)

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        return await self.table.apply(writes.of_stream(write, self.stream))


class VisibleTable:
    """A `LeaseTable` whose scans have only leases of the streams that this worker consumes now, by their identifiers;
    None stands for the one stream of a table of one. Rows can be read and written by key as ever.
    """

    def __init__(self, table: LeaseTable, *streams: str | None) -> None:
        self.stored = table
        self.streams: frozenset[str | None] = frozenset(streams)
        self.ensure, self.get, self.get_many, self.apply = table.ensure, table.get, table.get_many, table.apply

    async def scan(self, part: tuple[int, int] | None = None, *, consistent: bool = False) -> TableScan:
        return self.visible(await self.stored.scan(part, consistent=consistent))

    def visible(self, scan: TableScan) -> TableScan:
        """Return the scan without the leases of other streams."""
        return replace(scan, leases=tuple(lease for lease in scan.leases if lease.stream in self.streams))


def blocking_parent(lease: Lease, rows: Mapping[str, Lease | None]) -> str | None:
    """Return the first parent of `lease` that still has to end, by name; None if the shard may start.

    `rows` holds what was read of the parents; None or no entry means that there is no row. SHARD_END is tested by
    equality as in Java, where a row at SHARD_END with a sub-sequence number still blocks.
    """
    for parent in sorted(lease.parents):
        row = rows.get(parent)
        if row is not None and row.checkpoint != SHARD_END:
            return parent
    return None


def ancestors_of(lease: Lease, listed: Mapping[str, Shard]) -> tuple[str, ...]:
    """Return what the shard of `lease` follows: the parents that its row names, and those of the parents as listed."""
    found: dict[str, None] = {}
    left = deque(sorted(lease.parents))
    while left and len(found) < ANCESTORS_MAX:
        shard_id = left.popleft()
        if shard_id not in found:
            found[shard_id] = None
            left += sorted(listed[shard_id].parents) if shard_id in listed else ()
    return tuple(found)


async def parents_complete(table: ShardRows, lease: Lease) -> str | None:
    """Read the parents' rows; returns the parent that blocks `lease`, or None. Raises `errors.TableError`."""
    for parent in sorted(lease.parents):
        blocked_by = blocking_parent(lease, {parent: await table.get(parent)})
        if blocked_by is not None:
            return blocked_by
    return None


@dataclass(frozen=True, slots=True)
class TrackingNeeds:
    """What all streams of a worker share."""

    fleet: Fleet
    clock: Clock
    rng: Random
    settings: Settings
    metrics: Metrics
    parents_changed: Signal


def require_rows(result: SyncResult, scan: TableScan) -> bool:
    """Return whether a sync at the start may have made rows which `scan` lacks.

    Raises StartupError for a foreign table, `errors.StreamError` for a stream that is not there, or not yet.
    """
    match result.status:
        case SyncStatus.DONE:
            # Nothing created for an empty table means that somebody else was quicker, not that there is nothing.
            return bool(result.created) or not scan.leases
        case SyncStatus.FOREIGN_TABLE:
            raise StartupError(result.sentence)
        case SyncStatus.STREAM_MISSING | SyncStatus.NO_SHARDS:
            raise StreamNotFoundError(result.sentence)
        case SyncStatus.STREAM_NOT_READY | SyncStatus.INCONSISTENT_LISTING:
            raise StreamUnavailableError(result.sentence)


class Standing(Enum):
    """What becomes of a lease that this worker holds."""

    CONSUMED = "consumed"
    FORMER = "former"
    """Nobody is to consume it: it is given back."""
    UNKNOWN = "unknown"
    """It is kept; `on_change` tells when more is known."""


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """What records and shards of a stream come from. `name` is how people know it."""

    name: str
    streams: Streams
    source: ShardSource
    kind: StreamKind = StreamKind.KINESIS


@dataclass(eq=False)
class TrackedStream:
    """The parts of one stream. In `leases`, and in the leases that this is asked about, keys are the shards' own names.
    `on_sync_due` is told of a shard that lacks its row. Implements `consumer.ports.ShardCare`.
    """

    needs: TrackingNeeds
    opened: OpenedStream
    leases: StreamLeases
    on_sync_due: Callable[[str | None], None]

    def __post_init__(self) -> None:
        leases, settings, fleet = self.leases, self.needs.settings.shards, self.needs.fleet
        ignores = settings.ignores_unexpected_children
        self.sync = ShardSync(leases, initial=self.opened.source.initial, ignore_unexpected_children=ignores)
        self.ending = ShardEnding(leases, self.sync)
        self.cleanup = LeaseCleanup(
            leases, enabled=settings.cleans_up, on_missing_child=lambda _: self.on_sync_due(leases.id)
        )
        self.auditor = Auditor(
            leases,
            self.sync,
            fleet.leader.is_leader,
            on_created=fleet.wake_leases,
            on_abandoned=self.cleanup.enqueue,
        )
        self._waiting_for: dict[str, str] = {}  # so that each wait is logged once, not at every look
        self._parked_because: dict[str, str] = {}
        self._survey_lock = asyncio.Lock()
        self._surveyed: Survey | None = None
        self._surveyed_at = 0.0

    async def parents_complete(self, lease: Lease) -> bool:
        blocking = await parents_complete(self.leases.table, lease)
        if blocking is None:
            self._waiting_for.pop(lease.key, None)
            return True
        if self._waiting_for.get(lease.key) != blocking:
            self._waiting_for[lease.key] = blocking
            log.info("waiting for the parent shard", extra=about("waiting_on_parent", lease.key, parent=blocking))
        return False

    async def oddity(self, lease: Lease) -> str | None:
        """Return why the row cannot be of its shard, by what was listed; an unknown shard is listed now if its row has
        a position, or if it follows others (`ancestors`).
        """
        shards = self.leases.detector
        if lease.key not in shards.known and (lease.parents or not lease.checkpoint.is_sentinel):
            await self._survey()
        shard = shards.known.get(lease.key)
        odd = None if shard is None else oddity(shard, lease)
        if odd is not None:
            self._note_parked(lease, odd)
        return odd

    def ancestors(self, lease: Lease) -> tuple[str, ...]:
        return ancestors_of(lease, self.leases.detector.known)

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        match await self.ending.prepare(lease, children):
            case Prepared(created):
                if created:
                    self.needs.fleet.adopt_children(tuple(key_of(self.leases.id, shard_id) for shard_id in created))
                return EndVerdict.READY
            case Blocked(reason):
                log.warning("%s", reason, extra=about("shard_end_blocked", lease.key))
                return EndVerdict.WAIT
            case Invalid(reason):
                log.warning("%s; it is read again", reason, extra=about("shard_end_doubted", lease.key))
                return EndVerdict.READ_AGAIN

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        match (await self._survey()).judge(lease):
            case ShardIsOver(evidence):
                log.info("the shard is past its retention: %s", evidence, extra=about("shard_expired", lease.key))
                return MissingVerdict.OVER
            case ShardIsListed():
                self._parked_because.pop(lease.key, None)
                return MissingVerdict.LISTED
            case Park(reason):
                self._note_parked(lease, reason)
                return MissingVerdict.UNKNOWN

    def _note_parked(self, lease: Lease, reason: str) -> None:
        if self._parked_because.get(lease.key) != reason:
            self._parked_because[lease.key] = reason
            log.error("%s", reason, extra=about("shard_parked", lease.key))

    async def _survey(self) -> Survey:
        """Return what rows and shards tell, shared by all who ask at about the same time."""
        async with self._survey_lock:
            now = self.needs.clock.monotonic()
            if self._surveyed is None or now - self._surveyed_at > SURVEY_VALID_S:
                _, _, self._surveyed = await self.leases.survey()
                self._surveyed_at = now
            return self._surveyed

    def ended(self, lease: Lease) -> None:
        self._waiting_for.pop(lease.key, None)
        self._parked_because.pop(lease.key, None)
        self.needs.parents_changed.notify()
        self.cleanup.enqueue(lease)

    async def closed_shards(self) -> frozenset[str]:
        """Return keys of the shards that take no more records. Raises StreamError."""
        listing = await self.leases.detector.list_all()
        if not isinstance(listing, ShardsListed):
            raise StreamUnavailableError(listing.reason)
        return frozenset(key_of(self.leases.id, shard.shard_id) for shard in listing.shards if not shard.is_open)


OpenStream = Callable[[ListedStream | None], Awaitable[OpenedStream]]
"""Gives the ports of a stream of the list; None: of the one that the settings name."""


@dataclass(eq=False)
class TrackedStreams:
    """Implements `consumer.ports.ShardCare`. What asks AWS raises `errors.TableError` and `errors.StreamError`."""

    needs: TrackingNeeds
    consumed: VisibleTable
    open_stream: OpenStream

    def __post_init__(self) -> None:
        self.table = self.consumed.stored
        self._scans = SharedScan(self.table, self.needs.clock)
        self._tracked: dict[str | None, TrackedStream] = {}  # former ones, too: their consumers may still be ending
        self._sync_due: set[str | None] = set()
        self._has_sync_due = asyncio.Event()
        self._is_syncing = False

    # --- for the worker -----------------------------------------------------------------------------------------------

    @property
    def is_in_sync(self) -> bool:
        """Whether no shard is known to lack its row."""
        return not (self._sync_due or self._is_syncing)

    def check(self, scan: TableScan) -> None:
        """Raise StartupError if the table is of the other form: of one stream, or of several."""
        other = next((lease for lease in scan.leases if lease.stream is not None), None)
        if other is not None:
            raise StartupError(
                f"the lease table holds several streams (lease {other.key}), but the file names one: set mld.streams, "
                "or another tableName, into which mld restore brings the leases of this one stream"
            )

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        """Make the table true to the streams at the start; True if there may be rows that `scan` lacks.

        `leads`: whether this worker may fill an empty table. Raises StartupError for a foreign table.
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
        """Return whether to sync now (shards#bootstrap-decision). Nobody waits for rows: others find them once there
        are some.

        An empty table is the leader's business in 3.x, and its auditor's if that one dies; in 2.x nobody can prove to
        lead before leases have owners. Where leases exist every worker compares them with the stream, so that none
        works on a foreign table.
        """
        if not scan.is_empty:
            return not self.needs.settings.shards.skips_sync_if_leases_exist
        return await leads()

    def _do_without_sync(self, scan: TableScan, error: StreamError) -> bool:
        """Do without a sync: the leases there are enough to work with; what is missing can come later. Without any
        there is no start.
        """
        if not scan.leases:
            raise error
        log.warning("shard sync failed, it is tried again: %s", error, extra={"action": "sync_failed"})
        self._note_sync_due(None)
        return False

    def loops(self) -> Sequence[Loop]:
        """Return what runs while the worker does, once there are leases."""
        return (self._audit, "auditing"), (self._clean_up, "cleaning up"), (self._sync_when_due, "syncing shards")

    async def _audit(self) -> None:
        await self._tracked[None].auditor.run()

    async def _clean_up(self) -> None:
        await self._tracked[None].cleanup.run()

    def standing(self, lease: Lease) -> Standing:
        return Standing.CONSUMED if lease.stream in self.consumed.streams else Standing.FORMER

    def source_of(self, lease: Lease) -> ShardSource:
        """Return where the records of a lease that is consumed come from."""
        return self._of(lease).opened.source

    async def closed_shards(self) -> frozenset[str]:
        """Return the keys of the shards that take no more records, as the streams list them now."""
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
        """Return the streams that are consumed."""
        return sorted(self.consumed.streams, key=lambda stream: stream or "")

    async def _track(self, listed: ListedStream | None) -> TrackedStream:
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
        return self.table if stream is None else StreamRows(self.table, stream, self._scans)

    # --- rows that are missing ----------------------------------------------------------------------------------------

    def _note_sync_due(self, stream: str | None) -> None:
        self._sync_due.add(stream)
        self._has_sync_due.set()

    async def _sync_when_due(self) -> None:
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
                    break
                self._sync_due.discard(stream)
                if await self._fill(stream, rows):
                    self.needs.fleet.wake_leases()
            self._sync_due &= self.consumed.streams
            self._is_syncing = False

    async def _fill(self, stream: str | None, rows: TableScan) -> bool:
        """Make the rows that a stream lacks; True if there may be some that `rows` has not."""
        try:
            with working_for(stream):
                return require_rows(await self._tracked[stream].sync.bootstrap(rows), rows)
        except Exception as error:
            failure = survived(error, "syncing shards")
            level = logging.ERROR if isinstance(failure, StartupError) else logging.WARNING
            about = {"action": "sync_failed"} | ({} if stream is None else {"stream": stream})
            log.log(level, "shard sync of %s failed: %s", self._tracked[stream].opened.name, failure, extra=about)
            self._note_sync_due(stream)
            return False
