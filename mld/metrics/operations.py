"""KCL's operations: the metrics of each, with the name, unit, level and dimensions that KCL 3.5.1 sends.

Users' dashboards and alarms refer to these names, so the names never change (rules: metrics#names). KCL's metrics of a
shard are in `mld.metrics.shard`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from mld.core.positions import Position
from mld.metrics.declared import declared
from mld.metrics.declaring import (
    COUNT,
    NO_UNIT,
    WORKER,
    D,
    Declared,
    JavaMetric,
    Operation,
    S,
    calls,
    count,
    sent,
    succeeded,
    timed,
)
from mld.metrics.instruments import Calls, Spread

BY_NUMBER = "SEQUENCE_NUMBER"
"""KCL's word for a checkpoint that is a sequence number, in names of metrics."""
BORN_AT = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END", BY_NUMBER)
"""The kinds of checkpoints with which a lease may be created."""


def _created() -> Any:
    """Return a field with a count of new leases for each kind of first checkpoint."""
    rows = (JavaMetric("", f"CreateLease_{kind}.Success", COUNT, D, part=kind) for kind in BORN_AT)
    return sent(lambda: {kind: Spread() for kind in BORN_AT}, *rows)


class LeaseCreationCounts(Operation):
    """Counts that every operation which creates leases has."""

    create_lease: Calls = calls(D, step="CreateLease")
    by_checkpoint: dict[str, Spread] = _created()

    def created(self, checkpoint: Position) -> None:
        """Count a new lease by the kind of its first checkpoint."""
        self.by_checkpoint[checkpoint.sequence if checkpoint.is_sentinel else BY_NUMBER].note(1)


class ShardEndCounts(LeaseCreationCounts, name="ShutdownTask"):
    missing_parent: Spread = count("MissingMergeParent", S)
    missing_parent_lease: Spread = count("MissingMergeParentLease", S)


class RenewalCounts(Operation, name="RenewAllLeases"):
    lost: Spread = count("LostLeases", S, WORKER)
    current: Spread = count("CurrentLeases", S, WORKER)
    all: Calls = calls(S, WORKER)
    """All renewals between two ticks, which KCL counts as one call. At a tick, all leases begin to be renewed."""
    lease: Calls = calls(D, WORKER, "RenewLease")
    _lost: int = field(init=False, default=0)
    _began_at: float | None = field(init=False, default=None)
    _answered_at: float = field(init=False, default=0.0)
    _ok: bool = field(init=False, default=True)

    def ticked(self, held: int, now: float) -> None:
        """Note a tick, at which the renewal of all `held` leases begins again. Count the renewals since the last tick
        as one call, with the time until the last answer, and the leases that were lost meanwhile.
        """
        if self._began_at is not None:
            self.all.note(self._ok, self._answered_at - self._began_at)
        self._began_at, self._answered_at, self._ok = now, now, True
        self.current.note(held)
        self.lost.note(self._lost)
        self._lost = 0

    def answered(self, ok: bool, sent_at: float, now: float) -> None:
        """Count a renewal that was sent at `sent_at`."""
        self.lease.note(ok, now - sent_at)
        self._answered_at, self._ok = now, self._ok and ok

    def lost_one(self) -> None:
        """Count a lost lease; it is noted at the next tick."""
        self._lost += 1


class RenewerStartCounts(Operation, name="LeaseRenewerInitialize"):
    fault: Spread = count("Fault", D)


class DiscoveryCounts(Operation, name="LeaseDiscovery"):
    list_keys: Calls = timed("ListLeaseKeysForWorker", D, WORKER)
    fetch_new: Calls = timed("FetchNewLeases", D, WORKER)
    discovered: Spread = count("NewLeasesDiscovered", D, WORKER)
    owner_mismatch: Spread = count("OwnerMismatch", D, WORKER)
    get_lease_error: Spread = count("GetLease:Error", S, WORKER)
    all: Calls = calls(S, WORKER)


class ReportCounts(Operation, name="WorkerMetricStatsReporter"):
    all: Calls = calls(S, WORKER)
    sample_failed: Spread = count("InMemoryMetricStatsReporterFailure", S)


class TakeCounts(Operation, name="TakeLeases"):
    all: Calls = calls(S, WORKER)
    list_leases: Calls = calls(D, WORKER, "ListLeases")
    take_lease: Calls = calls(D, WORKER, "TakeLease")
    taken: Spread = count("TakenLeases", S, WORKER)
    untaken: Spread = count("UntakenLeases", S, WORKER)
    expired: Spread = count("ExpiredLeases", S, WORKER)
    spillover: Spread = count("LeaseSpillover", S, WORKER)
    to_take: Spread = count("LeasesToTake", D, WORKER)
    needed: Spread = count("NeededLeases", D, WORKER)
    workers: Spread = count("NumWorkers", S, WORKER)
    total: Spread = count("TotalLeases", D, WORKER)
    very_old: Spread = count("VeryOldLeases", S, WORKER)


