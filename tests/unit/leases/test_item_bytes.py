"""The size of an item from above, and what still fits into its write units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.leases.rows import item_bytes, room_for
from tests.twins import dynamo_prices

NUMBERS = st.integers(-(10**30), 10**30).map(str) | st.decimals(0, 100, places=6).map(str)
PLAIN = (
    st.builds(lambda text: {"S": text}, st.text(max_size=20))
    | st.builds(lambda text: {"N": text}, NUMBERS)
    | st.builds(lambda data: {"B": data}, st.binary(max_size=20))
    | st.builds(lambda texts: {"SS": texts}, st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=3))
    | st.just({"NULL": True})
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.builds(lambda ones: {"L": ones}, st.lists(inner, max_size=4))
        | st.builds(lambda ones: {"M": ones}, st.dictionaries(st.text(max_size=5), inner, max_size=4))
    ),
    max_leaves=12,
)
ITEMS = st.dictionaries(st.text(min_size=1, max_size=12), VALUES, max_size=8)
Item = Mapping[str, Mapping[str, Any]]


@given(ITEMS)
def test_an_item_is_never_taken_for_smaller_than_dynamodb_takes_it(item: Item) -> None:
    assert item_bytes(item) >= dynamo_prices.item_bytes(item)


@given(ITEMS, st.integers(0, 200))
def test_what_fills_the_room_costs_no_unit(item: Item, reserve: int) -> None:
    room = room_for(item, "mldShards", reserve)
    filled = {**item, "mldShards": {"B": bytes(room)}}
    units = -(-(item_bytes(item, without=("mldShards",)) + reserve) // 1024)
    if room:
        assert -(-(item_bytes(filled) + reserve) // 1024) == units
        assert item_bytes({**item, "mldShards": {"B": bytes(room + 1)}}) + reserve > 1024 * units


@pytest.mark.parametrize(
    ("other", "room"), [(0, 1024 - 9), (1, 1023 - 9), (1014, 1), (1015, 0), (1024, 0), (1025, 1023 - 9)]
)
def test_the_room_ends_with_the_unit(other: int, room: int) -> None:
    item = {"": {"B": bytes(other)}, "mldShards": {"B": bytes(500)}}
    expected = 0 if other == 0 else room  # an item without anything costs nothing yet
    assert room_for(item, "mldShards", 0) == expected
