"""Every name under which metrics are published, collected from where they are declared.

`docs/use/metrics.md` is written from these tables, and the alerts and the dashboard use no other names.
"""

from __future__ import annotations

from collections.abc import Mapping

from mld.metrics.configuration import ConfigurationMetrics
from mld.metrics.declared import declared, metrics_of
from mld.metrics.declaring import Declared, JavaMetric, Metric
from mld.metrics.disks import DiskMetrics
from mld.metrics.lease_table import TableMetrics
from mld.metrics.operations import OPERATIONS
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.metrics.spark_figures import SparkFigures
from mld.metrics.worker import WorkerMetrics

OF_SHARD: tuple[Metric, ...] = tuple(metrics_of(ShardMetrics, "shard"))
"""Metrics of Prometheus for each shard, read from its `ShardMetrics`."""

JAVA_OF_SHARD: tuple[Declared, ...] = tuple(declared(ShardMetrics))
"""Instruments of each shard that have names of KCL."""
JAVA_METRICS: tuple[JavaMetric, ...] = (
    *(metric for one in JAVA_OF_SHARD for metric in one.metrics),
    *(metric for _, ones in OPERATIONS for one in ones for metric in one.metrics),
)
"""All metric names of KCL that are published."""
JAVA_BY_NAME: Mapping[tuple[str, str], JavaMetric] = {(one.operation, one.name): one for one in JAVA_METRICS}
"""These metrics by their operation and name."""

OF_WORKER: tuple[Metric, ...] = (
    *metrics_of(Metrics),
    *metrics_of(WorkerMetrics, reach=lambda metrics: metrics.worker),
    *metrics_of(TableMetrics, reach=lambda metrics: metrics.worker.table),
    *metrics_of(ConfigurationMetrics, reach=lambda metrics: metrics.worker.configuration),
    *metrics_of(DiskMetrics, reach=lambda metrics: metrics.worker.disks),
    *metrics_of(SparkFigures, reach=lambda metrics: metrics.worker.spark),
)
"""Metrics of Prometheus for the worker, read from its `Metrics`."""
