"""The names under which this worker's metrics are published, and what each means. One table.

`docs/use/metrics.md` is written from it, the alerts and the dashboard name only what stands here, and every view reads
the values through it. Names follow the conventions of Prometheus: base units, `_total` for what only rises. KCL's names
for the same facts are in `mld.metrics.java`; `java` names the nearest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from mld.metrics.instruments import SpreadValue
from mld.metrics.registry import ShardActivity, SparkFigures
from mld.metrics.snapshot import ShardValue, Snapshot


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Number = float | int
Series = Iterable[tuple[tuple[str, ...], Number | SpreadValue | None]]
"""Label values and the value; None: unknown, nothing is published."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One published name. `labels` come after `application` and `stream`, which every metric has."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Series]
    java: str = ""


def _of_shard(
    name: str,
    kind: MetricKind,
    help_text: str,
    read: Callable[[ShardValue], Number | SpreadValue | None],
    java: str = "",
) -> Metric:
    def series(snapshot: Snapshot) -> Series:
        return [((shard.shard_id,), read(shard)) for shard in snapshot.shards]

    return Metric(name, kind, help_text, ("shard",), series, java)


def _by_shard(
    name: str, label: str, help_text: str, read: Callable[[ShardValue], Mapping[str, int]], java: str = ""
) -> Metric:
    def series(snapshot: Snapshot) -> Series:
        return [
            ((shard.shard_id, what), count) for shard in snapshot.shards for what, count in sorted(read(shard).items())
        ]

    return Metric(name, MetricKind.COUNTER, help_text, ("shard", label), series, java)


def _of_worker(
    name: str, kind: MetricKind, help_text: str, read: Callable[[Snapshot], Number | SpreadValue | None], java: str = ""
) -> Metric:
    return Metric(name, kind, help_text, (), lambda snapshot: [((), read(snapshot))], java)


def _of_spark(name: str, kind: MetricKind, help_text: str, read: Callable[[SparkFigures, float], Number]) -> Metric:
    """`read` is given the time of the snapshot as well, in epoch seconds."""
    return _of_worker(
        name,
        kind,
        help_text,
        lambda snapshot: None if snapshot.spark is None else read(snapshot.spark, snapshot.wall_s),
    )


def _age(since: float | None, wall_s: float) -> float:
    return 0.0 if since is None else max(0.0, wall_s - since)


def _by_name(
    name: str, labels: tuple[str, ...], help_text: str, read: Callable[[Snapshot], Mapping[str, float]]
) -> Metric:
    """A tally of the worker; its names hold one word for each label."""

    def series(snapshot: Snapshot) -> Series:
        return [(tuple(what.split(" ")), count) for what, count in sorted(read(snapshot).items())]

    return Metric(name, MetricKind.COUNTER, help_text, labels, series)


def _activities(snapshot: Snapshot) -> Series:
    return [
        ((shard.shard_id, activity.value), int(shard.activity is activity))
        for shard in snapshot.shards
        for activity in ShardActivity
    ]


