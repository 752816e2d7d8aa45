"""What CloudWatch is sent: KCL's names, units, levels and dimensions, filled with this worker's values. Pure.

Rules: metrics#names, metrics#level-and-dimensions. Each value counts once: taking datums empties the statistic sets of
the instruments. Where Java records a point of zero before each value, which halves its averages, we do not; sums and
maxima are the same.

Values are taken at whole periods of the wall clock and bear the time at which their period began: with a period of a
minute CloudWatch gets exactly one statistic set for each of its minutes, however late the request is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mld.core.steps import SLICE, Steps
from mld.metrics.declaring import Declared, Dimension, JavaMetric
from mld.metrics.instruments import StatisticSet
from mld.metrics.operations import OPERATIONS
from mld.metrics.registry import JAVA_OF_SHARD, Metrics
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import Settings
from mld.properties.values import MetricsLevel

EARLY_S = 0.1
"""A timer may fire so much before the wall clock says so; that ends the period all the same."""

OPERATION = "Operation"
ALL_DIMENSIONS = "ALL"
_VALUE_MAX = 2.0**360
"""CloudWatch refuses a request in which one value is larger, or not a number."""

DATUMS_PER_REQUEST_MAX = 1_000
REQUEST_BYTES_MAX = 900_000
"""Below the 1 MB of PutMetricData even if nothing is compressed."""
_DATUM_OVERHEAD_BYTES = 450
"""Of a datum without its names, in the most wordy of CloudWatch's protocols."""


def wait_s(wall_s: float, length_s: float) -> float:
    """Return seconds from `wall_s` to the end of the period that it is in, or of the next one if it has as good as
    ended.
    """
    left_s = length_s - math.fmod(wall_s, length_s)
    return left_s if left_s > EARLY_S else left_s + length_s


