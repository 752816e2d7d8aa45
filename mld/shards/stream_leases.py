"""`StreamLeases`: the lease rows and the list of shards of one stream, which all classes of `mld.shards` use."""

from __future__ import annotations

from dataclasses import dataclass, field

from mld.core.clock import Clock
from mld.core.turns import in_turns
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.metrics.operations import LeaseCreationCounts
from mld.metrics.registry import Metrics
from mld.metrics.worker import CREATED
from mld.shards.detector import Listing, ShardDetector, ShardsListed
from mld.shards.identity import Survey
from mld.shards.shard_rows import ShardRows


@dataclass(eq=False)
class StreamLeases:
    """Access to the lease rows of one stream, and to its list of shards."""

    table: ShardRows
    detector: ShardDetector
    clock: Clock
    metrics: Metrics = field(default_factory=Metrics)
    id: str | None = None
    """Identifier of the stream if the table has several streams, else None."""

    async def survey(self) -> tuple[TableScan, Listing, Survey]:
        """Read the rows, and then list the shards, for judging them together (`Survey`). In the other order, the row of
        a new shard could look like the row of another stream.

        Raises `errors.TableError` and `errors.StreamError`.
        """
        scan = await self.table.scan()
        listing = await self.detector.list_all()
        shards = listing.shards if isinstance(listing, ShardsListed) else None
        return scan, listing, await in_turns(Survey.steps(scan.leases, shards, self.detector.kind, self.clock.wall()))

    async def create(self, lease: Lease, counts: LeaseCreationCounts) -> bool:
        """Create a row and count it; return False if the row exists already. Raises `errors.TableError`."""
        with counts.create_lease.timed(self.clock.monotonic):
            created = await self.table.apply(writes.create(lease))
        if created:
            counts.created(lease.checkpoint)
            self.metrics.worker.rows.add(CREATED)
        return created
