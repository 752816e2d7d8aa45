"""Rules: retrieval#pacing-of-reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.retrieval.pacing import (
    BACKOFF_MAX_S,
    CALL_INTERVAL_MIN_S,
    ERROR_BACKOFF_S,
    THROTTLE_BACKOFF_S,
    Pace,
    Pacing,
    beat_of,
    delay_s,
    failed,
)

PACING = Pacing(idle_interval_s=1.5)
REDUCED = Pacing(idle_interval_s=1.5, reduced_tps_threshold_s=4.0)


def test_the_first_call_goes_out_at_once() -> None:
    assert delay_s(PACING, Pace(), 100.0, 0.5) == 0.0


@pytest.mark.parametrize(
    ("pacing", "lag_ms", "passed_s", "wait_s"),
    [
        pytest.param(PACING, 0, 0.4, 1.1, id="at the tip the idle interval counts from the last answer"),
        pytest.param(PACING, None, 0.4, 1.1, id="an unknown lag is the tip"),
        pytest.param(PACING, 0, 5.0, 0.0, id="an elapsed interval costs no wait"),
        pytest.param(PACING, 1, 0.0, CALL_INTERVAL_MIN_S, id="behind the tip the catch-up interval holds"),
        pytest.param(Pacing(0.3, 1.0), 60_000, 0.0, 0.3, id="catching up is never slower than idling"),
        pytest.param(REDUCED, 3999, 1.0, 3.0, id="below the threshold it is the interval"),
        pytest.param(REDUCED, 4000, 0.0, CALL_INTERVAL_MIN_S, id="at the threshold the usual interval holds"),
        pytest.param(REDUCED, None, 0.0, 1.5, id="an unknown lag ignores the threshold"),
        pytest.param(
            Pacing(1.5, reduced_tps_threshold_s=1.0), 0, 0.0, 1.5, id="a threshold shorter than the idle interval"
        ),
    ],
)
def test_the_wait_after_an_answer(pacing: Pacing, lag_ms: int | None, passed_s: float, wait_s: float) -> None:
    assert delay_s(pacing, Pace(100.0, lag_ms), 100.0 + passed_s, 0.5) == pytest.approx(wait_s)


@pytest.mark.parametrize("base_s", [ERROR_BACKOFF_S, THROTTLE_BACKOFF_S])
def test_failures_back_off_exponentially(base_s: float) -> None:
    pace = Pace()
    waits = []
    for _ in range(4):
        pace = failed(pace, 100.0, base_s)
        waits.append(delay_s(PACING, pace, 100.0, 1.0))
    assert waits == pytest.approx([base_s, 2 * base_s, 4 * base_s, 8 * base_s])


def test_jitter_halves_the_wait_at_most() -> None:
    pace = failed(Pace(), 100.0, THROTTLE_BACKOFF_S)
    assert delay_s(PACING, pace, 100.0, 0.0) == pytest.approx(THROTTLE_BACKOFF_S / 2)


@given(
    idle_s=st.floats(0, 100),
    catch_up_s=st.floats(0, 100),
    threshold_ms=st.integers(0, 100_000),
    lag_ms=st.none() | st.integers(0, 10**9),
    failures=st.integers(0, 5000),
    first_s=st.sampled_from((ERROR_BACKOFF_S, THROTTLE_BACKOFF_S)),
    jitter=st.floats(0, 1, exclude_max=True),
    elapsed_s=st.floats(0, 1000),
)
def test_calls_are_never_closer_than_the_floor_nor_further_than_the_longest_interval(
    idle_s: float,
    catch_up_s: float,
    threshold_ms: int,
    lag_ms: int | None,
    failures: int,
    first_s: float,
    jitter: float,
    elapsed_s: float,
) -> None:
    pacing = Pacing(idle_s, catch_up_s, threshold_ms / 1000)
    spacing_s = elapsed_s + delay_s(pacing, Pace(0.0, lag_ms, failures, first_s), elapsed_s, jitter)
    longest_s = BACKOFF_MAX_S if failures else max(idle_s, threshold_ms / 1000)
    assert spacing_s >= CALL_INTERVAL_MIN_S - 1e-6
    assert spacing_s <= max(longest_s, CALL_INTERVAL_MIN_S, elapsed_s) + 1e-6


# --- the beat -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended_s", "next_s"), [(0.0, 1.5), (0.01, 1.6), (0.1, 1.6), (0.19, 1.7)])
def test_a_wait_at_the_tip_ends_with_a_beat(ended_s: float, next_s: float) -> None:
    pacing = Pacing(1.5, beat_s=0.1)
    now_s = ended_s + 0.003
    assert now_s + delay_s(pacing, Pace(ended_s, 0), now_s, 0.5) == pytest.approx(next_s)


def test_behind_the_tip_and_after_failures_there_is_no_beat() -> None:
    behind, failing = Pace(0.01, 5_000), failed(Pace(0.01, 0), 0.01, ERROR_BACKOFF_S)
    for pace in (behind, failing):
        assert delay_s(Pacing(1.5, beat_s=0.1), pace, 0.02, 0.5) == delay_s(Pacing(1.5), pace, 0.02, 0.5)


@pytest.mark.parametrize(("idle_s", "beat_s"), [(1.5, 0.1), (60.0, 0.1), (0.3, 0.02)])
def test_a_beat_is_short_beside_the_interval(idle_s: float, beat_s: float) -> None:
    assert beat_of(idle_s) == pytest.approx(beat_s)


@given(ended_s=st.floats(0, 1e6), spent_s=st.floats(0, 10), idle_s=st.floats(0.2, 60))
def test_a_beat_never_shortens_a_wait_and_draws_it_out_by_less_than_one(
    ended_s: float, spent_s: float, idle_s: float
) -> None:
    now_s, pace = ended_s + spent_s, Pace(ended_s, 0)
    plain = delay_s(Pacing(idle_s), pace, now_s, 0.5)
    on_beat = delay_s(Pacing(idle_s, beat_s=beat_of(idle_s)), pace, now_s, 0.5)
    assert plain - 1e-6 <= on_beat <= plain + beat_of(idle_s) + 1e-6