class AssignmentCounts(Operation, name="LeaseAssignmentManager"):
    all: Calls = calls(S)
    load: Calls = timed("LeaseAndWorkerMetricsLoad", D)
    total: Spread = count("TotalLeases", S)
    workers: Spread = count("NumWorkers", S)
    expired: Spread = count("ExpiredLeases", S)
    assign: Calls = timed("AssignExpiredOrUnassignedLeases", D)
    spillover: Spread = count("LeaseSpillover", S)
    balance: Calls = timed("BalanceWorkerVariance", D)
    reassigned: Spread = count("NumOfLeasesReassignment", S)
    failed: Spread = count("FailedAssignmentCount", D)
    write: Calls = calls(D, step="ParallelyAssignLeases")
    leader_released: Spread = count("ForceLeaderRelease", S)
    failing_workers: Spread = count("NumWorkersWithFailingWorkerMetric", S)
    invalid_reports: Spread = count("NumWorkersWithInvalidEntry", S)
    corrupt_rows: Spread = count("LeaseDeserializationFailureCount", S)


class LeadershipCounts(Operation, name="LeaderDecider"):
    is_leader: Spread = count("LeaderDecider:IsLeader", D)
    by_lock: Spread = count("DynamoDBLockBasedLeaderDecider", D)
    by_shuffle: Spread = count("DeterministicShuffleShardSyncLeaderDecider", D)


class AuditCounts(Operation, name="PeriodicShardSyncManager"):
    partial: Spread = count("NumStreamsWithPartialLeases", S)
    to_sync: Spread = count("NumStreamsToSync", S)
    skipped: Spread = count("NumSkippedShardSyncTask", S)
    all: Calls = calls(S)


class ShardSyncCounts(LeaseCreationCounts, name="ShardSyncTask"):
    all: Calls = calls(S)
    sync_shards: Spread = count("SyncShards.Success", D)


class StartCounts(Operation, name="Scheduler:Initialize"):
    initialize: Calls = succeeded("Initialize", S)


class StreamTrackingCounts(Operation, name="MultiStreamTracker"):
    active: Spread = count("ActiveStreams.Count", S)
    pending_deletion: Spread = count("StreamsPendingDeletion.Count", S)
    deleted: Spread = count("DeletedStreams.Count", S)


class VersionMigrationCounts(Operation, name="Migration"):
    in_3x: Spread = count("CurrentState:3xWorker", S)
    in_2x: Spread = count("CurrentState:2xCompatibleWorker", S)
    index_ready: Spread = count("GsiReadyStatus", S)
    reports_ready: Spread = count("WorkerMetricsReadyStatus", S)
    fault: Spread = count("Fault", S)


class TableMigrationStartCounts(Operation, name="TableMigrationInitialize"):
    all: Calls = calls(S)
    read_fault: Spread = count("ReadFault", S)


class TableMigrationCounts(Operation, name="TableMigration"):
    status: Spread = count("StatusOrdinal", S, unit=NO_UNIT)
    read_fault: Spread = count("ReadFault", S)


@dataclass(slots=True, eq=False)
class Operations:
    """The counts of all operations of one worker. A field's name is ours; its class has KCL's name of the operation."""

    shard_end: ShardEndCounts = field(default_factory=ShardEndCounts)
    renewals: RenewalCounts = field(default_factory=RenewalCounts)
    renewer_start: RenewerStartCounts = field(default_factory=RenewerStartCounts)
    discovery: DiscoveryCounts = field(default_factory=DiscoveryCounts)
    reports: ReportCounts = field(default_factory=ReportCounts)
    takes: TakeCounts = field(default_factory=TakeCounts)
    assignments: AssignmentCounts = field(default_factory=AssignmentCounts)
    leadership: LeadershipCounts = field(default_factory=LeadershipCounts)
    audits: AuditCounts = field(default_factory=AuditCounts)
    shard_syncs: ShardSyncCounts = field(default_factory=ShardSyncCounts)
    start: StartCounts = field(default_factory=StartCounts)
    stream_tracking: StreamTrackingCounts = field(default_factory=StreamTrackingCounts)
    version_migration: VersionMigrationCounts = field(default_factory=VersionMigrationCounts)
    table_migration_start: TableMigrationStartCounts = field(default_factory=TableMigrationStartCounts)
    table_migration: TableMigrationCounts = field(default_factory=TableMigrationCounts)


OPERATIONS: tuple[tuple[str, tuple[Declared, ...]], ...] = tuple(
    (one.name, tuple(declared(one.default_factory)))  # type: ignore[arg-type]
    for one in fields(Operations)
)
"""For each field of `Operations`: its name, and the instruments that its class declares."""