CATALOGUE: tuple[Metric, ...] = (
    # --- how far behind
    _of_shard(
        "mld_shard_behind_seconds",
        MetricKind.GAUGE,
        "Age of the oldest record that is not done: the first one in the child's hands, else what Kinesis said last, "
        "counted on from then; absent until it has said it.",
        lambda shard: shard.behind_s,
        "ProcessTask MillisBehindLatest",
    ),
    _of_shard(
        "mld_shard_behind_age_seconds",
        MetricKind.GAUGE,
        "How long ago Kinesis said how far behind the shard is.",
        lambda shard: shard.behind_age_s,
    ),
    _of_shard(
        "mld_shard_checkpoint_age_seconds",
        MetricKind.GAUGE,
        "How long ago the last checkpoint was stored by this worker; absent before the first.",
        lambda shard: shard.checkpoint_age_s,
    ),
    Metric(
        "mld_shard_state",
        MetricKind.GAUGE,
        "1 for what the shard's consumer is about: processing, idle, stalled, unreadable, failing, parked, ending or "
        "paused; 0 for everything else.",
        ("shard", "state"),
        _activities,
    ),
    # --- records and children
    _of_shard(
        "mld_records_total",
        MetricKind.COUNTER,
        "User records given to the child, after de-aggregation.",
        lambda shard: shard.records,
        "ProcessTask RecordsProcessed",
    ),
    _of_shard(
        "mld_record_bytes_total",
        MetricKind.COUNTER,
        "Payload bytes given to the child.",
        lambda shard: shard.record_bytes,
        "ProcessTask DataBytesProcessed",
    ),
    _of_shard(
        "mld_process_records_seconds",
        MetricKind.HISTOGRAM,
        "From the sending of a batch to the child's answer.",
        lambda shard: shard.process_records,
        "ProcessTask RecordProcessor.processRecords.Time",
    ),
    _of_shard(
        "mld_child_busy_seconds",
        MetricKind.GAUGE,
        "Age of the batch in the child's hands; 0 while it has none.",
        lambda shard: shard.busy_s or 0.0,
    ),
    _by_shard(
        "mld_child_restarts_total",
        "reason",
        "Restarts of the child, by why: start, exit, timeout or protocol.",
        lambda shard: shard.restarts,
    ),
    _of_worker(
        "mld_shards_parked",
        MetricKind.GAUGE,
        "Shards that wait for an operator.",
        lambda snapshot: snapshot.count(ShardActivity.PARKED),
    ),
    _of_worker(
        "mld_shards_paused",
        MetricKind.GAUGE,
        "Shards that an operator has paused.",
        lambda snapshot: snapshot.count(ShardActivity.PAUSED),
    ),
    _by_shard(
        "mld_aggregates_dropped_total",
        "why",
        "KPL aggregates that were not opened: `range` are lost to this application, `malformed` are delivered closed.",
        lambda shard: shard.dropped_aggregates,
    ),
    # --- checkpoints and leases
    _by_shard(
        "mld_checkpoints_total",
        "result",
        "Checkpoints, counted when the table has answered: stored, refused or error.",
        lambda shard: shard.checkpoints,
        "ProcessTask UpdateLease.Success",
    ),
    _of_shard(
        "mld_checkpoint_seconds",
        MetricKind.HISTOGRAM,
        "From the child's request to the table's answer.",
        lambda shard: shard.checkpoint,
        "ProcessTask UpdateLease.Time",
    ),
    _of_worker(
        "mld_leases",
        MetricKind.GAUGE,
        "Leases held.",
        lambda snapshot: len(snapshot.shards),
        "RenewAllLeases CurrentLeases",
    ),
    _of_worker(
        "mld_leases_lost_total",
        MetricKind.COUNTER,
        "Leases that others took or that expired.",
        lambda snapshot: snapshot.leases_lost,
        "RenewAllLeases LostLeases",
    ),
    _by_name(
        "mld_lease_moves_total",
        ("how",),
        "Leases that came (taken, assigned, resumed) or went (handed_off, released, lost, expired, twin), by how.",
        lambda snapshot: snapshot.lease_moves,
    ),
    _by_name(
        "mld_lease_rows_total",
        ("what",),
        "Rows of the lease table that this worker created for new shards and deleted for finished ones.",
        lambda snapshot: snapshot.rows,
    ),
    _of_shard(
        "mld_lease_renewal_age_seconds",
        MetricKind.GAUGE,
        "How long ago the lease was last renewed.",
        lambda shard: shard.renewal_age_s,
    ),
    # --- reading
    _by_shard(
        "mld_fetches_total",
        "result",
        "Reads of the shard: records, empty, throttled, expired or error.",
        lambda shard: shard.fetches,
        "ProcessTask KinesisDataFetcher.getRecords.Success",
    ),
    _of_shard(
        "mld_shard_unread_seconds",
        MetricKind.GAUGE,
        "How long all reads of the shard have failed; 0 while they succeed.",
        lambda shard: shard.unread_s,
    ),
    _of_shard(
        "mld_fetch_seconds",
        MetricKind.HISTOGRAM,
        "Time of a read.",
        lambda shard: shard.fetch,
        "ProcessTask KinesisDataFetcher.getRecords.Time",
    ),
    _by_shard(
        "mld_subscriptions_total",
        "result",
        "Subscriptions of enhanced fan-out: opened, renewed, ended, refused or broken.",
        lambda shard: shard.subscriptions,
    ),
    _of_worker(
        "mld_subscribed_shards",
        MetricKind.GAUGE,
        "Shards with an open subscription.",
        lambda snapshot: sum(shard.is_subscribed for shard in snapshot.shards),
    ),
    _of_worker(
        "mld_prefetch_bytes",
        MetricKind.GAUGE,
        "Payload that waits in memory for children.",
        lambda snapshot: sum(shard.prefetch_bytes for shard in snapshot.shards),
    ),
    _of_worker(
        "mld_prefetch_limit_bytes",
        MetricKind.GAUGE,
        "Most payload that may wait.",
        lambda snapshot: snapshot.prefetch_limit_bytes,
    ),
    # --- AWS
    _by_name(
        "mld_aws_requests_total",
        ("service", "operation", "result"),
        "Requests to AWS; the result is ok or the code of the error.",
        lambda snapshot: snapshot.requests,
    ),
    _by_name(
        "mld_framed_records_total",
        ("result",),
        "Records with the frame of the Glue Schema Registry: decoded, or why not (unknown, unreachable, undecodable), "
        "counted once more at each attempt of a batch that waits.",
        lambda snapshot: snapshot.framed_records,
    ),
    _by_name(
        "mld_dynamodb_units_total",
        ("kind",),
        "Capacity units of DynamoDB that answers say were used: read or write.",
        lambda snapshot: snapshot.units,
    ),
    # --- the fleet
    _of_worker(
        "mld_leader",
        MetricKind.GAUGE,
        "1 while this worker leads.",
        lambda snapshot: int(snapshot.is_leader),
        "LeaderDecider LeaderDecider:IsLeader",
    ),
    _of_worker(
        "mld_workers",
        MetricKind.GAUGE,
        "Live workers, as the leader sees them.",
        lambda snapshot: snapshot.fleet.workers,
        "LeaseAssignmentManager NumWorkers",
    ),
    _of_worker(
        "mld_unassigned_leases",
        MetricKind.GAUGE,
        "Leases without a live owner, as the leader sees them.",
        lambda snapshot: snapshot.fleet.unassigned,
        "LeaseAssignmentManager ExpiredLeases",
    ),
    _of_worker(
        "mld_leases_without_room",
        MetricKind.GAUGE,
        "Leases of open shards that no worker has had room for (maxLeasesForWorker) for a minute.",
        lambda snapshot: snapshot.fleet.without_room,
    ),
    _of_worker(
        "mld_lease_table_holes",
        MetricKind.GAUGE,
        "Gaps in the hash range that no lease covers, as the leader sees them.",
        lambda snapshot: snapshot.fleet.holes,
        "PeriodicShardSyncManager NumStreamsWithPartialLeases",
    ),
    _of_worker(
        "mld_rows_corrupt",
        MetricKind.GAUGE,
        "Rows of the lease table that cannot be read.",
        lambda snapshot: snapshot.fleet.corrupt,
        "LeaseAssignmentManager LeaseDeserializationFailureCount",
    ),
    # --- the session of mld-spark
    _of_spark(
        "mld_spark_uncommitted_age_seconds",
        MetricKind.GAUGE,
        "How long the oldest record that mld-spark has accepted has waited to be in every sink; 0 while none waits.",
        lambda spark, wall_s: _age(spark.uncommitted_since, wall_s),
    ),
    _of_spark(
        "mld_spark_trigger_interval_seconds",
        MetricKind.GAUGE,
        "Longest regular time from one trigger of mld-spark to the next.",
        lambda spark, _: spark.interval_s,
    ),
    _of_spark(
        "mld_spark_trigger_age_seconds",
        MetricKind.GAUGE,
        "Age of the trigger of mld-spark that has not ended; 0 while none is under way.",
        lambda spark, wall_s: _age(spark.trigger_since, wall_s),
    ),
    _of_spark(
        "mld_spark_silence_seconds",
        MetricKind.GAUGE,
        "How long ago the session host of mld-spark wrote its figures, which it does every 5 seconds.",
        lambda spark, wall_s: _age(spark.written_at, wall_s),
    ),
    _of_spark(
        "mld_spark_sinks_aside",
        MetricKind.GAUGE,
        "Sinks of mld-spark that cannot be written and that the others do not wait for.",
        lambda spark, _: spark.sinks_aside,
    ),
    _of_spark(
        "mld_spark_records_dropped_total",
        MetricKind.COUNTER,
        "Records delivered again that a sink of mld-spark was not given, because it has them.",
        lambda spark, _: spark.dropped,
    ),
    _of_spark(
        "mld_spark_records_malformed_total",
        MetricKind.COUNTER,
        "Records that mld-spark could not decode.",
        lambda spark, _: spark.malformed,
    ),
    _of_spark(
        "mld_spark_records_poisoned_total",
        MetricKind.COUNTER,
        "Records with which the pipeline or a sink of mld-spark failed, and that are in its dead letter.",
        lambda spark, _: spark.poisoned,
    ),
    # --- the daemon
    _of_worker(
        "mld_unexpected_errors_total",
        MetricKind.COUNTER,
        "Exceptions that nobody expected and a loop survived: each is a defect to report.",
        lambda snapshot: snapshot.unexpected_errors,
    ),
    _of_worker(
        "mld_log_lines_dropped_total",
        MetricKind.COUNTER,
        "Lines of the log that were dropped because nobody read standard error.",
        lambda snapshot: snapshot.log_lines_dropped,
    ),
    _of_worker(
        "mld_loop_delay_seconds",
        MetricKind.HISTOGRAM,
        "How late a timer of the event loop is.",
        lambda snapshot: snapshot.loop_delay,
    ),
)
