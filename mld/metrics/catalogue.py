"""Every name under which this worker's metrics are published, as they are declared: collected, nothing is added.

`docs/use/metrics.md` is written from these tables, and the alerts and the dashboard name only what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping

from mld.metrics.declaring import Declared, JavaMetric, Metric, declared, metrics_of
from mld.metrics.operations import ABSENT, OPERATIONS
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.metrics.worker import SparkFigures, TableMetrics, WorkerMetrics

OF_SHARD: tuple[Metric, ...] = tuple(metrics_of(ShardMetrics, "shard"))
"""Read from the part of each shard."""
OF_WORKER: tuple[Metric, ...] = (
    *metrics_of(Metrics),
    *metrics_of(WorkerMetrics, reach=lambda metrics: metrics.worker),
    *metrics_of(TableMetrics, reach=lambda metrics: metrics.worker.table),
    *metrics_of(SparkFigures, reach=lambda metrics: metrics.worker.spark),
)
"""Read from `Metrics`."""

JAVA_OF_SHARD: tuple[Declared, ...] = tuple(declared(ShardMetrics))
JAVA_METRICS: tuple[JavaMetric, ...] = (
    *(metric for one in JAVA_OF_SHARD for metric in one.metrics),
    *(metric for _, ones in OPERATIONS for one in ones for metric in one.metrics),
    *ABSENT,
)
"""Every name of KCL's."""
JAVA_BY_NAME: Mapping[tuple[str, str], JavaMetric] = {(one.operation, one.name): one for one in JAVA_METRICS}
