"""KCL's names as its OpenTelemetry backend writes them: instruments, attributes, units. Pure.

Rules: metrics#opentelemetry, from KCL 3.5's own transformation, so that a dashboard made for it fits.
"""

from __future__ import annotations

import re
from enum import Enum

from mld.metrics.declaring import BYTES, COUNT, MILLIS, NO_UNIT

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
