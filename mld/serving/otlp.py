"""OpenTelemetry: a period's values to a collector, by OTLP over HTTP, under the names of KCL's OpenTelemetry backend.

The SDK (extra `otel`) encodes and sends; where to, and how, is what the environment says in its standard variables
(OTEL_EXPORTER_OTLP_ENDPOINT and the like). Its instruments and its threads are not used. Counters and histograms are
sums since their start, or with OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta since the last export that went
well, so that nothing is lost while a collector is away. Rules: metrics#opentelemetry.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from mld.aws.threads import Workers
from mld.core.errors import MetricsError
from mld.metrics.datums import Datum, Period
from mld.metrics.declaring import BYTES, COUNT, MILLIS, MILLIS_PER_SECOND, NO_UNIT
from mld.metrics.instruments import SECONDS_BOUNDS, StatisticSet
from mld.metrics.registry import Identity

TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
DELTA = frozenset({"delta", "lowmemory"})
CLOSE_TIMEOUT_S = 1.0
EXPORT_TIMEOUT_S = 15.0  # above the exporter's own, which OTEL_EXPORTER_OTLP_TIMEOUT sets (10 s)
STALE_PERIODS = 60
"""A series without news for so long is forgotten; it begins anew if it comes again."""
NANOS_PER_SECOND = 1_000_000_000
BOUNDS_MS = tuple(bound * MILLIS_PER_SECOND for bound in SECONDS_BOUNDS)
_LIBRARY = "opentelemetry"


@dataclass(slots=True)
class _Series:
    """One series since `begin_s`, in epoch seconds; `idle` counts the periods without news."""

    datum: Datum
    begin_s: float
    values: StatisticSet
    idle: int = 0


class Accumulated:
    """What the collector has to be told: sums of every series since its start, or since `sent` in delta mode."""

    def __init__(self, series_max: int, *, is_delta: bool) -> None:
        self._series_max = series_max
        self._is_delta = is_delta
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], _Series] = {}

    def add(self, datums: Iterable[Datum], begin_s: float) -> None:
        """Add the values of a period that began at `begin_s`. Of more series than may be, the new ones are left out."""
        for series in self._series.values():
            series.idle += 1
        for key in [key for key, series in self._series.items() if series.idle > STALE_PERIODS]:
            del self._series[key]
        for datum in datums:
            known = self._series.get(datum.series)
            if known is not None:
                known.values, known.idle = known.values + datum.values, 0
            elif len(self._series) < self._series_max:
                self._series[datum.series] = _Series(datum, begin_s, datum.values)

    def sent(self) -> None:
        """Note that everything has reached the collector."""
        if self._is_delta:
            self._series.clear()

    def metrics(self, end_s: float) -> list[sdk.Metric]:
        """Return one metric for each name, with a point for each set of attributes."""
        by_name: dict[str, list[_Series]] = {}
        for series in self._series.values():
            by_name.setdefault(series.datum.name, []).append(series)
        return [self._metric(alike, end_s) for alike in by_name.values()]

    def _metric(self, alike: list[_Series], end_s: float) -> sdk.Metric:
        first = alike[0].datum
        temporality = sdk.AggregationTemporality.DELTA if self._is_delta else sdk.AggregationTemporality.CUMULATIVE
        data: sdk.Gauge | sdk.Sum | sdk.Histogram
        match instrument_of(first.name, first.unit):
            case Instrument.GAUGE:
                data = sdk.Gauge([_number(one, one.values.last, end_s) for one in alike])
            case Instrument.COUNTER:
                points = [_number(one, one.values.total, end_s) for one in alike]
                data = sdk.Sum(points, temporality, is_monotonic=True)
            case Instrument.HISTOGRAM:
                data = sdk.Histogram([_histogram(one, end_s) for one in alike], temporality)
        return sdk.Metric(otel_name(first.name), "", UNITS[first.unit], data)


def _attributes(datum: Datum) -> Mapping[str, str]:
    return {ATTRIBUTES[name]: value for name, value in datum.dimensions}


def _number(series: _Series, value: float, end_s: float) -> sdk.NumberDataPoint:
    return sdk.NumberDataPoint(_attributes(series.datum), _nanos(series.begin_s), _nanos(end_s), float(value))


def _histogram(series: _Series, end_s: float) -> sdk.HistogramDataPoint:
    """Make a histogram with the buckets of times; other values have one bucket, and their least and greatest."""
    values = series.values
    return sdk.HistogramDataPoint(
        attributes=_attributes(series.datum),
        start_time_unix_nano=_nanos(series.begin_s),
        time_unix_nano=_nanos(end_s),
        count=values.count,
        sum=values.total,
        bucket_counts=values.buckets or (values.count,),
        explicit_bounds=BOUNDS_MS if values.buckets else (),
        min=values.least,
        max=values.greatest,
    )


def _nanos(seconds: float) -> int:
    return int(seconds * NANOS_PER_SECOND)


class OtlpOutput:
    """Exports from a thread of its own. Raises ValueError if the environment's variables cannot be used."""

    name = "otlp"

    def __init__(self, identity: Identity, *, series_max: int, env: Mapping[str, str] = os.environ) -> None:
        self._accumulated = Accumulated(series_max, is_delta=env.get(TEMPORALITY, "").strip().lower() in DELTA)
        self._resource = _resource(identity)
        self._scope = InstrumentationScope(METER, identity.version)
        self._exporter = OTLPMetricExporter()  # what it says of the environment goes to the log
        self._said = _FirstWords()
        self._threads = Workers(threads_max=1, name="aws-otlp")

    async def publish(self, datums: list[Datum], period: Period) -> None:
        if not await self._in_thread(lambda: self._export(datums, period)):
            raise MetricsError("unexported", f"{self._said.text}. They wait and are sent later")

    async def close(self) -> None:
        """Cut a retry short, and let the thread end."""
        self._exporter.shutdown()
        if under_way := self._threads.close():
            await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S)
        self._said.close()

    def _export(self, datums: list[Datum], period: Period) -> bool:
        """Return whether it went well. Runs in the thread, which alone knows what has accumulated."""
        self._accumulated.add(datums, period.stamp_s)
        metrics = self._accumulated.metrics(period.end_s)
        if not metrics:
            return True
        self._said.text = ""
        scope = sdk.ScopeMetrics(self._scope, metrics, "")
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")])
        if self._exporter.export(data) is not sdk.MetricExportResult.SUCCESS:
            return False
        self._accumulated.sent()
        return True

    async def _in_thread(self, export: Callable[[], bool]) -> bool:
        try:
            async with asyncio.timeout(EXPORT_TIMEOUT_S):
                return await self._threads.run(export)
        except TimeoutError:
            raise MetricsError("unexported", "the collector does not answer. They wait and are sent later") from None


