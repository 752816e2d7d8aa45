"""`ShardCoordinator`: what the lease table needs around the ends of shards, for all consumers of a worker.

Joins the rooms that may not know each other: it answers the consumers' `ShardCare` questions with the decisions of
`mld.shards`, and tells the fleet and waiting consumers what changed.

Rules: shards#preparing-the-end, shards#parents-before-children, shards#missing-shards, shards#cleanup-schedule.

A shard may not start before every parent that still has a row is at SHARD_END. A parent without a row never blocks: it
was cleaned up, or nobody wants it. Reads are strongly consistent, so that a child cannot slip past a parent row that
was created a moment ago.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from mld.consumer.ports import EndVerdict, MissingVerdict, Signal
from mld.core.clock import Clock
from mld.core.positions import SHARD_END
from mld.core.streams import ChildShard
from mld.core.turns import in_turns
from mld.leases.lease import Lease
from mld.shards.cleanup import LeaseCleanup
from mld.shards.detector import ShardDetector, ShardRows, ShardsListed
from mld.shards.ending import Blocked, Invalid, Prepared, ShardEnding
from mld.shards.identity import Park, ShardIsListed, ShardIsOver, Survey


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


async def parents_complete(table: ShardRows, lease: Lease) -> str | None:
    """Read the parents' rows; returns the parent that blocks `lease`, or None. Raises `errors.TableError`."""
    for parent in sorted(lease.parents):
        blocked_by = blocking_parent(lease, {parent: await table.get(parent)})
        if blocked_by is not None:
            return blocked_by
    return None


log = logging.getLogger(__name__)

SURVEY_VALID_S = 5.0  # a stream that vanishes parks all its shards at once; one scan and one listing do for all of them


@dataclass(eq=False)
class ShardCoordinator:
    """Implements `consumer.ports.ShardCare`."""

    table: ShardRows
    detector: ShardDetector
    ending: ShardEnding
    cleanup: LeaseCleanup
    clock: Clock
    _: KW_ONLY
    parents_changed: Signal
    on_created: Callable[[tuple[str, ...]], None]

    def __post_init__(self) -> None:
        self._waiting_for: dict[str, str] = {}  # so that each wait is logged once, not at every look
        self._parked_because: dict[str, str] = {}
        self._survey_lock = asyncio.Lock()
        self._surveyed: Survey | None = None
        self._surveyed_at = 0.0

    async def parents_complete(self, lease: Lease) -> bool:
        blocking = await parents_complete(self.table, lease)
        if blocking is None:
            self._waiting_for.pop(lease.key, None)
            return True
        if self._waiting_for.get(lease.key) != blocking:
            self._waiting_for[lease.key] = blocking
            log.info(
                "waiting for the parent shard",
                extra={"action": "waiting_on_parent", "shard": lease.key, "parent": blocking},
            )
        return False

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        match await self.ending.prepare(lease, children):
            case Prepared(created):
                if created:
                    self.on_created(created)
                return EndVerdict.READY
            case Blocked(reason):
                log.warning("%s", reason, extra={"action": "shard_end_blocked", "shard": lease.key})
                return EndVerdict.WAIT
            case Invalid(reason):
                log.warning("%s; it is read again", reason, extra={"action": "shard_end_doubted", "shard": lease.key})
                return EndVerdict.READ_AGAIN

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        match (await self._survey()).judge(lease):
            case ShardIsOver(evidence):
                log.info(
                    "the shard is past its retention: %s",
                    evidence,
                    extra={"action": "shard_expired", "shard": lease.key},
                )
                return MissingVerdict.OVER
            case ShardIsListed():
                self._parked_because.pop(lease.key, None)
                return MissingVerdict.LISTED
            case Park(reason):
                if self._parked_because.get(lease.key) != reason:
                    self._parked_because[lease.key] = reason
                    log.error("%s", reason, extra={"action": "shard_parked", "shard": lease.key})
                return MissingVerdict.UNKNOWN

    async def _survey(self) -> Survey:
        """Return rows and shards (None: no such stream), shared by all who ask at about the same time.

        The rows are read before the shards are listed: the other way round a new shard's row could look foreign.
        """
        async with self._survey_lock:
            now = self.clock.monotonic()
            if self._surveyed is None or now - self._surveyed_at > SURVEY_VALID_S:
                leases = (await self.table.scan()).leases
                listing = await self.detector.list_all()
                shards = listing.shards if isinstance(listing, ShardsListed) else None
                self._surveyed = await in_turns(Survey.steps(leases, shards, self.detector.kind, self.clock.wall()))
                self._surveyed_at = now
            return self._surveyed

    def ended(self, lease: Lease) -> None:
        self._waiting_for.pop(lease.key, None)
        self._parked_because.pop(lease.key, None)
        self.parents_changed.notify()
        self.cleanup.enqueue(lease)
