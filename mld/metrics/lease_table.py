"""`TableMetrics`: results of the last read of the whole lease table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mld.metrics.declaring import Instant, gauge, shown


@dataclass(slots=True, eq=False)
class TableMetrics:
    """Results of the last read of the whole lease table.

    None means unknown: this worker has not read the whole table, or only the leader finds out, and another worker
    leads.
    """

    workers: int | None = gauge(
        "mld_workers", "Live workers, as the leader sees them.", "LeaseAssignmentManager NumWorkers"
    )
    unassigned: int | None = gauge(
        "mld_unassigned_leases",
        "Leases without a live owner, as the leader sees them.",
        "LeaseAssignmentManager ExpiredLeases",
    )
    without_room: int | None = gauge(
        "mld_leases_without_room",
        "Leases of open shards that no worker has had room for (maxLeasesForWorker) for a minute.",
    )
    corrupt: int | None = gauge(
        "mld_rows_corrupt",
        "Rows of the lease table that cannot be read.",
        "LeaseAssignmentManager LeaseDeserializationFailureCount",
    )
    strangers: int | None = gauge(
        "mld_workers_of_other_applications",
        "Live workers in the lease table that read another stream than this one: two applications have one table.",
    )
    corrupt_rows: tuple[tuple[str, str], ...] = field(init=False, default=())
    """Lease rows that cannot be read: for each its key and the reason."""
    lease_counts: tuple[int, int] | None = field(init=False, default=None)
    """Number of leases, and of leases of open shards, as the leader sees them."""
    clocks_off: Mapping[str, float] | None = field(init=False, default=None)
    """Workers whose clocks are off, as the leader sees them, and by how many seconds each clock is ahead."""
    holes_of: dict[str | None, int] = field(init=False, default_factory=dict)
    """Gaps in the hash range that no lease covers, by stream; None stands for the only stream."""

    def forget_leadership(self) -> None:
        """Forget the results that only a leader has, because this worker no longer leads."""
        self.workers = self.unassigned = self.lease_counts = self.clocks_off = None
        self.holes_of = {}

    @shown("mld_clocks_disagree", "Workers whose clocks are more than a minute off, as the leader sees them.")
    def clocks_disagree(self, _: Instant) -> int | None:
        return None if self.clocks_off is None else len(self.clocks_off)

    @shown(
        "mld_lease_table_holes",
        "Gaps in the hash range that no lease covers, as the leader sees them.",
        java="PeriodicShardSyncManager NumStreamsWithPartialLeases",
    )
    def holes(self, _: Instant) -> int | None:
        return sum(self.holes_of.values()) if self.holes_of else None
