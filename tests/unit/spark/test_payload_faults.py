"""What is said of payloads that do not fit the schema."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.session.payload_faults import RECORDS_MIN, STRAY_NAMES_MAX, MalformedShare, StrayNames


def test_a_stray_field_is_said_once_and_only_so_many_are():
    names = StrayNames()
    said = names.warning(3, "ID, place.y")
    assert said is not None and said.startswith("3 records have fields") and "ID, place.y (letter case counts)" in said
    assert names.warning(4, "place.y, ID") is None
    again = names.warning(5, "ID, x\n")
    assert again is not None and "x\\n (" in again and "ID" not in again
    assert names.warning(0, None) is None
    assert sum(names.warning(1, f"f{n}") is not None for n in range(2 * STRAY_NAMES_MAX)) == STRAY_NAMES_MAX - 3


def test_a_share_is_judged_over_the_last_hundred_records():
    share = MalformedShare(0.5)
    assert share.excess(RECORDS_MIN - 1, RECORDS_MIN - 1) is None, "too few to tell"
    said = share.excess(1, 1)
    assert said is not None and said.startswith("100 of the last 100 records are malformed, more than")
    assert share.excess(1, 1) is not None, "what was refused comes again, and is refused again"
    assert share.excess(99, 49) is None, "not more than half"
    assert MalformedShare(1).excess(1_000, 1_000) is None


@pytest.mark.parametrize("size", [100, 1_000, 30_000, 200_000])
def test_a_batch_of_a_hundred_or_more_is_judged_by_itself_whatever_came_before(size):
    share = MalformedShare(0.5)
    for _ in range(5):
        assert share.excess(size, size // 100) is None
    said = share.excess(9 * size // 10, 9 * size // 10)
    if size == 100:  # the last hundred are 90 of these and 10 of those before
        assert said is not None and said.startswith("90 of the last 100 records are malformed")
    else:
        assert said is not None and said.startswith(f"{9 * size // 10} of the last {9 * size // 10} records")


@given(st.integers(100, 5_000), st.lists(st.integers(1, 99), min_size=1, max_size=60))
def test_a_change_of_type_buries_less_than_a_hundred_records_however_they_come(good, pieces):
    share = MalformedShare(0.5)
    assert share.excess(good, 0) is None
    buried = 0
    for piece in pieces:
        buried += piece if share.excess(piece, piece) is None else 0
    assert buried < RECORDS_MIN


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_what_was_refused_comes_again_in_pieces_and_is_refused_again(pieces):
    """Children of several shards start again after different pauses."""
    share = MalformedShare(0.5)
    assert share.excess(300, 300) is not None
    assert all(share.excess(piece, piece) is not None for piece in pieces)
    assert share.excess(300, 3) is None, "until something passes"
    assert share.excess(10, 10) is None
