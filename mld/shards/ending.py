"""`ShardEnding`: prepares the lease table for the end of a shard. It creates the rows of the child shards, and then
records the children in the shard's own row.

Rules: shards#preparing-the-end, shards#children-before-the-end, shards#merge-parents-without-a-row and
shards#ends-without-children.

The order matters: first the child rows are written, then `childShardIds`; only then the consumer sends `shardEnded` and
stores SHARD_END. After a crash in between, the parent is still unfinished, and its end is prepared again. This module
never writes a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mld.core.errors import LeaseLostError
from mld.core.log_fields import about
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import ChildShard, Shard
from mld.leases import writes
from mld.leases.lease import Lease
from mld.shards.detector import ShardsListed
from mld.shards.graph import children_in, new_lease
from mld.shards.identity import Park, ShardIsListed, ShardIsOver
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import ShardSync, SyncResult

_log = logging.getLogger(__name__)

MERGE_PARENTS = 2
SYNC_SPACING_S = 10.0
"""The shortest time between two syncs that are made because an end is blocked. A blocked end is tried again about once
a second, but a sync reads the whole table and lists the whole stream."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create these rows in this order; some of them may exist already."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class BlockedOnMergeParent:
    """The child of a merge must not get a row yet, because its other parent, `parent`, has none: a consumer waits only
    for parents that have a row, so it would read the child too early.
    """

    parent: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """The end of the shard, as it was read, contradicts itself or the list of shards; `reason` is a sentence that says
    how. So it does not prove that the shard has ended, and must be read again.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The table is ready for `shardEnded` and SHARD_END. `created` has the keys of new rows."""

    created: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """The table is not ready: keep the lease and the checkpoint, and ask again later. `reason` is a sentence that says
    why.
    """

    reason: str


Preparation = Prepared | Blocked | Invalid


def plan_shard_end(
    lease: Lease,
    children: Sequence[ChildShard],
    parent_rows_present: Collection[str],
    *,
    child_row_present: bool = False,
    trimmed: Collection[str] = (),
    merges: bool = True,
) -> Create | BlockedOnMergeParent | Invalid:
    """Return the rows to create when the shard of `lease` ends with `children`, which must not be empty.

    If there is a single child, it is that of a merge of two parents. `parent_rows_present` names the parents that have
    a row, whatever the row's checkpoint. If just one parent has no row, the end is blocked, except in two cases in
    which waiting is useless: the child already has a row (`child_row_present`), or that parent has left retention
    (it is in `trimmed`), so its lease can never come back. Java stays blocked in both cases. `merges` is False for
    streams of DynamoDB: their shards are never merged, so a single child has one parent.
    """
    assert children, "an end without children is looked up in the listing first"
    strange = next((child for child in children if lease.key not in child.parents), None)
    if strange is not None:
        return Invalid(f"shard {lease.key} ended with the child {strange.shard_id}, which does not name it as a parent")
    if len(children) == 1 and merges:
        parents = children[0].parents
        if len(parents) != MERGE_PARENTS:
            return Invalid(
                f"shard {lease.key} ended with the single child {children[0].shard_id}, which names {len(parents)} "
                "parents instead of 2"
            )
        missing = sorted(parents - set(parent_rows_present))
        if len(missing) == 1 and not child_row_present and missing[0] not in trimmed:
            return BlockedOnMergeParent(missing[0])
    in_order = sorted(children, key=lambda child: child.shard_id)
    # Children are read from the start, whatever the configured position (shards#children-read-from-the-start).
    return Create(tuple(new_lease(child, TRIM_HORIZON) for child in in_order))


