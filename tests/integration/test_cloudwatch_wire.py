"""PutMetricData over the wire, by the client that a daemon makes, to a CloudWatch that remembers or does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.aws.client import BotoService
from mld.aws.client_factory import client_factory
from mld.core.errors import MetricsError
from mld.metrics.datums import Datum
from mld.metrics.instruments import StatisticSet
from mld.serving import cloudwatch as publishing
from mld.serving.cloudwatch import CloudWatch, cloudwatch_service
from tests.support.fleet import settings_of
from tests.support.recording_cloudwatch import RecordingCloudWatch

MINUTE, LATER = 1_700_000_000.0, 1_700_000_060.0
ONE = StatisticSet(3, 6.5, 1.0, 4.0)


def service_at(endpoint: str) -> BotoService:
    return cloudwatch_service(client_factory(settings_of(cloudWatchEndpoint=endpoint)))


def datums(count: int) -> list[Datum]:
    """So many series with long names."""
    name = "RecordProcessor.processRecords.Time"
    dimensions = [(("Operation", "ProcessTask"), ("ShardId", f"shardId-{n:012}")) for n in range(count)]
    return [Datum(name, each, "Milliseconds", ONE) for each in dimensions]


@pytest.fixture
def recording() -> Iterator[RecordingCloudWatch]:
    with RecordingCloudWatch() as recording:
        yield recording


async def test_two_and_a_half_thousand_series_are_three_compressed_requests(recording: RecordingCloudWatch) -> None:
    service = service_at(recording.endpoint)
    cloudwatch = CloudWatch(service, namespace="clicks", queue_max=10_000)
    await cloudwatch.send(datums(2_500), MINUTE)
    await service.close()
    assert [len(request.datums) for request in recording.requests] == [1_000, 1_000, 500]
    assert {request.encoding for request in recording.requests} == {"gzip"}
    assert max(request.size_bytes for request in recording.requests) < 50_000
    assert len({datum.dimensions["ShardId"] for datum in recording.datums}) == 2_500
    assert recording.datums[0].values == {"SampleCount": 3.0, "Sum": 6.5, "Minimum": 1.0, "Maximum": 4.0}


async def test_what_was_throttled_comes_with_the_next_period_once(recording: RecordingCloudWatch) -> None:
    service = service_at(recording.endpoint)
    cloudwatch = CloudWatch(service, namespace="clicks", queue_max=10_000)
    recording.refuse(400, "Throttling", times=1)
    with pytest.raises(MetricsError, match="sent later"):
        await cloudwatch.send(datums(2), MINUTE)
    await cloudwatch.send(datums(1), LATER)
    await service.close()
    (request,) = recording.requests
    assert [datum.stamp_s for datum in request.datums] == [MINUTE, MINUTE, LATER]


def _waiting(server: socket.socket) -> int:
    """How many connections nobody has taken."""
    server.setblocking(False)
    count = 0
    while True:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


async def test_a_cloudwatch_that_does_not_answer_costs_a_few_seconds_and_no_value(
    monkeypatch: pytest.MonkeyPatch, recording: RecordingCloudWatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, monkeypatch.context() as hasty:
        hasty.setattr(publishing, "CALL_TIMEOUT_S", 0.3)
        service = service_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        cloudwatch = CloudWatch(service, namespace="clicks", queue_max=10_000)
        with pytest.raises(MetricsError, match="sent later"):
            await cloudwatch.send(datums(2_500), MINUTE)
        assert _waiting(silent) <= 1, "one request, not three; none if the time was over before it was sent"
        await service.close()
    again = service_at(recording.endpoint)
    cloudwatch._service = again
    await cloudwatch.send([], MINUTE)
    await again.close()
    assert len(recording.datums) == 2_500


async def test_metrics_are_signed_with_the_credentials_for_cloudwatch(
    monkeypatch: pytest.MonkeyPatch, recording: RecordingCloudWatch, tmp_path: Path
) -> None:
    profiles = tmp_path / "credentials"
    profiles.write_text("[metrics]\naws_access_key_id = AKIDMETRICS\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    settings = settings_of(
        cloudWatchEndpoint=recording.endpoint, AwsCredentialsProviderCloudWatch="ProfileCredentialsProvider|metrics"
    )
    service = cloudwatch_service(client_factory(settings))
    await CloudWatch(service, namespace="clicks", queue_max=10).send(datums(1), MINUTE)
    await service.close()
    assert [request.access_key for request in recording.requests] == ["AKIDMETRICS"]
