"""Back-off inside the remaining life of a lease (leases#retries-inside-the-lease)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.errors import TableError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.leases.validity import (
    CHAIN_SHARE,
    DELAY_S_MAX,
    FIRST_DELAY_S,
    again_at,
    chain_end,
    counts_from,
    may_be_applied,
    retry_delay_s,
)


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
def test_renewals_without_an_answer_are_followed_by_others_while_the_lease_lasts(lease_duration_s: float) -> None:
    """A regular renewal with two thirds of the lease left, on a connection that leads nowhere."""
    sent_at, until, sent = lease_duration_s / 3, lease_duration_s, 1
    while (next_at := again_at(sent_at, until, lease_duration_s)) < until:
        sent_at, sent = next_at, sent + 1
    assert sent >= 4
    assert sent <= 10


@pytest.mark.parametrize("answer_share", [0.0, 0.1, 0.3, 0.49])
def test_with_answers_within_half_a_lease_nothing_is_sent_but_regular_renewals(answer_share: float) -> None:
    """Each renewal is sent a third after the one before; by then that many of them are answered."""
    answered = next(number for number in range(10) if number / 3 >= answer_share)
    sent_at, confirmed_at = 0.0, -answered / 3
    answer_at = (answered - 1) / -3 + answer_share  # of the next one; that moves the belief on
    assert again_at(sent_at, confirmed_at + 1.0, 1.0) >= min(1 / 3, answer_at) - 1e-9


@pytest.mark.parametrize("over_s", [0.0, 3.0])
def test_where_no_belief_is_left_writes_follow_each_other_hardly_faster_than_regular_renewals(over_s: float) -> None:
    pause_s = again_at(20.0, 20.0 - over_s, 10.0) - 20.0
    assert 0.25 * 10.0 < pause_s < CHAIN_SHARE * 10.0


def test_an_answer_counts_from_the_sending_unless_it_took_most_of_the_lease() -> None:
    assert counts_from(100.0, 108.0, 107.0, 10.0) == 100.0
    assert counts_from(100.0, 108.5, 107.0, 10.0) == 107.0


def test_a_pause_ends_the_chain_of_sendings() -> None:
    """A worker that stood still has answers that look late, and nothing to count them from but their sendings."""
    assert chain_end(100.0, [97.0, 100.0, 103.0, 106.0], 4.0) == 106.0
    assert chain_end(100.0, [97.0, 100.0, 130.0], 4.0) == 100.0
