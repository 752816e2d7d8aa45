"""The last hour of each shard: what is kept, for how long, and that a peak stays visible."""

from __future__ import annotations

import pytest

from mld.core.errors import StreamError
from mld.core.steps import finish
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardActivity, ShardMetrics
from mld.serving.status import SHARDS_MAX, STEP_FIRST_S, STEP_LAST_S, VALUES_MAX, History

HOUR_S = 3600.0


class Stream:
    """A worker whose shards get records; time passes by `run`."""

    def __init__(self, *keys: str) -> None:
        self.metrics = Metrics()
        self.history = History()
        self.now = 1000.0
        for key in keys:
            self.metrics.begin(key, self.now)

    def part(self, key: str) -> ShardMetrics:
        return self.metrics.shards[key]

    def run(self, seconds: float, records_per_second: float = 0.0, behind_ms: int | None = 0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += self.history.step_s
            for part in self.metrics.shards.values():
                part.batches.note(records_per_second * self.history.step_s)
                if behind_ms is not None:
                    part.saw_lag(behind_ms, self.now)
            finish(self.history.note(self.metrics.shards, self.now, self.now))


def test_a_young_daemon_has_values_after_seconds() -> None:
    stream = Stream("a")
    stream.run(3 * STEP_FIRST_S, records_per_second=50, behind_ms=2500)
    assert stream.history.behind("a") == [2.5, 2.5, 2.5]
    assert stream.history.rate("a") == [None, 50, 50]


def test_after_an_hour_there_are_at_most_sixty_values_of_a_minute() -> None:
    stream = Stream("a")
    stream.run(HOUR_S, records_per_second=10)
    assert stream.history.step_s == STEP_LAST_S
    stream.run(HOUR_S, records_per_second=30)
    assert len(stream.history.behind("a")) == len(stream.history.rate("a")) == VALUES_MAX
    assert stream.history.rate("a")[5:] == pytest.approx([30] * (VALUES_MAX - 5))
    assert VALUES_MAX * STEP_LAST_S >= HOUR_S


def test_what_was_two_hours_ago_is_gone() -> None:
    stream = Stream("a")
    stream.run(HOUR_S, behind_ms=9000)
    stream.run(1.2 * HOUR_S, behind_ms=0)
    assert set(stream.history.behind("a")) == {0.0}


def test_a_peak_of_lag_survives_as_long_as_the_hour() -> None:
    stream = Stream("a")
    stream.run(60)
    stream.run(STEP_FIRST_S, behind_ms=60_000)
    stream.run(HOUR_S / 2)
    assert max(value for value in stream.history.behind("a") if value is not None) == 60.0


def test_records_are_neither_lost_nor_doubled_when_values_are_joined() -> None:
    stream = Stream("a")
    stream.run(HOUR_S / 2, records_per_second=8)
    rates = [rate for rate in stream.history.rate("a") if rate is not None]
    assert rates == pytest.approx([8] * len(rates))


def test_lag_that_nobody_knows_is_a_gap_and_not_zero() -> None:
    stream = Stream("a")
    stream.run(2 * STEP_FIRST_S, behind_ms=None)
    assert stream.history.behind("a") == [None, None]


def test_another_holding_of_the_shard_begins_without_a_rate() -> None:
    stream = Stream("a")
    stream.run(3 * STEP_FIRST_S, records_per_second=10)
    stream.metrics.begin("a", stream.now)  # its counters begin at zero again
    stream.run(STEP_FIRST_S, records_per_second=2)
    assert stream.history.rate("a")[-1] is None


def test_a_shard_that_is_gone_is_forgotten() -> None:
    stream = Stream("a", "b")
    stream.run(STEP_FIRST_S)
    stream.metrics.end(stream.part("a"))
    stream.run(STEP_FIRST_S)
    assert stream.history.behind("a") == []
    assert len(stream.history.behind("b")) == 2


def test_a_shard_that_came_later_is_aligned_at_the_newest_value() -> None:
    stream = Stream("a")
    stream.run(VALUES_MAX * STEP_FIRST_S)
    stream.metrics.begin("b", stream.now)
    stream.run(STEP_FIRST_S, behind_ms=7000)
    assert stream.history.step_s == 2 * STEP_FIRST_S
    assert stream.history.behind("b") == [7.0]
    assert stream.history.behind("a")[-1] == 7.0


def test_the_number_of_shards_is_bounded() -> None:
    stream = Stream(*(f"shard-{number}" for number in range(SHARDS_MAX + 5)))
    stream.run(STEP_FIRST_S)
    kept = sum(bool(stream.history.behind(key)) for key in stream.metrics.shards)
    assert kept == SHARDS_MAX


@pytest.mark.parametrize(
    ("activity", "passed_s", "lag_ms"),
    [
        (ShardActivity.IDLE, 1, 500),
        (ShardActivity.IDLE, 61, 61_500),
        (ShardActivity.PROCESSING, 61, 61_500),
        (ShardActivity.FAILING, 3600, 3_600_500),
        (ShardActivity.PARKED, 10, 10_500),
    ],
)
def test_lag_grows_unless_kinesis_has_just_said_it_of_an_idle_shard(
    activity: ShardActivity, passed_s: float, lag_ms: int
) -> None:
    part = ShardMetrics("a", 0.0)
    part.saw_lag(500, 1000.0)
    part.activity = activity
    assert part.lag_ms(1000.0 + passed_s) == lag_ms


def test_lag_is_the_age_of_the_oldest_record_in_hand_whatever_kinesis_says_of_the_tip() -> None:
    part = ShardMetrics("a", 0.0)
    part.saw_lag(0, 1000.0)
    part.oldest_wall_s = 400.0
    part.saw_lag(0, 1010.0)
    assert part.lag_ms(1020.0) == 620_000
    part.oldest_wall_s = None
    assert part.lag_ms(1020.0) == 0


def test_lag_counts_on_from_the_last_known_tip_while_reads_fail() -> None:
    part = ShardMetrics("a", 0.0)
    part.saw_lag(500, 1000.0)
    part.failed_reads.failed(StreamError("forbidden"), 1001.0)
    assert part.lag_ms(1030.0) == 30_500
    assert part.read_again() == 1
    assert part.lag_ms(1030.0) == 500