def _resource(identity: Identity) -> Resource:
    """Return what this daemon is, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
    ours: dict[str, Any] = {
        "service.name": identity.application,
        "service.instance.id": identity.worker,
        "service.version": identity.version,
    }
    told = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in ours.items() if name not in told})


class _FirstWords(logging.Handler):
    """What the library says first of an export that fails. It would say more, and every minute; one warning is ours."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._logger = logging.getLogger(_LIBRARY)
        self._logger.addHandler(self)
        self._propagated, self._logger.propagate = self._logger.propagate, False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text:
            self.text, _, _ = record.getMessage().rstrip(".").partition(", retrying in")

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()


# --- names of KCL's OpenTelemetry backend, from KCL 3.5's own transformation ------------------------------------------

METER = "software.amazon.kinesis"
PREFIX = "aws.kinesis.client."
NAME_LENGTH_MAX = 255
ATTRIBUTES = {
    "Operation": "aws.kinesis.operation",
    "ShardId": "aws.kinesis.shard.id",
    "StreamId": "aws.kinesis.stream_name",
    "WorkerIdentifier": "aws.kinesis.consumer.name",
}
UNITS = {COUNT: "1", NO_UNIT: "1", MILLIS: "ms", BYTES: "By"}
SPECIAL = {
    "MillisBehindLatest": "consumer.lag.duration",
    "DataBytesProcessed": "records.size",
    "ActiveStreams.Count": "streams.active",
    "StreamsPendingDeletion.Count": "streams.pending_deletion",
    "NonExistingStreamDelete.Count": "streams.deleted_nonexistent",
    "DeletedStreams.Count": "streams.deleted",
    "NumStreamsToSync": "streams.pending_sync",
    "QueueSize": "stream_id_cache.queue.size",
    "NumWorkers": "workers",
    "NumWorkersWithInvalidEntry": "workers.invalid_entry",
    "NumWorkersWithFailingWorkerMetric": "workers.failing_worker_metric",
}
_GAUGES = frozenset(
    {
        "ActiveStreams.Count",
        "CurrentLeases",
        "CurrentState:2xCompatibleWorker",
        "CurrentState:3xWorker",
        "ExpiredLeases",
        "GsiReadyStatus",
        "NumStreamsToSync",
        "NumWorkers",
        "NumWorkersWithFailingWorkerMetric",
        "NumWorkersWithInvalidEntry",
        "QueueSize",
        "StreamsPendingDeletion.Count",
        "TotalLeases",
        "VeryOldLeases",
        "WorkerMetricsReadyStatus",
    }
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.\-/]")


class Instrument(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


def instrument_of(name: str, unit: str) -> Instrument:
    """Return what KCL records the metric with."""
    if name in _GAUGES:
        return Instrument.GAUGE
    return Instrument.COUNTER if unit == COUNT else Instrument.HISTOGRAM


def otel_name(name: str) -> str:
    """Translate `RecordProcessor.processRecords.Time` ->
    ``aws.kinesis.client.record_processor.process_records.duration``.
    """
    special = SPECIAL.get(name)
    if special is None:
        text = name.replace(":", ".")
        if text.endswith(".Time"):
            text = text.removesuffix(".Time") + ".duration"
        text = text.removesuffix(".Count")
        special = ".".join(_WORD_START.sub("_", part) for part in text.split(".")).lower()
    return _ILLEGAL.sub("_", f"{PREFIX}{special}"[:NAME_LENGTH_MAX])
