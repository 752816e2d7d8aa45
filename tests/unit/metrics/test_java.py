"""The table of KCL's metrics: complete, without doubles, and within what CloudWatch takes."""

from __future__ import annotations

from collections import Counter

import pytest

from mld.metrics.declaring import Dimension
from mld.metrics.published import JAVA_METRICS
from mld.properties.values import MetricsLevel
from tests.integration.metric_story import recorded

NOT_OURS = {"StaleWorkerMetricsCleanup.Time", "TotalStaleWorkerMetricsEntry", "FleetMinSupportCode"}
"""Not in 3.5 any more, or of the move to a single table, which only a Java leader makes."""
CLOUDWATCH_UNITS = {"Count", "Milliseconds", "Bytes", "None"}


def test_no_name_stands_twice_in_an_operation() -> None:
    doubles = [key for key, count in Counter((m.operation, m.name) for m in JAVA_METRICS).items() if count > 1]
    assert doubles == []


def test_units_are_those_of_cloudwatch() -> None:
    assert {metric.unit for metric in JAVA_METRICS} == CLOUDWATCH_UNITS
    assert all(metric.unit == "Milliseconds" for metric in JAVA_METRICS if metric.name.endswith("Time"))


def test_a_shard_is_named_only_with_its_stream() -> None:
    assert all(Dimension.STREAM in m.dimensions for m in JAVA_METRICS if Dimension.SHARD in m.dimensions)


def test_metrics_that_people_alarm_on_are_sent_at_summary() -> None:
    alarmed = {
        ("ApplicationTracker", "MillisBehindLatest"),
        ("PeriodicShardSyncManager", "NumStreamsWithPartialLeases"),
        ("RenewAllLeases", "LostLeases"),
        ("LeaseAssignmentManager", "ForceLeaderRelease"),
        ("ProcessTask", "ExpiredIterator"),
    }
    summary = {(metric.operation, metric.name) for metric in JAVA_METRICS if metric.level is MetricsLevel.SUMMARY}
    assert alarmed <= summary


@pytest.mark.parametrize("case", sorted(recorded()))
def test_the_table_has_everything_that_a_java_worker_was_seen_to_send(case: str) -> None:
    """With its unit, level and dimensions. The stream is none of them: the recorded worker had it by its name."""
    table = {
        (metric.operation, metric.name): (
            metric.unit,
            {"Operation"} | {one.value for one in metric.dimensions - {Dimension.STREAM}},
        )
        for metric in JAVA_METRICS
        if metric.level is MetricsLevel.SUMMARY or case.endswith("DETAILED")
    }
    lines = [line for line in sorted(recorded()[case]) if line.name not in NOT_OURS]
    assert len(lines) > 20
    for line in lines:
        assert table[line.operation, line.name] == (line.unit, set(line.dimensions)), line
