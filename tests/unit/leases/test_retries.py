"""Back-off inside the remaining life of a lease (leases#retries-inside-the-lease)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.errors import TableError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.leases.validity import DELAY_S_MAX, FIRST_DELAY_S, may_be_applied, renewal_timeout_s, retry_delay_s


@given(st.integers(1, 10_000), st.floats(-10, 100), st.integers())
def test_a_delay_is_bounded_and_leaves_life(attempt: int, remaining_s: float, seed: int) -> None:
    delay_s = retry_delay_s(attempt, remaining_s, random.Random(seed))
    if delay_s is None:
        assert remaining_s < FIRST_DELAY_S
    else:
        assert 0 < delay_s < remaining_s
        assert delay_s <= DELAY_S_MAX


def test_delays_grow_and_differ() -> None:
    rng = random.Random(1)
    assert retry_delay_s(1, 10.0, rng) != retry_delay_s(1, 10.0, rng)
    assert (retry_delay_s(1, 10.0, rng) or 0) < (retry_delay_s(5, 10.0, rng) or 0)


@pytest.mark.parametrize(
    ("error", "may_be"),
    [
        (TableThrottledError(), False),
        (TableMissingError(), False),
        (TableUnavailableError(), True),
        (TableError(), True),
    ],
)
def test_only_plain_answers_exclude_that_a_write_was_applied(error: TableError, may_be: bool) -> None:
    assert may_be_applied(error) is may_be


@pytest.mark.parametrize("lease_duration_s", [4.0, 10.0, 30.0, 300.0])
def test_two_renewals_without_an_answer_leave_time_for_a_third(lease_duration_s: float) -> None:
    left_s = lease_duration_s * 2 / 3
    for attempt in (1, 2):
        left_s -= renewal_timeout_s(lease_duration_s)
        delay_s = retry_delay_s(attempt, left_s, random.Random(1))
        assert delay_s is not None
        left_s -= delay_s
    assert left_s > min(0.5, lease_duration_s / 10)
