"""`ShardSync`: lists the shards of a stream, decides which leases are missing, and creates them.

Rules: shards#leases-for-an-empty-table, shards#leases-for-a-filled-table, shards#inconsistent-listing and
shards#consistent-reads-before-creation. `mld.shards.graph` decides which rows to create, and `mld.shards.identity`
whether the table belongs to this stream; this module reads and writes.

Rows are created by conditional puts, so any number of workers may sync at the same time, and a sync that was
interrupted is simply repeated. A sync never creates rows in a table of another stream, and never uses an incomplete
listing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum

from mld.core.log_fields import about
from mld.core.positions import AT_TIMESTAMP, LATEST, InitialPosition
from mld.core.steps import Steps
from mld.core.streams import Shard, ShardFilter, ShardFilterType
from mld.core.turns import in_turns
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.shards.detector import NotListed
from mld.shards.graph import (
    ShardGraph,
    id_order,
    leases_for_empty_table,
    missing_leases,
    oldest_generation,
    partition_fault,
)
from mld.shards.identity import foreign_evidence
from mld.shards.stream_leases import StreamLeases

_log = logging.getLogger(__name__)

LISTINGS_MAX = 3
LISTING_SPACING_S = 1.0
"""If the listing shows an unfinished reshard, which takes only a moment, the shards are listed again: at most
`LISTINGS_MAX` times in all, with these pauses."""


class SyncStatus(Enum):
    """How a sync ended. If not with DONE, the sync has created nothing, and may be tried again."""

    DONE = "done"
    STREAM_NOT_READY = "stream not ready"
    STREAM_MISSING = "stream missing"
    NO_SHARDS = "no shards"
    INCONSISTENT_LISTING = "inconsistent listing"
    FOREIGN_TABLE = "foreign table"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """How a sync ended, and what it did.

    `sentence` is a text for the log; it is empty if the status is DONE. `created` has only rows that this sync itself
    has created. `postponed` names leases that were not created because the table had changed meanwhile; the next sync
    decides again. `shards` is the listing that the sync has used.
    """

    status: SyncStatus
    sentence: str = ""
    created: tuple[Lease, ...] = ()
    postponed: tuple[str, ...] = ()
    shards: tuple[Shard, ...] = ()

    @property
    def is_done(self) -> bool:
        return self.status is SyncStatus.DONE


def bootstrap_filter(initial: InitialPosition) -> ShardFilter:
    """Return the ListShards filter for an empty table (shards#listing-filter)."""
    if initial.sentinel == LATEST:
        return ShardFilter(ShardFilterType.AT_LATEST)
    if initial.sentinel == AT_TIMESTAMP:
        return ShardFilter(ShardFilterType.AT_TIMESTAMP, initial.timestamp_s)
    return ShardFilter(ShardFilterType.AT_TRIM_HORIZON)


@dataclass(eq=False)
class ShardSync:
    """Creates the missing leases of one stream. All public methods raise `errors.TableError` and
    `errors.StreamError`.
    """

    stream: StreamLeases
    _: KW_ONLY
    initial: InitialPosition
    ignore_unexpected_children: bool = False

    def __post_init__(self) -> None:
        self._operation = self.stream.metrics.worker.operations.shard_syncs

    async def bootstrap(self, scan: TableScan) -> SyncResult:
        """Create the rows for an empty table from the filtered listing. If `scan` has any lease, even an unreadable
        one, make a sync instead.
        """
        return await self._counted(self._bootstrap(scan))

    async def sync(self, scan: TableScan) -> SyncResult:
        """List the shards and create the missing rows. `scan` must be a scan that the caller has just made."""
        return await self._counted(self._sync(scan))

    async def sync_with(self, scan: TableScan, shards: Sequence[Shard]) -> SyncResult:
        """Sync with `shards`, which must be a complete, unfiltered listing made after `scan`, and not empty."""
        return await self._counted(self._sync_with(scan, shards))

    async def _counted(self, syncing: Awaitable[SyncResult]) -> SyncResult:
        """Run a sync and count it. A sync that is not DONE counts as a failure, like one that raises."""
        began_at = self.stream.clock.monotonic()
        try:
            result = await syncing
        except Exception:
            self._note(False, began_at)
            raise
        self._note(result.is_done, began_at)
        return result

    def _note(self, ok: bool, began_at: float) -> None:
        """Count a sync in the metrics."""
        self._operation.all.note(ok, self.stream.clock.monotonic() - began_at)
        self._operation.sync_shards.note(ok)

    async def _bootstrap(self, scan: TableScan) -> SyncResult:
        """Create the rows that the table lacks. For an empty table these come from a new listing of the shards."""
        if not scan.is_empty:
            return await self._sync(scan)
        listed = await self._snapshot()
        if not listed.is_done:
            return listed
        wanted = await in_turns(leases_for_empty_table(listed.shards, self.initial))
        return await self._create(listed, wanted, frozenset())

    async def _sync(self, scan: TableScan) -> SyncResult:
        """List the shards until the listing shows no unfinished reshard, and create the missing rows."""
        listed = await self._list_until_sound(None, self._inconsistency_in)
        return await self._sync_with(scan, listed.shards) if listed.is_done else listed

    async def _sync_with(self, scan: TableScan, shards: Sequence[Shard]) -> SyncResult:
        """Find the missing leases and create them. Rows of related shards may have changed since the scan; so before
        anything is created, they are read again, and the decision is made again.
        """
        leases: Sequence[Lease] = scan.leases
        foreign = await in_turns(foreign_evidence(shards, leases))
        if foreign is not None:
            return SyncResult(SyncStatus.FOREIGN_TABLE, foreign)
        graph = await in_turns(ShardGraph.steps(shards))
        fault = self._inconsistency(graph)
        if fault is not None:
            return SyncResult(SyncStatus.INCONSISTENT_LISTING, fault)
        wanted = await self._missing(graph, leases, scan.unreadable)
        snapshot: frozenset[str] = frozenset()
        # If a lease to create at the timestamp is of a shard that has children, reading would begin before the
        # timestamp. So find out which shards were open at the timestamp, and decide again.
        if any(lease.checkpoint == AT_TIMESTAMP and graph.children.get(lease.key) for lease in wanted):
            snapshot = frozenset(shard.shard_id for shard in (await self._snapshot()).shards)
            wanted = await self._missing(graph, leases, scan.unreadable, snapshot)
        if wanted:
            leases = [*leases, *await self._rows_seen_now(graph, scan, wanted)]
            wanted = await self._missing(graph, leases, scan.unreadable, snapshot)
        sound = SyncResult(SyncStatus.DONE, shards=tuple(shards))
        return await self._create(sound, wanted, frozenset(lease.key for lease in leases))

    async def _snapshot(self) -> SyncResult:
        """List the shards that were open at the configured position (a *snapshot* of the stream). They must cover the
        hash keys exactly once; otherwise the result has no shards. Shards that descend from another one in the snapshot
        are left out, because they are read after that one anyway.

        A snapshot is taken for an empty table. It is also taken for a table with rows if the creation of rows at a
        timestamp was interrupted (shards#interrupted-timestamp-snapshot): without it, reading would begin with the
        oldest listed ancestors, and so with records older than the timestamp.
        """
        fault_in = _partition_fault_in if self.stream.detector.kind.has_hash_keys else None
        listed = await self._list_until_sound(bootstrap_filter(self.initial), fault_in)
        if not listed.is_done:
            return listed
        return replace(listed, shards=await in_turns(oldest_generation(listed.shards)))

    async def _list_until_sound(
        self, shard_filter: ShardFilter | None, fault_in: Callable[[Sequence[Shard]], Steps[str | None]] | None
    ) -> SyncResult:
        """List the shards. If `fault_in` finds a fault in the listing, list them again, at most LISTINGS_MAX times in
        all. Return the shards, or why there are none.
        """
        fault: str | None = None
        for attempt in range(LISTINGS_MAX):
            if attempt:
                await self.stream.clock.sleep(LISTING_SPACING_S)
            listing = await self.stream.detector.list_all(shard_filter)
            if isinstance(listing, NotListed):
                status = SyncStatus.STREAM_MISSING if listing.is_missing else SyncStatus.STREAM_NOT_READY
                return SyncResult(status, listing.reason)
            if not listing.shards:
                why = "ListShards names no shard; the shards are listed again later"
                return SyncResult(SyncStatus.NO_SHARDS, why)
            fault = None if fault_in is None else await in_turns(fault_in(listing.shards))
            if fault is None:
                return SyncResult(SyncStatus.DONE, shards=listing.shards)
        assert fault is not None
        return SyncResult(SyncStatus.INCONSISTENT_LISTING, f"{fault} (after {LISTINGS_MAX} listings)")

    async def _missing(
        self,
        graph: ShardGraph,
        leases: Sequence[Lease],
        unreadable: Collection[str],
        snapshot: Collection[str] = (),
    ) -> tuple[Lease, ...]:
        """Return the leases that the table lacks; other tasks run in between."""
        return await in_turns(
            missing_leases(
                graph,
                leases,
                self.initial,
                ignore_unexpected_children=self.ignore_unexpected_children,
                unreadable=unreadable,
                snapshot=snapshot,
            )
        )

    def _inconsistency_in(self, shards: Sequence[Shard]) -> Steps[str | None]:
        """Return `_inconsistency` of the graph of these shards, in steps."""
        graph = yield from ShardGraph.steps(shards)
        return self._inconsistency(graph)

    def _inconsistency(self, graph: ShardGraph) -> str | None:
        """Return a sentence that says that child shards of a parent that is still open are listed. Return None if there
        are none, or if they are accepted.
        """
        if self.ignore_unexpected_children or not self.stream.detector.kind.has_hash_keys:
            return None
        unexpected = sorted(graph.inconsistent())
        if not unexpected:
            return None
        return (
            f"ListShards shows {len(unexpected)} child shards of a shard that is still open, {unexpected[0]} first, as "
            "it does during a reshard; ignoreUnexpectedChildShards=true accepts that"
        )

    async def _rows_seen_now(self, graph: ShardGraph, scan: TableScan, wanted: Sequence[Lease]) -> list[Lease]:
        """Read the rows of the shards that are related to the `wanted` ones, as far as the scan does not show them, by
        consistent reads. Return the rows that exist.

        A scan does not show the whole table at one moment. It may miss the row of a child that is created after the
        scan has passed its place, and also the row of the parent, if that is deleted before the scan comes to its
        place. A decision by such a scan would have the parent's whole shard read again, or records of the child
        skipped. Rows of related shards appear and disappear from the oldest generation to the youngest, so reading them
        in this order misses none.
        """
        known = {lease.key for lease in scan.leases} | scan.unreadable
        related = await in_turns(graph.kin(lease.key for lease in wanted))
        rows = [await self.stream.table.get(shard_id) for shard_id in sorted(related - known, key=id_order)]
        return [row for row in rows if row is not None]

    async def _create(self, listed: SyncResult, wanted: Sequence[Lease], rows: frozenset[str]) -> SyncResult:
        """Create the rows of the leases `wanted`, except those that are not wanted any more, and return the result.
        `rows` names the shards that had a row when the decision was made.
        """
        created: list[Lease] = []
        postponed: list[str] = []
        for lease in wanted:
            if not await self._still_wanted(lease, rows):
                postponed.append(lease.key)
            elif await self.stream.create(lease, self._operation):
                created.append(lease)
                _log.info("lease created", extra=about("lease_created", lease.key, checkpoint=str(lease.checkpoint)))
        return replace(listed, created=tuple(created), postponed=tuple(postponed))

    async def _still_wanted(self, lease: Lease, rows: frozenset[str]) -> bool:
        """Return whether a lease may still be created: if any of its parents had a row (`rows`), at least one of these
        rows must still exist.

        As long as the row of a parent exists, nobody deletes the rows of its children (shards#deletion-order-of-rows).
        So a child without a row has never had one. Without a parent's row, the child may have been read already.
        """
        parents_with_rows = sorted(lease.parents & rows)
        if not parents_with_rows:
            return True
        for parent in parents_with_rows:
            if await self.stream.table.get(parent) is not None:
                return True
        return False


def _partition_fault_in(shards: Sequence[Shard]) -> Steps[str | None]:
    """Return why the oldest of these shards do not cover the hash keys exactly once; None if they do."""
    return partition_fault((yield from oldest_generation(shards)))
