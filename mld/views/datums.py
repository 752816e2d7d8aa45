"""What CloudWatch is sent: KCL's names, units, levels and dimensions, filled with this worker's values. Pure.

Rules: metrics#names, metrics#level-and-dimensions. Each value counts once: taking datums empties the statistic sets of
the instruments. Where Java records a point of zero before each value, which halves its averages, we do not; sums and
maxima are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from mld.metrics import java
from mld.metrics.instruments import Calls, Spread, StatisticSet, Successes
from mld.metrics.java import JAVA_METRICS, MILLIS, Dimension, JavaMetric
from mld.metrics.registry import Metrics, Operation, ShardMetrics
from mld.steps import SLICE, Steps
from properties.settings import Settings
from properties.values import MetricsLevel

MILLIS_PER_SECOND = 1000.0
OPERATION = "Operation"
ALL_DIMENSIONS = "ALL"
_BY_NAME: Mapping[tuple[str, str], JavaMetric] = {(one.operation, one.name): one for one in JAVA_METRICS}
_VALUE_MAX = 2.0**360
"""CloudWatch refuses a request in which one value is larger, or not a number."""


@dataclass(frozen=True, slots=True)
class Datum:
    """One statistic set under one name; `dimensions` are sorted pairs of name and value."""

    name: str
    dimensions: tuple[tuple[str, str], ...]
    unit: str
    values: StatisticSet

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
        """What the file asks for."""
        return cls(
            settings.metrics_level,
            frozenset(settings.metrics_enabled_dimensions),
            worker=settings.worker_id,
            stream=settings.stream_name if settings.stream_arn is not None else None,
        )

    def has(self, dimension: Dimension) -> bool:
        return ALL_DIMENSIONS in self.dimensions or dimension.value in self.dimensions


def take_datums(metrics: Metrics, wanted: Wanted, wall_s: float | None = None) -> Steps[list[Datum]]:
    """Everything noted since the last time that is wanted, one datum for each series.

    Of a shard whose child has answered nothing since, its lag at `wall_s` is noted: silence must not look like health.
    It is taken shard by shard; what is noted in between belongs to this time or to the next.
    """
    merged: dict[tuple[str, tuple[tuple[str, str], ...]], Datum] = {}
    ended, metrics.ended = metrics.ended, []
    held = tuple(metrics.shards.values())
    shards = (_of_shard(part, wanted, at_s) for parts, at_s in ((ended, None), (held, wall_s)) for part in parts)
    operations = [_of_operation(name, operation, wanted) for name, operation in metrics.worker.operations.items()]
    for datums in chain(shards, operations):
        for datum in datums:
            before = merged.get(datum.series)
            merged[datum.series] = datum if before is None else replace(datum, values=before.values + datum.values)
        yield
    return list(merged.values())


def _of_shard(part: ShardMetrics, wanted: Wanted, wall_s: float | None) -> Iterator[Datum]:
    process, key = java.PROCESS, part
    behind = part.behind.take()
    if behind is None and wall_s is not None and (lag_ms := part.lag_ms(wall_s)) is not None:
        part.behind.note(lag_ms)
        behind = part.behind.take()
    if behind is not None:
        yield from _datum(process, "MillisBehindLatest", behind, wanted, key)
        yield from _datum(java.TRACKER, "MillisBehindLatest", behind, wanted, key)
    for name, spread in (
        ("RecordsProcessed", part.batches),
        ("DataBytesProcessed", part.record_bytes),
        ("ExpiredIterator", part.expired_iterators),
        ("RecordProcessor.processRecords.Time", part.process_records),
    ):
        yield from _taken(process, name, spread, wanted, key)
    for prefix, calls in (
        ("", part.tasks),
        ("KinesisDataFetcher.getRecords.", part.fetch),
        ("KinesisDataFetcher.getShardIterator.", part.iterator),
        ("UpdateLease.", part.checkpoints),
    ):
        yield from _of_calls(process, prefix, calls, wanted, key)
    yield from _of_calls(java.SHUTDOWN, "UpdateLease.", part.ending_checkpoints, wanted, key)
    yield from _taken(java.INITIALIZE, "RecordProcessor.initialize.Time", part.initialize, wanted)
    yield from _taken(java.SHUTDOWN, "RecordProcessor.shutdown.Time", part.shutdown, wanted)


def _of_operation(name: str, operation: Operation, wanted: Wanted) -> Iterator[Datum]:
    yield from _of_calls(name, "", operation.calls, wanted)
    for step, calls in operation.steps.items():
        yield from _of_calls(name, f"{step}.", calls, wanted)
    for value, spread in operation.data.items():
        yield from _taken(name, value, spread, wanted)


def _of_calls(
    operation: str, prefix: str, calls: Calls, wanted: Wanted, of: ShardMetrics | None = None
) -> Iterator[Datum]:
    yield from _taken(operation, f"{prefix}Success", calls.ok, wanted, of)
    yield from _taken(operation, f"{prefix}Time", calls.seconds, wanted, of)


def _taken(
    operation: str, name: str, spread: Spread | Successes, wanted: Wanted, of: ShardMetrics | None = None
) -> Iterator[Datum]:
    values = spread.take()
    if values is not None:
        metric = _BY_NAME.get((operation, name))
        # Times are noted in seconds, except `MillisBehindLatest`, which is as Kinesis gives it.
        scale = MILLIS_PER_SECOND if metric is not None and metric.unit == MILLIS else 1.0
        yield from _datum(operation, name, values, wanted, of, scale)


def _datum(
    operation: str, name: str, values: StatisticSet, wanted: Wanted, of: ShardMetrics | None = None, scale: float = 1.0
) -> Iterator[Datum]:
    metric = _BY_NAME.get((operation, name))
    if metric is None:  # a step that has only a success or only a time in KCL
        return
    if wanted.level is MetricsLevel.NONE:
        return
    if wanted.level is MetricsLevel.SUMMARY and metric.level is not MetricsLevel.SUMMARY:
        return
    if not max(abs(values.total), abs(values.least), abs(values.greatest)) * scale < _VALUE_MAX:
        return
    shard, stream = ("", None) if of is None else (of.shard_id, of.stream_id)
    yield Datum(name, dimensions_of(metric, wanted, shard, stream), metric.unit, _scaled(values, scale))


def dimensions_of(
    metric: JavaMetric, wanted: Wanted, shard: str = "", stream: str | None = None
) -> tuple[tuple[str, str], ...]:
    """The dimensions with which `metric` is sent, sorted; `shard` is that of the values, `stream` its stream's
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


