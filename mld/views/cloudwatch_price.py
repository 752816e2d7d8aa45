"""What the metrics of a fleet cost in CloudWatch, by its settings. Pure.

CloudWatch bills each custom metric (a name with its dimensions) for the hours in which it gets values, and each
request. The metrics are those that a fleet under a steady load sends every hour; what only an event sends (a split, a
take-over, a fault) is not counted. Requests are counted by making them. Rules: metrics#price-of-metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mld.metrics import java
from mld.metrics.instruments import StatisticSet
from mld.metrics.java import JAVA_METRICS, Dimension, JavaMetric
from mld.views.datums import Datum, Stamped, Wanted, dimensions_of, packed
from properties.settings import Settings
from properties.values import ClientVersionConfig, MetricsLevel, MetricsOutput

LIST_PRICE = "list prices of us-east-1, as of November 2024"
METRIC_TIERS = ((10_000, 0.30), (240_000, 0.10), (750_000, 0.05), (None, 0.02))
"""Dollars a month for each metric: so many at the first price, so many more at the next."""
REQUEST_DOLLARS_PER_THOUSAND = 0.01
HOURS_PER_MONTH = 730.0
HOUR_S = 3600.0

_BY_EVENT = frozenset(
    {java.INITIALIZE, java.SHUTDOWN, java.SYNC, java.MOVE, "LeaseRenewerInitialize", "Scheduler:Initialize"}
) | {"Migration", java.TABLE_MIGRATION, "TableMigrationInitialize"}
"""Operations of a start, a reshard or a migration."""
_ON_FAULT = frozenset(
    {
        "ExpiredIterator",
        "ForceLeaderRelease",
        "GetLease:Error",
        "InMemoryMetricStatsReporterFailure",
        "LeaseDeserializationFailureCount",
        "LeaseSpillover",
        "NumSkippedShardSyncTask",
        "NumWorkersWithFailingWorkerMetric",
        "NumWorkersWithInvalidEntry",
        "OwnerMismatch",
    }
)
_AT_A_START = ("KinesisDataFetcher.getShardIterator.",)
_BY_POLLING = ("KinesisDataFetcher.getRecords.",)
_A_SHARD = "shardId-000000000000"
_SAMPLE = StatisticSet(300, 123_456.0, 12.0, 4_321.0)


@dataclass(frozen=True, slots=True)
class MetricsCost:
    """Of a month. `requests` are those of the whole fleet."""

    metrics: int
    requests: float

    @property
    def dollars(self) -> float:
        return _metric_dollars(self.metrics) + self.requests * REQUEST_DOLLARS_PER_THOUSAND / 1000


def cost(settings: Settings, leases: int, workers: int) -> MetricsCost:
    """What a fleet of at least one lease and one worker pays for CloudWatch; nothing if it sends it nothing."""
    if MetricsOutput.CLOUDWATCH not in settings.metrics or settings.metrics_level is MetricsLevel.NONE:
        return MetricsCost(0, 0.0)
    periods = HOURS_PER_MONTH * HOUR_S / (settings.metrics_buffer_time_millis / 1000)
    own = list(_of_worker(settings, -(-leases // workers)))
    per_period = len(list(packed(Stamped(datum, 0.0) for datum in own)))
    return MetricsCost(_metrics_of_fleet(settings, leases, workers), per_period * periods * workers)


def steady_metrics(settings: Settings) -> Iterator[JavaMetric]:
    """What a fleet under a steady load sends every hour at the file's level."""
    by_leader = settings.client_version_config is ClientVersionConfig.VERSION_3X
    for metric in JAVA_METRICS:
        if not metric.is_sent or metric.operation in _BY_EVENT or metric.name in _ON_FAULT:
            continue
        if metric.name.startswith(_AT_A_START):
            continue
        if metric.name.startswith(_BY_POLLING) and settings.reads_by_fan_out:
            continue
        if metric.operation == (java.TAKE if by_leader else java.ASSIGN):
            continue
        if settings.metrics_level is MetricsLevel.SUMMARY and metric.level is not MetricsLevel.SUMMARY:
            continue
        yield metric


def _metrics_of_fleet(settings: Settings, leases: int, workers: int) -> int:
    """Each shard has its own, each worker that has a name of its own too; all others are everybody's."""
    wanted = Wanted.of(settings)
    count = 0
    for metric in steady_metrics(settings):
        dimensions = dict(dimensions_of(metric, wanted, _A_SHARD))
        of_shards = leases if Dimension.SHARD.value in dimensions else 1
        of_workers = workers if Dimension.WORKER.value in dimensions else 1
        count += of_shards * of_workers
    return count


def _of_worker(settings: Settings, shards: int) -> Iterator[Datum]:
    """What a worker sends in a period, each series once."""
    wanted = Wanted.of(settings)
    for metric in steady_metrics(settings):
        has_shard = Dimension.SHARD in metric.dimensions and wanted.has(Dimension.SHARD)
        for number in range(shards if has_shard else 1):
            shard = f"{_A_SHARD[: -len(str(number))]}{number}"
            yield Datum(metric.name, dimensions_of(metric, wanted, shard), metric.unit, _SAMPLE)


def _metric_dollars(metrics: int) -> float:
    dollars, left = 0.0, metrics
    for size, price in METRIC_TIERS:
        here = left if size is None else min(left, size)
        dollars += here * price
        left -= here
    return dollars
