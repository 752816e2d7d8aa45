"""The last hour of each shard: what is kept, for how long, and that a peak stays visible."""

from __future__ import annotations

import pytest

from mld.core.errors import StreamError
from mld.core.steps import finish
from mld.metrics.registry import Metrics
from mld.metrics.shard import TREND_STEP_S, TREND_STEPS, ShardActivity, ShardMetrics, Trend, trend_values
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


# --- the last hour in a row -------------------------------------------------------------------------------------------


def test_a_row_tells_the_lag_of_an_hour_within_a_quarter_and_the_greatest_of_each_step() -> None:
    trend, text, now_s = Trend(), "", 0
    lags_s = [0.2, 1, 5, 59, 600, 3600, 86_400, 700_000]
    for number, lag_s in enumerate(lags_s):
        now_s = number * TREND_STEP_S
        for lag_ms in (0, int(1000 * lag_s), 0, None):
            text = trend.noted(lag_ms, now_s + 60)
    values = trend_values(text, now_s, now_s)
    assert values[0] == 0.0
    for known, lag_s in zip(values[1:], lags_s[1:], strict=True):
        assert known is not None and known <= lag_s < 1.27 * known


def test_steps_without_a_look_are_unknown_and_old_ones_go() -> None:
    trend = Trend()
    trend.noted(2000, 0)
    text = trend.noted(4000, 3 * TREND_STEP_S)
    assert text == "4--7"
    assert trend_values(text, 3 * TREND_STEP_S, 4 * TREND_STEP_S) == [2.0, None, None, 4.0, None]
    assert trend_values(text, 0, 1e9) == [None] * TREND_STEPS
    for step in range(4, 100):
        text = trend.noted(4000, step * TREND_STEP_S)
    assert text == "7" * TREND_STEPS


def test_the_next_worker_goes_on_from_the_row_and_a_clock_set_back_changes_nothing() -> None:
    first = Trend()
    first.noted(1000, 0)
    told = first.noted(2000, TREND_STEP_S)
    second = Trend(told, TREND_STEP_S)
    assert second.noted(4000, 2 * TREND_STEP_S + 5) == "147"
    assert second.noted(8000, 0) == "14A"
    assert Trend("", 10**9).noted(1000, 5) == "1"


@pytest.mark.parametrize("text", ["", "\u00fc", "é" * 500, "!!"])
def test_what_is_no_letter_of_ours_is_unknown(text: str) -> None:
    assert set(trend_values(text, 0, 0)) <= {None}
