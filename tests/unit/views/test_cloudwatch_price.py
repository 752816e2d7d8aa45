"""What metrics cost in CloudWatch, by worked examples. That a daemon sends what is counted: test_publishing."""

from __future__ import annotations

import pytest

from mld.metrics.java import Dimension
from mld.views.cloudwatch_price import MetricsCost, cost, steady_metrics
from tests.support.fleet import settings_of
from tests.support.servers import ROOT

FLEET_3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
MINUTES = 730 * 60


def per_shard(**keys: str) -> int:
    return sum(Dimension.SHARD in metric.dimensions for metric in steady_metrics(settings_of(**FLEET_3X, **keys)))


def test_a_shard_has_ten_metrics_at_detailed_and_six_at_summary() -> None:
    assert (per_shard(), per_shard(metricsLevel="SUMMARY")) == (10, 6)
    assert per_shard(retrievalMode="FANOUT") == 8


def test_metrics_of_shards_grow_with_leases_and_those_of_named_workers_with_workers() -> None:
    anonymous, named = settings_of(**FLEET_3X), settings_of(workerId="w", **FLEET_3X)
    assert cost(anonymous, 11, 1).metrics - cost(anonymous, 1, 1).metrics == 100
    assert cost(anonymous, 10, 9).metrics == cost(anonymous, 10, 1).metrics
    of_workers = sum(Dimension.WORKER in metric.dimensions for metric in steady_metrics(named))
    assert cost(named, 10, 9).metrics - cost(named, 10, 1).metrics == 8 * of_workers


def test_one_request_a_minute_and_worker() -> None:
    assert cost(settings_of(**FLEET_3X), 10, 3).requests == 3 * MINUTES
    assert cost(settings_of(metricsBufferTimeMillis="10000", **FLEET_3X), 10, 3).requests == 18 * MINUTES
    assert cost(settings_of(**FLEET_3X), 150, 1).requests == 2 * MINUTES  # more than 1,000 series


@pytest.mark.parametrize(
    ("metrics", "dollars"),
    [
        (0, 0.0),
        (10, 3.0),
        (10_000, 3_000.0),
        (10_001, 3_000.1),
        (260_000, 3_000 + 24_000 + 500),
        (1_000_001, 64_500.02),
    ],
)
def test_metrics_are_billed_by_tiers(metrics: int, dollars: float) -> None:
    assert MetricsCost(metrics, 0.0).dollars == pytest.approx(dollars)


def test_requests_are_billed() -> None:
    assert MetricsCost(0, 1_000_000).dollars == pytest.approx(10.0)


@pytest.mark.parametrize("keys", [{"metricsLevel": "NONE"}, {"mld__metrics": "prometheus"}, {"mld__metrics": "otlp"}])
def test_what_sends_cloudwatch_nothing_pays_it_nothing(keys: dict[str, str]) -> None:
    assert cost(settings_of(**FLEET_3X, **keys), 10, 1) == MetricsCost(0, 0.0)


def test_without_the_shard_as_a_dimension_shards_cost_nothing() -> None:
    settings = settings_of(metricsEnabledDimensions="Operation", **FLEET_3X)
    assert cost(settings, 1_000, 1).metrics == cost(settings, 1, 1).metrics


def test_the_page_on_monitoring_has_these_counts() -> None:
    page = (ROOT / "docs" / "use" / "monitoring.md").read_text()
    named = settings_of(workerId="w", **FLEET_3X)
    of_workers = sum(Dimension.WORKER in metric.dimensions for metric in steady_metrics(named))
    of_fleet = cost(named, 1, 1).metrics - of_workers - per_shard()
    assert (
        f"| metrics of a shard | {per_shard()} at `DETAILED`, {per_shard(metricsLevel='SUMMARY')} at `SUMMARY`" in page
    )
    assert f"| metrics of a worker | {of_workers} at `DETAILED`" in page
    assert f"| metrics of the fleet | {of_fleet} at `DETAILED`" in page
    assert f"| requests | {cost(named, 1, 1).requests:,.0f} a month and worker" in page