def metric_of(operation: str, name: str) -> JavaMetric | None:
    """KCL's metric of that name; None if there is none."""
    return _BY_NAME.get((operation, name))


def _scaled(values: StatisticSet, scale: float) -> StatisticSet:
    """The values in the unit of their metric. Buckets stay those of seconds, and are kept for times only."""
    return StatisticSet(
        values.count,
        values.total * scale,
        values.least * scale,
        values.greatest * scale,
        values.last * scale,
        values.buckets if scale == MILLIS_PER_SECOND else (),
    )


@dataclass(frozen=True, slots=True)
class Stamped:
    """A datum with the time of its values, in epoch seconds, which decides in which minute CloudWatch puts them."""

    datum: Datum
    stamp_s: float


class DatumQueue:
    """Datums that wait to be sent, at most `size_max`; the oldest make room for new ones."""

    def __init__(self, size_max: int) -> None:
        self._waiting: deque[Stamped] = deque()
        self._size_max = size_max
        self.dropped = 0

    def put(self, datums: Iterable[Stamped]) -> None:
        """They are newer than all that wait."""
        self._waiting.extend(datums)
        self._drop_oldest()

    def put_back(self, datums: Iterable[Stamped]) -> None:
        """They were taken, in this order, and not sent."""
        self._waiting.extendleft(reversed(list(datums)))
        self._drop_oldest()

    def take(self) -> list[Stamped]:
        """Everything that waits, oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def _drop_oldest(self) -> None:
        while len(self._waiting) > self._size_max:
            self._waiting.popleft()
            self.dropped += 1


DATUMS_PER_REQUEST_MAX = 1_000
REQUEST_BYTES_MAX = 900_000
"""Below the 1 MB of PutMetricData even if nothing is compressed."""
_DATUM_OVERHEAD_BYTES = 450
"""Of a datum without its names, in the most wordy of CloudWatch's protocols."""


def packed(datums: Iterable[Stamped]) -> Iterator[list[Stamped]]:
    """The datums in as few requests as CloudWatch takes."""
    batch: list[Stamped] = []
    size = 0
    for stamped in datums:
        datum = stamped.datum
        bytes_ = _DATUM_OVERHEAD_BYTES + len(datum.name) + sum(120 + len(n) + 3 * len(v) for n, v in datum.dimensions)
        if batch and (len(batch) == DATUMS_PER_REQUEST_MAX or size + bytes_ > REQUEST_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(stamped)
        size += bytes_
    if batch:
        yield batch


def request_of(namespace: str, datums: Iterable[Stamped]) -> Steps[dict[str, object]]:
    """Parameters of PutMetricData."""
    data = []
    for number, one in enumerate(datums, start=1):
        data.append(
            {
                "MetricName": one.datum.name,
                "Dimensions": [{"Name": name, "Value": value} for name, value in one.datum.dimensions],
                "Timestamp": one.stamp_s,
                "Unit": one.datum.unit,
                "StatisticValues": {
                    "SampleCount": float(one.datum.values.count),
                    "Sum": one.datum.values.total,
                    "Minimum": one.datum.values.least,
                    "Maximum": one.datum.values.greatest,
                },
            }
        )
        if number % SLICE == 0:
            yield
    return {"Namespace": namespace, "MetricData": data}
