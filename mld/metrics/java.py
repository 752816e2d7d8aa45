"""KCL's metrics: every name, unit, level and dimension that the Java worker sends to CloudWatch. A table.

Taken from KCL 3.5.1 (rules: metrics#names). Dashboards and alarms of users name these, so they never change here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from properties.values import MetricsLevel

COUNT = "Count"
MILLIS = "Milliseconds"
BYTES = "Bytes"
NO_UNIT = "None"


class Dimension(Enum):
    """Every metric also has `Operation`."""

    SHARD = "ShardId"
    STREAM = "StreamId"
    WORKER = "WorkerIdentifier"


@dataclass(frozen=True, slots=True)
class JavaMetric:
    """One name of one operation, sent from `level` on: SUMMARY metrics are sent at DETAILED, too.

    `is_sent` False: mld has nothing to say under this name, and `note` tells why.
    """

    operation: str
    name: str
    unit: str
    level: MetricsLevel
    dimensions: frozenset[Dimension]
    note: str = ""
    is_sent: bool = True


_SHARD = frozenset({Dimension.SHARD, Dimension.STREAM})
_STREAM = frozenset({Dimension.STREAM})
_WORKER = frozenset({Dimension.WORKER})
_NONE: frozenset[Dimension] = frozenset()
_S, _D = MetricsLevel.SUMMARY, MetricsLevel.DETAILED


def _calls(
    operation: str, prefix: str, level: MetricsLevel, dimensions: frozenset[Dimension], **more: str
) -> list[JavaMetric]:
    """`Success` and `Time` of an operation, or of one of its steps."""
    dot = f"{prefix}." if prefix else ""
    return [
        JavaMetric(operation, f"{dot}Success", COUNT, level, dimensions),
        JavaMetric(operation, f"{dot}Time", MILLIS, level, dimensions),
    ]


def _counts(operation: str, level: MetricsLevel, dimensions: frozenset[Dimension], *names: str) -> list[JavaMetric]:
    return [JavaMetric(operation, name, COUNT, level, dimensions) for name in names]


def _absent(operation: str, names: tuple[str, ...], unit: str, level: MetricsLevel, note: str) -> list[JavaMetric]:
    return [JavaMetric(operation, name, unit, level, _NONE, note, is_sent=False) for name in names]


_CHECKPOINTS = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END", "SEQUENCE_NUMBER")
_NEVER_FOR_THAT = "leases are not deleted because the service does not know the stream"

PROCESS, INITIALIZE, SHUTDOWN, TRACKER = "ProcessTask", "InitializeTask", "ShutdownTask", "ApplicationTracker"
RENEW_ALL, DISCOVERY, REPORT, TAKE = "RenewAllLeases", "LeaseDiscovery", "WorkerMetricStatsReporter", "TakeLeases"
ASSIGN, LEADER, AUDIT, SYNC = "LeaseAssignmentManager", "LeaderDecider", "PeriodicShardSyncManager", "ShardSyncTask"
WORKER_METRICS, MIGRATION, START = "WorkerMetrics", "Migration", "Scheduler:Initialize"
RENEWER_START, TABLE_START = "LeaseRenewerInitialize", "TableMigrationInitialize"
STREAM_TRACKER = "MultiStreamTracker"
TABLE_MIGRATION, MOVE = "TableMigration", "TableMigrationAsyncMove"

JAVA_METRICS: tuple[JavaMetric, ...] = (
    # --- per shard
    *_counts(PROCESS, _S, _SHARD, "RecordsProcessed"),
    JavaMetric(PROCESS, "DataBytesProcessed", BYTES, _S, _SHARD),
    JavaMetric(PROCESS, "MillisBehindLatest", MILLIS, _S, _SHARD),
    *_calls(PROCESS, "", _S, _SHARD),
    JavaMetric(PROCESS, "RecordProcessor.processRecords.Time", MILLIS, _S, _SHARD),
    *_calls(PROCESS, "KinesisDataFetcher.getRecords", _D, _SHARD),
    *_calls(PROCESS, "KinesisDataFetcher.getShardIterator", _D, _SHARD),
    *_counts(PROCESS, _S, _STREAM, "ExpiredIterator"),
    *_calls(PROCESS, "UpdateLease", _D, _SHARD),
    *_calls(SHUTDOWN, "UpdateLease", _D, _SHARD),
    JavaMetric(INITIALIZE, "RecordProcessor.initialize.Time", MILLIS, _S, _NONE),
    JavaMetric(SHUTDOWN, "RecordProcessor.shutdown.Time", MILLIS, _S, _NONE),
    *_calls(SHUTDOWN, "CreateLease", _D, _NONE),
    *_counts(SHUTDOWN, _D, _NONE, *(f"CreateLease_{name}.Success" for name in _CHECKPOINTS)),
    *_counts(SHUTDOWN, _S, _NONE, "MissingMergeParent", "MissingMergeParentLease"),
    JavaMetric(TRACKER, "MillisBehindLatest", MILLIS, _S, _NONE),
    # --- leases of the worker
    *_counts(RENEW_ALL, _S, _WORKER, "LostLeases", "CurrentLeases"),
    *_calls(RENEW_ALL, "", _S, _WORKER),
    *_calls(RENEW_ALL, "RenewLease", _D, _WORKER),
    *_counts(RENEWER_START, _D, _NONE, "Fault"),
    JavaMetric(DISCOVERY, "ListLeaseKeysForWorker.Time", MILLIS, _D, _WORKER),
    JavaMetric(DISCOVERY, "FetchNewLeases.Time", MILLIS, _D, _WORKER),
    *_counts(DISCOVERY, _D, _WORKER, "NewLeasesDiscovered", "OwnerMismatch"),
    *_counts(DISCOVERY, _S, _WORKER, "GetLease:Error"),
    *_calls(DISCOVERY, "", _S, _WORKER),
    *_calls(REPORT, "", _S, _WORKER),
    *_counts(REPORT, _S, _NONE, "InMemoryMetricStatsReporterFailure"),
    *_calls(TAKE, "", _S, _WORKER),
    *_calls(TAKE, "ListLeases", _D, _WORKER),
    *_calls(TAKE, "TakeLease", _D, _WORKER),
    *_counts(TAKE, _S, _WORKER, "TakenLeases", "UntakenLeases", "ExpiredLeases", "LeaseSpillover"),
    *_counts(TAKE, _D, _WORKER, "LeasesToTake", "NeededLeases"),
    *_counts(TAKE, _S, _WORKER, "NumWorkers"),
    *_counts(TAKE, _D, _WORKER, "TotalLeases"),
    *_counts(TAKE, _S, _WORKER, "VeryOldLeases"),
    # --- the leader
    *_calls(ASSIGN, "", _S, _NONE),
    JavaMetric(ASSIGN, "LeaseAndWorkerMetricsLoad.Time", MILLIS, _D, _NONE),
    *_counts(ASSIGN, _S, _NONE, "TotalLeases", "NumWorkers", "ExpiredLeases"),
    JavaMetric(ASSIGN, "AssignExpiredOrUnassignedLeases.Time", MILLIS, _D, _NONE),
    *_counts(ASSIGN, _S, _NONE, "LeaseSpillover"),
    JavaMetric(ASSIGN, "BalanceWorkerVariance.Time", MILLIS, _D, _NONE),
    *_counts(ASSIGN, _S, _NONE, "NumOfLeasesReassignment"),
    *_counts(ASSIGN, _D, _NONE, "FailedAssignmentCount"),
    *_calls(ASSIGN, "ParallelyAssignLeases", _D, _NONE),
    *_counts(ASSIGN, _S, _NONE, "ForceLeaderRelease", "NumWorkersWithFailingWorkerMetric"),
    *_counts(ASSIGN, _S, _NONE, "NumWorkersWithInvalidEntry", "LeaseDeserializationFailureCount"),
    JavaMetric(WORKER_METRICS, "FleetMinSupportCode", NO_UNIT, _S, _NONE),
    *_counts(LEADER, _D, _NONE, "LeaderDecider:IsLeader"),
    *_counts(LEADER, _D, _NONE, "DynamoDBLockBasedLeaderDecider", "DeterministicShuffleShardSyncLeaderDecider"),
    *_counts(AUDIT, _S, _NONE, "NumStreamsWithPartialLeases", "NumStreamsToSync", "NumSkippedShardSyncTask"),
    *_calls(AUDIT, "", _S, _NONE),
    *_calls(SYNC, "", _S, _NONE),
    *_counts(SYNC, _D, _NONE, "SyncShards.Success"),
    *_calls(SYNC, "CreateLease", _D, _NONE),
    *_counts(SYNC, _D, _NONE, *(f"CreateLease_{name}.Success" for name in _CHECKPOINTS)),
    *_counts(START, _S, _NONE, "Initialize.Success"),
    *_counts(STREAM_TRACKER, _S, _NONE, "ActiveStreams.Count", "StreamsPendingDeletion.Count", "DeletedStreams.Count"),
    *_absent(STREAM_TRACKER, ("NonExistingStreamDelete.Count",), COUNT, _S, _NEVER_FOR_THAT),
    *_absent("StreamIdFetch", ("Success", "QueueSize"), COUNT, _S, "mld does not fetch stream ids"),
    # --- migration
    *_counts(MIGRATION, _S, _NONE, "CurrentState:3xWorker", "CurrentState:2xCompatibleWorker"),
    *_counts(MIGRATION, _S, _NONE, "GsiReadyStatus", "WorkerMetricsReadyStatus", "Fault"),
    *_calls(TABLE_START, "", _S, _NONE),
    *_counts(TABLE_START, _S, _NONE, "ReadFault"),
    JavaMetric(TABLE_MIGRATION, "StatusOrdinal", NO_UNIT, _S, _NONE),
    *_counts(TABLE_MIGRATION, _S, _NONE, "PrePhase1Worker", "Phase1Worker", "Phase2Worker"),
    *_counts(TABLE_MIGRATION, _S, _NONE, "ReadFault", "WriteFault", "DeleteFault", "CompletionFault"),
    JavaMetric(TABLE_MIGRATION, "Time", MILLIS, _S, _NONE),
    *_counts(MOVE, _S, _NONE, "BatchCount"),
    *_calls(MOVE, "", _S, _NONE),
)
