"""When metrics are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.metrics.datums import EARLY_S, wait_s


@pytest.mark.parametrize(
    ("wall_s", "length_s", "wait"),
    [(120.0, 60.0, 60.0), (119.5, 60.0, 0.5), (61.0, 60.0, 59.0), (1.0, 300.0, 299.0), (119.9375, 60.0, 60.0625)],
)
def test_a_period_ends_at_a_whole_one_of_the_wall_clock(wall_s: float, length_s: float, wait: float) -> None:
    assert wait_s(wall_s, length_s) == wait


@given(st.floats(0, 4e9), st.floats(1, 86_400))
def test_a_wait_is_about_a_period_at_most_and_never_nothing(wall_s: float, length_s: float) -> None:
    assert EARLY_S < wait_s(wall_s, length_s) <= length_s + EARLY_S
