"""The lag of a shard: what it counts from, and what is told of the last hour."""

from __future__ import annotations

import pytest

from mld.core.errors import StreamError
from mld.metrics.activity import ShardActivity
from mld.metrics.shard import ShardMetrics
from mld.metrics.trend import TREND_STEP_S, TREND_STEPS, Trend, trend_values


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
    part.forced_activity = activity
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
