"""What must stand in the lease table before a shard may end: its children's rows, then their names on its own row.

Rules: shards#preparing-the-end, shards#children-before-the-end, shards#merge-parents-without-a-row and
shards#ends-without-children.

The order is the point: child rows, `childShardIds`, and only then (by the consumer) `shardEnded` and SHARD_END. A crash
in between leaves an unfinished parent, which ends again. Nothing here writes a checkpoint.
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
from mld.shards.sync import ShardSync, StreamLeases, SyncResult

_log = logging.getLogger(__name__)

MERGE_PARENTS = 2
# A blocked shard end is asked for about once a second; a sync reads the whole table and lists the whole stream.
SYNC_SPACING_S = 10.0


@dataclass(frozen=True, slots=True)
class Create:
    """Create these rows, which may exist already, in this order."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class BlockedOnMergeParent:
    """The merge child must not get a row yet: it would not wait for `parent`, which has none."""

    parent: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """The end contradicts itself or the listing; `reason` is a sentence. It is no evidence: read the end again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The table is ready for `shardEnded` and SHARD_END. `created` are keys of new rows: wake whoever takes leases."""

    created: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """Not yet; keep the lease and the checkpoint and ask again. `reason` is a sentence."""

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
    """Return the rows to create when the shard of `lease` ends with `children`, which is not empty.

    `parent_rows_present` are those of a merge child's parents that have a row, whatever its checkpoint. One of two
    missing blocks, unless nothing is left to wait for: the child has its row (`child_row_present`), or the parent left
    retention (`trimmed`) and its lease can never come back. Java stays blocked in both cases. Without `merges` a single
    child is an ordinary one.
    """
    assert children, "the end of a shard without children is looked up first"
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
    """Prepares the table for the end of any shard of one stream; one object serves all of this worker's shards."""

    stream: StreamLeases
    sync: ShardSync

    def __post_init__(self) -> None:
        self._operation = self.stream.metrics.worker.operations.shard_end
        self._last_sync_at_s: float | None = None

    async def prepare(self, lease: Lease, children: Sequence[ChildShard]) -> Preparation:
        """Create the child rows and note them on the row of `lease`. Repeatable at any point.

        Without `children` (the iterator had ended before, or ResourceNotFound) they are looked up by listing. A lease
        that is complete already was prepared by whoever completed it.

        Raises LeaseLostError if the row of `lease` is gone, and `errors.TableError` or `errors.StreamError`.
        """
        if lease.is_complete:
            return Prepared(())
        if children:
            return await self._prepare_with(lease, children)
        return await self._look_up(lease)

    async def _look_up(self, lease: Lease) -> Preparation:
        """Look up an end without children: is the shard over, and which shards follow it? Rows are read before the
        listing.
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
        children = children_in(shards, lease.key)
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
        """Note the children: the sync made the rows of the listed children (shards#children-of-ended-parents).

        It left out a merge child that waits for a parent without a row.
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
        child_row_present, trimmed = False, frozenset[str]()
        present: frozenset[str] = frozenset()
        merges = self.stream.detector.kind.has_hash_keys
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
        """Sync at once, which may give the missing merge parent its row; Java waits for its auditor."""
        now_s = self.stream.clock.monotonic()
        if self._last_sync_at_s is not None and now_s - self._last_sync_at_s < SYNC_SPACING_S:
            return Blocked(f"merge parent {parent} has no lease yet; a sync was made a moment ago")
        self._last_sync_at_s = now_s
        _log.info("merge parent without a lease", extra=about("shard_sync_for_merge_parent", parent))
        result = await self.sync.sync(await self.stream.table.scan())
        return result if result.is_done else Blocked(f"merge parent {parent} has no lease; {result.sentence}")

    async def _rows_of(self, shard_ids: Collection[str]) -> frozenset[str]:
        return frozenset([s for s in sorted(shard_ids) if await self.stream.table.get(s) is not None])

    async def _create(self, child: Lease) -> bool:
        created = await self.stream.create(child, self._operation)
        if created:
            _log.info("child lease created", extra=about("lease_created", child.key))
        return created

    async def _record(self, lease: Lease, children: frozenset[str]) -> None:
        if not await self.stream.table.apply(writes.record_children(lease.key, children)):
            raise LeaseLostError(lease.key, "its row is gone")
