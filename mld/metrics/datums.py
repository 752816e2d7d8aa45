"""The values that CloudWatch gets, under KCL's names, units, levels and dimensions. Pure.

Rules: metrics#names, metrics#level-and-dimensions. A datum is one statistic set (number, sum, minimum and maximum of
values) under one name. Each value is sent once: `take_datums` empties the statistic sets of the instruments. Java sends
an additional zero with each value, which halves its averages. We do not; sums and maxima are the same as Java's.

Values are taken when a period of the wall clock ends, and get the time at which the period began. So with a period of a
minute CloudWatch gets exactly one statistic set for each minute, however late the request is.
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
from mld.metrics.published import JAVA_OF_SHARD
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.properties.printable import printable
from mld.properties.settings import Settings
from mld.properties.values import MetricsLevel

EARLY_S = 0.1
"""A timer may fire this much before the wall clock reaches the end of the period; the period then counts as ended."""

OPERATION = "Operation"
ALL_DIMENSIONS = "ALL"
"""The value of `metricsEnabledDimensions` that means all dimensions."""
_VALUE_MAX = 2.0**360
"""Largest value that CloudWatch takes. It refuses the whole request if one value is larger, or is not a number."""

DATUMS_PER_REQUEST_MAX = 1_000
REQUEST_BYTES_MAX = 900_000
"""Below the 1 MB limit of PutMetricData even without compression."""
DIMENSION_CHARACTERS_MAX = 1024
BLANK_DIMENSION = "-"
_DATUM_OVERHEAD_BYTES = 450
"""Bytes of a datum besides its names, in the longest of CloudWatch's protocols."""


def wait_s(wall_s: float, length_s: float) -> float:
    """Return the seconds from `wall_s` to the end of the current period. If that is less than EARLY_S, return the
    seconds to the end of the next period.
    """
    left_s = length_s - math.fmod(wall_s, length_s)
    return left_s if left_s > EARLY_S else left_s + length_s


