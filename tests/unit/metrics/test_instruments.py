"""Instruments count what they are told, and statistic sets add up to what was noted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.metrics.instruments import SECONDS_BOUNDS, Calls, Spread, StatisticSet, Tally
from mld.metrics.registry import KINESIS, Metrics
from mld.metrics.shard import SLOW_READ_S, SLOW_READS, FetchResult, ShardMetrics

VALUES = st.lists(st.floats(min_value=0, max_value=1e6), max_size=30)


def noted(values: list[float]) -> Spread:
    spread = Spread()
    for value in values:
        spread.note(value)
    return spread


def test_a_value_on_a_bound_belongs_to_the_bucket_below_it() -> None:
    value = noted([SECONDS_BOUNDS[0], SECONDS_BOUNDS[0] * 1.01, SECONDS_BOUNDS[-1] * 2]).value()
    assert (value.buckets[0], value.buckets[1], value.buckets[-1]) == (1, 1, 1)


@given(VALUES)
def test_every_value_is_in_one_bucket(values: list[float]) -> None:
    value = noted(values).value()
    assert value.count == len(values) == sum(value.buckets)
    assert value.total == pytest.approx(sum(values))


@given(st.lists(VALUES, max_size=5))
def test_what_is_taken_piece_by_piece_adds_up_to_all(pieces: list[list[float]]) -> None:
    spread = Spread()
    taken: list[StatisticSet] = []
    for piece in pieces:
        for value in piece:
            spread.note(value)
        if (part := spread.take()) is not None:
            taken.append(part)
    everything = [value for piece in pieces for value in piece]
    if not everything:
        assert taken == []
        return
    whole = taken[0]
    for part in taken[1:]:
        whole += part
    assert (whole.count, whole.least, whole.greatest) == (len(everything), min(everything), max(everything))
    assert whole.total == pytest.approx(sum(everything))


def test_a_tally_counts_by_name() -> None:
    tally = Tally()
    tally.add("throttled")
    tally.add("throttled", 2)
    assert tally.value() == {"throttled": 3}
    assert tally["error"] == 0


def test_reads_that_bring_nothing_are_counted_whenever_somebody_looks() -> None:
    part = ShardMetrics("shardId-000000000000", 0.0)
    for number in range(1000):
        part.fetched_nothing(0.001 * number)
    part.fetched(FetchResult.RECORDS, 0.5)
    assert part.fetches.value() == {"empty": 1000, "records": 1}
    assert part.fetch.seconds.count == part.fetch.ok.count == 1001
    assert part.fetch.seconds.total == pytest.approx(sum(0.001 * number for number in range(1000)) + 0.5)
    assert part.fetch.failed == 0


def test_successes_are_told_as_ones_and_failures_as_noughts() -> None:
    calls = Calls()
    assert calls.ok.take() is None
    for ok in (True, True, False):
        calls.note(ok, 0.1)
    assert calls.ok.take() == StatisticSet(3, 2.0, 0.0, 1.0)
    assert calls.ok.take() is None
    calls.note(False, 0.1)
    assert calls.ok.take() == StatisticSet(1, 0.0, 0.0, 0.0)
    calls.note(True, 0.1)
    assert calls.ok.take() == StatisticSet(1, 1.0, 1.0, 1.0)
    assert (calls.ok.count, calls.failed) == (5, 2)


def test_reads_that_were_slow_several_times_in_a_row_are_told_until_one_is_not() -> None:
    metrics = Metrics()
    part, other = metrics.begin("shardId-0", 0.0), metrics.begin("shardId-1", 0.0)
    other.fetched_nothing(0.1)
    for _ in range(SLOW_READS - 1):
        part.fetched(FetchResult.RECORDS, 7.0)
    part.fetched(FetchResult.ERROR, 30.0)
    assert metrics.slow_services(0.0) == {}, "a read without an answer is another fault"
    part.fetched_nothing(SLOW_READ_S + 1)
    assert metrics.slow_services(0.0) == {KINESIS: "reads of 1 of 2 shards take up to 6.0 s"}
    part.fetched_nothing(0.1)
    assert metrics.slow_services(0.0) == {}
