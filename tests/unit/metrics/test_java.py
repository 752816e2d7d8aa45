"""The table of KCL's metrics: complete, without doubles, and within what CloudWatch takes."""

from __future__ import annotations

from collections import Counter

from mld.metrics.java import JAVA_METRICS, Dimension
from properties.values import MetricsLevel

CLOUDWATCH_UNITS = {"Count", "Milliseconds", "Bytes", "None"}


def test_no_name_stands_twice_in_an_operation() -> None:
    doubles = [key for key, count in Counter((m.operation, m.name) for m in JAVA_METRICS).items() if count > 1]
    assert doubles == []


def test_units_are_those_of_cloudwatch() -> None:
    assert {metric.unit for metric in JAVA_METRICS} == CLOUDWATCH_UNITS
    assert all(metric.unit == "Milliseconds" for metric in JAVA_METRICS if metric.name.endswith("Time"))


def test_what_is_not_sent_says_why() -> None:
    assert all(metric.note for metric in JAVA_METRICS if not metric.is_sent)


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
