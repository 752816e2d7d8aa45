"""The catalogue: names by the conventions of Prometheus, and values that can be read from any worker."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mld.core.disks import DiskPlace, DiskRoom
from mld.metrics.activity import ShardActivity
from mld.metrics.children import ChildLoad, ChildLoads
from mld.metrics.declaring import Instant, Metric, MetricKind, Number
from mld.metrics.instruments import SpreadValue
from mld.metrics.published import JAVA_METRICS, OF_SHARD
from mld.metrics.registry import Metrics
from mld.metrics.shard import FetchResult
from mld.metrics.spark_figures import SparkFigures
from tests.support.metrics_page import CATALOGUE

SHARD = "shardId-000000000000"
NOW = Instant(120.0, 1_003.0)

by_name = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)


def busy_worker() -> Metrics:
    """A worker with one shard on which everything has happened once."""
    metrics = Metrics()
    shard = metrics.begin(SHARD, 100.0)
    shard.forced_activity = ShardActivity.PROCESSING
    shard.batches.note(500)
    shard.record_bytes.note(1_000_000)
    shard.behind_ms, shard.behind_wall_s = 2_500, 1_000.0
    shard.busy_since = 110.0
    shard.children = ChildLoads([ChildLoad(0, "pid 7", lately=30), ChildLoad(1, "pid 8", lately=10)], 100.0)
    shard.checkpoint_at = 105.0
    shard.process_records.note(0.2)
    shard.fetch.note(True, 0.05)
    shard.fetches.add(FetchResult.RECORDS.value)
    shard.checkpoints.note(True, 0.01)
    shard.checkpoints_by.add("stored")
    shard.restarts.add("exit")
    shard.subscriptions.add("expired")
    shard.dropped_aggregates.add("range")
    shard.budget_refusals.add("decoding")
    metrics.worker.lease_moves.add("taken")
    metrics.worker.rows.add("created")
    metrics.worker.requests.add("kinesis GetRecords ok")
    metrics.worker.framed_records.add("decoded")
    metrics.worker.units.add("write", 3)
    metrics.worker.loop_delay.note(0.001)
    metrics.worker.configuration.note_read("app.properties", 900.0)
    metrics.worker.disks.rooms = {DiskPlace("deadLetter", Path("/letters")): DiskRoom(1_000, 0.5)}
    metrics.worker.spark = SparkFigures(1_000.0, 30.0, 900.0, 990.0, 2, 3, 4, 5)
    metrics.worker.fault_counts = {"hole": 0}
    table = metrics.worker.table
    table.workers, table.unassigned, table.corrupt, table.without_room, table.holes_of = 2, 0, 0, 0, {None: 0}
    table.strangers, table.clocks_off = 0, {}
    return metrics


def series_of(
    metric: Metric, metrics: Metrics, at: Instant = NOW
) -> list[tuple[tuple[str, ...], Number | SpreadValue]]:
    if metric not in OF_SHARD:
        return list(metric.series(metric.read(metrics, at)))
    parts = metrics.shards.values()
    return [series for part in parts for series in metric.series(metric.read(part, at), part.shard_id)]


def value_of(metrics: Metrics, name: str, *labels: str) -> object:
    """The value of the series; None if there is none."""
    (metric,) = (metric for metric in CATALOGUE if metric.name == name)
    return dict(series_of(metric, metrics)).get(labels)


@by_name
def test_a_name_says_its_unit_and_its_kind(metric: Metric) -> None:
    assert re.fullmatch(r"mld_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.kind is not MetricKind.HISTOGRAM or metric.name.endswith("_seconds")
    assert metric.help.endswith(".")


def test_what_spark_has_not_committed_grows_with_the_clock_though_its_host_is_silent() -> None:
    busy = busy_worker()
    assert value_of(busy, "mld_spark_uncommitted_age_seconds") == 103.0
    assert value_of(busy, "mld_spark_trigger_age_seconds") == 13.0
    assert value_of(busy, "mld_spark_silence_seconds") == 3.0
    assert busy.worker.spark is not None
    busy.worker.spark = replace(busy.worker.spark, uncommitted_since=None, trigger_since=None)
    assert value_of(busy, "mld_spark_uncommitted_age_seconds") == 0.0
    assert value_of(busy, "mld_spark_trigger_age_seconds") == 0.0
    busy.worker.spark = None
    assert value_of(busy, "mld_spark_uncommitted_age_seconds") is None


def test_a_file_that_cannot_be_used_is_so_until_it_is_read_without_a_fault() -> None:
    busy = busy_worker()
    configuration = busy.worker.configuration
    configuration.note_refused("streams.txt", "line 3: no name", 950.0)
    configuration.note_read("app.properties", 960.0)
    configuration.waiting = ("maxRecords",)
    assert value_of(busy, "mld_config_last_reload_successful") == 0
    assert value_of(busy, "mld_config_keys_waiting") == 1
    assert configuration.reasons() == {"streams.txt": "line 3: no name (read at 1970-01-01T00:15:50Z)"}
    configuration.note_read("streams.txt", 990.0)
    assert value_of(busy, "mld_config_last_reload_successful") == 1
    assert value_of(busy, "mld_config_last_reload_success_timestamp_seconds") == 990.0


@by_name
def test_every_metric_has_a_series_with_its_labels(metric: Metric) -> None:
    series = series_of(metric, busy_worker())
    assert series
    for labels, value in series:
        assert len(labels) == len(metric.labels)
        assert isinstance(value, SpreadValue) == (metric.kind is MetricKind.HISTOGRAM)


def test_no_name_is_given_twice() -> None:
    assert [name for name, count in Counter(metric.name for metric in CATALOGUE).items() if count > 1] == []


def test_java_names_are_those_of_the_table() -> None:
    known = {f"{metric.operation} {metric.name}" for metric in JAVA_METRICS}
    assert {metric.java for metric in CATALOGUE if metric.java} <= known


def test_values_are_in_base_units() -> None:
    busy = busy_worker()
    assert value_of(busy, "mld_shard_behind_seconds", SHARD) == 2.5 + 3  # its child works since
    assert value_of(busy, "mld_shard_behind_age_seconds", SHARD) == 3.0
    assert value_of(busy, "mld_child_busy_seconds", SHARD) == 10.0
    assert value_of(busy, "mld_shard_checkpoint_age_seconds", SHARD) == 15.0
    assert value_of(busy, "mld_records_total", SHARD) == 500
    assert value_of(busy, "mld_shard_busiest_child_share", SHARD) == 0.75


def test_a_lag_that_nobody_knows_is_not_zero() -> None:
    metrics = Metrics()
    metrics.begin(SHARD, 0.0)
    assert value_of(metrics, "mld_shard_behind_seconds", SHARD) is None
    assert metrics.furthest_behind_s(NOW) is None


def test_a_series_ends_with_its_lease() -> None:
    for is_published in (False, True):
        metrics = Metrics()
        metrics.is_published = is_published
        metrics.begin(SHARD, 0.0).batches.note(7)
        metrics.end(metrics.shards[SHARD])
        assert value_of(metrics, "mld_records_total", SHARD) is None
        kept = [part.key for part in metrics.ended]
        assert kept == ([SHARD] if is_published else []), "its last values wait for the publisher, if there is one"
