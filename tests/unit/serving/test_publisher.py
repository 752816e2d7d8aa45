"""The publisher in virtual time: when it takes, what it says of failures, and what a stop still sends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from mld.core.errors import AwsError, AwsUnreachableError, MetricsError
from mld.core.steps import Steps
from mld.metrics.datums import Datum
from mld.metrics.instruments import StatisticSet
from mld.serving.cloudwatch import CloudWatch
from mld.serving.publisher import Publisher
from tests.virtual_time import virtual


def datum(name: str = "A", count: int = 1) -> Datum:
    return Datum(name, (("Operation", "X"),), "Count", StatisticSet(count, count, 1, 1))


class Collecting:
    """Takes what is sent, and fails as told."""

    def __init__(self) -> None:
        self.got: list[tuple[list[Datum], float]] = []
        self.failures: list[Exception] = []
        self.wait: Callable[[], asyncio.Future[None]] | None = None

    async def send(self, datums: list[Datum], stamp_s: float) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if self.wait is not None:
            await self.wait()
        self.got.append((datums, stamp_s))


class VirtualWall:
    """The loop's time as wall time, so that periods end in virtual time too."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def __init__(self) -> None:
        self.set_back_s = 0.0

    def wall(self) -> float:
        return 1_000_000.0 - self.set_back_s + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def publisher_of(output: Collecting, take: Callable[[], Steps[list[Datum]]]) -> Publisher:
    return Publisher(take, output.send, VirtualWall(), Random(1), period_s=60.0)


def counting() -> Callable[[], Steps[list[Datum]]]:
    """One datum more each time."""
    taken: list[Datum] = []

    def take() -> Steps[list[Datum]]:
        yield
        taken.append(datum(f"m{len(taken)}"))
        return [taken[-1]]

    return take


@virtual
async def test_values_are_taken_at_whole_minutes_and_bear_the_minute_that_they_are_of() -> None:
    output = Collecting()
    publisher = publisher_of(output, counting())
    publisher.start()
    await asyncio.sleep(150)  # two ends of a minute: 1,000,020 and 1,000,080
    assert [stamp_s for _, stamp_s in output.got] == [1_000_000.0, 1_000_020.0, 1_000_080.0]
    await publisher.close()


@virtual
async def test_after_a_clock_was_set_back_values_are_not_of_the_future() -> None:
    output, clock = Collecting(), VirtualWall()
    publisher = Publisher(counting(), output.send, clock, Random(1), period_s=60.0)
    clock.set_back_s = 3600.0
    await publisher.close()
    assert [stamp_s for _, stamp_s in output.got] == [1_000_000.0 - 3600.0]


@virtual
async def test_a_stop_sends_what_is_left_at_once() -> None:
    output = Collecting()
    publisher = publisher_of(output, counting())
    publisher.start()
    await asyncio.sleep(5)
    started = asyncio.get_running_loop().time()
    await publisher.close()
    assert [datums[0].name for datums, _ in output.got] == ["m0"]
    assert asyncio.get_running_loop().time() - started < 0.1


@virtual
async def test_a_stop_while_values_wait_for_their_moment_loses_none() -> None:
    output = Collecting()
    publisher = publisher_of(output, counting())
    publisher.start()
    await asyncio.sleep(20.001)  # taken, not sent yet: each worker has a moment of its own
    assert output.got == []
    await publisher.close()
    assert [datums[0].name for datums, _ in output.got] == ["m0", "m1"]


@virtual
async def test_a_stop_does_not_wait_for_an_output_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    output = Collecting()
    output.wait = asyncio.get_running_loop().create_future
    publisher = publisher_of(output, counting())
    publisher.start()
    await asyncio.sleep(5)
    started = asyncio.get_running_loop().time()
    await publisher.close()
    assert asyncio.get_running_loop().time() - started <= 5.0
    assert "not sent in time" in caplog.text


@virtual
async def test_an_outage_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    output = Collecting()
    output.failures = [MetricsError("denied", "no permission")] * 3
    publisher = publisher_of(output, counting())
    publisher.start()
    await asyncio.sleep(330)
    await publisher.close()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["metrics are not published: no permission", "metrics are published again"]


@virtual
async def test_a_defect_in_sending_does_not_end_the_publisher() -> None:
    output = Collecting()
    output.failures = [RuntimeError("a defect")]
    publisher = publisher_of(output, counting())
    publisher.start()
    await asyncio.sleep(150)
    await publisher.close()
    assert len(output.got) == 3


# --- CloudWatch -------------------------------------------------------------------------------------------------------


class Answers:
    """A `Service` that answers as told, then well."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sent: list[dict[tuple[str, float], int]] = []

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        assert operation == "PutMetricData"
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(
            {
                (one["MetricName"], one["Timestamp"]): one["StatisticValues"]["SampleCount"]
                for one in params["MetricData"]
            }
        )
        return {}


async def published(service: Answers, *takes: list[Datum]) -> list[str]:
    """What is said of each publication, "" if it went well."""
    output = CloudWatch(service, namespace="clicks", queue_max=10_000)
    said = []
    for number, datums in enumerate(takes):
        try:
            await output.send(datums, 60.0 * number)
        except MetricsError as error:
            said.append(f"{error.kind}: {error}")
        else:
            said.append("")
    return said


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(AwsUnreachableError("PutMetricData", "connection refused"), id="no answer"),
        pytest.param(AwsError("PutMetricData", "Throttling", status=400), id="throttled"),
        pytest.param(AwsError("PutMetricData", "InternalServiceFault", status=500), id="their fault"),
        pytest.param(AwsError("PutMetricData", "ExpiredToken", status=403), id="credentials are renewed later"),
    ],
)
async def test_what_may_go_through_later_waits_and_keeps_its_time(error: Exception) -> None:
    service = Answers(error)
    first, second = await published(service, [datum("A", 2), datum("B")], [datum("A", 3)])
    assert first.startswith("unavailable")
    assert second == ""
    assert service.sent == [{("A", 0.0): 2, ("B", 0.0): 1, ("A", 60.0): 3}]


async def test_without_permission_values_are_dropped_and_the_remedy_is_said() -> None:
    service = Answers(AwsError("PutMetricData", "AccessDenied", "not authorized", status=403))
    first, second = await published(service, [datum("A", 2)], [datum("A", 3)])
    assert first.startswith("denied") and "Allow cloudwatch:PutMetricData" in first
    assert second == ""
    assert service.sent == [{("A", 60.0): 3}]


async def test_a_refused_request_does_not_come_again_and_the_next_one_is_sent() -> None:
    service = Answers(AwsError("PutMetricData", "InvalidParameterValue", status=400))
    many = [datum(f"m{n}") for n in range(1_001)]
    said = await published(service, many, [])
    assert said[0].startswith("refused") and "1000 series are lost" in said[0]
    assert service.sent == [{("m1000", 0.0): 1}]


async def test_a_thousand_series_are_one_request() -> None:
    service = Answers()
    await published(service, [datum(f"m{n}") for n in range(1_000)])
    assert len(service.sent) == 1


async def test_more_values_than_may_wait_are_told(caplog: pytest.LogCaptureFixture) -> None:
    output = CloudWatch(Answers(), namespace="clicks", queue_max=2)
    await output.send([datum("A"), datum("B"), datum("C")], 0.0)
    assert "metricsMaxQueueSize" in caplog.text


async def test_no_values_are_no_request() -> None:
    service = Answers()
    await published(service, [])
    assert service.sent == []