@dataclass(eq=False)
class ShardEnding:
    """Prepares the lease table for the ends of shards of one stream. All consumers of the stream share one object."""

    stream: StreamLeases
    sync: ShardSync

    def __post_init__(self) -> None:
        self._operation = self.stream.metrics.worker.operations.shard_end
        self._last_sync_at_s: float | None = None
        """When the last sync because of a blocked end began (monotonic); None before the first."""

    async def prepare(self, lease: Lease, children: Sequence[ChildShard]) -> Preparation:
        """Create the child rows and record the children in the row of `lease`. May be repeated after any failure.

        `children` is empty if the end of the shard did not name them: the iterator had ended before, or the service
        answered ResourceNotFound. Then they are looked up in the list of shards. For a complete lease nothing is done:
        its end was prepared before it was completed.

        Raises LeaseLostError if the row of `lease` is gone, and `errors.TableError` or `errors.StreamError`.
        """
        if lease.is_complete:
            return Prepared(())
        if children:
            return await self._prepare_with(lease, children)
        return await self._look_up(lease)

    async def _look_up(self, lease: Lease) -> Preparation:
        """Find out by the list of shards whether a shard has ended and which children it has, and prepare its end. If
        nothing proves that it has ended (the verdict is `Park`), its end is blocked.
        """
        scan, listing, survey = await self.stream.survey()
        match survey.judge(lease):
            case Park(reason):
                return Blocked(reason if isinstance(listing, ShardsListed) else f"{reason} ({listing.reason})")
            case ShardIsListed():
                assert isinstance(listing, ShardsListed)
                return await self._prepare_listed(lease, listing.shards)
            case ShardIsOver(evidence):
                assert isinstance(listing, ShardsListed)
                _log.info("shard has left retention", extra=about("shard_expired", lease.key, evidence=evidence))
                return await self._prepare_expired(lease, await self.sync.sync_with(scan, listing.shards))

    async def _prepare_listed(self, lease: Lease, shards: Sequence[Shard]) -> Preparation:
        """Prepare the end of a shard that is still listed, with the children that the listing shows.

        Return Invalid if the shard is listed as open, or without children. A stream of DynamoDB that was switched off
        is an exception: it gets no more shards, so its last shard ends without children, even if it is listed as open.
        """
        children = children_in(shards, lease.key)
        # Only streams of Kinesis have hash keys, and they get records as long as they exist.
        is_open = any(shard.shard_id == lease.key and shard.is_open for shard in shards)
        if is_open and (self.stream.detector.kind.has_hash_keys or await self.stream.detector.takes_records()):
            return Invalid(f"shard {lease.key} seemed to end, but ListShards shows it open")
        if not children and not await self.stream.detector.takes_records():
            _log.info("the last shard of a stream that was switched off", extra=about("shard_last", lease.key))
            return Prepared(())
        if not children:
            return Invalid(f"shard {lease.key} ended, but neither its end nor ListShards names its children")
        return await self._prepare_with(lease, children)

    async def _prepare_expired(self, lease: Lease, result: SyncResult) -> Preparation:
        """Record the listed children of a trimmed shard in its row. `result` is that of a sync, which has created the
        rows of the children (shards#children-of-ended-parents). If the sync failed or postponed rows, the end is
        blocked.

        The child of a merge may still have no row, if its other parent had none: then it gets its row later, at the end
        of that parent.
        """
        if not result.is_done or result.postponed:
            return Blocked(
                f"shard {lease.key} is over, but its children have no leases yet; {result.sentence or 'again'}"
            )
        children = frozenset(child.shard_id for child in children_in(result.shards, lease.key))
        if children:
            await self._record(lease, children)
        return Prepared(tuple(created.key for created in result.created))

    async def _prepare_with(self, lease: Lease, children: Sequence[ChildShard]) -> Preparation:
        """Create the rows of these children, and record the children in the shard's own row. If one parent of a merge
        has no row, make a sync first, which may create it, and then plan again.

        Return Blocked if that parent still has no row although it is listed, and Invalid if the children contradict the
        shard.
        """
        child_row_present, trimmed = False, frozenset[str]()
        present: frozenset[str] = frozenset()
        merges = self.stream.detector.kind.has_hash_keys  # shards of DynamoDB have none, and are never merged
        if len(children) == 1 and merges:
            present = await self._rows_of(children[0].parents)
            child_row_present = await self.stream.table.get(children[0].shard_id) is not None
            if len(children[0].parents) != MERGE_PARENTS:
                self._operation.missing_parent.note(1)
        plan = plan_shard_end(lease, children, present, child_row_present=child_row_present, merges=merges)
        synced: tuple[str, ...] = ()
        if isinstance(plan, BlockedOnMergeParent):
            self._operation.missing_parent_lease.note(1)
            result = await self._sync_for_parent(plan.parent)
            if isinstance(result, Blocked):
                return result
            synced = tuple(created.key for created in result.created)
            trimmed = children[0].parents - {shard.shard_id for shard in result.shards}
            present = await self._rows_of(children[0].parents)
            plan = plan_shard_end(lease, children, present, trimmed=trimmed)
        match plan:
            case Invalid():
                return plan
            case BlockedOnMergeParent(parent):
                return Blocked(
                    f"merge parent {parent} of {children[0].shard_id} has no lease, though it is still listed"
                )
            case Create(leases):
                created = tuple([child.key for child in leases if await self._create(child)])
                await self._record(lease, frozenset(child.key for child in leases))
                return Prepared(synced + created)

    async def _sync_for_parent(self, parent: str) -> SyncResult | Blocked:
        """Make a sync now, which may create the missing row of the merge parent. (Java waits for its auditor.) Return
        Blocked if a sync was made a moment ago, or if it fails.
        """
        now_s = self.stream.clock.monotonic()
        if self._last_sync_at_s is not None and now_s - self._last_sync_at_s < SYNC_SPACING_S:
            return Blocked(f"merge parent {parent} has no lease yet; a sync was made a moment ago")
        self._last_sync_at_s = now_s
        _log.info("merge parent without a lease", extra=about("shard_sync_for_merge_parent", parent))
        result = await self.sync.sync(await self.stream.table.scan())
        return result if result.is_done else Blocked(f"merge parent {parent} has no lease; {result.sentence}")

    async def _rows_of(self, shard_ids: Collection[str]) -> frozenset[str]:
        """Return which of the shards `shard_ids` have a row."""
        return frozenset([s for s in sorted(shard_ids) if await self.stream.table.get(s) is not None])

    async def _create(self, child: Lease) -> bool:
        """Create the row of a child shard; return True if it was missing."""
        created = await self.stream.create(child, self._operation)
        if created:
            _log.info("child lease created", extra=about("lease_created", child.key))
        return created

    async def _record(self, lease: Lease, children: frozenset[str]) -> None:
        """Record the children in the row of `lease`. Raises LeaseLostError if that row is gone."""
        if not await self.stream.table.apply(writes.record_children(lease.key, children)):
            raise LeaseLostError(lease.key, "its row is gone")
