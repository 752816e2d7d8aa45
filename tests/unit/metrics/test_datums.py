"""Datums: KCL's names and dimensions, levels, scales, merging, packing. Rules: metrics#level-and-dimensions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mld.core.steps import finish
from mld.metrics.datums import (
    DATUMS_PER_REQUEST_MAX,
    Datum,
    DatumQueue,
    Wanted,
    packed,
    request_of,
    take_datums,
)
from mld.metrics.instruments import StatisticSet
from mld.metrics.registry import Metrics
from mld.properties.values import MetricsLevel

SHARD, OTHER = "shardId-000000000000", "shardId-000000000001"
EVERYTHING = Wanted(MetricsLevel.DETAILED, frozenset({"ALL"}), worker="worker-1")


def busy() -> Metrics:
    metrics = Metrics()
    for key, records in ((SHARD, 500), (OTHER, 20)):
        shard = metrics.begin(key, 0.0)
        shard.batches.note(records)
        shard.behind.note(records * 10)
        shard.fetch.note(True, 0.25)
        shard.process_records.note(0.5)
    renewals = metrics.worker.operations.renewals
    renewals.all.note(True, 0.1)
    renewals.lease.note(True, 0.02)
    renewals.current.note(2)
    return metrics


def taken(metrics: Metrics, wanted: Wanted = EVERYTHING) -> dict[tuple[str, tuple[str, ...]], Datum]:
    """Datums by name and values of their dimensions."""
    return {
        (datum.name, tuple(v for _, v in datum.dimensions)): datum for datum in finish(take_datums(metrics, wanted))
    }


def test_a_shards_datum_has_its_dimensions_and_java_s_unit() -> None:
    datum = taken(busy())["RecordsProcessed", ("ProcessTask", SHARD)]
    assert datum == Datum(
        "RecordsProcessed", (("Operation", "ProcessTask"), ("ShardId", SHARD)), "Count", StatisticSet(1, 500, 500, 500)
    )


def test_times_are_milliseconds() -> None:
    datum = taken(busy())["KinesisDataFetcher.getRecords.Time", ("ProcessTask", SHARD)]
    assert (datum.unit, datum.values.total) == ("Milliseconds", 250.0)


def test_the_application_s_lag_is_that_of_all_its_shards() -> None:
    assert taken(busy())["MillisBehindLatest", ("ApplicationTracker",)].values == StatisticSet(2, 5200, 200, 5000)


def test_others_have_a_turn_of_the_loop_after_each_shard() -> None:
    metrics = Metrics()
    for number in range(50):
        metrics.begin(f"shardId-{number:012}", 0.0).batches.note(1)
    assert sum(1 for _ in take_datums(metrics, EVERYTHING)) >= 50
    many = [Datum(str(n), (), "Count", StatisticSet(1, 1, 1, 1)) for n in range(1_000)]
    assert sum(1 for _ in request_of("clicks", many)) >= 10


def test_nothing_is_sent_twice() -> None:
    metrics = busy()
    assert taken(metrics)
    assert taken(metrics) == {}


def test_the_last_values_of_a_lease_that_is_gone_are_sent() -> None:
    metrics = busy()
    metrics.is_published = True
    metrics.end(metrics.shards[SHARD])
    assert ("RecordsProcessed", ("ProcessTask", SHARD)) in taken(metrics)
    assert metrics.ended == []


def test_summary_leaves_out_details_and_none_everything() -> None:
    summary = taken(busy(), Wanted(MetricsLevel.SUMMARY, frozenset({"ALL"})))
    assert {name for name, _ in summary} == {
        "RecordsProcessed",
        "MillisBehindLatest",
        "RecordProcessor.processRecords.Time",
        "Success",
        "Time",
        "CurrentLeases",
    }
    assert taken(busy(), Wanted(MetricsLevel.NONE, frozenset({"ALL"}))) == {}


def test_a_dimension_that_is_not_enabled_merges_its_series() -> None:
    merged = taken(busy(), Wanted(MetricsLevel.DETAILED, frozenset({"WorkerIdentifier"}), worker="worker-1"))
    assert merged["RecordsProcessed", ("ProcessTask",)].values == StatisticSet(2, 520, 20, 500)
    assert ("CurrentLeases", ("RenewAllLeases", "worker-1")) in merged


def test_a_worker_without_a_configured_name_is_no_dimension() -> None:
    anonymous = Wanted(MetricsLevel.DETAILED, frozenset({"ALL"}))
    assert ("CurrentLeases", ("RenewAllLeases",)) in taken(busy(), anonymous)


def test_a_value_that_cloudwatch_refuses_costs_only_itself() -> None:
    metrics = busy()
    metrics.shards[SHARD].process_records.note(float("nan"))
    metrics.shards[OTHER].process_records.note(float("inf"))
    names = {name for name, _ in taken(metrics)}
    assert "RecordProcessor.processRecords.Time" not in names
    assert "RecordsProcessed" in names


def numbered(*numbers: int) -> list[Datum]:
    values = StatisticSet(1, 1, 1, 1)
    return [Datum(str(number), (), "Count", values, float(number)) for number in numbers]


def test_what_was_not_sent_comes_first_again() -> None:
    queue = DatumQueue(size_max=10)
    queue.put(numbered(1, 2))
    first = queue.take()
    queue.put(numbered(3))
    queue.put_back(first)
    assert queue.take() == numbered(1, 2, 3)
    assert queue.take() == []


def test_the_oldest_make_room() -> None:
    queue = DatumQueue(size_max=2)
    queue.put(numbered(2, 3, 4))
    queue.put_back(numbered(1))
    assert queue.take() == numbered(3, 4)
    assert queue.dropped == 2


@given(st.integers(0, 2_500), st.integers(1, 1_000))
def test_requests_are_full_and_lose_nothing(count: int, name_length: int) -> None:
    values = StatisticSet(1, 1, 1, 1)
    datums = [Datum(str(n), (("ShardId", "s" * name_length),), "Count", values) for n in range(count)]
    batches = list(packed(datums))
    assert [datum for batch in batches for datum in batch] == datums
    assert all(len(batch) <= DATUMS_PER_REQUEST_MAX for batch in batches)


def test_a_request_says_when_its_values_were_measured() -> None:
    datum = Datum("A", (("Operation", "X"),), "Count", StatisticSet(2, 4, 1, 3))
    request = finish(request_of("clicks", [replace(datum, stamp_s=1_000.0)]))
    assert request == {
        "Namespace": "clicks",
        "MetricData": [
            {
                "MetricName": "A",
                "Dimensions": [{"Name": "Operation", "Value": "X"}],
                "Timestamp": 1_000.0,
                "Unit": "Count",
                "StatisticValues": {"SampleCount": 2.0, "Sum": 4, "Minimum": 1, "Maximum": 3},
            }
        ],
    }


def test_a_shard_of_several_streams_has_its_own_name_and_its_streams_identifier() -> None:
    metrics = Metrics()
    for stream in ("111111111111:orders:17", "111111111111:clicks:18"):
        metrics.begin(f"{stream}:{SHARD}", 0.0).expired_iterators.note(1)
        metrics.shards[f"{stream}:{SHARD}"].batches.note(1)
    found = taken(metrics)
    for stream in ("111111111111:orders:17", "111111111111:clicks:18"):
        datum = found["RecordsProcessed", ("ProcessTask", SHARD, stream)]
        assert datum.dimensions == (("Operation", "ProcessTask"), ("ShardId", SHARD), ("StreamId", stream))
        assert ("ExpiredIterator", ("ProcessTask", stream)) in found
    few = taken(metrics, Wanted(MetricsLevel.DETAILED, frozenset({"ShardId"})))
    assert few == {}, "nothing is sent twice"