@dataclass(frozen=True, slots=True)
class Datum:
    """One statistic set under one name. `dimensions` are pairs of name and value, sorted."""

    name: str
    dimensions: tuple[tuple[str, str], ...]
    unit: str
    values: StatisticSet
    stamp_s: float = 0.0
    """Time of the values in epoch seconds; it decides to which minute CloudWatch adds them."""

    @property
    def series(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Name and dimensions, which together identify a metric in CloudWatch."""
        return self.name, self.dimensions


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings that decide which values are sent, and with which dimensions.

    `level` is `metricsLevel`, `dimensions` is `metricsEnabledDimensions`. `worker` and `stream` are the values of two
    dimensions; with None the dimension is not sent. `worker` is None unless `workerId` is configured, because an id
    that changes with each start would create new metrics each time. `stream` is None for a stream that is configured
    by name, as in KCL. If there are several streams, each shard's metrics name their own.
    """

    level: MetricsLevel
    dimensions: frozenset[str]
    worker: str | None = None
    stream: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Wanted:
        """Return the level and dimensions that these settings ask for."""
        return cls(
            settings.metrics.level,
            frozenset(settings.metrics.dimensions),
            worker=settings.worker_id,
            stream=settings.stream_name if settings.stream_arn is not None else None,
        )

    def has(self, dimension: Dimension) -> bool:
        return ALL_DIMENSIONS in self.dimensions or dimension.value in self.dimensions


def take_datums(metrics: Metrics, wanted: Wanted, wall_s: float | None = None) -> Steps[list[Datum]]:
    """Return all wanted values that were noted since the last call, one datum for each series.

    If the child of a shard has answered nothing since then, the shard's lag at `wall_s` is noted first, because a
    silent shard must not look healthy. Shards are read one after the other, so a value that is noted meanwhile is in
    this result or in the next.
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
    """Yield the datums of each shard's part and of each operation, so that other tasks can run in between. The lag of a
    silent shard is noted first (see `take_datums`), but not in the part of a lease that has ended.
    """
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
    """Take the values of the declared instruments of `owner`, and yield a datum for each metric that is sent."""
    for one in declared:
        values = one.take(owner)
        if values is not None:
            for metric in one.metrics:
                if _is_sent(metric, values, wanted):
                    dimensions = dimensions_of(metric, wanted, shard, stream)
                    yield Datum(metric.name, dimensions, metric.unit, _scaled(values, metric.scale))


def _is_sent(metric: JavaMetric, values: StatisticSet, wanted: Wanted) -> bool:
    """Return whether the settings want this metric, and CloudWatch accepts the values."""
    is_too_detailed = metric.level is MetricsLevel.DETAILED and wanted.level is not MetricsLevel.DETAILED
    if wanted.level is MetricsLevel.NONE or is_too_detailed:
        return False
    return max(abs(values.total), abs(values.least), abs(values.greatest)) * metric.scale < _VALUE_MAX


def dimensions_of(
    metric: JavaMetric, wanted: Wanted, shard: str = "", stream: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the dimensions with which `metric` is sent, sorted.

    `shard` is the shard of the values. `stream` is the identifier of its stream if there are several.
    """
    dimensions = [(OPERATION, metric.operation)]
    for dimension, text in (
        (Dimension.SHARD, shard),
        (Dimension.STREAM, stream or wanted.stream),
        (Dimension.WORKER, wanted.worker),
    ):
        if text and dimension in metric.dimensions and wanted.has(dimension):
            dimensions.append((dimension.value, dimension_text(text)))
    return tuple(sorted(dimensions))


def dimension_text(text: str) -> str:
    """Return a text as the value of a dimension. CloudWatch refuses the whole request for one value that is too long,
    blank, or has other characters than printable ASCII; rows may name a shard in any way.
    """
    plain = printable(text).encode("ascii", "backslashreplace").decode("ascii")
    return plain[:DIMENSION_CHARACTERS_MAX].strip() or BLANK_DIMENSION


def _scaled(values: StatisticSet, scale: float) -> StatisticSet:
    """Return the values multiplied by `scale`, which converts them to the unit of their metric."""
    return StatisticSet(values.count, values.total * scale, values.least * scale, values.greatest * scale)


class DatumQueue:
    """Datums that wait to be sent, at most `size_max`. If there are more, the oldest are dropped."""

    def __init__(self, size_max: int) -> None:
        self._waiting: deque[Datum] = deque()
        self._size_max = size_max
        self.dropped = 0

    def put(self, datums: Iterable[Datum]) -> None:
        """Add datums that are newer than all waiting ones."""
        self._waiting.extend(datums)
        self._drop_oldest()

    def put_back(self, datums: Iterable[Datum]) -> None:
        """Put datums that were taken but could not be sent back to the front, in this order."""
        self._waiting.extendleft(reversed(list(datums)))
        self._drop_oldest()

    def take(self) -> list[Datum]:
        """Remove and return all waiting datums, the oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def _drop_oldest(self) -> None:
        """Drop and count the oldest datums beyond `size_max`."""
        while len(self._waiting) > self._size_max:
            self._waiting.popleft()
            self.dropped += 1


def packed(datums: Iterable[Datum]) -> Iterator[list[Datum]]:
    """Split the datums into as few requests as CloudWatch's limits allow: in number, and in bytes, of which an upper
    estimate is made for each datum.
    """
    batch: list[Datum] = []
    size = 0
    for datum in datums:
        # In an encoded URL, a character of a value may take three bytes.
        bytes_ = _DATUM_OVERHEAD_BYTES + len(datum.name) + sum(120 + len(n) + 3 * len(v) for n, v in datum.dimensions)
        if batch and (len(batch) == DATUMS_PER_REQUEST_MAX or size + bytes_ > REQUEST_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(datum)
        size += bytes_
    if batch:
        yield batch


def request_of(namespace: str, datums: Iterable[Datum]) -> Steps[dict[str, object]]:
    """Return the parameters of PutMetricData, made in steps; each datum becomes one set of statistics."""
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