@dataclass(frozen=True, slots=True)
class Datum:
    """One statistic set under one name; `dimensions` are sorted pairs of name and value."""

    name: str
    dimensions: tuple[tuple[str, str], ...]
    unit: str
    values: StatisticSet
    stamp_s: float = 0.0
    """The time of its values, in epoch seconds, which decides in which minute CloudWatch puts them."""

    @property
    def series(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.name, self.dimensions


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings: `metricsLevel`, `metricsEnabledDimensions`, and the values of the dimensions that exist here.

    `worker` is None without a configured `workerId`: an id that is new with every start would make new metrics each
    time. `stream` is None for a stream that is configured by name, as in KCL; of several, the values name theirs.
    """

    level: MetricsLevel
    dimensions: frozenset[str]
    worker: str | None = None
    stream: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Wanted:
        """Return what the file asks for."""
        return cls(
            settings.metrics.level,
            frozenset(settings.metrics.dimensions),
            worker=settings.worker_id,
            stream=settings.stream_name if settings.stream_arn is not None else None,
        )

    def has(self, dimension: Dimension) -> bool:
        return ALL_DIMENSIONS in self.dimensions or dimension.value in self.dimensions


def take_datums(metrics: Metrics, wanted: Wanted, wall_s: float | None = None) -> Steps[list[Datum]]:
    """Return everything noted since the last time that is wanted, one datum for each series.

    Of a shard whose child has answered nothing since, its lag at `wall_s` is noted: silence must not look like health.
    It is taken shard by shard; what is noted in between belongs to this time or to the next.
    """
    merged: dict[tuple[str, tuple[tuple[str, str], ...]], Datum] = {}
    ended, metrics.ended = metrics.ended, []
    for datums in _in_parts(metrics, (*ended, *metrics.shards.values()), wanted, wall_s):
        for datum in datums:
            before = merged.get(datum.series)
            merged[datum.series] = datum if before is None else replace(datum, values=before.values + datum.values)
        yield
    return list(merged.values())


def _in_parts(
    metrics: Metrics, parts: Iterable[ShardMetrics], wanted: Wanted, wall_s: float | None
) -> Iterator[Iterator[Datum]]:
    for part in parts:
        if wall_s is not None and not part.behind.has_news and metrics.shards.get(part.key) is part:
            lag_ms = part.lag_ms(wall_s)
            if lag_ms is not None:
                part.behind.note(lag_ms)
        yield _taken(JAVA_OF_SHARD, part, wanted, part.shard_id, part.stream_id)
    for name, declared in OPERATIONS:
        yield _taken(declared, getattr(metrics.worker.operations, name), wanted)


def _taken(
    declared: Iterable[Declared], owner: object, wanted: Wanted, shard: str = "", stream: str | None = None
) -> Iterator[Datum]:
    for one in declared:
        values = one.take(owner)
        if values is not None:
            for metric in one.metrics:
                if _is_sent(metric, values, wanted):
                    dimensions = dimensions_of(metric, wanted, shard, stream)
                    yield Datum(metric.name, dimensions, metric.unit, _scaled(values, metric.scale))


def _is_sent(metric: JavaMetric, values: StatisticSet, wanted: Wanted) -> bool:
    if wanted.level is MetricsLevel.NONE or MetricsLevel.DETAILED is metric.level is not wanted.level:
        return False
    return max(abs(values.total), abs(values.least), abs(values.greatest)) * metric.scale < _VALUE_MAX


def dimensions_of(
    metric: JavaMetric, wanted: Wanted, shard: str = "", stream: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the dimensions with which `metric` is sent, sorted; `shard` is that of the values, `stream` its stream's
    identifier among several."""
    dimensions = [(OPERATION, metric.operation)]
    for dimension, text in (
        (Dimension.SHARD, shard),
        (Dimension.STREAM, stream or wanted.stream),
        (Dimension.WORKER, wanted.worker),
    ):
        if text and dimension in metric.dimensions and wanted.has(dimension):
            dimensions.append((dimension.value, text))
    return tuple(sorted(dimensions))


def _scaled(values: StatisticSet, scale: float) -> StatisticSet:
    """Return the values in the unit of their metric."""
    return StatisticSet(values.count, values.total * scale, values.least * scale, values.greatest * scale)


class DatumQueue:
    """Datums that wait to be sent, at most `size_max`; the oldest make room for new ones."""

    def __init__(self, size_max: int) -> None:
        self._waiting: deque[Datum] = deque()
        self._size_max = size_max
        self.dropped = 0

    def put(self, datums: Iterable[Datum]) -> None:
        """Add datums that are newer than all that wait."""
        self._waiting.extend(datums)
        self._drop_oldest()

    def put_back(self, datums: Iterable[Datum]) -> None:
        """Put back what was taken, in this order, and not sent."""
        self._waiting.extendleft(reversed(list(datums)))
        self._drop_oldest()

    def take(self) -> list[Datum]:
        """Return everything that waits, oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def _drop_oldest(self) -> None:
        while len(self._waiting) > self._size_max:
            self._waiting.popleft()
            self.dropped += 1


def packed(datums: Iterable[Datum]) -> Iterator[list[Datum]]:
    """Yield the datums in as few requests as CloudWatch takes."""
    batch: list[Datum] = []
    size = 0
    for datum in datums:
        bytes_ = _DATUM_OVERHEAD_BYTES + len(datum.name) + sum(120 + len(n) + 3 * len(v) for n, v in datum.dimensions)
        if batch and (len(batch) == DATUMS_PER_REQUEST_MAX or size + bytes_ > REQUEST_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(datum)
        size += bytes_
    if batch:
        yield batch


def request_of(namespace: str, datums: Iterable[Datum]) -> Steps[dict[str, object]]:
    """Return parameters of PutMetricData."""
    data = []
    for number, one in enumerate(datums, start=1):
        data.append(
            {
                "MetricName": one.name,
                "Dimensions": [{"Name": name, "Value": value} for name, value in one.dimensions],
                "Timestamp": one.stamp_s,
                "Unit": one.unit,
                "StatisticValues": {
                    "SampleCount": float(one.values.count),
                    "Sum": one.values.total,
                    "Minimum": one.values.least,
                    "Maximum": one.values.greatest,
                },
            }
        )
        if number % SLICE == 0:
            yield
    return {"Namespace": namespace, "MetricData": data}
