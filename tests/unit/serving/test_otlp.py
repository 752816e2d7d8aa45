"""OpenTelemetry by a real exporter to a receiver over HTTP that decodes the protocol's messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mld.core.errors import MetricsError
from mld.core.steps import finish
from mld.metrics.datums import Datum, Period, Wanted, take_datums
from mld.metrics.instruments import SECONDS_BOUNDS
from mld.metrics.registry import Identity, Metrics
from mld.properties.values import MetricsLevel
from mld.serving.otlp import TEMPORALITY, Accumulated, OtlpOutput
from tests.support.otlp_receiver import OtlpReceiver

SHARD = "shardId-000000000000"
ME = Identity("clicks-app", "clicks", "w1", "9.9")
EVERYTHING = Wanted(MetricsLevel.DETAILED, frozenset({"ALL"}), worker="w1", stream="clicks")
PREFIX = "aws.kinesis.client."


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        yield receiver


def noted(metrics: Metrics, records: int) -> list[Datum]:
    shard = metrics.shards.get(SHARD) or metrics.begin(SHARD, 0.0)
    shard.batches.note(records)
    shard.behind.note(2_500)
    shard.process_records.note(0.2)
    metrics.worker.operations.renewals.current.note(records)
    return finish(take_datums(metrics, EVERYTHING))


async def test_values_have_the_names_attributes_and_instruments_of_kcl(receiver: OtlpReceiver) -> None:
    output = OtlpOutput(ME, series_max=100)
    await output.publish(noted(Metrics(), 500), Period(60.0, 120.0))
    await output.close()
    (records,) = receiver.named(f"{PREFIX}records_processed")
    assert (records.kind, records.unit, records.point.as_double) == ("sum", "1", 500.0)
    assert records.attributes == {
        "aws.kinesis.operation": "ProcessTask",
        "aws.kinesis.shard.id": SHARD,
        "aws.kinesis.stream_name": "clicks",
    }
    assert (records.point.start_time_unix_nano, records.point.time_unix_nano) == (60 * 10**9, 120 * 10**9)
    (leases,) = receiver.named(f"{PREFIX}current_leases")
    assert (leases.kind, leases.point.as_double) == ("gauge", 500.0)
    assert leases.attributes["aws.kinesis.consumer.name"] == "w1"
    (time,) = receiver.named(f"{PREFIX}record_processor.process_records.duration")
    assert (time.kind, time.unit, time.point.sum, time.point.count) == ("histogram", "ms", 200.0, 1)
    assert list(time.point.explicit_bounds) == [bound * 1000 for bound in SECONDS_BOUNDS]
    assert time.point.bucket_counts[list(time.point.explicit_bounds).index(250.0)] == 1
    tracker, shard = sorted(
        receiver.named(f"{PREFIX}consumer.lag.duration"), key=lambda point: point.attributes["aws.kinesis.operation"]
    )
    assert (tracker.point.max, shard.point.max, shard.unit) == (2500.0, 2500.0, "ms")
    assert {point.scope for point in receiver.points} == {"software.amazon.kinesis"}
    assert records.resource["service.name"] == "clicks-app"
    assert records.resource["service.instance.id"] == "w1"


async def test_sums_go_on_rising(receiver: OtlpReceiver) -> None:
    output, metrics = OtlpOutput(ME, series_max=100), Metrics()
    for number in range(3):
        await output.publish(noted(metrics, 10), Period(60.0 * number, 60.0 * number + 60))
    await output.close()
    sums = [point.point.as_double for point in receiver.named(f"{PREFIX}records_processed")]
    starts = {point.point.start_time_unix_nano for point in receiver.points}
    assert (sums, starts) == ([10.0, 20.0, 30.0], {0})


async def test_who_prefers_differences_gets_them_and_loses_none_in_an_outage(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEMPORALITY, "delta")
    output, metrics = OtlpOutput(ME, series_max=100), Metrics()
    await output.publish(noted(metrics, 10), Period(0.0, 60.0))
    receiver.status = 400
    with pytest.raises(MetricsError, match="400"):
        await output.publish(noted(metrics, 5), Period(60.0, 120.0))
    receiver.status = 200
    await output.publish(noted(metrics, 7), Period(120.0, 180.0))
    await output.close()
    points = receiver.named(f"{PREFIX}records_processed")
    assert [point.point.as_double for point in points] == [10.0, 12.0]
    assert [point.point.start_time_unix_nano // 10**9 for point in points] == [0, 60]
    assert all(point.is_delta for point in points)


async def test_the_environment_says_what_the_standard_says(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    output = OtlpOutput(ME, series_max=100)
    await output.publish(noted(Metrics(), 1), Period(0.0, 60.0))
    await output.close()
    assert receiver.points[0].resource["service.name"] == "named"
    assert receiver.points[0].resource["deployment.environment"] == "test"
    headers = {name.lower(): value for name, value in receiver.headers[0].items()}
    assert (headers["x-tenant"], headers["content-encoding"]) == ("seven", "gzip")


async def test_a_collector_that_is_away_is_one_sentence_and_no_lines_of_the_library(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    output = OtlpOutput(ME, series_max=100)
    with pytest.raises(MetricsError, match="They wait"):
        await output.publish(noted(Metrics(), 1), Period(0.0, 60.0))
    await output.close()
    assert caplog.records == []
    assert logging.getLogger("opentelemetry").propagate


def test_more_series_than_may_be_are_left_out_and_those_without_news_forgotten() -> None:
    accumulated, metrics = Accumulated(1, is_delta=False), Metrics()
    datums = noted(metrics, 1)
    accumulated.add(datums, 0.0)
    assert len(accumulated.metrics(60.0)) == 1
    for minute in range(61):
        accumulated.add([], 60.0 * minute)
    assert accumulated.metrics(4_000.0) == []


async def test_nothing_noted_is_no_request(receiver: OtlpReceiver) -> None:
    output = OtlpOutput(ME, series_max=100)
    await output.publish([], Period(0.0, 60.0))
    await output.close()
    assert receiver.headers == []
