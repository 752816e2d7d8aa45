"""Names, instruments and units of KCL's OpenTelemetry backend, by the examples of its rules."""

from __future__ import annotations

import re

import pytest

from mld.metrics.registry import JAVA_METRICS
from mld.serving.otlp import ATTRIBUTES, UNITS, Instrument, instrument_of, otel_name

LEGAL = re.compile(r"[A-Za-z][A-Za-z0-9_.\-/]{0,254}")


@pytest.mark.parametrize(
    ("java", "otel"),
    [
        ("RecordProcessor.processRecords.Time", "record_processor.process_records.duration"),
        ("GetLease:Error", "get_lease.error"),
        ("GSIReadyStatus", "gsi_ready_status"),
        ("GsiReadyStatus", "gsi_ready_status"),
        ("Time", "time"),
        ("RecordsProcessed", "records_processed"),
        ("Retry3Count", "retry3_count"),
        ("Foo..Bar", "foo..bar"),
        ("MillisBehindLatest", "consumer.lag.duration"),
        ("DataBytesProcessed", "records.size"),
        ("NumWorkers", "workers"),
        ("Some.Count", "some"),
        ("odd name", "odd_name"),
        ("x" * 300, "x" * (255 - len("aws.kinesis.client."))),
    ],
)
def test_a_name_of_java_in_open_telemetry(java: str, otel: str) -> None:
    assert otel_name(java) == f"aws.kinesis.client.{otel}"


@pytest.mark.parametrize(
    ("name", "unit", "instrument"),
    [
        ("CurrentLeases", "Count", Instrument.GAUGE),
        ("RecordsProcessed", "Count", Instrument.COUNTER),
        ("Success", "Count", Instrument.COUNTER),
        ("Time", "Milliseconds", Instrument.HISTOGRAM),
        ("StatusOrdinal", "None", Instrument.HISTOGRAM),
        ("DataBytesProcessed", "Bytes", Instrument.HISTOGRAM),
    ],
)
def test_the_instrument_of_a_metric(name: str, unit: str, instrument: Instrument) -> None:
    assert instrument_of(name, unit) is instrument


@pytest.mark.parametrize("metric", JAVA_METRICS, ids=lambda metric: f"{metric.operation} {metric.name}")
def test_every_metric_of_java_has_a_legal_name_a_unit_and_attributes(metric: object) -> None:
    from mld.metrics.declaring import JavaMetric

    assert isinstance(metric, JavaMetric)
    assert LEGAL.fullmatch(otel_name(metric.name))
    assert UNITS[metric.unit]
    assert all(ATTRIBUTES[dimension.value] for dimension in metric.dimensions)


def test_metrics_that_share_a_name_share_their_instrument() -> None:
    """A collector refuses two instruments under one name."""
    seen: dict[str, tuple[Instrument, str]] = {}
    for metric in JAVA_METRICS:
        kind = instrument_of(metric.name, metric.unit), UNITS[metric.unit]
        assert seen.setdefault(otel_name(metric.name), kind) == kind
